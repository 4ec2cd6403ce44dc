use super::*;
use crate::commands::hosts::Host;

fn entry() -> Entry {
    Entry::new(Host::Cursor.profile(), "/opt/isolator".to_owned(), vec!["serve".to_owned()])
}

fn added(text: &str) -> String {
    add(text, Dialect::WithComments, "mcpServers", "isolator", &entry(), Other::Refuse)
        .unwrap_or_else(|error| panic!("{error}: {text}"))
        .unwrap_or_else(|| panic!("nothing changed: {text}"))
}

fn removed(text: &str) -> String {
    remove(text, Dialect::WithComments, "mcpServers", "isolator", &entry(), Other::Refuse)
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
fn what_is_there_stays_as_it_is() {
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
    let add = |text: &str, other| {
        add(text, Dialect::WithComments, "mcpServers", "isolator", &entry(), other)
    };
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
    let remove = |text: &str, other| {
        remove(text, Dialect::WithComments, "mcpServers", "isolator", &entry(), other)
    };
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
fn what_can_t_be_understood_is_refused() {
    let add = |text: &str, dialect| {
        let changed = add(text, dialect, "mcpServers", "isolator", &entry(), Other::Replace);
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
        let message = add(text, Dialect::WithComments);
        assert!(message.contains(hint), "{text:.80}: {message}");
    }
    for text in ["{ \"a\": 1, }", "{} // mine", "/* mine */ {}"] {
        assert!(
            add(text, Dialect::Strict).contains("no comments and no trailing commas"),
            "{text}"
        );
    }
}
