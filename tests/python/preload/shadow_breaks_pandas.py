#: {"files": {"calendar.py": "x = 'mine'\n"}, "status": "error"}
# A program that has a file of this name can't use pandas, in any start.
import pandas

print(pandas.Series([1]))
