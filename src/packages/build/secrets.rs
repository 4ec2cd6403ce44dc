//! Credentials in the output of tools: they are removed before it is shown or logged.

use std::sync::LazyLock;

use isolator_pool::quote::escaped_lines;
use percent_encoding::percent_decode_str;
use regex::Regex;

use crate::pattern::pattern;

/// The replacement for a credential.
const HIDDEN: &str = "***";

/// Shorter secrets are only hidden in addresses: as plain words they would match everywhere.
const SHORTEST: usize = 4;

/// Name and password in an address.
static USER: LazyLock<Regex> = pattern!(r"(?<begin>[A-Za-z][A-Za-z0-9+.-]*://)[^/\s?#]*@");

/// The query of an address, which may be a token.
static QUERY: LazyLock<Regex> =
    pattern!(r#"(?<begin>[A-Za-z][A-Za-z0-9+.-]*://[^\s?"'<>]*)\?[^\s"'<>)]+"#);

/// Settings and headers with credentials.
static SETTING: LazyLock<Regex> = pattern!(
    r#"(?i)(?<begin>(?:_auth(?:token)?|_password|authorization)["']?\s*[=:]\s*["']?(?:(?:basic|bearer)\s+)?)[^\s"',]+"#
);

/// The credentials that a tool was given, in the spellings of its output.
#[derive(Default, Clone)]
pub(super) struct Secrets {
    /// Longest first, so that no rest of a longer one stays.
    texts: Vec<String>,
}

impl Secrets {
    /// Learns the credentials in an address.
    pub(super) fn add_address(&mut self, address: &str) {
        if let Some((user, password)) = credentials(address) {
            // A user name with a password is no secret, and may be any word. Alone it is a token.
            let secret = password.unwrap_or(user);
            self.add(&secret);
            self.add(&percent_decode_str(&secret).decode_utf8_lossy());
        }
        if let Some((_, query)) = address.split_once('?') {
            self.add(query);
        }
    }

    /// Learns the value of a variable with this name, if it may be a secret.
    pub(super) fn add_variable(&mut self, name: &str, value: &str) {
        let name = name.to_ascii_lowercase();
        if ["password", "token", "auth", "secret"].iter().any(|word| name.contains(word)) {
            self.add(value);
        }
        for word in value.split_whitespace() {
            if word.contains("://") {
                self.add_address(word);
            }
        }
    }

    /// Learns a secret.
    pub(super) fn add(&mut self, text: &str) {
        if text.len() >= SHORTEST && !self.texts.iter().any(|known| known == text) {
            self.texts.push(text.to_owned());
            self.texts.sort_unstable_by_key(|text| std::cmp::Reverse(text.len()));
        }
    }

    /// The text without credentials, and without characters that control a terminal.
    pub(super) fn hide(&self, text: &str) -> String {
        let mut hidden = text.to_owned();
        for secret in &self.texts {
            hidden = hidden.replace(secret.as_str(), HIDDEN);
        }
        let hidden = USER.replace_all(&hidden, format!("${{begin}}{HIDDEN}@"));
        let hidden = QUERY.replace_all(&hidden, format!("${{begin}}?{HIDDEN}"));
        let hidden = SETTING.replace_all(&hidden, format!("${{begin}}{HIDDEN}"));
        let is_shown = |c: &char| *c == '\n' || !c.is_control();
        let hidden: String = hidden.chars().filter(is_shown).collect();
        // Also marks of direction and invisible characters, which an index may have written.
        escaped_lines(&hidden).into_owned()
    }
}

/// Name and password of an address, as they are written there.
pub(super) fn credentials(address: &str) -> Option<(String, Option<String>)> {
    let (_, rest) = address.split_once("://")?;
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    let (user, _) = authority.rsplit_once('@')?;
    Some(match user.split_once(':') {
        Some((user, password)) => (user.to_owned(), Some(password.to_owned())),
        None => (user.to_owned(), None),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_hidden_however_they_are_written() {
        let mut secrets = Secrets::default();
        secrets.add_address("https://robot:s%40cret@index.example/simple/");
        secrets.add_variable("UV_INDEX_OURS_PASSWORD", "other word");
        for (said, shown) in [
            (
                "GET https://robot:s%40cret@index.example/simple/ failed",
                "GET https://***@index.example/simple/ failed",
            ),
            ("login of robot with s@cret", "login of robot with ***"),
            ("the other word is wrong", "the *** is wrong"),
            ("https://any:body@elsewhere.example/x", "https://***@elsewhere.example/x"),
            ("https://a:b@c@elsewhere.example/x", "https://***@elsewhere.example/x"),
            (
                "see https://index.example/x.whl?token=abc, please",
                "see https://index.example/x.whl?*** please",
            ),
            ("//index.example/:_authToken=abcdef", "//index.example/:_authToken=***"),
            ("Authorization: Basic YWJj", "Authorization: Basic ***"),
            ("red \u{1b}[31mtext", "red [31mtext"),
            ("see\u{202e}n", "see\\u202en"),
        ] {
            assert_eq!(secrets.hide(said), shown);
        }
    }
}
