# A module adds its own filters in front of those that were there when it was imported.
import warnings

warnings.filterwarnings("ignore")
import numpy as np

print(np.polyfit([1, 2], [1, 2], 5).round(3))
