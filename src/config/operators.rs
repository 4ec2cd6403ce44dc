//! What operators use beside the server: the admin listener and the audit log.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::Check;
use crate::address::ListenAddress;

/// Two months of a server with a few calls a minute.
const AUDIT_MAX_MB: u64 = 64;

/// Older files of the audit log.
const AUDIT_KEEP: usize = 8;

/// The listener for operators.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawAdmin {
    /// Where a server listens for operators, such as "127.0.0.1:9464": metrics and health. Default: nowhere.
    address: Option<String>,
    /// File with the tokens of operators, one a line as `isolator token` prints it, relative to this file. Read again when it
    /// changes. Without it, only this machine is answered.
    tokens: Option<String>,
}

/// The audit log: one line of JSON for each call of a tool.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawAudit {
    /// The file, relative to this one. Default: none, and there is no audit log.
    path: Option<String>,
    /// Its size in MiB at which a new one begins. Default: 64.
    #[serde(rename = "maxMB")]
    max_mb: Option<u64>,
    /// How many older files are kept. Default: 8.
    keep: Option<usize>,
    /// Whether the code itself is in the lines, beside its digest. Default: false.
    code: Option<bool>,
    /// What happens to calls while a line can't be written. Default: "continue".
    on_full_disk: Option<RawOnFullDisk>,
}

/// What happens to calls while a line of the audit log can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum RawOnFullDisk {
    /// They are served, and lines that can't be written are lost, which the server's log says.
    Continue,
    /// They are refused.
    Refuse,
}

/// The log of the server itself.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawLog {
    /// The least important lines that are written. The variable `RUST_LOG` overrides it. Default: "info".
    pub(super) level: Option<LogLevel>,
}

/// How important a line of the log is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something may fail, or is not as it should be.
    Warn,
    /// What the server does.
    #[default]
    Info,
    /// Why it does that.
    Debug,
    /// All of it.
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

/// The listener for operators.
#[derive(Debug, Clone, Default)]
pub struct AdminConfig {
    /// Where it listens, if there is one.
    pub address: Option<ListenAddress>,
    /// File of the tokens that are accepted.
    pub tokens: Option<PathBuf>,
}

/// The audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditConfig {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes at which a new one begins.
    pub max: u64,
    /// How many older files are kept.
    pub keep: usize,
    /// Whether the code itself is in the lines.
    pub code: bool,
    /// Whether calls are refused while a line can't be written.
    pub refuses: bool,
}

pub(super) fn admin(raw: &RawAdmin, directory: &Path, check: &mut Check) -> AdminConfig {
    let parsed = raw.address.as_deref().map(str::parse::<ListenAddress>);
    let address = match parsed.transpose() {
        Ok(address) => address,
        Err(error) => {
            check.problem("admin.address", error.to_string());
            None
        }
    };
    AdminConfig { address, tokens: raw.tokens.as_deref().map(|path| directory.join(path)) }
}

pub(super) fn audit(raw: &RawAudit, directory: &Path, check: &mut Check) -> Option<AuditConfig> {
    let RawAudit { path, max_mb, keep, code, on_full_disk } = raw;
    let Some(path) = path else {
        let has_others = max_mb.is_some() || keep.is_some() || code.is_some();
        if has_others || on_full_disk.is_some() {
            check.problem("audit.path", "is required for an audit log, and the other keys are set");
        }
        return None;
    };
    let max = max_mb.unwrap_or(AUDIT_MAX_MB);
    let max = check.within("audit.maxMB", max, 1, 1 << 20, AUDIT_MAX_MB) << 20;
    let keep = check.within("audit.keep", keep.unwrap_or(AUDIT_KEEP), 0, 1000, AUDIT_KEEP);
    Some(AuditConfig {
        path: directory.join(path),
        max,
        keep,
        code: code.unwrap_or(false),
        refuses: *on_full_disk == Some(RawOnFullDisk::Refuse),
    })
}

/// With the defaults of what is not set.
pub(super) fn filled_audit(raw: RawAudit) -> RawAudit {
    RawAudit {
        path: raw.path,
        max_mb: raw.max_mb.or(Some(AUDIT_MAX_MB)),
        keep: raw.keep.or(Some(AUDIT_KEEP)),
        code: raw.code.or(Some(false)),
        on_full_disk: raw.on_full_disk.or(Some(RawOnFullDisk::Continue)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn problems(text: &str) -> Vec<String> {
        let parsed = Config::parse(text, None, Path::new("/etc/isolator"));
        let problems = parsed.err().unwrap_or_default();
        problems.into_iter().map(|it| format!("{}: {}", it.path, it.message)).collect()
    }

    #[test]
    fn what_operators_use_is_off_and_relative_to_the_file() {
        let parse = |text| Config::parse(text, None, Path::new("/etc/isolator")).unwrap();
        let none = parse("{}");
        assert!(none.audit.is_none() && none.admin.address.is_none());
        let both = parse(
            r#"{"admin": {"address": "localhost:9464", "tokens": "operators"},
                "audit": {"path": "audit.jsonl", "maxMB": 1, "keep": 0, "onFullDisk": "refuse"}}"#,
        );
        assert_eq!(both.admin.address, Some(ListenAddress::Loopback(9464)));
        assert_eq!(both.admin.tokens, Some("/etc/isolator/operators".into()));
        let path = "/etc/isolator/audit.jsonl".into();
        let expected = AuditConfig { path, max: 1 << 20, keep: 0, code: false, refuses: true };
        assert_eq!(both.audit, Some(expected));
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (text, problem) in [
            (r#"{"admin": {"address": "here"}}"#, "admin.address: expected a port"),
            (r#"{"audit": {"code": true}}"#, "audit.path: is required"),
            (r#"{"audit": {"path": "a", "maxMB": 0}}"#, "audit.maxMB: expected a number from 1"),
            (r#"{"audit": {"path": "a", "onFullDisk": "stop"}}"#, "audit.onFullDisk: expected"),
        ] {
            let found = problems(text);
            assert!(found.len() == 1 && found[0].starts_with(problem), "{found:?}");
        }
    }
}
