import hashlib

import matplotlib.pyplot as plt
import numpy as np

print(plt.get_backend())
x = np.linspace(0, 6, 50)
figure, axes = plt.subplots()
axes.plot(x, np.sin(x), label="sin")
axes.legend()
figure.savefig("a.png")
print(hashlib.sha256(open("a.png", "rb").read()).hexdigest())
plt.show()
