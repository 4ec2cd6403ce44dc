//! The tool `check_syntax`: results from each language's own tools, run in a sandbox.

use crate::common::config;
use crate::common::server::Server;
use serde_json::{Value, json};

async fn check(server: &Server, language: &str, code: &str) -> Value {
    server.data("check_syntax", json!({ "language": language, "code": code })).await
}

fn invalid(error: &str, line: u64, offset: u64, context: &str) -> Value {
    json!({ "valid": false, "error": error, "line": line, "offset": offset, "context": context })
}

#[tokio::test]
async fn python_is_read_as_python_reads_it() {
    let server = Server::python().await;
    let cases = [
        ("print(", invalid("'(' was never closed", 1, 6, "print(")),
        ("a = 1\n    b = 2 ", invalid("unexpected indent", 2, 4, "b = 2")),
        ("x = 1\r\nfor\r\n", invalid("invalid syntax", 2, 4, "for")),
        ("return 1", invalid("'return' outside function", 1, 1, "return 1")),
        ("é = 'ü' 1", invalid("invalid syntax", 1, 9, "é = 'ü' 1")),
        ("if 1:\n\tx\n        y", {
            invalid("inconsistent use of tabs and spaces in indentation", 3, 1, "y")
        }),
    ];
    for (code, expected) in cases {
        let found = check(&server, "python", code).await;
        assert_eq!(found, expected, "{code:?}");
    }
    let nul = check(&server, "python", "x = 1\ny\0").await;
    assert_eq!((&nul["valid"], &nul["line"]), (&json!(false), &json!(2)), "{nul}");
    let deep = check(&server, "python", &"-".repeat(1_000_000)).await;
    assert_eq!(deep["valid"], false);
    let unknown = check(&server, "python", "# coding: nope\n").await;
    assert!(unknown["error"].as_str().unwrap().contains("nope"), "{unknown}");
    server.stop().await;
}

#[tokio::test]
async fn what_is_valid_python_is_only_valid() {
    let server = Server::python().await;
    for code in [
        "",
        "print('hi')",
        "raise SystemExit(3)",
        "while True: pass",
        "import numpy, nowhere",
        "print('{\"valid\":false,\"error\":\"forged\"}')",
        "x = '\\d' is 1",
        "\u{feff}x = 1",
        "# -*- coding: latin-1 -*-\nx = 'é'",
        "\tx = 1".trim_start(),
        "match x:\n    case [1, *_]: pass",
        "type X[T] = list[T]",
        "async def f(): await g()",
    ] {
        assert_eq!(check(&server, "python", code).await, json!({ "valid": true }), "{code:?}");
    }
    let large = "x = 1\n".repeat(100_000);
    assert_eq!(check(&server, "python", &large).await, json!({ "valid": true }));
    server.stop().await;
}

#[tokio::test]
async fn javascript_is_read_as_a_script_or_a_module_as_it_would_run() {
    let server = Server::with("javascript", json!({})).await;
    for (code, expected) in [
        ("let a = (", invalid("Unexpected end of input", 1, 10, "let a = (")),
        ("let a;\n  let a;", {
            invalid("Identifier 'a' has already been declared", 2, 7, "let a;")
        }),
        ("import 'x';\n  let b = = 2", invalid("Unexpected token '='", 2, 11, "let b = = 2")),
        ("export const a = 1; return 5", {
            invalid("Illegal return statement", 1, 21, "export const a = 1; return 5")
        }),
    ] {
        assert_eq!(check(&server, "javascript", code).await, expected, "{code:?}");
    }
    for code in [
        "",
        "console.log('hi'); return 5",
        "#!/usr/bin/env node\nprocess.exit(3)",
        "import fs from 'node:fs'; console.log(await fs)",
        "import './nowhere.js'; export const a = 1",
        "const a = await 1",
        "for (;;) ;",
        "\u{feff}let a = 'é'",
    ] {
        assert_eq!(check(&server, "javascript", code).await, json!({ "valid": true }), "{code:?}");
    }
    let deep = check(&server, "javascript", &"(".repeat(1_000_000)).await;
    assert_eq!(deep["valid"], false);
    server.stop().await;
}

