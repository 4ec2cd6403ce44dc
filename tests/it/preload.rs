//! Preloaded interpreters: which programs get one, and what happens if none can be started.

use crate::common::answer::Answer;
use crate::common::engine::State;
use crate::common::eventually;
use crate::common::server::Server;
use serde_json::{Value, json};

/// Calls until a sandbox that waited serves, and returns that answer. One waits with everything that shall: it is
/// paused. A moment passes until the server counts it, in which a call is served by a new one.
async fn from_the_pool(server: &Server, arguments: Value) -> Answer {
    let mut found = None;
    eventually("a sandbox that waited", async || {
        if server.sandboxes(State::Paused).await.is_empty() {
            return false;
        }
        let answer = server.call(arguments.clone()).await;
        let is_hit = answer.is_hit();
        found = Some(answer);
        is_hit
    })
    .await;
    found.expect("an answer")
}

fn python(code: &str) -> Value {
    json!({ "language": "python", "entrypoint_code": code })
}

#[tokio::test]
async fn preloaded_modules_are_visible_only_to_programs_that_import_them() {
    let server = Server::python().await;
    // A program that looks at them openly gets an interpreter without them.
    let code = "import sys\nif 0: import pandas\nprint('pandas' in vars(sys)['mod' 'ules'])";
    let imports = from_the_pool(&server, python(code)).await;
    assert_eq!((imports.output(), imports.is_preloaded()), ("True\n", true));
    for code in [
        "import sys\nprint('pandas' in vars(sys)['mod' 'ules'])",
        "import sys\nif 0: import pandas\nprint('pandas' in sys.modules)",
    ] {
        let does_not = from_the_pool(&server, python(code)).await;
        assert_eq!((does_not.output(), does_not.is_preloaded()), ("False\n", true));
    }
    server.stop().await;
}

#[tokio::test]
async fn work_done_ahead_is_not_counted_for_the_program() {
    let server = Server::python().await;
    let code = "import pandas, time; print(time.process_time() > 0)";
    let answer = from_the_pool(&server, python(code)).await;
    assert!(answer.is_preloaded());
    // Importing pandas takes hundreds.
    let cpu = answer.data["cpu_ms"].as_f64().unwrap();
    assert!(cpu < 150.0, "{cpu} ms");
    server.stop().await;
}

#[tokio::test]
async fn preloading_leaves_a_program_all_of_its_memory() {
    let limit = json!({ "languageSettings": { "python": { "memoryMB": 128 } } });
    let server = Server::with("python", limit).await;
    let code = "if 0: import pandas\nx = bytearray(110 << 20)\nx[::4096] = b'x' * len(x[::4096])\nprint(len(x) >> 20)";
    let answer = from_the_pool(&server, python(code)).await;
    assert_eq!((answer.output(), answer.is_preloaded()), ("110\n", true));
    // And no more of it than the limit and what the interpreters really take.
    let code = "x = bytearray(180 << 20)\nx[::4096] = b'x' * len(x[::4096])";
    from_the_pool(&server, python(code)).await.assert_failed("out_of_memory", &["128 MiB"]);
    server.stop().await;
}

#[tokio::test]
async fn programs_that_need_a_plain_start_get_one() {
    let server = Server::python().await;
    let show = "import os, sys; print(sys.argv[0], os.environ.get('A'))";
    for (call, output) in [
        (json!({ "env": { "A": "1" } }), "main.py 1\n"),
        (json!({ "entrypoint_filename": "other.py" }), "other.py None\n"),
    ] {
        let mut call = call;
        call["language"] = json!("python");
        call["entrypoint_code"] = json!(show);
        let answer = from_the_pool(&server, call).await;
        assert_eq!((answer.output(), answer.is_preloaded()), (output, false));
    }
    let shadowing = json!({
        "language": "python",
        "entrypoint_code": "import numpy; print(numpy.mine)",
        "additional_files": [{ "filename": "numpy.py", "content": "mine = 'my own'" }],
    });
    let answer = from_the_pool(&server, shadowing).await;
    assert_eq!(answer.output(), "my own\n");
    server.stop().await;
}

#[tokio::test]
async fn preloading_can_be_switched_off() {
    let off = json!({ "languageSettings": { "python": { "preload": { "enabled": false } } } });
    let server = Server::with("python", off).await;
    let answer = from_the_pool(&server, python("print('hi')")).await;
    assert_eq!((answer.output(), answer.is_preloaded()), ("hi\n", false));
    server.stop().await;
}

#[tokio::test]
async fn a_failed_preload_is_reported_once() {
    for (preload, complaint, preloaded) in [
        (json!({ "modules": ["no_such_module"] }), "has no module no_such_module", true),
        (json!({ "modules": ["this"] }), "it printed", true),
        (
            json!({ "modules": ["asyncio.windows_events"] }),
            "it ended: ImportError: win32 only",
            true,
        ),
        (json!({ "memoryMB": 20 }), "more than preload.memoryMB allows", true),
        (json!({ "interpreter": "node" }), "can't be preloaded", false),
    ] {
        let settings = json!({
            "languageSettings": { "python": { "preload": preload } },
            "pool": { "size": 2, "hot": 0 },
        });
        let server = Server::with("python", settings).await;
        let answer = from_the_pool(&server, python("print('hi')")).await;
        assert_eq!((answer.output(), answer.is_preloaded()), ("hi\n", preloaded), "{preload}");
        eventually("the log tells", async || server.log().contains(complaint)).await;
        for _ in 0..3 {
            from_the_pool(&server, python("pass")).await;
        }
        assert_eq!(server.log().matches(complaint).count(), 1, "{}", server.log());
        server.stop().await;
    }
}
