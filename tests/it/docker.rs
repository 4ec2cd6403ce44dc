//! Features of the engine `docker`: its address, and an API that shows the requested restrictions.

use std::io::copy;
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::{env, fs, thread};

use crate::common::engine::{Kind, docker};
use crate::common::process::Process;
use crate::common::server::Server;
use crate::common::{config, eventually, run, write_config};
use isolator_pool::engine::docker::docker_profile;
use serde::Serialize;
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

/// Paths that are hidden, beside those of this machine's processors.
const MASKED: [&str; 14] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/pressure",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/devices/virtual/thermal",
    "/sys/firmware",
];

/// The settings of a JSON value that are not off, empty or 0.
fn asked(of: &impl Serialize) -> Value {
    let mut asked = serde_json::to_value(of).expect("what was asked for");
    let is_off = |value: &Value| match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.iter().all(|it| *it == json!(0)),
        Value::Object(fields) => fields.is_empty(),
    };
    asked.as_object_mut().expect("an object").retain(|_, value| !is_off(value));
    asked
}

/// The complete host configuration of a container: every other setting has its default.
fn promised(labels: &Value, volume: &str, memory: &Value) -> Value {
    let ulimit = |name: &str, hard: i64| json!({ "Name": name, "Soft": hard, "Hard": hard });
    let unlimited = |name: &str| ulimit(name, -1);
    let tmpfs = "rw,exec,nosuid,nodev,mode=1777,size=67108864,nr_inodes=8192,uid=1000,gid=1000";
    json!({
        "CapDrop": ["ALL"],
        "CgroupnsMode": "private",
        "IpcMode": "private",
        "LogConfig": { "Type": "none", "Config": {} },
        "Memory": memory,
        // The same: no swap beside the memory.
        "MemorySwap": memory,
        "Mounts": [{
            "Type": "volume",
            "Source": volume,
            "Target": "/.isolator",
            "ReadOnly": true,
            "VolumeOptions": { "NoCopy": true, "Labels": labels },
        }],
        "NanoCpus": 1_000_000_000,
        "NetworkMode": "none",
        // Two interpreters wait in it, of which a program needs one.
        "PidsLimit": 64 + 1,
        "ReadonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        "ReadonlyRootfs": true,
        // Docker's own default.
        "Runtime": "runc",
        "ShmSize": 16 << 20,
        "Tmpfs": { "/tmp": tmpfs, "/workspace": tmpfs },
        "Ulimits": [ulimit("nofile", 1024), ulimit("nproc", 30_000), ulimit("core", 1), ulimit("memlock", 64 << 10),
            ulimit("nice", 0), ulimit("rtprio", 0), { "Name": "stack", "Soft": 8 << 20, "Hard": -1 },
            unlimited("cpu"), unlimited("data"), unlimited("fsize"), unlimited("locks"), unlimited("rss"),
            unlimited("rttime"), ulimit("msgqueue", 800 << 10), ulimit("sigpending", 7000)],
    })
}

