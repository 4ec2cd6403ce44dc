//! The tool `execute_code`: the view of the program, and the answer to its caller.

use crate::common::engine::State;
use crate::common::eventually;
use crate::common::server::Server;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

#[tokio::test]
async fn files_arrive_with_their_folders_and_every_byte() {
    let server = Server::python().await;
    let bytes: Vec<u8> = (0..=255).collect();
    let answer = server
        .run_python_with(
            "import json, os, tools.words\n\
             tree = sorted(os.path.join(d, f)[2:] for d, _, fs in os.walk('.') for f in fs\n\
             \x20   if '__pycache__' not in d)\n\
             data = list(open('data/all.bin', 'rb').read())\n\
             text = open('ünï côde.txt').read()\n\
             print(json.dumps([os.getcwd(), tree, data, text, tools.words.GREETING]))",
            json!({ "additional_files": [
                { "filename": "data/all.bin", "content": BASE64.encode(&bytes),
                  "encoding": "base64" },
                { "filename": "tools/words.py", "content": "GREETING = 'hé'" },
                { "filename": "./empty//file", "content": "" },
                { "filename": "ünï côde.txt", "content": "line\r\n\ttab €", "encoding": "utf-8" },
            ] }),
        )
        .await;
    let [cwd, tree, data, text, greeting] = parts(&answer.json());
    assert_eq!(cwd, "/workspace");
    assert_eq!(
        tree,
        json!(["data/all.bin", "empty/file", "main.py", "tools/words.py", "ünï côde.txt"])
    );
    assert_eq!(data, json!(bytes));
    assert_eq!(text, "line\n\ttab €", "Python reads both ends of lines as one");
    assert_eq!(greeting, "hé");
    server.stop().await;
}

fn parts<const N: usize>(value: &Value) -> [Value; N] {
    let list = value.as_array().expect("a list").clone();
    list.try_into().unwrap_or_else(|list| panic!("{N} parts, not {list:?}"))
}

#[tokio::test]
async fn the_entrypoint_has_the_name_from_the_request() {
    let server = Server::python().await;
    let answer = server
        .run_python_with(
            "import helper, sys; print(sys.argv[0], helper.NAME)",
            json!({
                "entrypoint_filename": "app/start.py",
                "additional_files": [{ "filename": "app/helper.py", "content": "NAME = 'h'" }],
            }),
        )
        .await;
    assert_eq!(answer.output(), "app/start.py h\n");
    server.stop().await;
}

#[tokio::test]
async fn arguments_input_and_variables_reach_the_program() {
    let server = Server::python().await;
    let code = "import json, os, sys\n\
                print(json.dumps([sys.argv[1:], sys.stdin.read(), os.environ.get('NAME')]))";
    let arguments = ["-x", "", "two words", "$HOME `id` ; *", "€"];
    let input = "first\nsecond €".repeat(20_000);
    let more = json!({ "args": arguments, "stdin": input, "env": { "NAME": "va=l\nue" } });
    let answer = server.run_python_with(code, more).await;
    assert_eq!(answer.status(), "success", "{:.500}", answer.text);
    // The input is larger than what is kept of the output, so it is checked by itself.
    let code = "import sys; data = sys.stdin.read(); print(len(data), data[-1])";
    let counted = server.run_python_with(code, json!({ "stdin": input })).await;
    assert_eq!(counted.output(), format!("{} €\n", input.chars().count()));

    let small = json!({ "args": arguments, "stdin": "in", "env": { "NAME": "va=l\nue" } });
    let code = "import json, os, sys\n\
                print(json.dumps([sys.argv[1:], sys.stdin.read(), os.environ.get('NAME')]))";
    let answer = server.run_python_with(code, small).await;
    assert_eq!(answer.json(), json!([arguments, "in", "va=l\nue"]));
    let none = server.run_python(code).await;
    assert_eq!(none.json(), json!([[], "", null]));
    server.stop().await;
}

