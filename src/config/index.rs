//! Where packages come from: the address of an index, or a folder. Credentials in an address are never shown.

use std::fmt;
use std::path::{Path, PathBuf};

use isolator_pool::engine::preload::Interpreter;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The error of a text that is no source of packages. It has nothing of the text, which may hold a password.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadIndex {
    /// It begins like an address.
    #[error(
        "is not an address, such as \"https://index.example/simple/\"; a password in it must be percent-encoded"
    )]
    Address,
    /// It is not the address of a registry of npm packages.
    #[error("expected the address of a registry, such as \"https://registry.example/\"")]
    Registry,
    /// It is neither the address of an index of Python packages nor a folder.
    #[error(
        "expected an address that begins with https://, http:// or file:///, or the path of a folder with wheels"
    )]
    IndexOrFolder,
}

/// Where packages come from. It is always shown without its credentials.
#[derive(Clone, PartialEq, Eq)]
pub enum Index {
    /// An address, with the credentials that are in it.
    Url(String),
    /// A folder of wheels.
    Folder(PathBuf),
}

impl Index {
    /// Reads an address, or the path of a folder that starts at `directory`.
    pub(super) fn parse(
        interpreter: Interpreter,
        text: &str,
        directory: &Path,
    ) -> Result<Self, BadIndex> {
        let text = text.trim();
        let scheme = text.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
        match (interpreter, scheme.as_deref()) {
            (_, Some("http" | "https")) if is_web_address(text) => Ok(Self::Url(text.to_owned())),
            (_, Some("http" | "https")) => Err(BadIndex::Address),
            (Interpreter::Node, _) => Err(BadIndex::Registry),
            (Interpreter::Python, Some("file"))
                if text.len() > "file:///".len() && text[5..].starts_with("///") =>
            {
                Ok(Self::Url(text.to_owned()))
            }
            (Interpreter::Python, scheme) => {
                let is_path = !text.is_empty()
                    && !text.contains(['\0', '@'])
                    && !text.starts_with('-')
                    && (scheme.is_none() || text.starts_with(['/', '.']));
                let folder = is_path.then(|| Self::Folder(directory.join(text)));
                folder.ok_or(BadIndex::IndexOrFolder)
            }
        }
    }

    /// The address with its credentials. Only the tool that uses them may see them; its command line must not have them,
    /// because all users of the machine can read it.
    pub fn with_credentials(&self) -> Option<&str> {
        match self {
            Self::Url(url) => Some(url),
            Self::Folder(_) => None,
        }
    }

    /// Whether machines on the way to it can read and change its answers.
    pub(super) fn is_open(&self) -> bool {
        let Self::Url(url) = self else { return false };
        let Some(host) = authority(url).filter(|_| url.to_ascii_lowercase().starts_with("http:"))
        else {
            return false;
        };
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let name = match host.strip_prefix('[') {
            Some(address) => address.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        let is_here = name.eq_ignore_ascii_case("localhost")
            || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        !is_here
    }
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(&without_credentials(url)),
            Self::Folder(folder) => folder.display().fmt(f),
        }
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Index {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads the text as it is. [`Index::parse`] checks it, and finds folders.
impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::Url)
    }
}

/// The address without its name, password and query. The query may be a secret, too.
pub(super) fn without_credentials(url: &str) -> String {
    let Some(authority) = authority(url) else { return url.to_owned() };
    let start = url.len() - after_scheme(url).map_or(0, str::len);
    let rest = &url[start + authority.len()..];
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let hidden = if host.len() < authority.len() { "***@" } else { "" };
    let (path, query) = match rest.find(['?', '#']) {
        Some(at) => (&rest[..at], "?***"),
        None => (rest, ""),
    };
    format!("{}{hidden}{host}{path}{query}", &url[..start])
}

/// Removes the credentials from the addresses in a text.
pub(super) fn without_any_credentials(text: &str) -> String {
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end =
            part.find(|c: char| c.is_whitespace() || "/\"'".contains(c)).unwrap_or(part.len());
        let host = part[..end].rfind('@').map_or(0, |at| at + 1);
        shown.push_str("://");
        if host > 0 {
            shown.push_str("***@");
        }
        shown.push_str(&part[host..]);
    }
    shown
}

/// Hides the credentials in a configuration that is only shown.
pub(super) fn hide_credentials(document: &mut Value) {
    let indexes = document.pointer_mut("/packages/index").and_then(Value::as_object_mut);
    for index in indexes.into_iter().flatten().map(|(_, index)| index) {
        if let Value::String(text) = index {
            *text = without_credentials(text.trim());
        }
    }
}

fn after_scheme(url: &str) -> Option<&str> {
    url.split_once("://").map(|(_, rest)| rest)
}

/// The part of an address with name, password, host and port.
fn authority(url: &str) -> Option<&str> {
    let rest = after_scheme(url)?;
    Some(&rest[..rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len())])
}

/// Whether a text is a web address with a host and an optional port. A password with a slash would end the host too early.
fn is_web_address(url: &str) -> bool {
    let Some(authority) = authority(url) else { return false };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => (address, rest.strip_prefix(':')),
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    !name.is_empty()
        && port.is_none_or(is_port)
        && !url.contains(|c: char| c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(text: &str) -> Result<Index, BadIndex> {
        Index::parse(Interpreter::Python, text, Path::new("/conf"))
    }

    #[test]
    fn credentials_are_never_shown() {
        for (url, shown) in [
            ("https://index.example/simple/", "https://index.example/simple/"),
            ("https://me:pass@index.example:8443/x", "https://***@index.example:8443/x"),
            ("https://token@index.example", "https://***@index.example"),
            ("https://a:b@c@index.example/@scope/", "https://***@index.example/@scope/"),
            ("http://index.example/x?key=secret#y", "http://index.example/x?***"),
            ("file:///srv/index", "file:///srv/index"),
        ] {
            let index = python(url).expect(url);
            assert_eq!((format!("{index}"), format!("{index:?}")), (shown.into(), shown.into()));
            assert_eq!(index.with_credentials(), Some(url));
        }
    }

    #[test]
    fn an_invalid_index_is_refused_without_repeating_it() {
        for text in [
            "",
            "https://",
            "https://me:se/cret@host/",
            "ftp://secret@host",
            "http://a b/",
            "-secret",
            "git+ssh://secret@x",
        ] {
            let error = python(text).expect_err(text).to_string();
            assert!(!error.contains("secret"), "{text}: {error}");
        }
        assert_eq!(python("wheels"), Ok(Index::Folder("/conf/wheels".into())));
        assert!(Index::parse(Interpreter::Node, "wheels", Path::new("/")).is_err());
    }

    #[test]
    fn an_index_on_another_machine_should_be_encrypted() {
        for (url, is_open) in [
            ("http://index.example/", true),
            ("http://10.0.0.1:80/", true),
            ("HTTP://me:x@index.example/", true),
            ("https://index.example/", false),
            ("http://localhost:3141/", false),
            ("http://me:x@127.0.0.1/", false),
            ("http://[::1]:80/", false),
            ("file:///srv", false),
        ] {
            assert_eq!(python(url).unwrap().is_open(), is_open, "{url}");
        }
    }
}
