//! The tool `test_code`: syntax, policies and execution, each with its own form of answer.

use crate::common::server::Server;
use serde_json::{Value, json};

async fn server(more: Value) -> Server {
    let mut settings = json!({ "tools": { "testCode": { "enabled": true } } });
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Server::with("python", settings).await
}

async fn test(server: &Server, arguments: Value) -> Value {
    server.data("test_code", arguments).await
}

#[tokio::test]
async fn the_tool_is_offered_only_if_it_is_enabled() {
    let server = Server::with("python", json!({ "pool": { "size": 0 } })).await;
    let names: Vec<_> = server.tools.iter().map(|tool| &*tool.name).collect();
    assert!(!names.contains(&"test_code"), "{names:?}");
    let error = server.call_raw("test_code", json!({ "code": "" })).await;
    assert_eq!(error.data.unwrap()["field"], "name");
    server.stop().await;
}

#[tokio::test]
async fn each_phase_has_its_own_form_of_answer() {
    let server = server(json!({ "policies": { "apply": { "python": ["strict"] } } })).await;
    assert_eq!(
        test(&server, json!({ "code": "import os\nprint(" })).await,
        json!({ "valid": false, "phase": "syntax_check", "error": "'(' was never closed",
            "line": 2, "offset": 6, "context": "print(" })
    );
    assert_eq!(
        test(&server, json!({ "code": "print('ran')\nimport os" })).await,
        json!({ "valid": false, "phase": "security_check", "violations": [
            { "file": "main.py", "rule": "forbidden-import", "line": 2, "column": 8,
              "message": "importing os is not allowed" },
        ] })
    );
    let code = "print('out')\nraise ValueError('é')";
    let ran = test(&server, json!({ "code": code })).await;
    assert_eq!((&ran["stdout"], &ran["exit_code"]), (&json!("out\n"), &json!(1)), "{ran}");
    assert!(ran["stderr"].as_str().unwrap().ends_with("ValueError: é\n"), "{ran}");
    let keys: Vec<_> = ran.as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["exit_code", "phase", "stderr", "stdout"]);
    assert_eq!(ran["phase"], "execution");
    server.stop().await;
}

#[tokio::test]
async fn without_a_policy_everything_valid_runs() {
    let server = server(json!({})).await;
    let ran = test(&server, json!({ "code": "import os; print(os.getcwd())" })).await;
    assert_eq!(
        ran,
        json!({ "stdout": "/workspace\n", "stderr": "", "exit_code": 0, "phase": "execution" })
    );
    server.stop().await;
}

#[tokio::test]
async fn a_timeout_exits_with_124_and_keeps_the_output() {
    let server = server(json!({})).await;
    let code = "import time\nprint('before', flush=True)\ntime.sleep(600)";
    for timeout in [json!(0.5), json!("500ms")] {
        let ran = test(&server, json!({ "code": code, "timeout": timeout })).await;
        let expected = json!({
            "stdout": "before\n", "stderr": "", "exit_code": 124, "phase": "execution"
        });
        assert_eq!(ran, expected);
    }
    server.stop().await;
}

#[tokio::test]
async fn cpu_time_and_memory_are_limited() {
    let server = server(json!({})).await;
    let spin = "print('before', flush=True)\nwhile True: pass";
    let ran = test(&server, json!({ "code": spin, "cpu_limit_sec": 1, "timeout": 100 })).await;
    assert_eq!((&ran["exit_code"], &ran["stdout"]), (&json!(152), &json!("before\n")), "{ran}");
    let fork = "import os, sys\nif os.fork() == 0:\n    while True: pass\n\
                print(os.wait()[1] & 127)";
    let ran = test(&server, json!({ "code": fork, "cpu_limit_sec": 1, "timeout": 100 })).await;
    assert_eq!(ran["stdout"], "24\n", "a child has the same limit: {ran}");
    let limit = "import resource; print(resource.getrlimit(resource.RLIMIT_CPU))";
    let ran = test(&server, json!({ "code": limit })).await;
    assert_eq!(ran["stdout"], "(-1, -1)\n", "{ran}");

    let grow = "x = bytearray(300 << 20)\nprint(len(x))";
    let ran = test(&server, json!({ "code": grow, "memory_limit_mb": 64 })).await;
    assert_ne!(ran["exit_code"], 0, "{ran}");
    server.stop().await;
}

#[tokio::test]
async fn invalid_arguments_are_named() {
    let server = server(json!({ "pool": { "size": 0 } })).await;
    for (more, field) in [
        (json!({}), "code"),
        (json!({ "code": 1 }), "code"),
        (json!({ "code": "", "language": "go" }), "language"),
        (json!({ "code": "", "timeout": 301 }), "timeout"),
        (json!({ "code": "", "timeout": "6m" }), "timeout"),
        (json!({ "code": "", "timeout": -1 }), "timeout"),
        (json!({ "code": "", "timeout": 1e300 }), "timeout"),
        (json!({ "code": "", "timeout": true }), "timeout"),
        (json!({ "code": "", "cpu_limit_sec": 1.5 }), "cpu_limit_sec"),
        (json!({ "code": "", "cpu_limit_sec": 301 }), "cpu_limit_sec"),
        (json!({ "code": "", "memory_limit_mb": 1 }), "memory_limit_mb"),
        (json!({ "code": "", "memory_limit_mb": 4096 }), "memory_limit_mb"),
        (json!({ "code": "x".repeat(11 << 20) }), "code"),
    ] {
        let shown = crate::common::shown(&more);
        let refusal = server.refusal("test_code", more).await;
        assert_eq!(refusal["field"], field, "{shown}: {refusal}");
    }
    server.stop().await;
}
