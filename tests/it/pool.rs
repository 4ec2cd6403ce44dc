//! The pool: what it keeps ready, which faults it survives, and how it ends.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::common::answer::text_of;
use crate::common::engine::{Kind, State};
use crate::common::server::{Server, until_running};
use crate::common::{config, eventually, isolator, run, run_command, write_config};
use serde_json::{Value, json};

fn python(code: &str) -> Value {
    json!({ "language": "python", "entrypoint_code": code })
}

#[tokio::test]
async fn a_sandbox_that_was_unpaused_from_outside_still_serves() {
    let server = Server::python().await;
    // One that is thawed in the very moment in which the pool has frozen it counts as one that can't be
    // paused, and the call is served by another.
    eventually("a warm start", async || {
        for sandbox in server.wait_until_ready().await {
            server.engine.unpause(&sandbox).await;
        }
        let answer = server.call(python("print(1)")).await;
        assert_eq!(answer.output(), "1\n");
        answer.start() == "warm"
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn no_sandbox_serves_twice() {
    let server = Server::with("python", json!({ "pool": { "size": 2, "hot": 1 } })).await;
    let code = match server.engine.kind() {
        // The mount of the root names the container's own layer.
        Kind::Docker => {
            "import re\n\
             root = open('/proc/self/mountinfo').readline()\n\
             print(re.search('upperdir=([^,]+)', root)[1])"
        }
        // Each sandbox has a range of the host's users that no other one has.
        Kind::Embedded => "print(open('/proc/1/uid_map').read().split()[1])",
    };
    let mut seen = BTreeSet::new();
    for _ in 0..10 {
        let sandbox = server.call(python(code)).await.output().to_owned();
        assert!(seen.insert(sandbox), "a sandbox served twice");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_full_queue_refuses_requests_and_loses_none() {
    let limits = json!({ "requests": { "maxRunning": 1, "maxQueue": 1 } });
    let server = Server::with("python", limits).await;
    server.wait_until_ready().await;
    // One runs until it is ended, one waits, one finds no place. Which of the last two comes first
    // is the server's choice: it takes requests up at the same time.
    let first = server.begin(python("import time; time.sleep(600)")).await;
    until_running(&server, 1).await;
    let second = server.begin(python("print('late')")).await;
    let third = server.begin(python("print('late')")).await;
    let (mut second, mut third) = (Box::pin(second.answer()), Box::pin(third.answer()));
    let (refused, waiting) = tokio::select! {
        refused = &mut second => (refused, third),
        refused = &mut third => (refused, second),
    };
    let busy = text_of(&refused);
    assert!(busy.contains("1 requests are running and 1 are waiting"), "{busy}");
    assert!(busy.contains("did not run"), "{busy}");
    assert_eq!(refused.is_error, Some(true));

    first.cancel().await;
    let late = waiting.await;
    assert_eq!(late.structured_content.unwrap()["stdout"], "late\n");
    let receipt = &late.meta.unwrap()["isolator/receipt"];
    assert!(receipt["ms"]["queue"].as_f64().unwrap() > 0.0, "{receipt}");
    assert_eq!(server.call(python("print('fourth')")).await.output(), "fourth\n");
    server.stop().await;
}

#[tokio::test]
async fn a_request_that_waited_too_long_gets_an_error() {
    let limits = json!({ "requests": { "maxRunning": 1, "queueTimeout": "300ms" } });
    let server = Server::with("python", limits).await;
    server.wait_until_ready().await;
    let first = server.begin(python("import time; time.sleep(600)")).await;
    until_running(&server, 1).await;
    let text = server.call_without_sandbox(python("print('second')")).await;
    assert!(text.contains("300ms"), "{text}");
    first.cancel().await;
    server.stop().await;
}

#[tokio::test]
async fn without_a_pool_every_start_is_cold() {
    let server = Server::with("python", json!({ "pool": { "size": 0 } })).await;
    for _ in 0..2 {
        let answer = server.call(python("print(1)")).await;
        assert_eq!((answer.output(), answer.start()), ("1\n", "cold"));
    }
    eventually("nothing waits", async || {
        server.engine.sandboxes(&server.instance).await.is_empty()
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn old_sandboxes_are_replaced() {
    let server = Server::with("python", json!({ "pool": { "maxAge": "1s" } })).await;
    let first = server.wait_until_ready().await;
    eventually("another sandbox in the first one's place", async || {
        let paused = server.sandboxes(State::Paused).await;
        !paused.is_empty() && paused.iter().all(|sandbox| !first.contains(sandbox))
    })
    .await;
    assert_eq!(server.call(python("print(1)")).await.output(), "1\n");
    server.stop().await;
}

#[tokio::test]
async fn a_missing_image_fails_its_own_language_only_until_it_is_there() {
    let name = format!("isolator-test-{}", std::process::id());
    let settings = json!({ "languageSettings": { "late": {
        "image": name, "extensions": [".py"], "command": ["python3", "{file}"],
    } } });
    let server = Server::start(&config(&["python"], settings)).await;
    let call = json!({ "language": "late", "entrypoint_code": "print('late')" });

    let began = Instant::now();
    let text = server.call_without_sandbox(call.clone()).await;
    assert!(text.contains(&name), "{text}");
    assert!(began.elapsed().as_secs() < 30, "it took {:?}", began.elapsed());
    assert_eq!(server.call(python("print(1)")).await.output(), "1\n");

    server.engine.tag("isolator/python", &name).await;
    let result = server.call_tool("execute_code", call).await;
    // Before anything is asserted: the tag shall not outlive the test.
    server.engine.untag(&name).await;
    let data = result.unwrap().structured_content.expect("a sandbox");
    assert_eq!(data["stdout"], "late\n");
    server.stop().await;
}

#[tokio::test]
async fn every_terminating_signal_leaves_nothing() {
    for signal in ["TERM", "INT"] {
        let server = Server::with("python", json!({ "pool": { "size": 2, "hot": 1 } })).await;
        assert_eq!(server.call(python("print(1)")).await.output(), "1\n");
        server.stop_by(signal).await;
    }
}

#[tokio::test]
async fn gc_removes_only_the_leftovers_of_killed_servers() {
    let settings = config(&["python"], json!({}));
    let live = Server::start(&settings).await;
    let mut dead = Server::start_beside(&live, &settings).await;
    let kept = live.wait_until_ready().await;
    dead.wait_until_ready().await;
    let call = dead.begin(python("import time; time.sleep(600)")).await;
    until_running(&dead, 1).await;
    dead.kill().await;
    drop(call);

    let mut gc = isolator(live.directory());
    let gc = run_command(gc.arg("gc"), "");
    assert_eq!(gc.code, Some(0), "{gc:?}");
    assert!(gc.stdout.contains("removed"), "{gc:?}");
    live.engine.assert_nothing_left(&dead.instance).await;

    let mut still = live.sandboxes(State::Paused).await;
    still.sort();
    let mut kept = kept;
    kept.sort();
    assert_eq!(still, kept, "a live server's sandboxes were touched");
    assert_eq!(live.call(python("print(1)")).await.output(), "1\n");
    live.stop().await;
}

#[tokio::test]
async fn a_starting_server_sweeps_leftovers_of_killed_ones() {
    let settings = config(&["python"], json!({}));
    let live = Server::start(&settings).await;
    let mut dead = Server::start_beside(&live, &settings).await;
    dead.wait_until_ready().await;
    dead.kill().await;
    let heir = Server::start_beside(&live, &settings).await;
    eventually("all that the dead one left is gone", async || {
        heir.engine.left(&dead.instance).await.is_empty()
    })
    .await;
    heir.stop().await;
    live.stop().await;
}

#[test]
fn gc_without_leftovers_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    write_config(directory.path(), &config(&["python"], json!({})));
    let gc = run(directory.path(), &["gc"], "");
    assert_eq!(gc.code, Some(0), "{gc:?}");
}
