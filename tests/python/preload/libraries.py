import abc
import csv
import ctypes
import decimal
import enum
import hashlib
import re
import sqlite3
import ssl
import struct
import sys
import tempfile
import xml.etree.ElementTree as tree

import yaml

print(ssl.OPENSSL_VERSION, ssl.create_default_context().verify_mode, hashlib.sha256(b"").hexdigest())
database = sqlite3.connect(":memory:")
database.execute("create table t (a)")
database.executemany("insert into t values (?)", [(1,), (2,)])
print(database.execute("select sum(a) from t").fetchall(), sqlite3.sqlite_version)
print(yaml.safe_load("a: [1, 2]"), decimal.getcontext(), re.sub("(?i)a", "b", "aA"))
print(tree.fromstring("<a><b/></a>")[0].tag, struct.pack(">I", 1), ctypes.sizeof(ctypes.c_long))
print(tempfile.gettempdir(), enum.Enum("E", "a b").a, issubclass(dict, abc.ABC))
csv.writer(sys.stdout).writerow([1, "a,b"])
try:
    __import__("urllib.request").request.urlopen("http://example.org", timeout=1)
except OSError as error:
    print(error)
left_open = sqlite3.connect("file.db")
temporary = tempfile.TemporaryDirectory()
