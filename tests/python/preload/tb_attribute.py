#: {"status": "error"}
import collections

print(collections.OrderdDict)
