//! Policies: a program that the operator forbids is refused before any of it runs.

use std::fs;

use crate::common::answer::text_of;
use crate::common::process::Process;
use crate::common::server::{Server, send_signal};
use crate::common::{config, eventually, isolator, run, run_command, write_config};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::future::{join, join_all, select};
use serde_json::json;
use tempfile::TempDir;

fn strict() -> serde_json::Value {
    json!({ "pool": { "size": 0 }, "policies": { "apply": { "python": ["strict"] } } })
}

#[tokio::test]
async fn a_forbidden_call_is_rejected_with_its_place() {
    let server = Server::with("python", strict()).await;
    let code = "import math\nimport numpy, os.path as p\n\nprint(open('/etc/passwd').read())";
    let answer = server.run_python(code).await;
    answer.assert_failed(
        "refused",
        &[
            "main.py:2:15: importing os.path is not allowed (forbidden-import)",
            "main.py:4:7: calling open is not allowed (forbidden-call)",
        ],
    );
    assert_eq!(
        answer.data["violations"],
        json!([
            { "file": "main.py", "rule": "forbidden-import", "line": 2, "column": 15,
              "message": "importing os.path is not allowed" },
            { "file": "main.py", "rule": "forbidden-call", "line": 4, "column": 7,
              "message": "calling open is not allowed" },
        ])
    );
    assert!(answer.receipt.is_null(), "no sandbox has seen it: {}", answer.receipt);
    assert_eq!(answer.data.get("exit_code"), None);

    let many = server.run_python(&"eval('1')\n".repeat(50)).await;
    many.assert_failed("refused", &["\nand 30 more"]);
    assert_eq!(many.data["violations"].as_array().unwrap().len(), 20);
    server.stop().await;
}

#[tokio::test]
async fn other_programs_run_as_usual() {
    let server = Server::with("python", strict()).await;
    let code = "import math, re\nprint(re.compile('a').findall('banana'), math.sqrt(4))";
    assert_eq!(server.run_python(code).await.output(), "['a', 'a', 'a'] 2.0\n");
    server.stop().await;
}

#[tokio::test]
async fn every_source_file_is_checked_and_no_other() {
    let server = Server::with("python", strict()).await;
    let files = |name: &str, content: &str| json!({ "additional_files": [{ "filename": name, "content": content }] });
    let helper = server.run_python_with("import a.helper", files("a/helper.py", "import os")).await;
    helper.assert_failed("refused", &["a/helper.py:1:8: "]);
    let data = server.run_python_with("print(1)", files("notes.txt", "import os")).await;
    assert_eq!(data.output(), "1\n");
    let renamed = json!({ "entrypoint_filename": "program" });
    server.run_python_with("import os", renamed).await.assert_failed("refused", &["program:1:8"]);
    let encoded = json!({ "additional_files": [{
        "filename": "helper.py", "content": BASE64.encode("import os"), "encoding": "base64"
    }] });
    server.run_python_with("", encoded).await.assert_failed("refused", &["helper.py:1:8"]);
    let binary = json!({ "additional_files": [{
        "filename": "helper.py", "content": BASE64.encode(b"\xff\xfe"), "encoding": "base64"
    }] });
    server.run_python_with("", binary).await.assert_failed("refused", &["not UTF-8"]);
    server.stop().await;
}

#[tokio::test]
async fn snippets_are_not_checked() {
    let server = Server::with("python", strict()).await;
    fs::write(server.directory().join("prompts/cwd.py"), "import os; print(os.getcwd())").unwrap();
    let answer = server.call(json!({ "snippet_name": "cwd" })).await;
    assert_eq!(answer.output(), "/workspace\n");
    let files = json!([{ "filename": "a.py", "content": "import os" }]);
    let call = json!({ "snippet_name": "cwd", "additional_files": files });
    server.call(call).await.assert_failed("refused", &["a.py:1:8"]);
    server.stop().await;
}

#[tokio::test]
async fn hostile_sources_get_an_answer_and_the_server_continues() {
    let server = Server::with("python", strict()).await;
    let megabytes = "(".repeat(5 << 20);
    server.run_python(&megabytes).await.assert_failed("refused", &["not-checked"]);
    for code in ["(".repeat(250_000), "a(".repeat(120_000), "f'{".repeat(80_000)] {
        // Whether there was time to read it or not, it does no harm.
        let answer = server.run_python(&code).await;
        assert!(["refused", "error"].contains(&answer.status()), "{}", answer.text);
    }
    assert_eq!(server.run_python("print('alive')").await.output(), "alive\n");
    server.stop().await;
}

/// The processes in which a server has programs checked.
fn checkers(server: &Server) -> Vec<Process> {
    let mut processes = server.process().children();
    processes.retain(|process| process.command().contains("policy-checker"));
    processes
}

