import codecs
import locale
import os
import sys
import time

print(locale.getpreferredencoding(), locale.getlocale(), locale.setlocale(locale.LC_ALL), locale.getencoding())
print(sys.getdefaultencoding(), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), sys.flags.utf8_mode)
print(locale.localeconv()["decimal_point"], time.tzname, time.timezone, os.device_encoding(0))
print(codecs.lookup("latin-1").name, "straße".upper(), sorted("äaZz", key=locale.strxfrm), f"{1234567.5:n}")
locale.setlocale(locale.LC_ALL, "")
print(locale.setlocale(locale.LC_ALL))
os.environ["TZ"] = "Asia/Tokyo"
time.tzset()
print(time.tzname, time.localtime(0))
import datetime
import zoneinfo

print(datetime.datetime.fromtimestamp(0), zoneinfo.ZoneInfo("America/New_York").utcoffset(datetime.datetime(2024, 7, 1)))
