#: {"ways": ["bare"]}
import warnings

print(warnings.filters, warnings.defaultaction, warnings.onceregistry)
