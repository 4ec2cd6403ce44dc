//! The section `sessions.journals`: a server that keeps the journals of sessions for all nodes.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use isolator_pool::engine::limits::ByteSize;

use super::check::Check;
use super::section::{Mib, Text, Unit as _, duration, section};

/// The port of a server whose address has none.
const PORT: u16 = 6379;

/// The schemes of addresses, and whether they mean TLS.
const SCHEMES: [(&str, bool); 4] =
    [("redis", false), ("rediss", true), ("valkey", false), ("valkeys", true)];

section! {
    /// A Valkey or Redis server that keeps the journals of sessions, so that `replay` works on another node when the node of a
    /// session is lost.
    #[derive(Clone, PartialEq, Eq)]
    pub struct JournalsConfig {
        /// Its address, such as "rediss://valkey.example:6379/0"; with rediss:// or valkeys:// the connection has TLS. Default: none,
        /// and journals are only in the memory of the node.
        pub address: Option<String> = None,
        /// File with the key that seals journals, the same on all nodes, relative to this file: at least 32 bytes, such as the output
        /// of `openssl rand -hex 32`. Required with an address.
        #[serde(skip_serializing)]
        pub key_file: Option<PathBuf> = None,
        /// User at that server. Default: its default user.
        pub user: Option<String> = None,
        /// File with the password at that server, relative to this file.
        #[serde(skip_serializing)]
        pub password_file: Option<PathBuf> = None,
        /// File with the certificates in PEM of those who may have issued that server's, relative to this file. Default: those that
        /// this machine trusts.
        #[serde(skip_serializing)]
        pub ca_file: Option<PathBuf> = None,
        /// How long connecting, and writing or reading a journal, can take. No answer to a cell waits for it.
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        pub timeout: Duration = Duration::from_secs(2),
        /// How long a journal is kept after its session has ended.
        // As long as a node keeps those in its memory.
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        pub keep_for: Duration = Duration::from_hours(24),
        /// Bytes of all journals that this node keeps there, in MiB. If they take more, the one that was written longest ago goes, of
        /// the client whose journals take the most.
        // A thousand full journals of the default size.
        #[serde(rename = "maxMB", with = "Mib")]
        #[schemars(with = "u64", range(min = 1, max = 1 << 20))]
        pub max: ByteSize = ByteSize::mib(256),
        /// The address, as it was read.
        #[serde(skip)]
        pub server: Option<JournalServer> = None,
    }
}

/// A Valkey or Redis server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalServer {
    /// Its name or IP address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The number of the database there.
    pub database: u16,
    /// Whether connections have TLS.
    pub has_tls: bool,
}

/// The error of a text that is no address of a server for journals. It has nothing of the text, which may hold a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum BadServer {
    #[error(
        "expected an address such as \"redis://valkey.example:6379/0\", with redis://, rediss://, valkey:// or valkeys://"
    )]
    Address,
    #[error(
        "has a user or a password: name them in sessions.journals.user and sessions.journals.passwordFile instead, because the \
         configuration is shown to operators"
    )]
    Credentials,
    #[error("the path must be the number of a database, as in \"redis://valkey.example:6379/0\"")]
    Database,
}

impl JournalServer {
    /// Whether machines between the nodes and this one can read what they send each other.
    pub fn is_exposed(&self) -> bool {
        let is_local = |ip: IpAddr| ip.is_loopback();
        !self.has_tls && !self.host.parse().map_or(self.host == "localhost", is_local)
    }

    fn parse(text: &str) -> Result<Self, BadServer> {
        let (scheme, rest) = text.split_once("://").ok_or(BadServer::Address)?;
        let known = SCHEMES.into_iter().find(|(name, _)| scheme.eq_ignore_ascii_case(name));
        let (_, has_tls) = known.ok_or(BadServer::Address)?;
        if rest.contains('@') {
            return Err(BadServer::Credentials);
        }
        let (place, database) = rest.split_once('/').unwrap_or((rest, ""));
        let place: http::uri::Authority = place.parse().map_err(|_| BadServer::Address)?;
        let port = match place.port() {
            Some(port) => port.as_str().parse().map_err(|_| BadServer::Address)?,
            None if place.as_str().len() == place.host().len() => PORT,
            None => return Err(BadServer::Address),
        };
        let host = place.host().trim_matches(['[', ']']).to_owned();
        if host.is_empty() || port == 0 {
            return Err(BadServer::Address);
        }
        let database = match database {
            "" => 0,
            number => number.parse().map_err(|_| BadServer::Database)?,
        };
        Ok(Self { host, port, database, has_tls })
    }
}

impl JournalsConfig {
    pub(super) fn check(&mut self, check: &mut Check<'_>) {
        let keys = check.document["sessions"]["journals"].as_object();
        let Some(address) = &self.address else {
            if keys.is_some_and(|keys| !keys.is_empty()) {
                let message =
                    "is required to keep journals, and other keys of sessions.journals are set";
                check.problem("sessions.journals.address", message);
            }
            return;
        };
        match JournalServer::parse(address) {
            Ok(server) => self.server = Some(server),
            Err(error) => check.problem("sessions.journals.address", error.to_string()),
        }
        if self.key_file.is_none() {
            let message = "is required with an address: journals hold what clients have sent, so they are sealed with a key that \
                           only the nodes have; make one with `openssl rand -hex 32`";
            check.problem("sessions.journals.keyFile", message);
        }
        for path in [&mut self.key_file, &mut self.password_file, &mut self.ca_file] {
            *path = path.take().map(|path| check.directory.join(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    #[test]
    fn an_address_has_a_host_a_port_and_a_database_and_no_password() {
        let server = |host: &str, port, database, has_tls| {
            Ok(JournalServer { host: host.to_owned(), port, database, has_tls })
        };
        assert_eq!(JournalServer::parse("redis://v"), server("v", 6379, 0, false));
        assert_eq!(JournalServer::parse("valkeys://v.x:7/3"), server("v.x", 7, 3, true));
        assert_eq!(JournalServer::parse("rediss://[::1]:7/"), server("::1", 7, 0, true));
        assert_eq!(JournalServer::parse("redis://a:b@v"), Err(BadServer::Credentials));
        assert_eq!(JournalServer::parse("redis://v/x"), Err(BadServer::Database));
        for bad in
            ["v:6379", "http://v", "redis://", "redis://v:0", "redis://v:99999", "redis://a b"]
        {
            assert_eq!(JournalServer::parse(bad), Err(BadServer::Address), "{bad}");
        }
    }

    #[test]
    fn journals_need_an_address_and_a_key() {
        let parse = |journals: &str| {
            let text = format!(r#"{{"sessions": {{"journals": {journals}}}}}"#);
            Config::parse(&text, None, Path::new("/etc/isolator"))
                .map_err(|problems| problems.iter().map(ToString::to_string).collect::<String>())
        };
        let config = parse(r#"{"address": "redis://v", "keyFile": "key"}"#).unwrap();
        let journals = config.sessions.journals;
        assert_eq!(journals.key_file, Some("/etc/isolator/key".into()));
        assert_eq!(journals.server.unwrap().host, "v");
        for (text, key) in [
            (r#"{"keyFile": "key"}"#, "sessions.journals.address"),
            (r#"{"address": "redis://v"}"#, "sessions.journals.keyFile"),
            (
                r#"{"address": "redis://me:secret@v", "keyFile": "key"}"#,
                "sessions.journals.address",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(key) && !error.contains("secret"), "{error}");
        }
    }
}
