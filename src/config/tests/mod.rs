mod messages;
mod packages;

use std::path::Path;
use std::time::Duration;

use isolator_pool::engine::limits::{ByteSize, CpuShare};
use isolator_pool::engine::{RootAccess, SandboxSpec};
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
    assert_eq!(python.root, RootAccess::ReadOnly);
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
fn numbers_outside_their_bounds_are_refused() {
    let schema = schema();
    let mut checked = 0;
    for (pointer, part) in keys(&schema, &schema, "") {
        let path = pointer.trim_start_matches('/').replace('/', ".");
        // A size can be a number or a range.
        let part = &part["anyOf"].as_array().map_or(part, |options| &options[0]);
        for (bound, beyond) in [("minimum", -1.0), ("maximum", 1.0)] {
            let Some(bound) = part[bound].as_f64() else { continue };
            let value = if part["type"] == json!(["number", "null"]) {
                json!(bound + beyond)
            } else {
                json!((bound + beyond) as i64)
            };
            let mut settings = json!({});
            if pointer == "/pool/target" {
                set(&mut settings, "/pool/size", json!({ "min": 1, "max": 2 }));
            }
            set(&mut settings, &pointer, value);
            let (refused, message) = problem(&settings.to_string());
            assert_eq!(refused, path, "{message}");
            assert!(message.starts_with("expected a"), "{path}: {message}");
            checked += 1;
        }
    }
    assert!(checked > 60, "{checked}");
}

