//! Hundreds of requests leave nothing on the host; before a release, ten thousand.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use futures_util::future::join_all;
use serde_json::json;

use super::{Launcher, launchers, look, start};
use crate::common::eventually;
use crate::common::process::Process;
use crate::common::server::Server;

const REQUESTS: usize = 300;
const REQUESTS_BEFORE_A_RELEASE: usize = 10_000;
const AT_ONCE: usize = 4;

/// How much memory processes may take in addition, in KiB: allocators keep some of what they had.
const GROWTH_OF_SERVER: u64 = 16 << 10;
const GROWTH_OF_LAUNCHER: u64 = 2 << 10;

fn requests() -> usize {
    let is_for_a_release = std::env::var("ISOLATOR_TEST_ALL").is_ok_and(|all| all == "1");
    if is_for_a_release { REQUESTS_BEFORE_A_RELEASE } else { REQUESTS }
}

/// How much there is of everything that could be left behind.
async fn everything(server: &Server) -> BTreeMap<String, usize> {
    server.wait_until_ready().await;
    let look = look(server);
    let mut found = BTreeMap::from([
        ("control groups".to_owned(), look.all_groups(&server.instance).len()),
        ("processes".to_owned(), look.processes(&server.instance).len()),
        ("descriptors of the server".to_owned(), server.process().descriptors().len()),
        ("files of the server".to_owned(), files(server.directory())),
    ]);
    for (number, Launcher { outer, inner }) in launchers(server.process()).into_iter().enumerate() {
        found.insert(format!("descriptors of launcher {number}"), outer.descriptors().len());
        // What others mount on the host meanwhile is seen by launchers too, elsewhere.
        let mounts = inner.mounts().into_iter().filter(|mount| mount.target.starts_with("/tmp"));
        let mounts = mounts.count();
        assert!(mounts > 0, "its view is mounted there");
        found.insert(format!("mounts of launcher {number}"), mounts);
        // Each has those of its own sandboxes, so that only their sum is known.
        *found.entry("children of launchers".to_owned()).or_default() += inner.count_children();
        *found.entry("descriptors of launchers".to_owned()).or_default() +=
            inner.descriptors().len();
    }
    found
}

/// Memory in KiB of the server, and of the launcher that has most.
fn memory(server: &Server) -> (u64, u64) {
    let of = |process: Process| {
        let status = process.status();
        let size = status.get("VmRSS").and_then(|size| size.split(' ').next()?.parse().ok());
        size.expect("a living process has memory")
    };
    let launchers = launchers(server.process()).into_iter().map(|launcher| of(launcher.inner));
    (of(server.process()), launchers.max().expect("a launcher"))
}

fn files(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let count = |entry: fs::DirEntry| {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        1 + if is_directory { files(&entry.path()) } else { 0 }
    };
    entries.map(count).sum()
}

#[tokio::test]
async fn hundreds_of_requests_leave_nothing_behind() {
    // Without interpreters that wait, sandboxes are made faster.
    let off = json!({
        "pool": { "size": 2 },
        "languageSettings": { "python": { "preload": { "enabled": false } } },
    });
    let server = start(off).await;
    serve(&server, AT_ONCE).await;
    let before = everything(&server).await;
    let dying = look(&server).dying_groups(&server.instance);
    let (of_server, of_launcher) = memory(&server);
    serve(&server, requests()).await;
    assert_eq!(everything(&server).await, before);
    // The kernel frees a group some milliseconds after it was removed.
    eventually("the end of groups that were removed", async || {
        look(&server).dying_groups(&server.instance) <= dying
    })
    .await;
    let (now_of_server, now_of_launcher) = memory(&server);
    let grown = format!(
        "server {of_server} to {now_of_server} KiB, launcher {of_launcher} to {now_of_launcher}"
    );
    assert!(now_of_server < of_server + GROWTH_OF_SERVER, "{grown}");
    assert!(now_of_launcher < of_launcher + GROWTH_OF_LAUNCHER, "{grown}");
    server.stop().await;
}

/// Has requests served, some from the pool, some from sandboxes that are made for them; every tenth is
/// given up half-way.
async fn serve(server: &Server, count: usize) {
    for first in (0..count).step_by(AT_ONCE) {
        let one = async |number: usize| {
            if number % 10 == 9 {
                let code = "import time; time.sleep(600)";
                let call = json!({ "language": "python", "entrypoint_code": code });
                let call = server.begin(call).await;
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                call.cancel().await;
            } else {
                let answer = server.run_python(&format!("print({number})")).await;
                assert_eq!(answer.output(), format!("{number}\n"));
            }
        };
        join_all((first..first + AT_ONCE).map(one)).await;
    }
}
