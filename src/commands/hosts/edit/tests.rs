use super::*;
use crate::commands::hosts::{Host, host};

fn entry() -> Entry {
    Entry::new(host("cursor"), "/opt/isolator".to_owned(), vec!["serve".to_owned()])
}

fn added(text: &str) -> String {
    add(text, host("cursor"), "isolator", &entry(), Other::Refuse)
        .unwrap_or_else(|error| panic!("{error}: {text}"))
        .unwrap_or_else(|| panic!("nothing changed: {text}"))
}

fn removed(text: &str) -> String {
    remove(text, host("cursor"), "isolator", &entry(), Other::Refuse)
        .unwrap_or_else(|error| panic!("{error}: {text}"))
        .unwrap_or_else(|| panic!("nothing changed: {text}"))
}

const ENTRY: &str = r#""isolator": {
      "type": "stdio",
      "command": "/opt/isolator",
      "args": ["serve"]
    }"#;

#[test]
fn a_text_without_anything_gets_the_whole_form() {
    let whole = format!("{{\n  \"mcpServers\": {{\n    {ENTRY}\n  }}\n}}\n");
    for empty in ["", " \n", "{}\n", "{\n}\n", "{\n  \"mcpServers\": {}\n}\n"] {
        assert_eq!(added(empty), whole, "{empty:?}");
    }
}

#[test]
fn the_rest_of_a_file_stays_as_it_is() {
    let before = r#"// mine
{
  "theme": "dark", // or light
  "mcpServers": {
    /* the first */
    "files": { "command": "files", "args": [ "a",  "b" ] },
    "web": {
      "url": "https://example.com", "big": 12345678901234567890.10
    } // the last
  },
  "zoom": 1.50
}
"#;
    let after =
        before.replace("    } // the last\n", &format!("    }}, // the last\n    {ENTRY}\n"));
    assert_eq!(added(before), after);
    assert_eq!(removed(&after), before);
}

#[test]
fn styles_are_kept() {
    for (before, hints) in [
        // Commas before a closing brace.
        ("{\n  \"mcpServers\": {\n    \"a\": {},\n  },\n}\n", &["    },\n  },\n}\n"][..]),
        // Tabs.
        (
            "{\n\t\"mcpServers\": {\n\t\t\"a\": {}\n\t}\n}\n",
            &["\n\t\t\"isolator\": {\n\t\t\t\"type\""],
        ),
        // Lines as Windows ends them, and its mark at the beginning.
        (
            "\u{feff}{\r\n  \"mcpServers\": {\r\n    \"a\": {}\r\n  }\r\n}\r\n",
            &["\r\n      \"type\""],
        ),
        // No end of the last line.
        ("{\n  \"mcpServers\": {\n    \"a\": {}\n  }\n}", &["\n  }\n}"]),
    ] {
        let after = added(before);
        for hint in hints {
            assert!(after.contains(hint), "{hint:?}: {after:?}");
        }
        assert_eq!(after.contains('\r'), before.contains('\r'));
        assert!(!after.replace("\r\n", "").contains('\n') || !before.contains('\r'), "{after:?}");
        assert_eq!(removed(&after), before);
    }
    // What was all on one line says the same afterwards.
    let one_line = r#"{"a":[1,2],"mcpServers":{"b":{"command":"b"}}}"#;
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(value(&removed(&added(one_line))), value(one_line));
}

#[test]
fn an_entry_that_is_there_is_not_changed() {
    let add = |text: &str, other| add(text, host("cursor"), "isolator", &entry(), other);
    let twice = added("{}");
    assert!(add(&twice, Other::Refuse).unwrap().is_none());
    assert!(add(&twice, Other::Replace).unwrap().is_none());
    // Keys that the user added are left alone.
    let more = twice.replace("\"args\"", "\"env\": { \"A\": \"1\" }, \"args\"");
    assert!(add(&more, Other::Refuse).unwrap().is_none());

    let other = r#"{ "mcpServers": { "isolator": { "url": "https://example.com" }, "z": {} } }"#;
    let message = add(other, Other::Refuse).unwrap_err().to_string();
    assert!(message.contains("example.com") && message.contains("--force"), "{message}");
    let replaced = add(other, Other::Replace).unwrap().unwrap();
    assert!(!replaced.contains("example.com") && replaced.contains("\"z\": {}"), "{replaced}");
}

#[test]
fn only_this_server_is_taken_out() {
    let remove = |text: &str, other| remove(text, host("cursor"), "isolator", &entry(), other);
    for without in ["", "{}", r#"{ "mcpServers": { "other": {} } }"#] {
        assert!(remove(without, Other::Refuse).unwrap().is_none(), "{without}");
    }
    let moved = r#"{ "mcpServers": { "isolator": { "command": "/old/isolator" } } }"#;
    assert!(!remove(moved, Other::Refuse).unwrap().unwrap().contains("isolator"));
    let other = r#"{ "mcpServers": { "isolator": { "url": "https://example.com" } } }"#;
    assert!(matches!(remove(other, Other::Refuse), Err(EditError::NotOurs { .. })));
    assert!(!remove(other, Other::Replace).unwrap().unwrap().contains("isolator"));
}

