"""A program for each of fifteen packages of npm, and what it prints; None where that differs from version to version."""

NODE = {
    "date-fns": (
        """
const { format, addDays, formatDistance } = require("date-fns");
const { de } = require("date-fns/locale");
const day = new Date(2014, 1, 11);
console.log(format(addDays(day, 1), "yyyy-MM-dd"), formatDistance(day, addDays(day, 3), { locale: de }));
""",
        "2014-02-12 3 Tage",
    ),
    "ramda": (
        """
import * as R from "ramda";
console.log(R.pipe(R.groupBy((n) => (n % 2 ? "odd" : "even")), R.map(R.sum))([1, 2, 3, 4, 5]));
""",
        "{ odd: 9, even: 6 }",
    ),
    "uuid": (
        """
import { v5 as uuidv5, v4, validate, version } from "uuid";
console.log(uuidv5("https://www.w3.org/", uuidv5.URL), validate(v4()), version(v4()));
""",
        "c106a26a-21bb-5538-8bf2-57095d1976c1 true 4",
    ),
    "nanoid": (
        """
import { customAlphabet, nanoid } from "nanoid";
console.log(nanoid().length, /^[abc]{5}$/.test(customAlphabet("abc", 5)()));
""",
        "21 true",
    ),
    "chalk": (
        """
import { Chalk } from "chalk";
console.log(JSON.stringify(new Chalk({ level: 1 }).blue("Hello", "World!")));
""",
        '"\\u001b[34mHello World!\\u001b[39m"',
    ),
    "commander": (
        """
const { Command } = require("commander");
const program = new Command();
program.name("string-util").command("split").argument("<string>").option("-s, --separator <char>", "separator", ",")
  .action((text, options) => console.log(text.split(options.separator)));
program.parse(["split", "a/b", "-s", "/"], { from: "user" });
""",
        "[ 'a', 'b' ]",
    ),
    "express": (
        """
import express from "express";
const app = express();
app.get("/user/:name", (req, res) => res.json({ hello: req.params.name }));
const server = app.listen(0, "127.0.0.1", async () => {
  const answer = await fetch(`http://127.0.0.1:${server.address().port}/user/world`);
  console.log(await answer.json());
  server.close();
});
""",
        "{ hello: 'world' }",
    ),
    "axios": (
        """
const axios = require("axios");
const adapter = async (config) => ({ data: { url: axios.getUri(config) }, status: 200, headers: {}, config });
axios.get("/user", { baseURL: "https://example.org", params: { ID: 12345 }, adapter }).then(({ data }) => console.log(data.url));
""",
        "https://example.org/user?ID=12345",
    ),
    "cheerio": (
        """
import * as cheerio from "cheerio";
const $ = cheerio.load('<h2 class="title">Hello world</h2>');
$("h2.title").text("Hello there!").addClass("welcome");
console.log($("h2").prop("outerHTML"));
""",
        '<h2 class="title welcome">Hello there!</h2>',
    ),
    "mathjs": (
        """
import { derivative, evaluate, unit } from "mathjs";
console.log(evaluate("12 / (2.3 + 0.7)"), derivative("x^2 + x", "x").toString(), unit("5.08 cm").toNumber("inch").toFixed(2));
""",
        "4 2 * x + 1 2.00",
    ),
    "ajv": (
        """
const Ajv = require("ajv");
const validate = new Ajv().compile({ type: "object", properties: { foo: { type: "integer" } }, required: ["foo"] });
console.log(validate({ foo: 1 }), validate({ foo: "x" }), validate.errors[0].keyword);
""",
        "true false type",
    ),
    "marked": (
        """
import { marked } from "marked";
console.log(marked.parse("# Marked\\n\\nRendered by **marked**.").trim());
""",
        "<h1>Marked</h1>\n<p>Rendered by <strong>marked</strong>.</p>",
    ),
    "rxjs": (
        """
import { range, filter, map, reduce } from "rxjs";
range(1, 200).pipe(filter((x) => x % 2 === 1), map((x) => x + x), reduce((a, b) => a + b)).subscribe((x) => console.log(x));
""",
        "20000",
    ),
    "sharp": (
        """
const sharp = require("sharp");
const create = { width: 48, height: 48, channels: 4, background: { r: 255, g: 0, b: 0, alpha: 0.5 } };
sharp({ create }).resize(24, 12).webp().toBuffer().then((data) => sharp(data).metadata())
  .then(({ format, width, height }) => console.log(format, width, height));
""",
        "webp 24 12",
    ),
    "esbuild": (
        """
import * as esbuild from "esbuild";
const { code } = await esbuild.transform("let x: number = 1; export const f = () => x", { loader: "ts", minify: true });
console.log(code.trim().startsWith("let"), code.includes("number"));
process.exit(0);
""",
        "true false",
    ),
}