#[tokio::test]
async fn containers_are_created_with_every_restriction() {
    let server = Server::start(&on_docker(json!({}))).await;
    let sandboxes = server.wait_until_ready().await;
    let bystander = docker::Bystander::new().await;
    let found = bystander.inspect(&sandboxes[0]).await;

    let container = asked(&found.config.unwrap());
    let image = bystander.image("isolator/python").await;
    let of_image = image.config.unwrap();
    let mut labels = container["Labels"].clone();
    // Docker adds those of the image.
    let theirs = of_image.labels.unwrap();
    labels.as_object_mut().unwrap().retain(|name, _| !theirs.contains_key(name));
    assert_eq!(labels["isolator.instance"], server.instance);
    let names: Vec<_> = labels.as_object().unwrap().keys().map(String::as_str).collect();
    let ours = ["isolator.boot", "isolator.instance", "isolator.machine", "isolator.process"];
    assert_eq!(names, ours);

    let mut host = asked(&found.host_config.unwrap());
    let mut take = |name: &str| host.as_object_mut().unwrap().remove(name).unwrap_or_default();
    // Not shown: it is long.
    let filter = format!("seccomp={}", docker_profile());
    let options = take("SecurityOpt");
    assert!(options == json!(["no-new-privileges", filter]), "another filter, or more options");
    // None is requested, and versions have two names for that.
    let restart = take("RestartPolicy");
    assert!(["", "no"].map(|name| json!(name)).contains(&restart["Name"]), "{restart}");
    let masked = take("MaskedPaths");
    let masked = masked.as_array().expect("a list").iter().filter_map(Value::as_str);
    let masked = masked.filter(|path| !path.starts_with("/sys/devices/system/cpu/cpu"));
    assert_eq!(masked.collect::<Vec<_>>(), MASKED);
    let volume = host["Mounts"][0]["Source"].as_str().unwrap_or_default().to_owned();
    assert!(volume.starts_with("isolator-") && volume.ends_with("-runner"), "{volume}");
    // What the program may use, and what the interpreters that wait really take.
    let memory = host["Memory"].clone();
    let mib = memory.as_i64().expect("a number") >> 20;
    assert!((256..256 + MODULES).contains(&mib), "{mib}");
    assert_eq!(host, promised(&labels, &volume, &memory));

    assert_eq!(
        container,
        json!({
            "AttachStderr": true,
            "AttachStdin": true,
            "AttachStdout": true,
            "Entrypoint": ["/.isolator/isolator-runner", "hold"],
            "Env": of_image.env.unwrap(),
            "Healthcheck": { "Test": ["NONE"] },
            "Hostname": "sandbox",
            "Image": image.id.unwrap(),
            "Labels": container["Labels"],
            "OpenStdin": true,
            "StdinOnce": true,
            // An engine that ends stops it at once.
            "StopSignal": "SIGKILL",
            "User": "1000:1000",
            "WorkingDir": "/workspace",
        })
    );
    server.stop().await;
}

/// The limits of a process, by their names in one of the versions of control groups.
fn limit(process: Process, names: &[&str]) -> Option<String> {
    let groups = process.read("cgroup");
    let controller = names[0].split('.').next().expect("a controller");
    // A process is also in the root of other hierarchies, whose path would lead to the limits of the machine.
    let paths = groups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let has_limit = controllers.is_empty() || controllers.split(',').any(|it| it == controller);
        has_limit.then_some(path)
    });
    let paths: Vec<_> = paths.collect();
    let this = Process::find(std::process::id()).expect("this process").mounts();
    for hierarchy in this.iter().filter(|mount| mount.kind.starts_with("cgroup")) {
        for (path, name) in paths.iter().flat_map(|path| names.iter().map(move |name| (path, name)))
        {
            if let Ok(found) = fs::read_to_string(format!("{}{path}/{name}", hierarchy.target)) {
                return Some(found.trim().to_owned());
            }
        }
    }
    None
}

