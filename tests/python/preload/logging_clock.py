# Records say how long logging has been there.
import logging

import pandas

record = logging.makeLogRecord({})
print(0 <= record.relativeCreated < 10_000, pandas.Series([1]).sum())