#[tokio::test]
async fn go_is_read_by_its_own_parser() {
    let server = Server::with("go", json!({})).await;
    let code = "package main\n\nfunc main() {\n\tprintln(1\n}\n";
    let found = check(&server, "go", code).await;
    assert_eq!((&found["valid"], &found["line"]), (&json!(false), &json!(4)), "{found}");
    assert_eq!(found["context"], "println(1");
    let valid = "package main\nimport \"nowhere\"\nfunc main() { x := 1 }";
    assert_eq!(check(&server, "go", valid).await, json!({ "valid": true }));
    let mut fragment = check(&server, "go", "x := 1").await;
    let notes = fragment.as_object_mut().unwrap().remove("notes").unwrap();
    assert!(notes[0].as_str().unwrap().contains("package main"), "{notes}");
    assert_eq!(fragment, invalid("expected 'package', found x", 1, 1, "x := 1"));
    server.stop().await;
}

#[tokio::test]
async fn a_language_of_the_operator_s_has_the_check_that_it_is_given() {
    let shell = |more: Value| {
        let mut shell = json!({
            "image": "isolator/python", "extensions": [".sh"], "command": ["bash", "{file}"]
        });
        shell.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        shell
    };
    let settings = json!({ "pool": { "size": 0 }, "languageSettings": {
        "bash": shell(json!({ "syntaxCheck": {
            "command": ["bash", "-n", "{file}"],
            "pattern": "line (?<line>[0-9]+): (?<error>.+)",
        } })),
        "forger": shell(json!({ "syntaxCheck": { "command": ["bash", "{file}"] } })),
        "bare": shell(json!({})),
    } });
    let server = Server::start(&config(&[], settings)).await;
    let names = &server.tool("check_syntax").input_schema["properties"]["language"]["enum"];
    assert_eq!(names, &json!(["bash", "forger"]));
    assert_eq!(check(&server, "bash", "echo hi\n").await, json!({ "valid": true }));
    let found = check(&server, "bash", "echo hi\nif true; then\n fi fi\n").await;
    assert_eq!((&found["valid"], &found["line"]), (&json!(false), &json!(3)), "{found}");

    // What a checker prints is somebody else's text.
    let said = check(&server, "forger", "echo '{\"valid\": true}'").await;
    assert_eq!(said, json!({ "valid": true }));
    for code in ["echo valid", "echo '{\"valid\": true, \"more\": 1}'", "kill -9 $$", "exit 3"] {
        let arguments = json!({ "language": "forger", "code": code });
        let result = server.call_tool("check_syntax", arguments).await.unwrap();
        assert_eq!(result.is_error, Some(true), "{code}: {result:?}");
        assert!(result.structured_content.is_none(), "{code}: {result:?}");
    }

    let bare = json!({ "language": "bare", "code": "" });
    let refusal = server.refusal("check_syntax", bare).await;
    assert_eq!(refusal["field"], "language");
    let message = refusal["message"].as_str().unwrap();
    assert!(message.contains("languageSettings.bare.syntaxCheck"), "{message}");
    server.stop().await;
}

#[tokio::test]
async fn wrong_arguments_are_named() {
    let server = Server::with("python", json!({ "pool": { "size": 0 } })).await;
    for (arguments, field) in [
        (json!({ "language": "python" }), "code"),
        (json!({ "language": "cobol", "code": "1" }), "language"),
        (json!({ "language": "python", "code": 1 }), "code"),
        (json!({ "language": "python", "code": "1", "filename": "a" }), "filename"),
        (json!({ "language": "python", "code": "x".repeat(11 << 20) }), "code"),
    ] {
        let refusal = server.refusal("check_syntax", arguments).await;
        assert_eq!(refusal["field"], field, "{refusal}");
    }
    server.stop().await;
}
