//! The messages about wrong configurations: the key first, then one sentence in plain words.

use std::path::Path;

use isolator_pool::pool::sizing::Size;

use super::super::load::assemble;
use super::*;

/// All problems, one a line.
fn reported(text: &str, variables: &[(&str, &str)]) -> String {
    let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
    let problems = assemble(text, None, Path::new("/conf"), variables).expect_err(text);
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn broken_json_is_reported_with_its_position() {
    for (text, message) in [
        ("", "the file: is empty; write {} into it to use the defaults"),
        (" \n\t", "the file: is empty; write {} into it to use the defaults"),
        ("[]", "the file: needs { at its beginning and } at its end"),
        ("\"pool\"", "the file: needs { at its beginning and } at its end"),
        ("{", "the end of the file: comes too early; close all brackets and quotes"),
        (
            "{\n  \"pool\": {\"size\": 4\n",
            "the end of the file: comes too early; close all brackets and quotes",
        ),
        (
            "{\n  // two are enough\n  \"pool\": {}\n}",
            "line 2, column 3: JSON has no comments; remove this one",
        ),
        ("{\"pool\": {} # two\n}", "line 1, column 13: JSON has no comments; remove this one"),
        ("{\"pool\": {},}", "line 1, column 13: there is a comma before this bracket; remove it"),
        ("{\"pool\": {}\n \"http\": {}}", "line 2, column 2: expected a comma or }"),
        ("{pool: {}}", "line 1, column 2: expected a key in double quotes"),
        ("{\"pool\" {}}", "line 1, column 9: expected a colon after the key"),
        (
            "{\"defaultCpus\": .5}",
            "line 1, column 17: expected a value: a number, true, false, \"text\", [ or {",
        ),
        ("{\"pool\": nil}", "line 1, column 11: expected true, false or null"),
        (
            "{\"promptsDir\": \"a\nb\"}",
            "line 2, column 0: a text can't contain line breaks and tabs; write them as \\n and \\t",
        ),
        ("{} {}", "line 1, column 4: nothing can follow the last }"),
        ("{\"pool\": {\"size\": 1, \"size\": 2}}", "pool.size: is there twice; remove one"),
    ] {
        assert_eq!(reported(text, &[]), message, "{text}");
    }
    assert!(reported(&"[".repeat(500), &[]).ends_with("there are too many brackets in brackets"));
}

#[test]
fn a_wrong_value_or_key_is_reported_with_a_correction() {
    for (text, message) in [
        (r#"{"pool": {"size": -1}}"#, "pool.size: expected a whole number from 0 to 1000, not -1"),
        (
            r#"{"pool": {"size": 1.5}}"#,
            "pool.size: expected a whole number from 0 to 1000, not 1.5",
        ),
        (r#"{"pool": {"hot": "1"}}"#, "pool.hot: expected a whole number of at least 0, not \"1\""),
        (
            r#"{"defaultPidsLimit": 5000000000}"#,
            "defaultPidsLimit: expected a whole number from 4 to 4194304, not 5000000000",
        ),
        (
            r#"{"requests": {"refills": 0}}"#,
            "requests.refills: expected a whole number from 1 to 64, not 0",
        ),
        (
            r#"{"defaultCpus": "half"}"#,
            "defaultCpus: expected a number from 0.01 to 1024, not \"half\"",
        ),
        (
            r#"{"defaultReadOnlyRootfs": "true"}"#,
            "defaultReadOnlyRootfs: expected true or false, not \"true\"",
        ),
        (
            r#"{"limits": {"maxTimeout": "5 parsecs"}}"#,
            "limits.maxTimeout: expected a duration such as \"5s\" or \"2m\", not \"5 parsecs\"",
        ),
        (
            r#"{"pool": {"maxAge": 5}}"#,
            "pool.maxAge: expected a duration such as \"5s\" or \"2m\", not 5",
        ),
        (r#"{"promptsDir": ["a"]}"#, "promptsDir: expected a text in double quotes, not a list"),
        (
            r#"{"defaultCapDrop": "ALL"}"#,
            "defaultCapDrop: expected a list of texts, such as [\"a\", \"b\"], not \"ALL\"",
        ),
        (
            r#"{"http": {"allowedHosts": ["a", 1]}}"#,
            "http.allowedHosts[1]: expected a text in double quotes, not 1",
        ),
        (r#"{"pool": 4}"#, "pool: expected an object in { }, not 4"),
        (
            r#"{"languageSettings": ["go"]}"#,
            "languageSettings: expected an object in { }, not a list",
        ),
        (
            r#"{"engine": {"kind": "dokcer"}}"#,
            "engine.kind: expected \"auto\", \"docker\" or \"embedded\", not \"dokcer\"; did you mean \"docker\"?",
        ),
        (
            r#"{"images": {"policy": 1}}"#,
            "images.policy: expected \"missing\", \"never\" or \"always\", not 1",
        ),
        (
            r#"{"languageSettings": {"python": {"imgae": "x"}}}"#,
            "languageSettings.python.imgae: there is no such key; did you mean `image`?",
        ),
        (
            r#"{"languageSettings": {"python": {"memory": 1}}}"#,
            "languageSettings.python.memory: there is no such key; did you mean `memoryMB`?",
        ),
        (r#"{"defaultcpus": 1}"#, "defaultcpus: there is no such key; did you mean `defaultCpus`?"),
        (
            r#"{"timeout": 1}"#,
            "timeout: there is no such key; did you mean `defaultTimeoutSeconds`?",
        ),
        (
            r#"{"maxTimeout": "5m"}"#,
            "maxTimeout: there is no such key here; did you mean `limits.maxTimeout`?",
        ),
        (
            r#"{"pool": {"colour": 1}}"#,
            "pool.colour: there is no such key here; there are hot, maxAge, memoryMB, size, target",
        ),
        (r#"{"http": {"tls": {"key": "k"}}}"#, "http.tls.certificate: is required here"),
        (
            r#"{"admin": {"address": "here"}}"#,
            "admin.address: expected a port, or ADDRESS:PORT such as 127.0.0.1:8000, where ADDRESS is an IP address or localhost, and an IPv6 address is in brackets",
        ),
        (
            r#"{"languageSettings": {"go": {"hints": [{"pattern": "(", "advice": "a"}]}}}"#,
            "languageSettings.go.hints[0].pattern: is not a regular expression: unclosed group",
        ),
        (
            r#"{"limits": {"maxTimeout": "0s"}}"#,
            "limits.maxTimeout: a duration of zero is not allowed",
        ),
        (
            r#"{"pool": {"size": 100000}}"#,
            "pool.size: expected a whole number from 0 to 1000, not 100000",
        ),
    ] {
        assert_eq!(reported(text, &[]), message, "{text}");
    }
}

#[test]
fn all_errors_of_the_file_and_the_environment_are_reported_together() {
    let text = r#"{"defaultMemoryMB": "1", "pool": {"sise": 1}, "languageSettings": {"go": {"cpus": []}}}"#;
    assert_eq!(
        reported(text, &[("ISOLATOR_POOL__HOT", "x"), ("ISOLATOR_ENGINE__KIND", "docker")]),
        "defaultMemoryMB: expected a whole number from 16 to 1048576, not \"1\"\n\
         languageSettings.go.cpus: expected a number from 0.01 to 1024, not a list\n\
         pool.sise: there is no such key; did you mean `size`?\n\
         ISOLATOR_POOL__HOT: expected a whole number of at least 0, not \"x\""
    );
    let limits = [("ISOLATOR_POOL__SIZE", "1"), ("ISOLATOR_POOL__HOT", "2")];
    assert_eq!(reported("{}", &limits), "ISOLATOR_POOL__HOT: 2 is more than the pool's size of 1");
}

#[test]
fn messages_do_not_name_types_of_the_program() {
    let wrong = [json!(-1), json!(1.5), json!("?"), json!(true), json!([1]), json!({"?": 1})];
    let schema = schema();
    for (pointer, _) in keys(&schema, &schema, "").iter().filter(|(pointer, _)| !pointer.is_empty())
    {
        for value in &wrong {
            let mut settings = json!({});
            set(&mut settings, pointer, value.clone());
            for problem in parse(&settings.to_string()).err().unwrap_or_default() {
                let told = problem.to_string();
                for word in [
                    "Config",
                    "SizeSetting",
                    "u64",
                    "usize",
                    "f64",
                    "invalid type",
                    "expected struct",
                    "field",
                    "\n",
                ] {
                    assert!(!told.contains(word), "{word:?} in {told:?}");
                }
                assert!(!problem.path.is_empty() && !problem.message.is_empty(), "{told:?}");
            }
        }
    }
}

#[test]
fn a_byte_order_mark_and_null_are_ignored() {
    let config = parse("\u{feff}{\"defaultCpus\": null, \"pool\": null}").unwrap();
    assert_eq!(format!("{:?}", config.limits), format!("{:?}", parse("{}").unwrap().limits));
}

#[test]
fn the_environment_overrides_the_file() {
    let text = r#"{"pool": {"size": 3, "hot": 2}, "languageSettings": {"go": {"enabled": false}}}"#;
    let variables = [
        ("ISOLATOR_POOL__SIZE", "5"),
        ("ISOLATOR_LANGUAGE_SETTINGS__PYTHON__POOL__SIZE", "7"),
        ("ISOLATOR_LANGUAGE_SETTINGS__PYTHON__ENV__TZ", "UTC"),
    ];
    let variables = variables.map(|(name, value)| (name.into(), value.into()));
    let config = assemble(text, None, Path::new("/conf"), variables).unwrap();
    let [python, javascript] = ["python", "javascript"].map(|name| &config.languages[name]);
    let size = |language: &Language| language.pool.size;
    assert_eq!([size(python), size(javascript)], [Size::Fixed(7), Size::Fixed(5)]);
    assert_eq!(javascript.pool.hot, 2);
    assert_eq!(python.env["TZ"], "UTC");
    assert!(!config.languages.contains_key("go"));
}

#[test]
fn every_key_is_shown_with_its_value_and_origin() {
    let text = r#"{"defaultCpus": 2, "languageSettings": {"go": {"enabled": false}, "python": {"cpus": 1}}}"#;
    let variables = [("ISOLATOR_DEFAULT_MEMORY_MB".into(), "300".into())];
    let file = Path::new("/conf/file.json");
    let mut config = assemble(text, Some(file.to_owned()), Path::new("/conf"), variables).unwrap();
    config.choose_engine(Some(EngineKind::Embedded));
    let all = config.effective();
    let shown = |key: &str| {
        let found = all.iter().find(|it| it.key == key).unwrap_or_else(|| panic!("{key}"));
        format!("{} from {}", found.value, found.origin)
    };
    for (key, expected) in [
        ("defaultCpus", "2.0 from /conf/file.json"),
        ("defaultMemoryMB", "300 from ISOLATOR_DEFAULT_MEMORY_MB"),
        ("defaultPidsLimit", "64 from default"),
        ("engine.kind", "\"embedded\" from --engine"),
        ("http.tokens", "null from default"),
        ("audit.keep", "8 from default, if audit.path is set"),
        ("languageSettings.python.pool.target", "0.99 from default, if pool.size is a range"),
        ("languageSettings.python.preload.fork", "true from default"),
        ("languageSettings.go.enabled", "false from /conf/file.json"),
        ("languageSettings.python.cpus", "1.0 from /conf/file.json"),
        ("languageSettings.python.memoryMB", "300 from defaultMemoryMB"),
        ("languageSettings.javascript.cpus", "2.0 from defaultCpus"),
        ("languageSettings.python.image", "\"isolator/python\" from default"),
        ("limits.maxTimeout", "\"5m\" from default"),
        ("pool.size", "2 from default"),
    ] {
        assert_eq!(shown(key), expected, "{key}");
    }
    // All keys are there, and what is shown is a configuration that means the same.
    let mut settings = json!({});
    let holds = |entry: &&Effective| {
        !entry.value.is_null() && !matches!(entry.origin, Origin::DefaultIf(_))
    };
    for entry in all.iter().filter(holds) {
        set(&mut settings, &format!("/{}", entry.key.replace('.', "/")), entry.value.clone());
    }
    let mut again =
        Config::parse(&settings.to_string(), config.file.clone(), &config.directory).unwrap();
    again.settings = config.settings.clone();
    again.engine.is_chosen_on_command_line = true;
    assert_eq!(format!("{again:?}"), format!("{config:?}"));
}
