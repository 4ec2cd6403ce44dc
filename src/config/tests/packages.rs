//! The section `packages`.

use isolator_pool::engine::preload::Interpreter;

use super::super::load::assemble;
use super::*;

const SETS: &str = r#"{"packages": {"sets": {
    "text": {"language": "python", "requirements": ["humanize==4.*", "rapidfuzz"]},
    "web-1.0_a": {"language": "javascript", "requirements": ["@scope/name@^1.2"]}
}}}"#;

#[test]
fn only_languages_with_sets_have_a_place_for_them() {
    let places = |text: &str| {
        let config = parse(text).unwrap();
        let place = |name: &str| config.languages[name].sandbox.packages;
        (place("python"), place("javascript"), place("go"))
    };
    assert_eq!(places("{}"), (None, None, None));
    let both = (Some(Interpreter::Python), Some(Interpreter::Node), None);
    assert_eq!(places(SETS), both);
    assert_eq!(places(r#"{"packages": {"onDemand": {"enabled": true}}}"#), both);
    let python = r#"{"packages": {"sets": {"a": {"language": "python", "requirements": ["b"]}}}}"#;
    assert_eq!(places(python), (Some(Interpreter::Python), None, None));
    let config = parse(SETS).unwrap().packages;
    assert_eq!(config.sets["text"].requirements, ["humanize==4.*", "rapidfuzz"]);
    assert_eq!(config.lock_folder, Path::new("/conf/isolator.lock"));
}

#[test]
fn an_invalid_set_is_reported_with_its_place() {
    let set = |name: &str, language: &str, requirements: &str| {
        let set = format!(r#"{{"language": "{language}", "requirements": {requirements}}}"#);
        problem(&format!(r#"{{"packages": {{"sets": {{"{name}": {set}}}}}}}"#))
    };
    for name in ["", "Text", "-a", "a b", "../a", "a/b", "ä", &"a".repeat(65)] {
        let (path, message) = set(name, "python", r#"["b"]"#);
        assert_eq!(path, format!("packages.sets.{name}"), "{message}");
    }
    let (path, message) = set("a", "go", r#"["b"]"#);
    assert_eq!(path, "packages.sets.a.language");
    assert_eq!(
        message,
        "\"go\" has no interpreter that can use packages: use one of javascript, python"
    );
    assert!(set("a", "cobol", r#"["b"]"#).1.contains("is not a configured language"));
    assert_eq!(set("a", "python", "[]").0, "packages.sets.a.requirements");
    let many = format!("[{}]", vec![r#""b""#; 501].join(","));
    assert!(set("a", "python", &many).1.contains("there are 501"));
    for wrong in [
        "",
        "-e .",
        "--index-url=http://x",
        "b @ file:///b",
        "git+https://x/b",
        "./b",
        "b==",
        "b c",
    ] {
        let (path, _) = set("a", "python", &format!(r#"["b", "{wrong}"]"#));
        assert_eq!(path, "packages.sets.a.requirements[1]", "{wrong}");
    }
    let (_, message) = set("a", "python", r#"["b @ https://me:secret@host/b.whl"]"#);
    assert!(message.contains("***@host") && !message.contains("secret"), "{message}");
}

#[test]
fn sets_of_a_disabled_language_are_ignored() {
    let off = r#"{"languageSettings": {"python": {"enabled": false}}, "packages": {"sets": {
        "text": {"language": "python", "requirements": ["b"]}}}}"#;
    assert!(parse(off).unwrap().packages.sets.is_empty());
}

#[test]
fn allowed_packages_follow_the_names_of_each_ecosystem() {
    let text = r#"{"packages": {"onDemand": {"enabled": true, "allow": ["Humanize", "types_*", "@scope/*"], "maxSets": 3}}}"#;
    let config = parse(text).unwrap().packages;
    let config = config.on_demand().unwrap();
    assert_eq!(config.max_sets, 3);
    for (interpreter, name, expected) in [
        (Interpreter::Python, "humanize", true),
        (Interpreter::Python, "types-requests", true),
        (Interpreter::Python, "humanize-more", false),
        (Interpreter::Node, "types_x", true),
        (Interpreter::Node, "types-x", false),
        (Interpreter::Node, "@scope/name", true),
        (Interpreter::Node, "@other/name", false),
    ] {
        assert_eq!(config.allows(interpreter, name), expected, "{name}");
    }
    assert!(parse("{}").unwrap().packages.on_demand().is_none());
    let all = parse(r#"{"packages": {"onDemand": {"enabled": true}}}"#).unwrap();
    assert!(all.packages.on_demand().unwrap().allows(Interpreter::Node, "@any/thing"));
}

#[test]
fn tools_are_names_or_relative_to_the_file() {
    let tools = parse(r#"{"packages": {"tools": {"uv": "bin/uv", "npm": "npm-11"}}}"#);
    let tools = tools.unwrap().packages.tools;
    assert_eq!(tools.uv, Path::new("/conf/bin/uv"));
    assert_eq!(tools.npm, Path::new("npm-11"));
}

#[test]
fn credentials_are_not_in_the_effective_configuration() {
    const SECRET: &str = "https://me:geheim@index.example/simple/";
    let text = format!(r#"{{"packages": {{"index": {{"javascript": "{SECRET}"}}}}}}"#);
    let variable = ("ISOLATOR_PACKAGES__INDEX__PYTHON".into(), SECRET.into());
    let config = assemble(&text, None, Path::new("/conf"), [variable]).unwrap();
    assert!(!format!("{config:?}").contains("geheim"));
    let effective = config.effective();
    let shown = |key: &str| {
        let found = effective.iter().find(|entry| entry.key == key).unwrap();
        (found.value.clone(), found.origin.to_string())
    };
    let hidden = json!("https://***@index.example/simple/");
    let origin = "ISOLATOR_PACKAGES__INDEX__PYTHON".to_owned();
    assert_eq!(shown("packages.index.python"), (hidden.clone(), origin));
    assert_eq!(shown("packages.index.javascript").0, hidden);
    let index = &config.packages.index(Interpreter::Python).unwrap();
    assert_eq!(index.with_credentials(), Some(SECRET));
}

#[test]
fn a_variable_can_set_a_key_of_a_set_with_any_name() {
    let variable =
        ("ISOLATOR_PACKAGES__SETS__WEB_1_0_A__REQUIREMENTS".into(), r#"["lodash"]"#.into());
    let config = assemble(SETS, None, Path::new("/conf"), [variable]).unwrap();
    assert_eq!(config.packages.sets["web-1.0_a"].requirements, ["lodash"]);
}
