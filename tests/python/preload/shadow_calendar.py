#: {"files": {"calendar.py": "x = 'mine'\n"}, "status": "success"}
import calendar

print(calendar.x, calendar.__file__)
