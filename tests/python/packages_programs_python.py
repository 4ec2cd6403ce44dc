"""A program for each of thirty packages of Python, and what it prints; None where that differs from version to version."""

PYTHON = {
    "polars": (
        """
import polars as pl
df = pl.DataFrame({"name": ["a", "b", "a"], "value": [1, 2, 3]})
print(df.lazy().group_by("name").agg(pl.col("value").sum()).sort("name").collect().rows())
""",
        "[('a', 4), ('b', 2)]",
    ),
    "duckdb": (
        """
import duckdb
connection = duckdb.connect("file.db")
connection.sql("create table t as select range as i, range * 2 as j from range(5)")
print(connection.sql("select sum(i), max(j) from t where i > 1").fetchall())
""",
        "[(9, 8)]",
    ),
    "shapely": (
        """
from shapely import Point, Polygon, unary_union
patch = Point(0.0, 0.0).buffer(10.0)
square = Polygon([(0, 0), (2, 0), (2, 2), (0, 2)])
print(round(patch.area, 2), unary_union([square, square.buffer(0)]).area, patch.contains(square))
""",
        "313.65 4.0 True",
    ),
    "orjson": (
        """
import datetime, orjson, numpy
data = {"type": "job", "when": datetime.datetime(1970, 1, 1), "status": "🆗", "payload": numpy.array([[1, 2], [3, 4]])}
packed = orjson.dumps(data, option=orjson.OPT_NAIVE_UTC | orjson.OPT_SERIALIZE_NUMPY)
print(packed.decode())
""",
        '{"type":"job","when":"1970-01-01T00:00:00+00:00","status":"🆗","payload":[[1,2],[3,4]]}',
    ),
    "humanize": (
        """
import datetime as dt, humanize
print(humanize.intcomma(12345), humanize.naturalsize(1_000_000), humanize.precisedelta(dt.timedelta(seconds=3633, days=2)))
humanize.i18n.activate("de_DE")
print(humanize.naturaltime(dt.timedelta(seconds=3)))
""",
        "12,345 1.0 MB 2 days, 1 hour and 33 seconds\nvor 3 Sekunden",
    ),
    "rapidfuzz": (
        """
from rapidfuzz import fuzz, process
choices = ["Atlanta Falcons", "New York Jets", "New York Giants", "Dallas Cowboys"]
print(fuzz.ratio("this is a test", "this is a test!") > 96, process.extractOne("cowboys", choices)[0])
""",
        "True Dallas Cowboys",
    ),
    "httpx": (
        """
import httpx
def app(request):
    return httpx.Response(200, json={"path": request.url.path, "query": request.url.params["q"]})
with httpx.Client(transport=httpx.MockTransport(app), base_url="https://example.org") as client:
    print(client.get("/search", params={"q": "a b"}).json())
""",
        "{'path': '/search', 'query': 'a b'}",
    ),
    "rich": (
        """
from rich.console import Console
from rich.table import Table
table = Table("Name", "Value", title="Numbers")
table.add_row("one", "[bold]1[/bold]")
Console(width=30).print(table)
""",
        None,
    ),
    "typer": (
        """
import typer
from typer.testing import CliRunner
app = typer.Typer()
@app.command()
def main(name: str, formal: bool = False):
    print(f"Goodbye Ms. {name}." if formal else f"Bye {name}!")
print(CliRunner().invoke(app, ["Camila", "--formal"]).stdout)
""",
        "Goodbye Ms. Camila.",
    ),
    "attrs": (
        """
from attrs import asdict, define, field, make_class, validators
@define
class SomeClass:
    a_number: int = field(default=42, validator=validators.gt(0))
    list_of_numbers: list[int] = field(factory=list)
sc = SomeClass(1, [1, 2, 3])
print(sc, asdict(sc), make_class("C", ["x"])(3).x)
""",
        "SomeClass(a_number=1, list_of_numbers=[1, 2, 3]) {'a_number': 1, 'list_of_numbers': [1, 2, 3]} 3",
    ),
    "tabulate": (
        """
from tabulate import tabulate
print(tabulate([["Sun", 696000], ["Moon", 1737]], headers=["Planet", "R (km)"], tablefmt="github"))
""",
        "| Planet   |   R (km) |\n|----------|----------|\n| Sun      |   696000 |\n| Moon     |     1737 |",
    ),
    "msgpack": (
        """
import msgpack
packed = msgpack.packb({"a": [1, 2.5, None, b"x"]})
print(len(packed), msgpack.unpackb(packed))
""",
        "18 {'a': [1, 2.5, None, b'x']}",
    ),
    "pyarrow": (
        """
import pandas as pd, pyarrow as pa, pyarrow.parquet as pq
table = pa.table({"n": [1, 2, 3], "s": ["a", "b", None]})
pq.write_table(table, "file.parquet", compression="zstd")
print(pd.read_parquet("file.parquet").n.sum(), pq.read_table("file.parquet").equals(table))
""",
        "6 True",
    ),
    "marshmallow": (
        """
from marshmallow import Schema, ValidationError, fields
class UserSchema(Schema):
    name = fields.Str(required=True)
    email = fields.Email()
print(UserSchema().dump({"name": "Monty", "email": "monty@python.org"}))
try:
    UserSchema().load({"email": "foo"})
except ValidationError as error:
    print(sorted(error.messages))
""",
        "{'name': 'Monty', 'email': 'monty@python.org'}\n['email', 'name']",
    ),
    "arrow": (
        """
import arrow
utc = arrow.get("2013-05-11T21:23:58.970460+07:00")
print(utc.shift(hours=-1).to("US/Pacific").format(), utc.humanize(utc.shift(hours=2)))
""",
        "2013-05-11 06:23:58-07:00 2 hours ago",
    ),
    "pendulum": (
        """
import pendulum
start = pendulum.datetime(2012, 1, 31, tz="Europe/Paris")
print(start.add(months=1).to_date_string(), (start.add(days=3) - start).in_words())
""",
        "2012-02-29 3 days",
    ),
    "python-slugify": (
        """
from slugify import slugify
print(slugify("影師嗎"), slugify("C'est déjà l'été.", max_length=12, word_boundary=True))
""",
        "ying-shi-ma c-est-deja-l",
    ),
    "cryptography": (
        """
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
f = Fernet(Fernet.generate_key())
key = Ed25519PrivateKey.generate()
key.public_key().verify(key.sign(b"message"), b"message")
print(f.decrypt(f.encrypt(b"A really secret message.")))
""",
        "b'A really secret message.'",
    ),
    "pycryptodome": (
        """
from Crypto.Cipher import AES
from Crypto.Hash import SHA256
from Crypto.Random import get_random_bytes
key = get_random_bytes(16)
cipher = AES.new(key, AES.MODE_EAX)
text, tag = cipher.encrypt_and_digest(b"secret")
print(AES.new(key, AES.MODE_EAX, cipher.nonce).decrypt_and_verify(text, tag), SHA256.new(b"").hexdigest()[:8])
""",
        "b'secret' e3b0c442",
    ),
    "zstandard": (
        """
import zstandard
data = b"data to compress" * 100
packed = zstandard.ZstdCompressor(level=10).compress(data)
print(len(packed) < 100, zstandard.ZstdDecompressor().decompress(packed) == data)
""",
        "True True",
    ),
    "xxhash": ("import xxhash; print(xxhash.xxh64(b'xxhash', seed=20141025).hexdigest())", "b559b98d844e0635"),
    "regex": (
        r"""
import regex
print(regex.findall(r"(?:cats|cat){e<=1}", "cat"), regex.sub(r"\p{Lu}+", "x", "ÄÖ b"), regex.match(r"(?|(a)|(b))", "b").groups())
""",
        "['cat'] x b ('b',)",
    ),
    "sqlglot": (
        """
import sqlglot
print(sqlglot.transpile("SELECT EPOCH_MS(1618088028295)", read="duckdb", write="hive")[0])
""",
        "SELECT FROM_UNIXTIME(1618088028295 / POW(10, 3))",
    ),
    "structlog": (
        """
import structlog
structlog.configure(processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer(sort_keys=True)])
structlog.get_logger().bind(a=1).info("hello, %s!", "world")
""",
        None,
    ),
    "tenacity": (
        """
from tenacity import retry, stop_after_attempt, wait_none
tries = []
@retry(stop=stop_after_attempt(3), wait=wait_none())
def flaky():
    tries.append(1)
    if len(tries) < 3:
        raise OSError("again")
    return len(tries)
print(flaky())
""",
        "3",
    ),
    "more-itertools": (
        """
from more_itertools import chunked, windowed
print(list(chunked([1, 2, 3, 4, 5, 6, 7], 3)), list(windowed([1, 2, 3], 2)))
""",
        "[[1, 2, 3], [4, 5, 6], [7]] [(1, 2), (2, 3)]",
    ),
    "sortedcontainers": (
        """
from sortedcontainers import SortedDict, SortedList
sl = SortedList(["e", "a", "c", "d", "b"])
sl.add("aa")
print(sl.bisect("c"), sl[0:2], SortedDict({"c": 3, "a": 1}).peekitem(0))
""",
        "4 ['a', 'aa'] ('a', 1)",
    ),
    "faker": (
        """
from faker import Faker
Faker.seed(4321)
fake = Faker(["en_US", "ja_JP"])
print(len({fake.name() for _ in range(50)}) > 10)
""",
        "True",
    ),
    "pint": (
        """
import pint
ureg = pint.UnitRegistry()
distance = 24.0 * ureg.centimeter
print(distance.to("inch").magnitude.__round__(3), (distance / (2 * ureg.second)).dimensionality)
""",
        "9.449 [length] / [time]",
    ),
    "h3": (
        """
import h3
cell = h3.latlng_to_cell(37.769377, -122.388903, 9)
print(cell, len(h3.grid_disk(cell, 1)))
""",
        "89283082e73ffff 7",
    ),
}
