//! Starts of requests that a full pool serves: each gets a sandbox that waits.
//!
//! This is a single test, because others at the same time would also make sandboxes and use up the machine.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::engine::State;
use crate::common::eventually;
use crate::common::server::Server;
use rmcp::model::ResourceContents;
use serde_json::{Value, json};

const SIZE: usize = 4;
const REQUESTS: usize = 20;

/// Less often than sandboxes can be made with all that waits in them, even on a busy machine.
const EVERY: Duration = Duration::from_millis(1500);

#[tokio::test]
async fn requests_get_a_ready_sandbox_with_its_interpreter() {
    let server = Server::with("python", json!({ "pool": { "size": SIZE, "hot": 1 } })).await;
    full(&server).await;
    at_once(&server).await;
    full(&server).await;
    at_a_steady_rate(&server).await;
    server.stop().await;
}

/// As many calls as there are sandboxes.
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

/// Waits until the pool is full and one sandbox is thawed. Used sandboxes look like ready ones until they are removed, so
/// they must be gone, too.
async fn full(server: &Server) {
    eventually("a full pool", async || {
        let mut states = BTreeMap::new();
        for sandbox in server.engine.sandboxes(&server.instance).await {
            *states.entry(sandbox.state).or_insert(0) += 1;
        }
        states == BTreeMap::from([(State::Running, 1), (State::Paused, SIZE - 1)])
            && waiting(server).await == (1, SIZE - 1)
    })
    .await;
}

/// The ready sandboxes that the server reports: thawed and paused ones.
async fn waiting(server: &Server) -> (usize, usize) {
    let pool = server.read("isolator://pool").await.expect("it can be read");
    let ResourceContents::TextResourceContents { text, .. } = pool else { panic!("{pool:?}") };
    let pool: Value = serde_json::from_str(&text).expect("JSON");
    let count = |what: &str| pool["pools"]["python"][what].as_u64().expect("a number") as usize;
    (count("hot"), count("paused"))
}

fn python(code: &str) -> Value {
    json!({ "language": "python", "entrypoint_code": code })
}