#[tokio::test]
async fn programs_are_parsed_by_a_process_without_privileges() {
    let server = Server::with("python", strict()).await;
    server.run_python("import os").await.assert_failed("refused", &["importing os"]);
    let found = checkers(&server);
    let [checker] = found[..] else { panic!("{found:?}") };
    let status = checker.status();
    for (field, value) in [
        ("Uid", "65534\t65534\t65534\t65534"),
        ("Gid", "65534\t65534\t65534\t65534"),
        ("CapPrm", "0000000000000000"),
        ("CapEff", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
        ("Threads", "1"),
    ] {
        assert_eq!(status[field], value, "{field}: {status:?}");
    }
    assert_eq!(status["Groups"].trim(), "");
    for (limit, value) in
        [("Max address space", "1073741824"), ("Max file size", "0"), ("Max core file size", "1")]
    {
        assert_eq!(checker.limit(limit), [value, value], "{limit}");
    }
    assert_eq!(checker.descriptors().into_keys().collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(checker.read("environ"), "");
    server.stop().await;
    eventually("it has ended", async || !checker.is_there()).await;
}

#[tokio::test]
async fn a_failed_check_rejects_the_program_and_too_many_are_refused() {
    let mut config = strict();
    config["audit"] = json!({ "path": "audit.jsonl" });
    let server = Server::with("python", config).await;
    let refused =
        async || server.run_python("import os").await.assert_failed("refused", &["importing os"]);
    refused().await;
    checkers(&server)[0].kill();
    refused().await;

    let stop = || {
        let stopped = checkers(&server);
        stopped.iter().for_each(|checker| send_signal(checker.pid, "STOP"));
        stopped
    };
    stop();
    let call = json!({ "language": "python", "entrypoint_code": "import os" });
    let run = || Box::pin(server.call_tool("execute_code", call.clone()));
    // Another checker is started for one of two, and then there are no more.
    let (_, held) = select(run(), run()).await.factor_first();
    let stopped = stop();
    assert_eq!(stopped.len(), 2);
    // One more than are checked and can wait.
    let (held, mut answers) = join(held, join_all((0..258).map(|_| run()))).await;
    answers.push(held);
    let answers: Vec<_> = answers.into_iter().map(|answer| text_of(&answer.unwrap())).collect();
    let with = |text: &str| answers.iter().filter(|answer| answer.contains(text)).count();
    let too_slow = "the file takes too long to check; is it nested very deeply? (not-checked)";
    assert_eq!((with(too_slow), with("importing os is not allowed")), (2, 256));
    let busy = answers.iter().find(|answer| answer.starts_with("Sandbox error: ")).unwrap();
    for hint in [
        "too many programs wait to be checked against the policy of this server",
        "2 requests are running and 256 are waiting: try again",
        "nothing is known against it",
    ] {
        assert!(busy.contains(hint), "{busy}");
    }
    let log = fs::read_to_string(server.directory().join("audit.jsonl")).unwrap();
    assert_eq!(log.matches(r#""status":"busy""#).count(), 1, "{log}");
    let is_there = |checker: &Process| checker.is_there();
    eventually("they have ended", async || !stopped.iter().any(is_there)).await;
    refused().await;
    assert_eq!(server.run_python("print('alive')").await.output(), "alive\n");
    server.stop().await;
}

/// A folder with a configuration and with a policy of its own.
fn folder(apply: &serde_json::Value, rules: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("policies")).unwrap();
    fs::write(folder.path().join("policies/mine.yml"), rules).unwrap();
    let policies = json!({ "folder": "./policies", "apply": apply });
    write_config(folder.path(), &config(&["python"], json!({ "policies": policies })));
    folder
}

const RULE: &str = "id: no-print\nlanguage: Python\nmessage: print nothing\n\
                    rule: { pattern: print($$$) }\n";

#[test]
fn a_custom_policy_is_a_file_in_a_folder() {
    let folder = folder(&json!({ "python": ["mine", "strict"] }), RULE);
    let checked = run(folder.path(), &["config", "check"], "");
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let refused = run(folder.path(), &["run", "--language", "python", "-"], "import os\nprint(1)");
    assert_eq!(refused.code, Some(125), "{refused:?}");
    for line in ["main.py:1:8: importing os", "main.py:2:1: print nothing (no-print)"] {
        assert!(refused.stderr.contains(line), "{refused:?}");
    }
}

#[test]
fn an_unreadable_policy_is_a_configuration_error() {
    let broken = RULE.replace("pattern:", "patern:");
    let folder = folder(&json!({}), &broken);
    let mut serve = isolator(folder.path());
    let serve = serve.arg("serve");
    for finished in [run(folder.path(), &["config", "check"], ""), run_command(serve, "")] {
        assert_ne!(finished.code, Some(0), "{finished:?}");
        for hint in ["policies.folder", "mine.yml", "patern"] {
            assert!(finished.stderr.contains(hint), "no {hint} in {finished:?}");
        }
    }
}