#[tokio::test]
async fn go_programs_can_bring_packages_in_a_folder_vendor() {
    let server = Server::with("go", json!({})).await;
    let call = |modules: &str| {
        json!({
            "language": "go",
            "entrypoint_code": "package main\n\nimport \"example.com/greet\"\n\nfunc main() { greet.Hello() }",
            "additional_files": [
                { "filename": "go.mod",
                  "content": "module main\n\ngo 1.21\n\nrequire example.com/greet v1.0.0\n" },
                { "filename": "vendor/modules.txt", "content": modules },
                { "filename": "vendor/example.com/greet/greet.go",
                  "content": "package greet\n\nimport \"fmt\"\n\nfunc Hello() { fmt.Println(\"hi\") }\n" },
            ],
        })
    };
    let answer =
        server.call(call("# example.com/greet v1.0.0\n## explicit\nexample.com/greet\n")).await;
    assert_eq!(answer.output(), "hi\n");
    let answer = server.call(call("")).await;
    assert!(answer.stderr().contains("inconsistent vendoring"), "{}", answer.stderr());
    server.stop().await;
}

#[tokio::test]
async fn snippets_run_by_name_and_new_ones_are_seen_without_a_restart() {
    let server = Server::python().await;
    let prompts = server.directory().join("prompts");
    let refused = server.refusal("execute_code", json!({ "snippet_name": "greet" })).await;
    assert_eq!(refused["field"], "snippet_name");

    let code = "import sys\nprint('hi', *sys.argv)";
    std::fs::write(prompts.join("greet.py"), code).unwrap();
    let call = json!({ "snippet_name": "greet", "args": ["you"] });
    assert_eq!(server.call(call.clone()).await.output(), "hi greet.py you\n");

    std::fs::write(prompts.join("greet.py"), "print('changed')").unwrap();
    assert_eq!(server.call(call.clone()).await.output(), "changed\n");

    std::fs::remove_file(prompts.join("greet.py")).unwrap();
    assert_eq!(server.refusal("execute_code", call).await["field"], "snippet_name");
    server.stop().await;
}

#[tokio::test]
async fn the_receipt_describes_how_the_request_was_served() {
    let server = Server::with("python", json!({ "pool": { "size": 2, "hot": 1 } })).await;
    engine_has(&server, 1, 1).await;
    // The front sandbox may still be starting its runner, so any start is right here.
    let first = server.run_python("print(1)").await;
    assert!(["hot", "warm", "queued", "cold"].contains(&first.start()), "{}", first.start());

    let digest = server.engine.digest("isolator/python").await;
    assert_eq!(first.receipt["image"], json!(digest));

    let stages = first.receipt["ms"].as_object().unwrap().clone();
    let stage = |name: &str| stages[name].as_f64().unwrap();
    assert!(stages.values().all(|stage| stage.as_f64().unwrap() >= 0.0), "{stages:?}");
    assert!(stage("program") > 0.0 && stage("run") >= stage("program"), "{stages:?}");
    assert!(stage("total") >= stage("run") + stage("checkout"), "{stages:?}");
    assert!(first.data["cpu_ms"].as_f64().unwrap() > 0.0);
    server.stop().await;
}

#[tokio::test]
async fn a_thawed_sandbox_makes_a_hot_start_and_a_paused_one_a_warm_one() {
    let hot = Server::with("python", json!({ "pool": { "size": 1, "hot": 1 } })).await;
    // From outside a thawed sandbox looks ready before it is; a later one is ready for sure.
    let mut starts = Vec::new();
    eventually("a hot start", async || {
        starts.push(hot.run_python("pass").await.start().to_owned());
        starts.last().is_some_and(|start| start == "hot")
    })
    .await;
    hot.stop().await;

    let warm = Server::python().await;
    warm.wait_until_ready().await;
    assert_eq!(warm.run_python("pass").await.start(), "warm");
    warm.stop().await;
}

async fn engine_has(server: &Server, running: usize, paused: usize) {
    eventually(&format!("{running} running and {paused} paused"), async || {
        let count = async |state| server.sandboxes(state).await.len();
        count(State::Running).await == running && count(State::Paused).await == paused
    })
    .await;
}

