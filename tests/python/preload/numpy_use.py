#: {"status": "error"}
import numpy as np

print(np.arange(12).reshape(3, 4) @ np.ones((4, 2)), np.linalg.inv([[2.0, 0], [0, 4]]))
print(np.random.default_rng(1).normal(size=3), np.random.seed(1), np.random.rand(2))
print(np.array([1]) / 0, np.geterr(), np.get_printoptions())
print(np.float64(1) / 3, repr(np.float32(2)), np.dtype("datetime64[ns]"))
np.save("a.npy", np.eye(2))
print(np.load("a.npy"), np.fft.fft([1, 2, 3]))
np.array([[1, 2], [3]])
