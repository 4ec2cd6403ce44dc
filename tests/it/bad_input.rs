//! Invalid arguments: each answer names the field, and nothing runs.

use crate::common::server::Server;
use crate::common::shown;
use serde_json::{Value, json};

/// A good call with `more` in it.
fn with(more: Value) -> Value {
    let mut call = json!({ "language": "python", "entrypoint_code": "print('good')" });
    for (key, value) in more.as_object().expect("an object") {
        call[key] = value.clone();
    }
    call
}

fn file(name: &str) -> Value {
    json!({ "filename": name, "content": "" })
}

/// A good call with these files.
fn files(files: Vec<Value>) -> Value {
    with(json!({ "additional_files": files }))
}

/// Makes the calls, each of which must be refused for its field with the hint in the message, and
/// then a good call on the same connection.
async fn all_are_refused(calls: Vec<(Value, &str, &str)>) {
    let server = Server::python().await;
    for (call, field, hint) in calls {
        let shown = shown(&call);
        let refusal = server.refusal("execute_code", call).await;
        assert_eq!(refusal["field"], field, "{shown}: {refusal}");
        let message = refusal["message"].as_str().expect("a text");
        assert!(message.contains(hint), "{shown}: no {hint:?} in {message}");
    }
    assert_eq!(server.call(with(json!({}))).await.output(), "good\n");
    server.stop().await;
}

#[tokio::test]
async fn bad_file_names_are_refused() {
    let second = "additional_files[1].filename";
    let mut calls: Vec<_> = [
        ("", "empty"),
        ("/etc/passwd", "absolute"),
        ("../up", ".."),
        ("a/../../up", ".."),
        ("a/..", ".."),
        ("a\0b", "NUL"),
        (".", "directory"),
        ("folder/", "directory"),
        ("ok", "twice"),
        ("./ok", "twice"),
        (".//./ok", "twice"),
        ("ok/beneath", "can't be inside it"),
        ("main.py", "twice"),
        ("./main.py", "twice"),
        ("main.py/beneath", "can't be inside it"),
    ]
    .into_iter()
    .map(|(name, hint)| (files(vec![file("ok"), file(name)]), second, hint))
    .collect();
    let long_path = format!("{0}/{0}/{0}/{0}/{0}/f", "d".repeat(250));
    for long in ["x".repeat(256), "é".repeat(128), long_path] {
        calls.push((files(vec![file("ok"), file(&long)]), second, "too long"));
    }
    let deep = "d/".repeat(500) + "x";
    calls.push((files(vec![file("ok"), file(&deep)]), second, "folders deep"));
    calls.push((files(vec![file("a/b/c"), file("a/b")]), second, "can't be inside it"));
    for (name, hint) in [("../main.py", ".."), ("/main.py", "absolute")] {
        calls.push((with(json!({ "entrypoint_filename": name })), "entrypoint_filename", hint));
    }
    calls.push((
        with(json!({ "entrypoint_filename": "a", "additional_files": [file("a")] })),
        "additional_files[0].filename",
        "twice",
    ));
    all_are_refused(calls).await;
}

#[tokio::test]
async fn values_over_the_limits_are_refused() {
    let many = (0..200).map(|number| file(&number.to_string())).collect();
    let large = |bytes: usize| json!({ "filename": "large", "content": "x".repeat(bytes) });
    all_are_refused(vec![
        (files(many), "additional_files", "200 files"),
        (files(vec![file("a"), large(11 << 20)]), "additional_files[1].content", "10485760"),
        (with(json!({ "entrypoint_code": "#".repeat(11 << 20) })), "entrypoint_code", "10485760"),
        (with(json!({ "stdin": "x".repeat(11 << 20) })), "stdin", "10485760"),
        (with(json!({ "args": ["x".repeat(200_000)] })), "args[0]", "longer"),
        (with(json!({ "env": { "A": "x".repeat(200_000) } })), "env.A", "longer"),
        (with(json!({ "timeout": "5m1s" })), "timeout", "maximum of 5m"),
        (with(json!({ "memory_mb": 4096 })), "memory_mb", "1 GiB"),
        (with(json!({ "cpus": 64 })), "cpus", "2 cores"),
        (with(json!({ "memory_mb": 1 })), "memory_mb", "16 MiB"),
        (with(json!({ "cpus": 0.001 })), "cpus", "0.01"),
        (with(json!({ "timeout": "0s" })), "timeout", "zero"),
    ])
    .await;
}

