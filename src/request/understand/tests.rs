use std::collections::BTreeSet;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::request::arguments::{AdditionalFile, Arguments, CheckSyntax, GetResult, TestCode};

/// Two languages with one extension between them, one that is named like another's alias, and the built-in ones.
const CONFIG: &str = r#"{ "languageSettings": {
    "bash": { "image": "i", "extensions": [".sh"], "command": ["bash", "{file}"] },
    "perl": { "image": "i", "extensions": [".pl"], "command": ["perl", "{file}"] },
    "prolog": { "image": "i", "extensions": [".pl"], "command": ["swipl", "{file}"] },
    "node": { "image": "i", "extensions": [".node"], "command": ["node", "{file}"] } } }"#;

fn read_as<T: ToolArguments>(arguments: Value) -> Result<(T, Vec<String>), InvalidArgument> {
    let config = Config::parse(CONFIG, None, Path::new("")).unwrap();
    read(arguments.into(), &config).map(|(arguments, notes)| (arguments, notes.into_texts()))
}

fn execute(arguments: Value) -> Arguments {
    read_as(arguments.clone()).unwrap_or_else(|error| panic!("{arguments}: {error}")).0
}

fn language(name: &str) -> (Option<String>, Option<String>) {
    let read = execute(json!({ "language": name, "entrypoint_code": "" }));
    (read.language, read.entrypoint_filename)
}

#[test]
fn correct_arguments_are_unchanged_and_have_no_notes() {
    let right = json!({
        "language": "python", "entrypoint_code": " a ", "entrypoint_filename": "a b", "stdin": "",
        "additional_files": [{ "filename": "", "content": "", "encoding": "base64" }],
        "args": ["", "a b", "[]"], "env": { "A": "", "b c": "null" }, "output_files": ["a b", "*"],
        "timeout": "1m 5s", "memory_mb": 64, "cpus": 0.5,
    });
    let (read, notes) = read_as::<Arguments>(right.clone()).unwrap();
    assert_eq!(read, arguments::parse(right).unwrap());
    assert!(notes.is_empty(), "{notes:?}");
    let (read, notes) = read_as::<TestCode>(json!({ "code": "", "timeout": 1.5 })).unwrap();
    assert_eq!(read.timeout.as_deref(), Some("1s 500ms"));
    assert!(notes.is_empty(), "{notes:?}");
}

