# Everything that Python runs after the program is seen by a profiler that was left on.
#: {"ways": ["bare"]}
import sys


def profile(frame, event, arg):
    print(event, frame.f_code.co_name, frame.f_code.co_filename)


sys.setprofile(profile)