#[tokio::test]
async fn the_kernel_enforces_the_requested_restrictions() {
    let server = Server::start(&on_docker(json!({}))).await;
    let sandboxes = server.wait_until_ready().await;
    let code = "import time\n\
                open('/proc/self/comm', 'w').write('the-program')\n\
                time.sleep(600)";
    let call = server.begin(json!({ "language": "python", "entrypoint_code": code })).await;
    let bystander = docker::Bystander::new().await;
    let mut containers = Vec::new();
    for sandbox in &sandboxes {
        containers.extend(bystander.inspect(sandbox).await.id);
    }
    let is_in = |process: &Process, container: &String| process.read("cgroup").contains(container);
    let mut found = None;
    eventually("the program runs", async || {
        let mut programs = Process::all().into_iter();
        let program = programs.find(|process| {
            process.read("comm") == "the-program\n" && containers.iter().any(|c| is_in(process, c))
        });
        found = program;
        found.is_some()
    })
    .await;
    let program = found.expect("it was found");
    let container = containers.iter().find(|container| is_in(&program, container)).unwrap();

    let this = Process::find(std::process::id()).expect("this process");
    let all: Vec<_> = Process::all().into_iter().filter(|it| is_in(it, container)).collect();
    assert!(all.len() >= 3, "process 1, the runner and the program, not {all:?}");
    for process in all {
        process.assert_has_no_privileges();
        for kind in ["pid", "mnt", "net", "ipc", "uts", "cgroup"] {
            assert_ne!(process.namespace(kind), this.namespace(kind), "{kind}");
        }
    }
    assert_eq!(program.descriptors().into_keys().collect::<Vec<_>>(), [0, 1, 2]);
    for (name, promised) in [("Max open files", "1024"), ("Max core file size", "1")] {
        assert_eq!(program.limit(name), [promised, promised], "{name}");
    }

    eventually("the limits are those of the program alone", async || {
        let memory = limit(program, &["memory.limit_in_bytes", "memory.max"]);
        let processes = limit(program, &["pids.max"]);
        memory == Some((256 << 20).to_string()) && processes.as_deref() == Some("64")
    })
    .await;
    let cpu = limit(program, &["cpu.max"]).or_else(|| {
        let [quota, period] = ["cpu.cfs_quota_us", "cpu.cfs_period_us"];
        Some(format!("{} {}", limit(program, &[quota])?, limit(program, &[period])?))
    });
    assert_eq!(cpu.as_deref(), Some("100000 100000"));

    for mount in program.mounts() {
        let is_root = mount.target == "/";
        let is_own = ["/workspace", "/tmp", "/dev/shm"].contains(&mount.target.as_str());
        assert!(!is_root || mount.has("ro"), "{mount:?}");
        assert!(!is_own || (mount.kind == "tmpfs" && mount.has("nosuid")), "{mount:?}");
        // Nothing of the host but what Docker puts into each container, and the runner.
        let is_disk = !["proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2"]
            .contains(&mount.kind.as_str());
        let places = ["/", "/.isolator", "/etc/resolv.conf", "/etc/hostname", "/etc/hosts"];
        assert!(!is_disk || places.contains(&mount.target.as_str()), "{mount:?}");
    }
    call.cancel().await;
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
fn without_an_engine_commands_name_its_address_and_the_fix() {
    let address = "unix:///nowhere/nobody.sock";
    let nobody = nobody(address);
    let finished = run(nobody.path(), &["run", "-", "--language", "python"], "");
    assert_eq!(finished.code, Some(125));
    assert!(finished.stderr.contains(address), "{finished:?}");

    let finished = run(nobody.path(), &["doctor"], "");
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.stdout.contains(address), "{finished:?}");
    assert!(finished.stdout.contains("apt-get install docker.io"), "{finished:?}");
}

/// The address of a port behind which the engine is.
fn port_of_the_engine() -> String {
    let socket = env::var("DOCKER_HOST").unwrap_or_default();
    let socket = match socket.strip_prefix("unix://") {
        Some(path) => path.to_owned(),
        None => "/var/run/docker.sock".to_owned(),
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut engine) = (client.unwrap(), UnixStream::connect(&socket).unwrap());
            let (mut to, mut from) = (engine.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || {
                // Either side may end the connection as it likes.
                let _ = copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
            thread::spawn(move || {
                let _ = copy(&mut engine, &mut client);
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

#[test]
fn a_remote_engine_is_not_judged_by_this_machine() {
    let directory = nobody(&port_of_the_engine());
    let doctor = |arguments: &[&str]| run(directory.path(), arguments, "").stdout;
    let strict = doctor(&["doctor", "--production"]);
    let (_, host) = strict.split_once("\nhost\n").expect(&strict);
    assert!(host.contains("  warning  engine-address: "), "{strict}");
    assert!(host.contains("  unknown  other-machine: "), "{strict}");
    for of_this_machine in ["swap", "core-dumps", "ebpf"] {
        assert!(!host.contains(&format!(" {of_this_machine}: ")), "{strict}");
    }
    assert!(strict.contains("python: a sandbox works"), "{strict}");
    let plain = doctor(&["doctor"]);
    assert!(plain.contains("  ok       not checked: the engine is elsewhere"), "{plain}");
}
