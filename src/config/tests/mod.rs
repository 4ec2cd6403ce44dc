mod messages;
mod packages;

use std::path::Path;
use std::time::Duration;

use isolator_pool::engine::SandboxSpec;
use isolator_pool::engine::limits::{ByteSize, CpuShare};
use isolator_pool::pool::sizing::Size;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn parse(text: &str) -> Result<Config, Vec<Problem>> {
    Config::parse(text, None, Path::new("/conf"))
}

/// The path and message of the only problem.
fn problem(text: &str) -> (String, String) {
    let problems = parse(text).unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    (problems[0].path.clone(), problems[0].message.clone())
}

#[test]
fn an_existing_isolator_mcp_file_works_unchanged() {
    let config = parse(
        r#"{
            "isolatorPath": "/usr/local/bin/isolator",
            "defaultTimeoutSeconds": 10,
            "defaultMemoryMB": 128,
            "defaultCpus": 0.25,
            "defaultPidsLimit": 32,
            "defaultNetworkMode": "none",
            "defaultCapDrop": ["ALL"],
            "defaultReadOnlyRootfs": true,
            "defaultContainerWorkdir": "/workdir",
            "languageSettings": {
                "python": { "image": "python:3.12-alpine" },
                "go": { "image": "golang:1.22-alpine" },
                "javascript": { "image": "node:20-alpine" }
            },
            "promptsDir": "./snippets"
        }"#,
    )
    .unwrap();
    let python = &config.languages["python"];
    assert_eq!(python.sandbox.image.name, "python:3.12-alpine");
    assert_eq!(python.sandbox.resources.memory, ByteSize::mib(128));
    assert_eq!(python.sandbox.resources.cpu, CpuShare::millis(250));
    assert_eq!(python.sandbox.limits.pids, 32);
    assert_eq!(python.sandbox.workdir, "/workdir");
    assert_eq!(python.default_file, "main.py");
    assert_eq!(config.limits.default_timeout, Duration::from_secs(10));
    assert_eq!(config.prompts, Path::new("/conf/./snippets"));
}

#[test]
fn the_defaults_are_those_of_isolator_mcp() {
    let config = parse("{}").unwrap();
    let python = &config.languages["python"].sandbox;
    assert_eq!(config.limits.default_timeout, Duration::from_secs(60));
    assert_eq!(python.resources.memory, ByteSize::mib(256));
    assert_eq!(python.resources.cpu, CpuShare::millis(500));
    assert_eq!(python.limits.pids, 64);
    assert_eq!(python.network, "none");
    assert_eq!(python.cap_drop, ["ALL"]);
    assert!(python.readonly_root);
    assert_eq!(python.workdir, "/workspace");
    let names: Vec<_> = config.languages.keys().collect();
    assert_eq!(names, ["go", "javascript", "python"]);
}

#[test]
fn the_shipped_file_is_valid_and_changes_nothing() {
    let mut shipped = parse(include_str!("../../../isolator_config.json")).unwrap();
    let default = parse("{}").unwrap();
    shipped.settings = default.settings.clone();
    shipped.policy_settings = default.policy_settings.clone();
    assert_eq!(format!("{shipped:?}"), format!("{default:?}"));
}

