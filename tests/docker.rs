//! What only the engine `docker` has: an address, and an API that tells what it was asked for.

mod common;

use std::collections::HashMap;

use common::engine::{Kind, docker};
use common::server::Server;
use common::{config, run, write_config};
use serde_json::{Value, json};
use tempfile::TempDir;

/// MiB that Python's sandboxes have for the modules that wait in them, beside the program's memory.
const MODULES: i64 = 128;

/// A configuration for Python with this engine, whichever the other tests run on.
fn on_docker(more: Value) -> Value {
    let mut config = config(&["python"], more);
    config["engine"]["kind"] = json!(Kind::Docker.name());
    config
}

/// A directory with the configuration of an engine that is not there.
fn nobody(address: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    write_config(directory.path(), &on_docker(json!({ "engine": { "host": address } })));
    directory
}

#[tokio::test]
async fn the_engine_was_asked_for_every_restriction() {
    let server = Server::start(&on_docker(json!({}))).await;
    let sandboxes = server.wait_until_ready().await;
    let found = docker::Bystander::new().await.inspect(&sandboxes[0]).await;
    let host = found.host_config.unwrap();
    assert_eq!(host.network_mode.as_deref(), Some("none"));
    assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
    assert!(host.cap_add.unwrap_or_default().is_empty());
    assert_eq!(host.privileged, Some(false));
    assert_eq!(host.readonly_rootfs, Some(true));
    assert_eq!(host.memory, Some((256 + MODULES) << 20));
    assert_eq!(host.memory_swap, host.memory, "no swap beside the memory");
    assert_eq!(host.nano_cpus, Some(1_000_000_000));
    assert_eq!(host.pids_limit, Some(64));
    assert_eq!(host.ipc_mode.as_deref(), Some("private"));
    assert_ne!(host.pid_mode.as_deref(), Some("host"));
    assert_eq!(host.log_config.unwrap().typ.as_deref(), Some("none"));
    assert!(host.binds.unwrap_or_default().is_empty());
    assert!(host.devices.unwrap_or_default().is_empty());
    assert!(host.port_bindings.unwrap_or_default().is_empty());
    let restart = host.restart_policy.and_then(|policy| policy.name).map(|name| name.to_string());
    assert!(["", "no"].contains(&restart.as_deref().unwrap_or_default()), "{restart:?}");
    let options = host.security_opt.unwrap();
    assert!(options.iter().any(|option| option.starts_with("no-new-privileges")), "{options:?}");
    assert!(options.iter().any(|option| option.starts_with("seccomp={")), "{options:?}");

    let tmpfs: HashMap<String, String> = host.tmpfs.unwrap();
    for place in ["/workspace", "/tmp"] {
        for option in ["size=67108864", "nr_inodes=", "nosuid", "nodev"] {
            assert!(tmpfs[place].contains(option), "{place}: {}", tmpfs[place]);
        }
    }
    let mounts = found.mounts.unwrap();
    let [mount] = mounts.as_slice() else { panic!("only the runner's volume, not {mounts:?}") };
    assert_eq!(mount.typ.as_deref(), Some("volume"));
    assert_eq!(mount.rw, Some(false));

    let container = found.config.unwrap();
    assert_eq!(container.user.as_deref(), Some("1000:1000"));
    assert_eq!(container.stop_signal.as_deref(), Some("SIGKILL"), "an engine stops at once");
    let labels = container.labels.unwrap();
    for label in ["isolator.instance", "isolator.machine", "isolator.boot", "isolator.process"] {
        assert!(labels.contains_key(label), "{label}: {labels:?}");
    }
    assert_eq!(labels["isolator.instance"], server.instance);
    server.stop().await;
}

#[tokio::test]
async fn without_an_engine_calls_name_its_address_and_the_doctor() {
    let home = tempfile::tempdir().unwrap();
    let address = format!("unix://{}/nobody.sock", home.path().display());
    let server = Server::start(&on_docker(json!({ "engine": { "host": address } }))).await;
    let call = json!({ "language": "python", "entrypoint_code": "print(1)" });
    for _ in 0..2 {
        let text = server.call_without_sandbox(call.clone()).await;
        assert!(text.contains(&address), "{text}");
        assert!(text.contains("isolator doctor"), "{text}");
    }
    // It could not remove anything, and there is nothing; it may say so with its exit code.
    drop(server);
}

#[test]
fn without_an_engine_commands_name_its_address_and_what_mends_it() {
    let address = "unix:///nowhere/nobody.sock";
    let nobody = nobody(address);
    let finished = run(nobody.path(), &["run", "-", "--language", "python"], "");
    assert_eq!(finished.code, Some(125));
    assert!(finished.stderr.contains(address), "{finished:?}");

    let finished = run(nobody.path(), &["doctor"], "");
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stdout.contains(address), "{finished:?}");
    assert!(finished.stdout.contains("apt-get install docker.io"), "{finished:?}");

    let finished = run(nobody.path(), &["bench"], "");
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""), "{finished:?}");
    assert!(finished.stderr.contains("isolator doctor"), "{finished:?}");
}