#[tokio::test]
async fn the_configured_timeout_is_the_default() {
    let server = Server::with("python", json!({ "defaultTimeoutSeconds": 1.5 })).await;
    let answer = server.run_python("import time; time.sleep(600)").await;
    answer.assert_failed("timeout", &["after 1s 500ms"]);
    server.stop().await;
}

#[tokio::test]
async fn output_beyond_the_cap_keeps_its_head_and_its_tail() {
    let server = Server::with("python", json!({ "limits": { "maxOutputKB": 64 } })).await;
    let code = "import sys\n\
                for stream in sys.stdout, sys.stderr:\n\
                \x20   stream.write('H' * 40_000 + 'M' * 100_000 + 'T' * 40_000)";
    let answer = server.run_python(code).await;
    assert_eq!(answer.status(), "success");
    let half = 32 * 1024;
    let missing = 180_000 - 2 * half;
    let promised = format!(
        "{}\n[... {missing} bytes are missing here ...]\n{}",
        "H".repeat(half),
        "T".repeat(half)
    );
    for stream in ["stdout", "stderr"] {
        assert!(answer.data[stream] == promised.as_str(), "{stream} is not as promised");
        assert_eq!(answer.data[format!("{stream}_missing_bytes")], missing);
    }

    let exact = server.run_python(&format!("print('x' * {}, end='')", 2 * half)).await;
    assert_eq!(exact.stdout().len(), 2 * half);
    assert_eq!(exact.data.get("stdout_missing_bytes"), None);
    server.stop().await;
}

#[tokio::test]
async fn children_with_closed_streams_end_with_the_program() {
    let server = Server::python().await;
    let seconds = "86399.25";
    let code = format!(
        "import subprocess\n\
         quiet = dict.fromkeys(['stdin', 'stdout', 'stderr'], subprocess.DEVNULL)\n\
         subprocess.Popen(['nohup', 'sleep', '{seconds}'], start_new_session=True, **quiet)\n\
         print('done')"
    );
    assert_eq!(server.run_python(&code).await.output(), "done\n");
    let runs = || {
        let processes = std::fs::read_dir("/proc").expect("processes").flatten();
        let mut commands = processes.flat_map(|entry| std::fs::read(entry.path().join("cmdline")));
        commands
            .any(|command| command.split(|byte| *byte == 0).any(|arg| arg == seconds.as_bytes()))
    };
    eventually("an end of the child", async || !runs()).await;
    server.stop().await;
}

#[tokio::test]
async fn no_data_of_one_call_reaches_the_next() {
    let server = Server::python().await;
    let code = "import os\n\
                places = ['/workspace', '/tmp', '/dev/shm']\n\
                print([f for p in places for f in os.listdir(p) if f != 'main.py'])\n\
                for place in places: open(f'{place}/left', 'w').write('x')";
    for _ in 0..3 {
        assert_eq!(server.run_python(code).await.output(), "[]\n");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_request_may_choose_its_memory_and_cpu() {
    let server = Server::python().await;
    server.wait_until_ready().await;
    // After a moment, what waited in the sandbox is gone, and its memory is taken back.
    let code = "import json, time\n\
                time.sleep(0.5)\n\
                def first(*names):\n\
                \x20   for name in names:\n\
                \x20       try: return open('/sys/fs/cgroup/' + name).read().strip()\n\
                \x20       except OSError: pass\n\
                memory = first('memory/memory.limit_in_bytes', 'memory.max')\n\
                period = first('cpu/cpu.cfs_period_us', 'cpu.max').split()[-1]\n\
                quota = first('cpu/cpu.cfs_quota_us', 'cpu.max').split()[0]\n\
                print(json.dumps([int(memory) >> 20, int(quota) / int(period)]))";
    assert_eq!(server.run_python(code).await.json(), json!([256, 1.0]));
    let more = json!({ "memory_mb": 300, "cpus": 0.25 });
    assert_eq!(server.run_python_with(code, more).await.json(), json!([300, 0.25]));
    let less = json!({ "memory_mb": 64 });
    assert_eq!(server.run_python_with(code, less).await.json(), json!([64, 1.0]));
    server.stop().await;
}
