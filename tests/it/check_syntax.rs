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
async fn an_error_has_its_line_column_and_text_in_every_language() {
    let server = Server::start(&config(&["python", "javascript", "go"], json!({}))).await;
    for (language, code, expected) in [
        ("python", "a = 1\n    b = 2 ", invalid("unexpected indent", 2, 4, "b = 2")),
        ("python", "x = 1\r\nfor\r\n", invalid("invalid syntax", 2, 4, "for")),
        ("python", "é = 'ü' 1", invalid("invalid syntax", 1, 9, "é = 'ü' 1")),
        ("javascript", "let a = (", invalid("Unexpected end of input", 1, 10, "let a = (")),
        ("javascript", "let a;\n  let a;", {
            invalid("Identifier 'a' has already been declared", 2, 7, "let a;")
        }),
        ("javascript", "import 'x';\n  let b = = 2", {
            invalid("Unexpected token '='", 2, 11, "let b = = 2")
        }),
    ] {
        assert_eq!(check(&server, language, code).await, expected, "{code:?}");
    }
    let found = check(&server, "go", "package main\n\nfunc main() {\n\tprintln(1\n}\n").await;
    assert_eq!((&found["line"], &found["context"]), (&json!(4), &json!("println(1")), "{found}");
    let mut fragment = check(&server, "go", "x := 1").await;
    let notes = fragment.as_object_mut().unwrap().remove("notes").unwrap();
    assert!(notes[0].as_str().unwrap().contains("package main"), "{notes}");
    assert_eq!(fragment, invalid("expected 'package', found x", 1, 1, "x := 1"));
    server.stop().await;
}

#[tokio::test]
async fn unusual_programs_are_checked_and_nothing_in_them_runs() {
    let server = Server::start(&config(&["python", "javascript"], json!({}))).await;
    for (language, code) in [
        ("python", ""),
        ("python", "while True: pass"),
        ("python", "print('{\"valid\":false,\"error\":\"forged\"}')"),
        ("python", "x = '\\d' is 1"),
        ("python", "\u{feff}x = 1"),
        ("python", &"x = 1\n".repeat(100_000)),
        ("javascript", ""),
        ("javascript", "#!/usr/bin/env node\nprocess.exit(3)"),
        ("javascript", "import './nowhere.js'; export const a = 1"),
        ("javascript", "for (;;) ;"),
        ("javascript", "\u{feff}let a = 'é'"),
    ] {
        assert_eq!(check(&server, language, code).await, json!({ "valid": true }), "{code:.80?}");
    }
    let nul = check(&server, "python", "x = 1\ny\0").await;
    assert_eq!((&nul["valid"], &nul["line"]), (&json!(false), &json!(2)), "{nul}");
    let unknown = check(&server, "python", "# coding: nope\n").await;
    assert!(unknown["error"].as_str().unwrap().contains("nope"), "{unknown}");
    for (language, deep) in [("python", "-"), ("javascript", "(")] {
        let found = check(&server, language, &deep.repeat(1_000_000)).await;
        assert_eq!(found["valid"], false, "{language}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_configured_language_is_checked_by_its_own_command() {
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

    // The output of a checker is not trusted.
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
async fn invalid_arguments_are_named() {
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