#[test]
fn zeroes_and_absurd_sizes_are_refused_with_what_is_allowed() {
    for (text, path) in [
        (r#"{"defaultMemoryMB": 0}"#, "defaultMemoryMB"),
        (r#"{"defaultCpus": 0}"#, "defaultCpus"),
        (r#"{"defaultPidsLimit": 0}"#, "defaultPidsLimit"),
        (r#"{"defaultTimeoutSeconds": 0}"#, "defaultTimeoutSeconds"),
        (r#"{"defaultTimeoutSeconds": -1}"#, "defaultTimeoutSeconds"),
        (r#"{"requests": {"maxRunning": 0}}"#, "requests.maxRunning"),
        (
            r#"{"requests": {"maxRunning": 4, "maxRunningPerClient": 5}}"#,
            "requests.maxRunningPerClient",
        ),
        (r#"{"requests": {"refills": 0}}"#, "requests.refills"),
        (r#"{"limits": {"maxFiles": 0}}"#, "limits.maxFiles"),
        (r#"{"limits": {"maxFilesKB": 0}}"#, "limits.maxFilesKB"),
        (r#"{"limits": {"maxOutputKB": 0}}"#, "limits.maxOutputKB"),
        (r#"{"pool": {"size": 100000}}"#, "pool.size"),
        (r#"{"languageSettings":{"go":{"memoryMB":0}}}"#, "languageSettings.go.memoryMB"),
        (r#"{"languageSettings":{"go":{"tmpMB":4096}}}"#, "languageSettings.go.tmpMB"),
    ] {
        let problems = parse(text).unwrap_err();
        assert!(problems.iter().any(|p| p.path == path), "{text}: {problems:?}");
        let message = &problems[0].message;
        assert!(message.contains("expected a") && message.contains(" from "), "{problems:?}");
    }
}

#[test]
fn a_network_or_a_workdir_that_breaks_the_sandbox_is_refused() {
    for network in ["host", "container:abc", ""] {
        let text = format!(r#"{{"defaultNetworkMode": {network:?}}}"#);
        assert_eq!(problem(&text).0, "defaultNetworkMode");
    }
    for workdir in ["workspace", "/", "/tmp", "/proc/x", "/etc", "/a/../b", "/a:b", "/a//b"] {
        let text = format!(r#"{{"defaultContainerWorkdir": {workdir:?}}}"#);
        assert_eq!(problem(&text).0, "defaultContainerWorkdir", "{workdir}");
    }
    assert!(parse(r#"{"defaultContainerWorkdir": "/var/work"}"#).is_ok());
}

#[test]
fn a_language_can_be_added() {
    let config = parse(
        r#"{"languageSettings": {"bash": {
            "image": "isolator/python", "extensions": [".sh"], "command": ["bash", "-eu", "{file}"]
        }}}"#,
    )
    .unwrap();
    let bash = &config.languages["bash"];
    assert_eq!(bash.default_file, "main.sh");
    assert_eq!(bash.command[2], CommandPart::File);
    assert_eq!(bash.env["HOME"], "/tmp");
}

#[test]
fn a_language_without_its_parts_says_which_are_missing() {
    let problems = parse(r#"{"languageSettings": {"ruby": {"image": "ruby:3"}}}"#).unwrap_err();
    let paths: Vec<_> = problems.iter().map(|p| p.path.as_str()).collect();
    assert!(paths.contains(&"languageSettings.ruby.extensions"), "{paths:?}");
    assert!(paths.contains(&"languageSettings.ruby.command"), "{paths:?}");
    assert_eq!(problem(r#"{"languageSettings": {"ruby": {}}}"#).0, "languageSettings.ruby.image");
    assert_eq!(
        problem(r#"{"languageSettings": {"python": {"user": "0:0"}}}"#).0,
        "languageSettings.python.user"
    );
}

#[test]
fn a_language_can_be_switched_off_but_not_all_of_them() {
    let off = r#"{"languageSettings": {"go": {"enabled": false}}}"#;
    assert!(!parse(off).unwrap().languages.contains_key("go"));
    let all = r#"{"languageSettings": {"go": {"enabled": false},
        "python": {"enabled": false}, "javascript": {"enabled": false}}}"#;
    assert_eq!(problem(all).0, "languageSettings");
}

#[test]
fn a_timeout_above_the_maximum_is_refused_and_a_long_default_raises_it() {
    let text = r#"{"defaultTimeoutSeconds": 90, "limits": {"maxTimeout": "1m"}}"#;
    assert_eq!(problem(text).0, "limits.maxTimeout");
    let config = parse(r#"{"defaultTimeoutSeconds": 900}"#).unwrap();
    assert_eq!(config.limits.max_timeout, Duration::from_secs(900));
}

#[test]
fn a_pool_takes_its_size_from_the_common_one_unless_it_says() {
    let config = parse(
        r#"{"pool": {"size": 4, "hot": 3}, "languageSettings": {"go": {"pool": {"size": 1}}}}"#,
    )
    .unwrap();
    let of = |language: &str| config.languages[language].pool;
    assert_eq!((of("python").size, of("python").hot), (Size::Fixed(4), 3));
    assert_eq!((of("go").size, of("go").hot), (Size::Fixed(1), 1));
    assert_eq!(problem(r#"{"pool": {"size": 1, "hot": 2}}"#).0, "pool.hot");
}

#[test]
fn an_interpreter_is_preloaded_for_the_default_file_unless_it_is_switched_off() {
    let preload = |text: &str, language: &str| {
        parse(text).unwrap().languages[language].sandbox.preload.clone()
    };
    let python = preload("{}", "python").unwrap();
    assert_eq!(python.argv, ["python3", "main.py"]);
    assert_eq!(python.env["HOME"], "/tmp");
    assert_eq!(python.modules, ["numpy", "pandas"]);
    assert_eq!(preload("{}", "go"), None);

    let text = r#"{"languageSettings": {"python": {"preload": {"modules": ["sympy"]}},
        "javascript": {"preload": {"enabled": false}}}}"#;
    assert_eq!(preload(text, "python").unwrap().modules, ["sympy"]);
    assert_eq!(preload(text, "javascript"), None);
}

#[test]
fn an_interpreter_that_can_not_be_preloaded_is_refused() {
    let of_go = r#"{"languageSettings": {"go": {"preload": {"enabled": true}}}}"#;
    assert_eq!(problem(of_go).0, "languageSettings.go.preload.interpreter");
    let modules = r#"{"languageSettings": {"python": {"preload": {"modules": ["a,b"]}}}}"#;
    assert_eq!(problem(modules).0, "languageSettings.python.preload.modules");
    let memory = r#"{"languageSettings": {"python": {"preload": {"memoryMB": 0}}}}"#;
    assert_eq!(problem(memory).0, "languageSettings.python.preload.memoryMB");
}

#[test]
fn every_key_of_the_file_is_in_the_schema() {
    let schema = schema();
    let keys = schema["properties"].as_object().unwrap();
    for key in [
        "defaultMemoryMB",
        "languageSettings",
        "promptsDir",
        "limits",
        "pool",
        "engine",
        "policies",
        "tools",
    ] {
        assert!(keys.contains_key(key), "{key}");
    }
    assert_eq!(schema["additionalProperties"], false);
}

#[test]
fn a_syntax_check_is_a_checker_or_a_command() {
    let check = |check: &str| {
        parse(&format!(
            r#"{{"languageSettings": {{"bash": {{
                "image": "isolator/python", "extensions": [".sh"], "command": ["bash", "{{file}}"],
                "syntaxCheck": {check}
            }}}}}}"#
        ))
    };
    for good in [
        r#"{"checker": "python"}"#,
        r#"{"command": ["bash", "-n", "{file}"], "pattern": "(?<error>.+)"}"#,
        r#"{"command": ["check", "{file}"]}"#,
    ] {
        assert!(check(good).unwrap().languages["bash"].syntax.is_some(), "{good}");
    }
    for (wrong, key) in [
        ("{}", ""),
        (r#"{"pattern": "(?<error>.+)"}"#, ""),
        (r#"{"checker": "node", "command": ["node", "{file}"]}"#, ""),
        (r#"{"checker": "node", "pattern": "(?<error>.+)"}"#, ".pattern"),
        (r#"{"command": ["bash", "-n"]}"#, ".command"),
        (r#"{"command": ["bash", "{file}"], "pattern": "("}"#, ".pattern"),
        (r#"{"command": ["bash", "{file}"], "pattern": "line (?<line>.)"}"#, ".pattern"),
    ] {
        let problems = check(wrong).unwrap_err();
        let path = format!("languageSettings.bash.syntaxCheck{key}");
        assert_eq!(problems[0].path, path, "{wrong}: {problems:?}");
    }
    for language in parse("{}").unwrap().languages.values() {
        assert!(language.syntax.is_some(), "{}", language.name);
    }
}

#[test]
fn test_code_is_for_one_language_that_has_a_syntax_check() {
    let of =
        |text: &str| parse(text).map(|config| config.test_code.as_ref().map(|l| l.name.clone()));
    assert_eq!(of("{}"), Ok(None));
    let on = r#"{"tools": {"testCode": {"enabled": true}}}"#;
    assert_eq!(of(on), Ok(Some("python".to_owned())));
    let go = r#"{"tools": {"testCode": {"enabled": true, "language": "go"}}}"#;
    assert_eq!(of(go), Ok(Some("go".to_owned())));
    let unknown = r#"{"tools": {"testCode": {"enabled": true, "language": "cobol"}}}"#;
    assert_eq!(problem(unknown).0, "tools.testCode.language");
    let bare = r#"{"tools": {"testCode": {"enabled": true, "language": "bash"}}, "languageSettings":
        {"bash": {"image": "b", "extensions": [".sh"], "command": ["bash", "{file}"]}}}"#;
    assert!(problem(bare).1.contains("languageSettings.bash.syntaxCheck"));
}

#[test]
fn policies_of_a_disabled_language_are_ignored() {
    let off = r#"{"languageSettings": {"python": {"enabled": false}},
        "policies": {"apply": {"python": ["strict"]}}}"#;
    assert!(!parse(off).unwrap().policies.apply_to("python"));
}

/// All keys that the schema has, as pointers; of maps one entry, for Python.
fn pointers(schema: &Value, part: &Value, at: &str) -> Vec<String> {
    let part = match part.get("$ref").and_then(Value::as_str) {
        Some(reference) => schema.pointer(reference.trim_start_matches('#')).unwrap(),
        None => part,
    };
    let named = part.get("properties").and_then(Value::as_object).into_iter().flatten();
    let entry = part.get("additionalProperties").filter(|it| it.is_object());
    let entry = entry.map(|entry| ("python", entry));
    let inside = named.map(|(name, part)| (name.as_str(), part)).chain(entry);
    let mut found = vec![at.to_owned()];
    found.extend(inside.flat_map(|(name, part)| pointers(schema, part, &format!("{at}/{name}"))));
    found
}

fn set(value: &mut Value, pointer: &str, to: Value) {
    let mut place = value;
    for name in pointer.split('/').skip(1) {
        if !place.is_object() {
            *place = json!({});
        }
        place = place.as_object_mut().unwrap().entry(name).or_insert(Value::Null);
    }
    *place = to;
}

/// Right somewhere and wrong in most places.
const WORDS: [&str; 22] = [
    "",
    "0s",
    "1ms",
    "5m",
    "900000000y",
    "-1s",
    "none",
    "bridge",
    "docker",
    "embedded",
    "ALL",
    "/",
    "/tmp",
    "/a/../b",
    "relative",
    "python",
    "strict",
    "{file}",
    ".py",
    "(",
    "\0",
    "always",
];

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<bool>().prop_map(Value::from),
        (-2_i64..600).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(&WORDS[..]).prop_map(Value::from),
        prop::collection::vec(prop::sample::select(&WORDS[..]), 0..3).prop_map(Value::from),
        Just(Value::Null),
        Just(json!({})),
    ]
}

proptest! {
    #[test]
    fn whatever_is_written_is_refused_with_a_reason_or_within_all_bounds(
        keys in prop::collection::vec((any::<prop::sample::Index>(), any_value()), 1..6)
    ) {
        let schema = schema();
        let pointers = pointers(&schema, &schema, "");
        let mut settings = json!({});
        for (key, value) in keys {
            set(&mut settings, &pointers[key.index(pointers.len())], value);
        }
        let config = match parse(&settings.to_string()) {
            Ok(config) => config,
            Err(problems) => {
                prop_assert!(!problems.is_empty());
                for problem in problems {
                    prop_assert!(!problem.message.is_empty() && problem.message.len() < 2000);
                }
                return Ok(());
            }
        };
        let limits = &config.limits;
        prop_assert!(!limits.default_timeout.is_zero());
        prop_assert!(limits.default_timeout <= limits.max_timeout);
        let admission = config.pools_limits().admission;
        prop_assert!((1..=admission.running).contains(&admission.running_of_one));
        prop_assert!(config.requests.refills >= 1);
        for language in config.languages.values() {
            let SandboxSpec { resources, workdir, .. } = &language.sandbox;
            prop_assert!(resources.memory >= ByteSize::mib(16));
            prop_assert!(resources.memory <= limits.max_memory);
            prop_assert!(resources.cpu > CpuShare::millis(0) && resources.cpu <= limits.max_cpu);
            prop_assert!(workdir.starts_with('/') && workdir.len() > 1 && !workdir.contains(".."));
            prop_assert!(!language.pool.max_age.is_zero());
            prop_assert!(!language.command.is_empty() && !language.extensions.is_empty());
        }
    }
}