#[test]
fn unparsable_configurations_are_rejected() {
    let add = |text: &str, host: &Host| {
        let changed = add(text, host, "isolator", &entry(), Other::Replace);
        changed.expect_err(text).to_string()
    };
    for (text, hint) in [
        ("{", "line 1"),
        ("{\n  \"a\": 1\n  \"b\": 2\n}", "line"),
        ("{ 'a': 1 }", "can't be read"),
        ("{} {}", "can't be read"),
        ("[]", "the whole file"),
        ("null", "the whole file"),
        (r#"{ "mcpServers": [] }"#, "\"mcpServers\" is not an object"),
        (r#"{ "mcpServers": null }"#, "\"mcpServers\" is not an object"),
        (r#"{ "mcpServers": {}, "mcpServers": {} }"#, "\"mcpServers\" is there twice"),
        (r#"{ "mcpServers": { "isolator": {}, "isolator": {} } }"#, "\"isolator\" is there twice"),
        (&"[".repeat(100_000), "can't be read"),
    ] {
        let message = add(text, host("cursor"));
        assert!(message.contains(hint), "{text:.80}: {message}");
    }
    for text in ["{ \"a\": 1, }", "{} // mine", "/* mine */ {}"] {
        assert!(
            add(text, host("claude-desktop")).contains("no comments and no trailing commas"),
            "{text}"
        );
    }
}

#[test]
fn a_host_that_reads_comments_but_no_extra_commas_gets_none() {
    let host = host("gemini-cli");
    let entry = Entry::new(host, "/opt/isolator".to_owned(), vec!["serve".to_owned()]);
    let add = |text: &str| add(text, host, "isolator", &entry, Other::Refuse);
    let after = add("// mine\n{\n  \"a\": 1 // one\n}\n").unwrap().unwrap();
    assert!(after.starts_with("// mine\n{\n  \"a\": 1, // one\n  \"mcpServers\": {"), "{after}");
    assert!(matches!(add("{ \"a\": 1, }"), Err(EditError::Syntax(_))));
}

/// Adds to a text of a host and removes again, and returns what it was in between.
fn there_and_back(host: &Host, before: &str) -> String {
    let entry = Entry::new(host, "/opt/isolator".to_owned(), vec!["serve".to_owned()]);
    let changed = |changed: Result<Option<String>, EditError>| {
        changed.unwrap_or_else(|error| panic!("{error}: {before}")).expect("a change")
    };
    let after = changed(add(before, host, "isolator", &entry, Other::Refuse));
    assert!(add(&after, host, "isolator", &entry, Other::Replace).unwrap().is_none(), "{after}");
    let moved = Entry::new(host, "/usr/bin/isolator".to_owned(), Vec::new());
    let other = add(&after, host, "isolator", &moved, Other::Refuse).unwrap_err().to_string();
    assert!(other.contains("/opt/isolator") && other.contains("--force"), "{other}");
    let replaced = changed(add(&after, host, "isolator", &moved, Other::Replace));
    assert_eq!(replaced, after.replace("/opt/", "/usr/bin/").replace("[\"serve\"]", "[]"));
    assert_eq!(changed(remove(&after, host, "isolator", &moved, Other::Refuse)), before);
    assert!(remove(before, host, "isolator", &entry, Other::Refuse).unwrap().is_none());
    after
}

#[test]
fn open_code_s_servers_are_where_the_file_has_them() {
    let old = "{\n  \"mcp\": {\n    \"a\": {}\n  }\n}\n";
    let entry = "\"isolator\": {\n      \"type\": \"local\",\n      \"command\": [\"/opt/isolator\", \"serve\"]\n    }";
    let host = host("opencode");
    let ours = Entry::new(host, "/opt/isolator".to_owned(), vec!["serve".to_owned()]);
    let added = |text| add(text, host, "isolator", &ours, Other::Refuse).unwrap().unwrap();
    let after = added(old);
    assert_eq!(after, old.replace("{}", &format!("{{}},\n    {entry}")));
    assert_eq!(remove(&after, host, "isolator", &ours, Other::Refuse).unwrap().unwrap(), old);
    // Of a file in the newer form, the name in the older one still counts.
    for (before, place) in [
        (r#"{"mcp":{"servers":{"a":{"type":"local"}}}}"#, "/mcp/servers/isolator"),
        (r#"{"mcp":{"servers":{"type":"local","command":["x"]}}}"#, "/mcp/isolator"),
        ("{}", "/mcp/isolator"),
    ] {
        let after: Value = serde_json::from_str(&added(before)).unwrap();
        assert!(after.pointer(place).is_some(), "{after}");
    }
    let both = r#"{"mcp":{"isolator":{"type":"local","command":["/old/isolator"]},"servers":{}}}"#;
    let removed = remove(both, host, "isolator", &ours, Other::Refuse).unwrap().unwrap();
    assert!(!removed.contains("isolator"), "{removed}");
}

const IN_TOML: &str = "\n[mcp_servers.isolator]\ncommand = \"/opt/isolator\"\nargs = [\"serve\"]\n\
    tool_timeout_sec = 120\n";

#[test]
fn toml_is_kept_as_it_is() {
    let before = "# all mine\nmodel = \"o3\" # the best\n\n[mcp_servers.files]  # of two\n\
        command = 'files'\nargs = [ \"a\",  \"b\" ]\n\n[mcp_servers.files.env]\nKEY = \"secret\"\n";
    assert_eq!(there_and_back(host("codex"), before), format!("{before}{IN_TOML}"));
    // Other tables can be in between and after.
    let between = "[mcp_servers.a]\ncommand = \"a\"\n\n[tui]\nanimations = false # no\n# the end\n";
    let after = there_and_back(host("codex"), between);
    assert!(after.contains(IN_TOML) && after.ends_with("# the end\n"), "{after}");
    assert_eq!(there_and_back(host("codex"), ""), IN_TOML.trim_start());
    let inline = "mcp_servers = { a = { command = \"a\" } }\n";
    let after = there_and_back(host("codex"), inline);
    assert!(after.contains("isolator = { command = \"/opt/isolator\""), "{after}");
}

const IN_YAML: &str = "  isolator:\n    name: \"isolator\"\n    type: \"stdio\"\n    enabled: true\n    \
    cmd: \"/opt/isolator\"\n    args: [\"serve\"]\n    timeout: 300\n";

#[test]
fn yaml_is_kept_as_it_is() {
    let before = "# all mine\nGOOSE_MODE: auto # careful\nextensions:\n  # the first\n  developer:\n    \
        enabled: true   # on\n    type: builtin\n\n    name: developer\n\n# the rest\nGOOSE_TEMPERATURE: 0.70\n";
    let rest = before.find("\n# the rest").unwrap();
    let after = there_and_back(host("goose"), before);
    assert_eq!(after, format!("{}{IN_YAML}{}", &before[..rest], &before[rest..]));
    // Other widths, and a block at the end.
    let wide = "extensions:\n    \"web\":\n        enabled: false\n        cmd: |\n            one
            two
";
    let after = there_and_back(host("goose"), wide);
    assert!(after.starts_with(wide) && after.contains("\n    isolator:\n      name:"), "{after}");
    for empty in ["extensions: {}\n", "a: 1\nextensions: {}\nb: 2\n"] {
        let after = there_and_back(host("goose"), empty);
        assert!(after.contains(&format!("extensions:\n{IN_YAML}")), "{after}");
    }
    let host = host("goose");
    let entry = Entry::new(host, "/opt/isolator".to_owned(), vec!["serve".to_owned()]);
    for none in ["", "extensions:\n", "extensions: null\n", "extensions: ~\n"] {
        let after = add(none, host, "isolator", &entry, Other::Refuse).unwrap().unwrap();
        assert_eq!(after, format!("extensions:\n{IN_YAML}"), "{none:?}");
        let removed = remove(&after, host, "isolator", &entry, Other::Refuse).unwrap().unwrap();
        assert_eq!(removed, "extensions: {}\n");
    }
}

#[test]
fn files_with_unusual_syntax_are_not_changed() {
    for (host, text, hint) in [
        (host("codex"), "a = [", "line 1"),
        (host("codex"), "\n\na = 1\na = 2\n", "line 4: duplicate"),
        (host("codex"), "mcp_servers = 1\n", "\"mcp_servers\" is not an object"),
        (host("codex"), "[[mcp_servers]]\na = 1\n", "\"mcp_servers\" is not an object"),
        (host("goose"), "a: [", "can't be read"),
        (host("goose"), "a: 1\na: 2\n", "can't be read"),
        (host("goose"), "- a\n", "the whole file is not an object"),
        (host("goose"), "extensions:\n  - a\n", "\"extensions\" is not an object"),
        (host("goose"), "extensions: 1\n", "\"extensions\" is not an object"),
        // These are valid, but not in the form that hosts write.
        (host("goose"), "extensions: { a: { enabled: true } }\n", "by hand"),
        (host("goose"), "{ extensions: { a: { enabled: true } } }\n", "by hand"),
        (host("goose"), "extensions: &x\n  a: 1\nmore: *x\n", "by hand"),
        (host("goose"), "a: 1\r\n", "by hand"),
        (host("codex"), "a = 1\r\n", "by hand"),
        (host("goose"), "? extensions\n: a: 1\n", "by hand"),
        (host("goose"), "a: 1\n...\n", "by hand"),
        (host("goose"), "extensions:\n  a:\n    cmd: |\n      one\n      # two\n", "by hand"),
    ] {
        let entry = Entry::new(host, "/opt/isolator".to_owned(), vec!["serve".to_owned()]);
        let refused = add(text, host, "isolator", &entry, Other::Replace);
        let message = refused.expect_err(text).to_string();
        assert!(message.contains(hint), "{text:?}: {message}");
    }
}
