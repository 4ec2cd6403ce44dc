//! The entry in a host's configuration: the command that starts this server.

use std::path::Path;

use serde_json::{Value, json};

use super::{Form, Host, OwnCommand, Timeout};

/// The keys of an entry with their values, in order.
pub(super) type Fields = Vec<(&'static str, Value)>;

/// Longest name that all hosts accept.
const LONGEST_NAME: usize = 64;

/// Checks a name for the server, which every host must accept.
///
/// # Errors
///
/// The mistake.
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
    form: Form,
    command: String,
    args: Vec<String>,
    timeout: Option<Timeout>,
}

impl Entry {
    /// One that starts `command` with `args`, as the host wants it.
    pub(crate) fn new(host: &Host, command: String, args: Vec<String>) -> Self {
        Self { form: host.form, command, args, timeout: host.timeout }
    }

    /// The entry in the form of the host.
    pub(super) fn fields(&self, name: &str) -> Fields {
        let (command, args) = (json!(self.command), json!(self.args));
        let mut fields = match self.form {
            Form::Plain => vec![("command", command), ("args", args)],
            Form::Typed => vec![("type", json!("stdio")), ("command", command), ("args", args)],
            Form::List => vec![("type", json!("local")), ("command", json!(self.words()))],
            Form::Goose => vec![
                ("name", json!(name)),
                ("type", json!("stdio")),
                ("enabled", json!(true)),
                ("cmd", command),
                ("args", args),
            ],
        };
        fields.extend(self.timeout.map(|Timeout(key, time)| (key, json!(time.as_secs()))));
        fields
    }

    /// The command and its arguments.
    fn words(&self) -> Vec<&str> {
        std::iter::once(&self.command).chain(&self.args).map(String::as_str).collect()
    }

    /// The command and the arguments of another entry.
    fn words_of<'a>(&self, other: &'a Value) -> Option<Vec<&'a str>> {
        let list = |key: &str| other.get(key)?.as_array()?.iter().map(Value::as_str).collect();
        let (command, args) = match self.form {
            Form::List => return list("command"),
            Form::Plain | Form::Typed => ("command", "args"),
            Form::Goose => ("cmd", "args"),
        };
        let mut words = vec![other.get(command)?.as_str()?];
        words.extend(list(args).unwrap_or_default());
        Some(words)
    }

    /// Whether another entry starts the same command. Its other keys, such as a timeout, belong to the user or the
    /// host.
    pub(crate) fn starts_as(&self, other: &Value) -> bool {
        let usual = if self.form == Form::List { "local" } else { "stdio" };
        let kind = other.get("type").and_then(Value::as_str).unwrap_or(usual);
        kind == usual && self.words_of(other) == Some(self.words())
    }

    /// Whether another entry starts this server, perhaps another copy of it or with other arguments.
    pub(crate) fn is_of_same_server(&self, other: &Value) -> bool {
        let own = Path::new(&self.command).file_name();
        let words = self.words_of(other).unwrap_or_default();
        words
            .first()
            .and_then(|command| Path::new(command).file_name())
            .is_some_and(|name| Some(name) == own || name == "isolator")
    }

    /// The host's own command that adds the entry, for a shell.
    pub(crate) fn command_of_host(&self, command: OwnCommand, name: &str) -> String {
        let words = || self.words().into_iter().map(quoted).collect::<Vec<_>>().join(" ");
        match command {
            OwnCommand::ClaudeMcpAdd => {
                format!("claude mcp add --scope user --transport stdio {name} -- {}", words())
            }
            OwnCommand::CodexMcpAdd => format!("codex mcp add {name} -- {}", words()),
            OwnCommand::CodeAddMcp => {
                let server = json!({
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
    use super::*;
    use crate::commands::hosts::host;

    fn entry() -> Entry {
        let args =
            vec!["serve".to_owned(), "--config".to_owned(), "/my files/it's.json".to_owned()];
        Entry::new(host("claude-code"), "/opt/isolator".to_owned(), args)
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
