//! A full pool is useless if no request gets a sandbox from it, so this counts the hits.
//!
//! This is a single test, because others at the same time would also make sandboxes and use up the machine.

use std::time::Duration;

use crate::common::engine::State;
use crate::common::eventually;
use crate::common::server::Server;
use serde_json::{Value, json};

const SIZE: usize = 4;
const REQUESTS: usize = 20;

/// Less often than sandboxes can be made with all that waits in them, even on a busy machine.
const EVERY: Duration = Duration::from_millis(1500);

#[tokio::test]
async fn requests_find_a_sandbox_and_an_interpreter_that_wait() {
    let server = Server::with("python", json!({ "pool": { "size": SIZE, "hot": 1 } })).await;
    full(&server).await;
    at_once(&server).await;
    full(&server).await;
    at_a_steady_rate(&server).await;
    server.stop().await;
}

/// As many as there are sandboxes.
async fn at_once(server: &Server) {
    let call = || server.call(python("print('hi')"));
    let (a, b, c, d) = tokio::join!(call(), call(), call(), call());
    for answer in [a, b, c, d] {
        assert!(answer.is_hit(), "{}", answer.text);
        assert!(answer.is_preloaded());
    }
}

async fn at_a_steady_rate(server: &Server) {
    let mut hits = 0;
    let mut preloaded = 0;
    let mut starts = Vec::new();
    let mut every = tokio::time::interval(EVERY);
    for number in 0..REQUESTS {
        every.tick().await;
        let answer = server.call(python(&format!("print({number})"))).await;
        assert_eq!(answer.output(), format!("{number}\n"));
        hits += usize::from(answer.is_hit());
        preloaded += usize::from(answer.is_hit() && answer.is_preloaded());
        starts.push(answer.start().to_owned());
    }
    assert!(hits >= REQUESTS - 1, "{starts:?}, and the log:\n{}", server.log());
    assert_eq!(preloaded, hits, "what waits has its interpreter");
}

/// Waits until the pool is, and one sandbox is thawed.
async fn full(server: &Server) {
    let count = async |state| server.sandboxes(state).await.len();
    eventually("a full pool", async || {
        (count(State::Running).await, count(State::Paused).await) == (1, SIZE - 1)
    })
    .await;
}

fn python(code: &str) -> Value {
    json!({ "language": "python", "entrypoint_code": code })
}
