#: {"status": "error"}
import io

import pandas as pd

frame = pd.read_csv(io.StringIO("day,shop,sum\n2024-01-01,a,1.5\n2024-01-02,b,2\n2024-01-03,a,\n"), parse_dates=["day"])
print(frame, frame.dtypes, frame.describe(), frame.groupby("shop")["sum"].agg(["mean", "count"]))
frame.info()
print(frame.pivot_table(index="day", columns="shop", values="sum"), frame.to_json(), frame.to_dict("records"))
print(frame.set_index("day").resample("2D").sum(), pd.get_option("display.max_rows"), pd.options.display.width)
print(pd.to_datetime("1 March 2024"), pd.date_range("2024-01-31", periods=3, freq="ME"), frame.to_html()[:40])
part = frame[frame["sum"] > 1]
part["new"] = 1
print(frame["sum"].fillna(method="ffill") if False else frame.fillna(0))
frame.to_csv("out.csv")
print(open("out.csv").read(), pd.read_csv("out.csv", index_col=0).equals(frame))
frame["missing"]