#[tokio::test]
async fn exactly_one_source_is_required() {
    all_are_refused(vec![
        (json!({}), "entrypoint_code", "snippet_name"),
        (json!({ "language": "python" }), "entrypoint_code", "required"),
        (with(json!({ "snippet_name": "x" })), "snippet_name", "not both"),
        (with(json!({ "language": "cobol" })), "language", "python"),
        // It is known, but this server has it not.
        (with(json!({ "language": "go" })), "language", "python"),
        (json!({ "snippet_name": "unknown" }), "snippet_name", "unknown"),
        (json!({ "snippet_name": "../isolator_config" }), "snippet_name", "not a valid"),
        (json!({ "snippet_name": "" }), "entrypoint_code", "nothing to run"),
        (json!({ "snippet_name": "a\0" }), "snippet_name", "not a valid"),
    ])
    .await;
}

#[tokio::test]
async fn wrong_types_and_unknown_names_are_refused() {
    let content = json!([{ "filename": "a", "content": { "a": 1 } }]);
    let encoding = json!([{ "filename": "a", "content": "", "encoding": "hex" }]);
    let base64 = json!([{ "filename": "a", "content": "%%%", "encoding": "base64" }]);
    let missing = json!([{ "filename": "a" }]);
    let unknown = json!([{ "filename": "a", "content": "", "mode": 7 }]);
    all_are_refused(vec![
        (with(json!({ "entrypoint_code": 5 })), "entrypoint_code", "as a string"),
        (with(json!({ "language": ["python"] })), "language", "is a list"),
        (with(json!({ "snippet_name": true })), "snippet_name", "is a boolean"),
        (with(json!({ "additional_files": 5 })), "additional_files", "give a list"),
        (with(json!({ "additional_files": ["a"] })), "additional_files[0]", "filename and content"),
        (with(json!({ "additional_files": missing })), "additional_files[0].content", "required"),
        (with(json!({ "additional_files": content })), "additional_files[0].content", "string"),
        (with(json!({ "additional_files": encoding })), "additional_files[0].encoding", "base64"),
        (with(json!({ "additional_files": base64 })), "additional_files[0].content", "base64"),
        (with(json!({ "additional_files": unknown })), "additional_files[0].mode", "encoding"),
        (with(json!({ "args": "-n 5" })), "args", "list of strings"),
        (with(json!({ "args": ["a", null] })), "args[1]", "is null"),
        (with(json!({ "args": ["a\0"] })), "args[0]", "NUL"),
        (with(json!({ "env": ["A=1", "B"] })), "env[1]", "NAME=value"),
        (with(json!({ "env": { "A": [] } })), "env.A", "string"),
        (with(json!({ "env": { "": "x" } })), "env.", "variable"),
        (with(json!({ "env": { "A=B": "x" } })), "env.A=B", "variable"),
        (with(json!({ "env": { "A": "\0" } })), "env.A", "NUL"),
        (with(json!({ "stdin": ["1"] })), "stdin", "as a string"),
        (with(json!({ "memory_mb": "much" })), "memory_mb", "not a number"),
        (with(json!({ "memory_mb": -1 })), "memory_mb", "whole number"),
        (with(json!({ "cpus": [1] })), "cpus", "number of cores"),
        (with(json!({ "timeout": true })), "timeout", "duration"),
        (with(json!({ "timeout": "soon" })), "timeout", "\"5s\""),
        (with(json!({ "timeout": 3600 })), "timeout", "3600 was taken as 1h"),
        (with(json!({ "code": "print(1)" })), "entrypoint_code", "two names"),
        (
            with(json!({ "entrypoint_cod": "" })),
            "entrypoint_cod",
            "did you mean `entrypoint_code`?",
        ),
        (with(json!({ "memory": 64 })), "memory", "did you mean `memory_mb`?"),
        (
            with(json!({ "cwd": "/" })),
            "cwd",
            "there is no such argument; there are: session, language, ",
        ),
    ])
    .await;
}

#[tokio::test]
async fn long_values_are_not_repeated_in_answers() {
    let server = Server::python().await;
    let long = "x".repeat(100_000);
    let mut wrong = Vec::new();
    for call in [
        files(vec![file(&long)]),
        files(vec![file(&format!("/{long}"))]),
        files(vec![file(&format!("../{long}"))]),
        with(json!({ "entrypoint_filename": long })),
        with(json!({ "language": long })),
        with(json!({ "timeout": long })),
        json!({ "snippet_name": long }),
    ] {
        let refusal = server.refusal("execute_code", call.clone()).await.to_string();
        if refusal.len() > 2000 {
            wrong.push((refusal.chars().take(60).collect::<String>(), refusal.len()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    server.stop().await;
}
