import copy
import dataclasses
import pickle
import typing


@dataclasses.dataclass
class Point:
    x: int
    y: typing.Optional[int] = None


def double(x):
    return 2 * x


data = pickle.dumps([Point(1), double, Point])
print(data)
print(pickle.loads(data), pickle.loads(data)[2] is Point, copy.deepcopy(Point(3)))
try:
    pickle.dumps(lambda: 1)
except Exception as error:
    print(type(error), error)
print(typing.get_type_hints(Point), repr(Point), Point.__module__, typing.get_type_hints(double))
