#: {"status": "success"}
with open("pandas.py", "w") as file:
    file.write("x = 'mine'\n")

import pandas

print(pandas.x)
