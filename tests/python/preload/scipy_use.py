import scipy.optimize
import scipy.stats

print(scipy.stats.norm.cdf(1.96), scipy.optimize.brentq(lambda x: x * x - 2, 0, 2))
