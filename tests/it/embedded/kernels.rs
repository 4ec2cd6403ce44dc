//! Kernels of sessions that are forked from a template of their own.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use super::templates::{python, templates, with_templates};
use crate::common::eventually;
use crate::common::server::Server;

/// Sessions that are compared.
const SESSIONS: usize = 10;

/// Prints whether the kernel of a session comes from a template that has IPython: the collector does not look at what was there before
/// a fork.
const IS_FORKED: &str = "import gc\n\
    from IPython.core.interactiveshell import InteractiveShell as shell\n\
    print(not any(one is shell for one in gc.get_objects()))\n";

/// What modules have drawn from the system, each in a line.
const DRAWN: &str = "import pandas, random, ssl, uuid, tempfile, secrets, numpy\n\
    from multiprocessing import current_process\n\
    print(random.random(), random.Random().random(), numpy.random.random(), ssl.RAND_bytes(8).hex(), uuid.uuid4(),\n\
    \x20     uuid.uuid1(), next(tempfile._get_candidate_names()), secrets.token_hex(),\n\
    \x20     bytes(current_process().authkey).hex(), sep='\\n')";

/// What a cell sees of its process, but for names that differ from one sandbox to the next.
const SEEN: &str = "import os, signal, sys, threading\n\
    own = {'HOSTNAME'}\n\
    print(sorted((name, value) for name, value in os.environ.items() if name not in own))\n\
    print(sys.argv, getattr(sys, 'orig_argv', None), sys.path, sys.flags, os.getcwd(), os.listdir())\n\
    print(sorted(os.readlink(f'/proc/self/fd/{number}').partition(':')[0] for number in range(3, 1024)\n\
    \x20            if os.path.lexists(f'/proc/self/fd/{number}')))\n\
    print([(number, str(signal.getsignal(number))) for number in signal.valid_signals() if number < 32])\n\
    print(threading.active_count(), sorted(vars(sys.modules['__main__'])), len(In), Out, get_ipython().execution_count)";

struct Session<'a> {
    server: &'a Server,
    id: String,
}

impl<'a> Session<'a> {
    async fn open(server: &'a Server) -> Self {
        let opened = call(server, "open_session", json!({ "language": "python" })).await;
        Self { server, id: opened["session"].as_str().expect("a handle").to_owned() }
    }

    /// Runs a cell. Returns what it prints.
    async fn run(&self, code: &str) -> String {
        let cell = json!({ "session": self.id, "entrypoint_code": code });
        let ran = call(self.server, "execute_code", cell).await;
        assert_eq!(ran["status"], "success", "{ran}");
        ran["stdout"].as_str().expect("a text").to_owned()
    }

    async fn is_forked(&self) -> bool {
        self.run(IS_FORKED).await == "True\n"
    }

    async fn close(self) {
        call(self.server, "close_session", json!({ "session": self.id })).await;
    }
}

async fn call(server: &Server, tool: &str, arguments: Value) -> Value {
    let result = server.call_tool(tool, arguments).await.expect("an answer");
    result.structured_content.unwrap_or_else(|| panic!("{tool}: {:?}", result.content))
}

/// Waits until sessions get kernels of a template. Returns what the cell printed in a session without one.
async fn until_forked(server: &Server, code: &str) -> String {
    let first = Session::open(server).await;
    let printed = first.run(code).await;
    first.close().await;
    eventually("a kernel of a template", async || {
        let session = Session::open(server).await;
        let is_forked = session.is_forked().await;
        session.close().await;
        is_forked
    })
    .await;
    printed
}

#[tokio::test]
async fn sessions_have_a_template_that_no_program_sees() {
    let server = with_templates().await;
    let before = templates(&server).len();
    until_forked(&server, "").await;
    assert!(templates(&server).len() > before);
    let code = "import pandas, sys\n\
        print([name for name in sys.modules if name.partition('.')[0] in ('IPython', 'traitlets', 'kernel')])";
    for _ in 0..SESSIONS {
        let answer = server.call(python(code)).await;
        assert!(answer.is_preloaded(), "{answer:?}");
        assert_eq!(answer.output(), "[]\n");
    }
    // The template takes part in nothing but sessions, and has no more rights than any.
    for template in templates(&server) {
        template.assert_has_no_privileges();
    }
    server.stop().await;
}

#[tokio::test]
async fn kernels_of_one_template_share_nothing_that_was_drawn_and_look_like_others() {
    let server = with_templates().await;
    let plain = until_forked(&server, SEEN).await;
    let mut drawn = BTreeSet::new();
    let mut forked = 0;
    while forked < SESSIONS {
        let session = Session::open(&server).await;
        let seen = session.run(SEEN).await;
        // A sandbox of another launcher may have to wait for its own template.
        if session.is_forked().await {
            assert_eq!(seen, plain);
            let count = drawn.len();
            let lines = session.run(DRAWN).await;
            drawn.extend(lines.lines().map(ToOwned::to_owned));
            assert_eq!(drawn.len(), count + 9, "{lines}");
            forked += 1;
        }
        session.close().await;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_template_of_kernels_that_ends_or_hangs_costs_no_session() {
    let server = with_templates().await;
    until_forked(&server, "").await;
    for signal in ["-KILL", "-STOP"] {
        for template in templates(&server) {
            let pid = template.directory().file_name().expect("a number").to_owned();
            assert!(Command::new("kill").arg(signal).arg(pid).status().expect("kill").success());
        }
        for number in 0..3 {
            let session = Session::open(&server).await;
            assert_eq!(session.run(&format!("print({number})")).await, format!("{number}\n"));
            session.close().await;
        }
        if signal == "-KILL" {
            until_forked(&server, "").await;
        }
    }
    server.stop().await;
}