#[test]
fn numbers_outside_their_bounds_are_ignored_where_they_have_no_effect() {
    let off = |more: &str| {
        format!(
            r#"{{"languageSettings": {{"go": {{"enabled": false{more}}}}}, "pool": {{"target": 2}}}}"#
        )
    };
    let go = r#", "memoryMB": 1, "cpus": 0, "pidsLimit": 1,
        "pool": {"size": {"min": 1, "max": 9999}, "maxAge": "0s"}, "preload": {"memoryMB": 0}"#;
    let config = parse(&off(go)).unwrap();
    assert!(!config.languages.contains_key("go"));
    assert_eq!(config.pool.target, parse("{}").unwrap().pool.target);
    // They have the right kind even there.
    let (path, _) = problem(&off(r#", "memoryMB": "1""#));
    assert_eq!(path, "languageSettings.go.memoryMB");
    // A variable decides whether they have an effect.
    let set = |variable: &str, value: &str| {
        let variables = [(variable.into(), value.into())];
        load::assemble(&off(go), None, Path::new("/conf"), variables)
    };
    let paths = |problems: Vec<Problem>| problems.into_iter().map(|it| it.path).collect::<Vec<_>>();
    let refused = paths(set("ISOLATOR_POOL__SIZE", r#"{"min": 1, "max": 2}"#).unwrap_err());
    assert_eq!(refused, ["pool.target"]);
    let refused = paths(set("ISOLATOR_LANGUAGE_SETTINGS__GO__ENABLED", "true").unwrap_err());
    assert!(refused.contains(&"languageSettings.go.memoryMB".to_owned()), "{refused:?}");
}

#[test]
fn the_schema_accepts_null_exactly_where_files_can_have_it() {
    let schema = schema();
    let text = schema.to_string();
    assert!(!text.contains("writeOnly") && !text.contains(r#""default":null"#));
    let mut nullable = 0;
    for (pointer, part) in parts(&schema, &schema, "") {
        let null = Value::Null;
        let has_null = |list: &Value| list.as_array().is_some_and(|list| list.contains(&null));
        let has_type = |part: &Value| {
            part["type"] == "null"
                || part["type"].as_array().is_some_and(|it| it.contains(&json!("null")))
        };
        let accepts = has_type(part)
            || has_null(&part["enum"])
            || part["anyOf"].as_array().is_some_and(|options| options.iter().any(has_type));
        let mut settings = json!({});
        set(&mut settings, &pointer, Value::Null);
        let path = pointer.trim_start_matches('/').replace('/', ".");
        let problems = parse(&settings.to_string()).err().unwrap_or_default();
        let is_refused = pointer.is_empty() || problems.iter().any(|problem| problem.path == path);
        assert_eq!(accepts, !is_refused, "{pointer}: {part}");
        nullable += usize::from(accepts);
    }
    assert!(nullable > 100, "{nullable}");
}

#[test]
fn the_schema_has_no_default_that_follows_from_other_keys() {
    let schema = schema();
    for (pointer, part) in parts(&schema, &schema, "") {
        let says = part["description"].as_str().is_some_and(|text| text.contains("Default: "));
        let is_of_pool = pointer.starts_with("/languageSettings/python/pool");
        assert!(part["default"].is_null() || !(says || is_of_pool), "{pointer}: {part}");
    }
    for key in ["command", "extensions", "description", "memoryMB", "cpus", "pidsLimit", "hints"] {
        let part = &schema["$defs"]["LanguageSettings"]["properties"][key];
        assert!(part.is_object() && part.get("default").is_none(), "{key}: {part}");
    }
    assert!(schema["$defs"]["PreloadSettings"]["properties"]["enabled"].get("default").is_none());
    assert_eq!(schema["properties"]["defaultCpus"]["default"], 0.5);
    assert_eq!(schema["$defs"]["RequestsConfig"]["properties"]["maxRunning"]["default"], 8);
}

#[test]
fn settings_that_break_a_rule_are_refused_under_their_key() {
    let ruby = |more: &str| format!(r#"{{"languageSettings": {{"ruby": {{{more}}}}}}}"#);
    let python = |more: &str| format!(r#"{{"languageSettings": {{"python": {{{more}}}}}}}"#);
    let mut cases: Vec<(String, &str)> = vec![
        (ruby(""), "languageSettings.ruby.image"),
        (
            ruby(r#""image": "ruby:3", "command": ["ruby", "{file}"]"#),
            "languageSettings.ruby.extensions",
        ),
        (ruby(r#""image": "ruby:3", "extensions": [".rb"]"#), "languageSettings.ruby.command"),
        (python(r#""user": "0:0""#), "languageSettings.python.user"),
        (python(r#""tmpMB": 4096"#), "languageSettings.python.tmpMB"),
        (python(r#""env": {"A=B": ""}"#), "languageSettings.python.env"),
        (python(r#""preload": {"modules": ["a,b"]}"#), "languageSettings.python.preload.modules"),
        (
            r#"{"languageSettings": {"go": {"preload": {"enabled": true}}}}"#.to_owned(),
            "languageSettings.go.preload.interpreter",
        ),
        (
            r#"{"languageSettings": {"go": {"enabled": false}, "python": {"enabled": false},
                "javascript": {"enabled": false}}}"#
                .to_owned(),
            "languageSettings",
        ),
    ];
    for network in ["host", "container:abc", ""] {
        cases.push((json!({ "defaultNetworkMode": network }).to_string(), "defaultNetworkMode"));
    }
    for workdir in ["workspace", "/", "/tmp", "/proc/x", "/etc", "/a/../b", "/a:b", "/a//b"] {
        let text = json!({ "defaultContainerWorkdir": workdir }).to_string();
        cases.push((text, "defaultContainerWorkdir"));
    }
    for (text, path) in [
        (
            r#"{"requests": {"maxRunning": 4, "maxRunningPerClient": 5}}"#,
            "requests.maxRunningPerClient",
        ),
        (r#"{"sessions": {"max": 4, "maxPerClient": 5}}"#, "sessions.maxPerClient"),
        (r#"{"http": {"maxConnectionsPerAddress": 5000}}"#, "http.maxConnectionsPerAddress"),
        (r#"{"http": {"allowedOrigins": ["https://a"]}}"#, "http.allowedOrigins[0]"),
        (r#"{"defaultTimeoutSeconds": 90, "limits": {"maxTimeout": "1m"}}"#, "limits.maxTimeout"),
        (r#"{"pool": {"size": 1, "hot": 2}}"#, "pool.hot"),
        (r#"{"audit": {"code": true}}"#, "audit.path"),
        (
            r#"{"tools": {"testCode": {"enabled": true, "language": "cobol"}}}"#,
            "tools.testCode.language",
        ),
        (r#"{"packages": {"tools": {"uv": " "}}}"#, "packages.tools.uv"),
        (r#"{"packages": {"index": {"python": "ftp://x"}}}"#, "packages.index.python"),
        (r#"{"packages": {"index": {"javascript": "./folder"}}}"#, "packages.index.javascript"),
        (
            r#"{"packages": {"onDemand": {"enabled": true, "allow": []}}}"#,
            "packages.onDemand.allow",
        ),
        (r#"{"packages": {"onDemand": {"allow": ["a", "[b"]}}}"#, "packages.onDemand.allow[1]"),
    ] {
        cases.push((text.to_owned(), path));
    }
    for (text, path) in cases {
        assert_eq!(problem(&text).0, path, "{text}");
    }
    assert!(parse(r#"{"defaultContainerWorkdir": "/var/work"}"#).is_ok());
}

#[test]
fn a_limit_that_is_not_set_grows_to_the_defaults() {
    let config = parse(
        r#"{"defaultTimeoutSeconds": 900, "defaultCpus": 3, "requests": {"maxRunning": 40}, "sessions": {"max": 4},
            "languageSettings": {"go": {"memoryMB": 2048}}}"#,
    )
    .unwrap();
    assert_eq!(config.limits.max_timeout, Duration::from_secs(900));
    assert_eq!(config.limits.max_memory, ByteSize::mib(2048));
    assert_eq!(config.limits.max_cpu, CpuShare::millis(3000));
    assert_eq!(config.requests.max_running_per_client, 30);
    assert_eq!(config.sessions.max_per_client, 3);
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
fn a_language_can_be_switched_off() {
    let off = r#"{"languageSettings": {"go": {"enabled": false}}}"#;
    assert!(!parse(off).unwrap().languages.contains_key("go"));
}

#[test]
fn a_pool_has_the_common_size_unless_it_sets_its_own() {
    let config = parse(
        r#"{"pool": {"size": 4, "hot": 3}, "languageSettings": {"go": {"pool": {"size": 1}}}}"#,
    )
    .unwrap();
    let of = |language: &str| config.languages[language].pool;
    assert_eq!((of("python").size, of("python").hot), (Size::Fixed(4), 3));
    assert_eq!((of("go").size, of("go").hot), (Size::Fixed(1), 1));
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

/// A configuration in which a language has this syntax check.
fn with_syntax_check(check: &str) -> String {
    format!(
        r#"{{"languageSettings": {{"bash": {{"image": "i", "extensions": [".sh"], "command": ["bash", "{{file}}"],
            "syntaxCheck": {check}}}}}}}"#
    )
}

#[test]
fn a_syntax_check_is_a_checker_or_a_command() {
    for check in [
        r#"{"checker": "python"}"#,
        r#"{"command": ["bash", "-n", "{file}"], "pattern": "(?<error>.+)"}"#,
        r#"{"command": ["check", "{file}"]}"#,
    ] {
        let config = parse(&with_syntax_check(check)).unwrap();
        assert!(config.languages.values().all(|language| language.syntax.is_some()), "{check}");
    }
    for (check, key) in [
        ("{}", ""),
        (r#"{"pattern": "(?<error>.+)"}"#, ""),
        (r#"{"checker": "node", "command": ["node", "{file}"]}"#, ""),
        (r#"{"checker": "node", "pattern": "(?<error>.+)"}"#, ".pattern"),
        (r#"{"command": ["bash", "-n"]}"#, ".command"),
        (r#"{"command": ["bash", "{file}"], "pattern": "("}"#, ".pattern"),
        (r#"{"command": ["bash", "{file}"], "pattern": "line (?<line>.)"}"#, ".pattern"),
    ] {
        let path = problem(&with_syntax_check(check)).0;
        assert_eq!(path, format!("languageSettings.bash.syntaxCheck{key}"), "{check}");
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

/// All keys that a part of the schema has, as pointers with their parts; of maps one entry, for Python. References are
/// followed.
fn keys<'a>(schema: &'a Value, part: &'a Value, at: &str) -> Vec<(String, &'a Value)> {
    let all = parts(schema, part, at).into_iter();
    all.map(|(pointer, part)| (pointer, followed(schema, part))).collect()
}

/// The same with the parts as they are written.
fn parts<'a>(schema: &'a Value, part: &'a Value, at: &str) -> Vec<(String, &'a Value)> {
    let mut found = vec![(at.to_owned(), part)];
    let part = followed(schema, part);
    let named = part["properties"].as_object().into_iter().flatten();
    let entry = part.get("additionalProperties").filter(|it| it.is_object());
    let entry = entry.map(|entry| ("python", entry));
    let inside = named.map(|(name, part)| (name.as_str(), part)).chain(entry);
    found.extend(inside.flat_map(|(name, part)| parts(schema, part, &format!("{at}/{name}"))));
    found
}

/// The part that a reference names, without the choice of `null`.
fn followed<'a>(schema: &'a Value, part: &'a Value) -> &'a Value {
    let part = match part["anyOf"].as_array().map(Vec::as_slice) {
        Some([section, null]) if null["type"] == "null" => section,
        _ => part,
    };
    match part["$ref"].as_str() {
        Some(reference) => schema.pointer(reference.trim_start_matches('#')).unwrap(),
        None => part,
    }
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

/// Texts that are valid for some keys and invalid for most.
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
    fn any_settings_are_refused_with_a_reason_or_within_all_bounds(
        chosen in prop::collection::vec((any::<prop::sample::Index>(), any_value()), 1..6)
    ) {
        let schema = schema();
        let all = keys(&schema, &schema, "");
        let mut settings = json!({});
        for (key, value) in chosen {
            set(&mut settings, &all[key.index(all.len())].0, value);
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
