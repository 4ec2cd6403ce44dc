//! The entry in a host's configuration: the command that starts this server.

use std::path::Path;
use std::time::Duration;

use jsonc_parser::cst::CstInputValue;
use serde_json::Value;

use super::{OwnCommand, Profile, Transport};

/// Longest name that all hosts accept.
const LONGEST_NAME: usize = 64;

/// Checks a name for the server, which every host must accept.
///
/// # Errors
///
/// What is wrong with it.
pub(crate) fn server_name(name: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_plain) {
        return Err(format!("use 1 to {LONGEST_NAME} letters, digits, hyphens and underscores"));
    }
    Ok(name.to_owned())
}

/// The entry of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    transport: Transport,
    command: String,
    args: Vec<String>,
    timeout: Option<Duration>,
}

impl Entry {
    /// One that starts `command` with `args`, as the host wants it.
    pub(crate) fn new(profile: &Profile, command: String, args: Vec<String>) -> Self {
        Self { transport: profile.transport, command, args, timeout: profile.timeout }
    }

    /// The entry as JSON to insert.
    pub(super) fn to_input(&self) -> CstInputValue {
        let mut fields = Vec::new();
        if self.transport == Transport::Named {
            fields.push(("type".to_owned(), "stdio".into()));
        }
        fields.push(("command".to_owned(), self.command.as_str().into()));
        let args = self.args.iter().map(|argument| argument.as_str().into()).collect();
        fields.push(("args".to_owned(), CstInputValue::Array(args)));
        if let Some(timeout) = self.timeout {
            fields.push(("timeout".to_owned(), timeout.as_secs().into()));
        }
        CstInputValue::Object(fields)
    }

    /// Whether another entry starts the same command. Its other keys, such as a timeout, belong to the user or the
    /// host.
    pub(crate) fn starts_as(&self, other: &Value) -> bool {
        let args = other.get("args").and_then(Value::as_array);
        let kind = other.get("type").and_then(Value::as_str).unwrap_or("stdio");
        kind == "stdio"
            && other.get("command").and_then(Value::as_str) == Some(&self.command)
            && args.is_some_and(|args| args.iter().eq(&self.args))
    }

    /// Whether another entry starts this server, perhaps another copy of it or with other arguments.
    pub(crate) fn is_of_same_server(&self, other: &Value) -> bool {
        let own = Path::new(&self.command).file_name();
        let command = other.get("command").and_then(Value::as_str).map(Path::new);
        command
            .and_then(Path::file_name)
            .is_some_and(|name| Some(name) == own || name == "isolator")
    }

    /// The host's own command that adds the entry, for a shell.
    pub(crate) fn command_of_host(&self, command: OwnCommand, name: &str) -> String {
        match command {
            OwnCommand::ClaudeMcpAdd => {
                let words = std::iter::once(&self.command).chain(&self.args);
                let words: Vec<_> = words.map(|word| quoted(word)).collect();
                let words = words.join(" ");
                format!("claude mcp add --scope user --transport stdio {name} -- {words}")
            }
            OwnCommand::CodeAddMcp => {
                let server = serde_json::json!({
                    "name": name, "command": self.command, "args": self.args,
                });
                format!("code --add-mcp {}", quoted(&server.to_string()))
            }
        }
    }
}

/// A word, quoted for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::hosts::Host;

    fn entry() -> Entry {
        let args =
            vec!["serve".to_owned(), "--config".to_owned(), "/my files/it's.json".to_owned()];
        Entry::new(Host::ClaudeCode.profile(), "/opt/isolator".to_owned(), args)
    }

    #[test]
    fn names_are_those_that_every_host_takes() {
        for name in ["isolator", "Isolator-2", "a_b"] {
            assert_eq!(server_name(name).as_deref(), Ok(name));
        }
        for name in ["", "a b", "a.b", "ä", &"a".repeat(65)] {
            assert!(server_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn what_the_user_added_makes_no_other_entry() {
        let args = ["serve", "--config", "/my files/it's.json"];
        let same = json!({ "command": "/opt/isolator", "args": args, "disabled": true });
        assert!(entry().starts_as(&same) && entry().is_of_same_server(&same));
        let moved = json!({ "command": "/usr/bin/isolator", "args": args });
        assert!(!entry().starts_as(&moved) && entry().is_of_same_server(&moved));
        for other in [json!({ "url": "https://example.com" }), json!(null), json!({ "command": 1 })]
        {
            assert!(!entry().starts_as(&other) && !entry().is_of_same_server(&other), "{other}");
        }
    }

    #[test]
    fn commands_are_quoted_for_a_shell() {
        let command = entry().command_of_host(OwnCommand::ClaudeMcpAdd, "isolator");
        let promised = "claude mcp add --scope user --transport stdio isolator -- \
                        /opt/isolator serve --config '/my files/it'\\''s.json'";
        assert_eq!(command, promised);
    }
}