/// The names of a struct's fields, which its error for an unknown one lists.
fn names_in<T: DeserializeOwned>() -> BTreeSet<String> {
    let told = serde_json::from_value::<T>(json!({ "?": 0 })).map(|_| ()).unwrap_err().to_string();
    told.split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_table_of_each_tool_has_the_arguments_that_its_struct_has() {
    let tables = [
        (names_in::<Arguments>(), Arguments::FIELDS),
        (names_in::<CheckSyntax>(), CheckSyntax::FIELDS),
        (names_in::<TestCode>(), TestCode::FIELDS),
        (names_in::<GetResult>(), GetResult::FIELDS),
        (names_in::<AdditionalFile>(), fields::FILE),
    ];
    for (names, table) in tables {
        let in_table: BTreeSet<_> = table.iter().map(|field| field.name.to_owned()).collect();
        assert_eq!(names, in_table, "in the struct, and in the table");
        assert_eq!(table.len(), in_table.len(), "each only once: {in_table:?}");
    }
}

#[test]
fn packages_are_a_list_under_each_of_their_names() {
    for given in [
        json!({ "packages": ["a>=1,<2"] }),
        json!({ "packages": "a>=1,<2" }),
        json!({ "requirements": ["a>=1,<2", "", null] }),
        json!({ "dependencies": "[\"a>=1,<2\"]" }),
    ] {
        let read = read_as::<Arguments>(given.clone());
        match given.get("packages") {
            // It could be two.
            Some(Value::String(_)) => assert_eq!(read.unwrap_err().field, "packages"),
            _ => assert_eq!(read.unwrap().0.packages, ["a>=1,<2"], "{given}"),
        }
    }
    assert_eq!(execute(json!({ "package": "a >= 1" })).packages, ["a >= 1"]);
    assert!(execute(json!({ "packages": [] })).packages.is_empty());
    assert!(execute(json!({ "packages": "" })).packages.is_empty());
    let error = read_as::<Arguments>(json!({ "packages": { "a": "1" } })).unwrap_err();
    assert!(error.message.ends_with("give a list of strings, such as [\"text\"]"), "{error}");
}

#[test]
fn null_counts_as_left_out_at_every_level() {
    let names = Arguments::FIELDS.iter().map(|field| (field.name.to_owned(), Value::Null));
    assert_eq!(execute(Value::Object(names.collect())), Arguments::default());
    let nested = json!({
        "additional_files": [{ "filename": "a", "content": "", "encoding": null }],
        "env": { "A": null },
    });
    let read = execute(nested);
    assert_eq!(read.additional_files.len(), 1);
    assert!(read.env.is_empty());
    assert_eq!(read_as::<GetResult>(json!({ "cancel": null })).unwrap().0, GetResult::default());
}

#[test]
fn a_session_is_found_under_each_of_its_names_and_in_wrapped_arguments() {
    let config = Config::parse(CONFIG, None, Path::new("")).unwrap();
    for named in [
        json!({ "session": "h" }),
        json!({ "session": "h", "language": null }),
        json!({ "session": "h", "lang": "Python" }),
        json!({ "session": null, "session_id": "h" }),
        json!({ "session": " ", "handle": "h" }),
        json!({ "Session": "h" }),
        json!({ "SESSION_ID": "h" }),
        json!({ "sessionHandle": "h" }),
        json!({ "input": { "session": "h" } }),
        json!({ "arguments": { "handle": "h" } }),
    ] {
        let given = Given::from(named);
        assert_eq!(named_session(&given).as_deref(), Some("h"), "{given}");
        let (read, _) = read_cell(given.clone(), "python", &config).unwrap();
        assert_eq!(read.session.as_deref(), Some("h"), "{given}");
        assert_eq!(read.language.as_deref(), Some("python"), "{given}");
    }
    for none in [
        json!("h"),
        json!({ "session": null }),
        json!({ "session": " " }),
        json!({ "session": 5 }),
        json!({ "stdin": "h", "args": ["session"] }),
        json!({ "input": { "session": "h" }, "language": "python" }),
    ] {
        let given = Given::from(none);
        assert_eq!(named_session(&given), None, "{given}");
    }
    let other = json!({ "session": "h", "lang": "golang" });
    let (read, _) = read_cell(other.into(), "python", &config).unwrap();
    assert_eq!(read.language.as_deref(), Some("go"));
}

#[test]
fn an_alias_of_a_language_counts_only_if_it_is_the_name_of_none() {
    let some = |text: &str| Some(text.to_owned());
    for (name, language_name, file) in [
        ("py", "python", None),
        ("PYTHON", "python", None),
        ("Python 3.12", "python", None),
        ("js", "javascript", None),
        ("node", "node", None),
        ("NodeJS", "javascript", None),
        ("ts", "javascript", Some("main.ts")),
        ("TypeScript", "javascript", Some("main.ts")),
        ("mjs", "javascript", Some("main.mjs")),
        ("golang", "go", None),
        ("shell", "bash", None),
        ("python2.7", "python2.7", None),
        ("pl", "pl", None),
        ("", "", None),
    ] {
        let expected = Some(language_name.to_owned()).filter(|name| !name.is_empty());
        assert_eq!(language(name), (expected, file.and_then(some)), "{name}");
    }
}

#[test]
fn a_tool_without_file_names_takes_no_language_that_needs_one() {
    let code = json!({ "language": "typescript", "code": "let a: number" });
    let error = read_as::<CheckSyntax>(code).unwrap_err();
    assert!(error.field == "language" && error.message.contains("execute_code"), "{error}");
}

/// The source in Python that is left.
fn source(code: &str) -> String {
    execute(json!({ "language": "python", "code": code })).entrypoint_code.unwrap()
}

#[test]
fn the_block_that_must_be_the_program_is_taken_out_of_markdown() {
    let readme = "text = \"\"\"\n```bash\npip install x\n```\n\n```\n1\n```\n\"\"\"\nprint(text)";
    let blocks = [
        ("\n```python\nprint(1)\n\nx\n```\n", "print(1)\n\nx"),
        ("```\nü\n```", "ü"),
        ("~~~python\nx\n~~~", "x"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''"),
        ("```python {1}\nx\n```", "x"),
        ("```{python}\nx\n```", "x"),
        ("```python title=\"a.py\"\nx\n```", "x"),
        ("\u{feff}```python\nx\n```", "x"),
        ("\\`\\`\\`python\nx\n\\`\\`\\`", "x"),
        ("```python\r\nx\r\n```\r\n", "x\r"),
        ("  ```python\n  if x:\n    y\n  ```", "if x:\n  y"),
        ("```python\nprint('```')\n```", "print('```')"),
        ("```python\nx\n# ```\n```", "x\n# ```"),
        // The last fence is missing.
        ("```python\nx", "x"),
        ("```\nx\n", "x\n"),
        ("Here is the code:\n\n```python\nx", "x"),
        // Words around it.
        ("Here's the code:\n\n```python\nx\n```\nIt prints `f(x)`, as you asked.", "x"),
        ("**Note:** this needs numpy.\n---\n# Solution\n```py\nx\n```", "x"),
        // Blocks of something else.
        (
            "```bash\npip install x\n```\nThen run this.\n```python\nx\n```\nOutput:\n```text\n1\n```",
            "x",
        ),
    ];
    for (code, inside) in blocks {
        assert_eq!(source(code), inside, "{code}");
    }
    assert_eq!(source(&format!("```python\n{readme}\n```")), readme);
    // In these, strings of several lines are not known.
    let shell = "cat <<END\n```sh\nx\n```\nEND";
    let fenced = json!({ "language": "bash", "code": format!("```sh\n{shell}\n```") });
    assert_eq!(execute(fenced).entrypoint_code.unwrap(), shell);
}

#[test]
fn ambiguous_markdown_is_left_as_it_is() {
    for same in [
        "```",
        "```\n```",
        "```python",
        "import x\n```\na\n```",
        "x = 1\n```python\na\n```",
        "```python\na\n```\nprint(1)",
        "```\na\n```\n```\nb\n```",
        "```python\na\n```\n```python\nb\n```",
        "```python\na\n```\nOutput:\n```\n1\n```",
        "```python\na\n```python\nb\n```",
        "```text\na\n```",
        "'''\n```\na\n```\n'''",
        "a = '''\n```python\nb\n```\n'''\n",
        "# ```python\na",
        "a = 1 # ~~~\n",
    ] {
        assert_eq!(source(same), same);
    }
    let shell = "cat <<END\n```\nx\n```\nEND";
    let read = execute(json!({ "language": "bash", "code": shell }));
    assert_eq!(read.entrypoint_code.unwrap(), shell);
}

#[test]
fn the_word_behind_a_fence_is_a_language() {
    let other = json!({ "language": "python", "code": "```go\npackage main\n```" });
    assert_eq!(read_as::<Arguments>(other).unwrap_err().field, "entrypoint_code");
    let none = json!({ "code": "```ts\nlet a: number\n```" });
    let read = execute(none);
    assert_eq!(read.language.as_deref(), Some("javascript"));
    assert_eq!(read.entrypoint_filename.as_deref(), Some("main.ts"));
}

#[test]
fn a_source_that_is_no_program_gets_advice() {
    let config = Config::parse(CONFIG, None, Path::new("")).unwrap();
    let advice =
        |language: &str, code: &str| advice(code, &config.languages[language]).map(|it| it.text);
    for (language, code, word) in [
        ("python", "```python\na\n```\n```python\nb\n```", Some("```")),
        ("python", "~~~python\na\n~~~\nb()", Some("~~~")),
        ("go", "Here it is\n```go\nx := 1\n```\nfunc", Some("```")),
        ("python", "import x\n%pip install \"y\"\n", Some("line 2, \"%pip install \\\"y\\\"\"")),
        ("python", "%%time\nx", Some("%%time")),
        ("python", "!ls -l\n", Some("!ls")),
        ("python", "! ls\n", Some("! ls")),
        ("python", "df.head?\n", Some("df.head?")),
        ("python", "x = '''\n!ls\n```\n'''\n%matplotlib inline", Some("line 5")),
        ("python", "x = 5 %\\\n 3\ny = '%s' % x", None),
        (
            "python",
            "import x\npip install y",
            Some("line 2, \"pip install y\", is a command for a shell"),
        ),
        ("python", "!pip install -q y", Some("is a command for a shell")),
        ("python", "'''\npip install y\n'''", None),
        ("javascript", "npm i lodash", Some("line 1, \"npm i lodash\"")),
        ("go", "fmt.Println(1)", Some("begins with the line `package main`")),
        ("go", "// A.\npackage main\nfunc main() { x", None),
        ("javascript", "!ls\n%pip", None),
        ("javascript", "/*\n```js\n*/\nlet x = '//';", None),
        ("bash", "!ls", None),
    ] {
        let advice = advice(language, code);
        match word {
            Some(word) => assert!(advice.as_ref().is_some_and(|a| a.contains(word)), "{advice:?}"),
            None => assert_eq!(advice, None, "{code}"),
        }
    }
    let notebook = r#"{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}"#;
    let error =
        read_as::<Arguments>(json!({ "language": "python", "code": notebook })).unwrap_err();
    assert!(error.message.contains("without code"), "{error}");
}

#[test]
fn a_note_on_many_items_is_added_once() {
    let files: Vec<_> = (0..200).map(|n| json!({ "path": n.to_string(), "text": n })).collect();
    let args: Vec<_> = (0..200).collect();
    let (read, notes) =
        read_as::<Arguments>(json!({ "args": args, "additional_files": files })).unwrap();
    assert_eq!((read.args.len(), read.additional_files.len()), (200, 200));
    assert!(notes.len() <= 10, "{notes:#?}");
    assert!(
        notes.contains(&"additional_files[].path was taken as filename".to_owned()),
        "{notes:?}"
    );
}

#[test]
fn long_values_are_neither_repeated_nor_parsed() {
    let long = "x".repeat(1 << 20);
    let list = format!("[{}0]", "0,".repeat(1 << 20));
    for (field, wrong) in [
        ("memory_mb", json!({ "memory_mb": long })),
        ("timeout", json!({ "timeout": long })),
        ("args", json!({ "args": list })),
        ("additional_files", json!({ "additional_files": list })),
        ("env", json!({ "env": list })),
        ("xxx", json!({ long.as_str(): 1 })),
        ("additional_files", json!({ "additional_files": [{ long.as_str(): 1 }] })),
    ] {
        let error = read_as::<Arguments>(wrong).unwrap_err();
        assert!(error.field.starts_with(field), "{field}: {error}");
        assert!(error.field.len() + error.message.len() < 1000, "{error}");
    }
    assert_eq!(execute(json!({ "language": long })).language, Some(long));
}

#[test]
fn a_number_is_never_guessed() {
    for wrong in [json!(64.5), json!(-1), json!("many"), json!("1GB"), json!(1e30), json!([64])] {
        let error = read_as::<Arguments>(json!({ "memory_mb": wrong })).unwrap_err();
        assert!(error.message.contains("whole number of MiB"), "{error}");
    }
    for wrong in ["soon", "5 parsecs", "-5", "inf", "NaN", "1e300"] {
        let error = read_as::<Arguments>(json!({ "timeout": wrong })).unwrap_err();
        assert!(error.message.contains("\"5s\""), "{error}");
    }
}

#[test]
fn a_refused_value_is_explained_with_its_interpretation() {
    let config = Config::parse("{}", None, Path::new("")).unwrap();
    let (_, notes) = read::<Arguments>(json!({ "timeout": 5000 }).into(), &config).unwrap();
    let error = notes.explain(InvalidArgument::new("timeout", "is too long"));
    assert_eq!(error.message, "is too long (timeout: 5000 was taken as 1h 23m 20s)");
}
