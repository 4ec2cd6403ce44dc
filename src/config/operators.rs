//! The sections `admin`, `audit` and `log`, for operators.

use std::path::PathBuf;

use isolator_pool::engine::limits::ByteSize;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::check::Check;
use super::section::{Mib, Unit as _, section};
use crate::address::ListenAddress;

section! {
    /// The listener for operators.
    #[derive(Clone)]
    pub struct AdminConfig {
        /// Where a server listens for operators, such as "127.0.0.1:9464": metrics and health. Default: nowhere.
        #[serde(deserialize_with = "address", skip_serializing)]
        #[schemars(with = "Option<String>", extend("format" = "listen-address"))]
        pub address: Option<ListenAddress> = None,
        /// File with the tokens of operators, one a line as `isolator token` prints it, relative to this file. Read again
        /// when it changes. Without it, only this machine is answered.
        #[serde(skip_serializing)]
        pub tokens: Option<PathBuf> = None,
        /// File with tokens that can read the metrics and nothing else, relative to this file, for the program that collects them.
        /// Read again when it changes. It needs `tokens`.
        #[serde(skip_serializing)]
        pub metrics_tokens: Option<PathBuf> = None,
    }
}

section! {
    /// The audit log: one line of JSON for each call of a tool.
    #[derive(Clone, PartialEq, Eq)]
    pub struct AuditConfig {
        /// The file, relative to this one. Default: none, and there is no audit log.
        #[serde(skip_serializing)]
        pub path: PathBuf = PathBuf::new(),
        /// Its size in MiB at which a new one begins.
        // Two months of a server with a few calls a minute.
        #[serde(rename = "maxMB", with = "Mib")]
        #[schemars(with = "u64", range(min = 1, max = 1 << 20))]
        pub max: ByteSize = ByteSize::mib(64),
        /// How many older files are kept.
        #[schemars(range(max = 1000))]
        pub keep: usize = 8,
        /// Whether each line has the code itself, in addition to its digest.
        pub code: bool = false,
        /// Whether calls are served while a line can't be written.
        pub on_full_disk: OnFullDisk = OnFullDisk::Continue,
    }
}

/// Whether calls are served while a line of the audit log can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnFullDisk {
    /// They are served. Lines that can't be written are lost, and the server's log reports that.
    Continue,
    /// They are refused.
    Refuse,
}

section! {
    /// The log of the server itself.
    #[derive(Clone)]
    pub struct LogConfig {
        /// The least important lines that are written. The variable `RUST_LOG` overrides it.
        pub level: LogLevel = LogLevel::Info,
    }
}

/// The importance of a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something may fail, or is not as it should be.
    Warn,
    /// An action of the server.
    Info,
    /// The reason for an action.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// Its name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// Reads an address for a listener. Errors are found before, with their place.
pub(super) fn address<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ListenAddress>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(D::Error::custom)
}

impl AdminConfig {
    pub(super) fn check(&mut self, check: &mut Check<'_>) {
        for path in [&mut self.tokens, &mut self.metrics_tokens] {
            *path = path.take().map(|path| check.directory.join(path));
        }
        if self.metrics_tokens.is_some() && self.tokens.is_none() {
            let message = "needs admin.tokens: without tokens of operators, each user of this machine can read the metrics, and no \
                           other machine can";
            check.problem("admin.metricsTokens", message);
        }
    }
}

impl AuditConfig {
    /// Whether there is an audit log.
    pub fn is_on(&self) -> bool {
        !self.path.as_os_str().is_empty()
    }

    pub(super) fn check(&mut self, check: &mut Check<'_>) {
        let keys = check.document["audit"].as_object();
        if self.is_on() {
            self.path = check.directory.join(&self.path);
        } else if keys.is_some_and(|keys| !keys.is_empty()) {
            check.problem("audit.path", "is required for an audit log, and the other keys are set");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    #[test]
    fn admin_and_audit_are_off_by_default_and_relative_to_the_file() {
        let parse = |text| Config::parse(text, None, Path::new("/etc/isolator")).unwrap();
        let none = parse("{}");
        assert!(!none.audit.is_on() && none.admin.address.is_none());
        let both = parse(
            r#"{"admin": {"address": "localhost:9464", "tokens": "operators", "metricsTokens": "metrics"},
                "audit": {"path": "audit.jsonl", "maxMB": 1, "keep": 0, "onFullDisk": "refuse"}}"#,
        );
        assert_eq!(both.admin.address, Some(ListenAddress::Loopback(9464)));
        assert_eq!(both.admin.tokens, Some("/etc/isolator/operators".into()));
        assert_eq!(both.admin.metrics_tokens, Some("/etc/isolator/metrics".into()));
        let path = "/etc/isolator/audit.jsonl".into();
        let on_full_disk = OnFullDisk::Refuse;
        let expected =
            AuditConfig { path, max: ByteSize::mib(1), keep: 0, code: false, on_full_disk };
        assert_eq!(both.audit, expected);
    }
}
