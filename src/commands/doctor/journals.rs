//! Whether the server that keeps journals of sessions can be used, if the configuration names one.

use isolator_pool::error_chain::error_chain;

use super::findings::Findings;
use crate::config::{Config, JournalsConfig};
use crate::sessions::journals::{ProbeError, probe};

/// Checks the files, the connection and the rights of its user.
pub(super) async fn journals(config: &Config, findings: &mut Findings) {
    let journals = &config.sessions.journals;
    let (Some(address), Some(server)) = (&journals.address, &journals.server) else { return };
    findings.part("sessions.journals");
    match probe(journals, config.node.node()).await {
        Ok(()) => findings
            .fine(&format!("{address}: a journal can be written, read and removed on this server")),
        Err(error) => findings.missing(&format!("{address}: {}", error_chain(&error)), fix(&error)),
    }
    if server.is_exposed() {
        let read = what_is_exposed(journals);
        findings.warn(
            &format!("{address}: machines between this one and the server can read {read}"),
            "use rediss://, or a network that only the nodes and the server have",
        );
    }
}

/// What nodes send unsealed.
const fn what_is_exposed(journals: &JournalsConfig) -> &'static str {
    match journals.password_file {
        Some(_) => "the password, and which journals change",
        None => "which journals change",
    }
}

const fn fix(error: &ProbeError) -> &'static str {
    match error {
        ProbeError::Files(_) => "fix what the error says; all nodes need the same key",
        ProbeError::Connect(_) => {
            "start the server, and compare its address, user and password with sessions.journals.address, user and passwordFile; with \
             TLS, caFile must have the certificate that has issued the server's"
        }
        ProbeError::Commands(_) => {
            "give the user the commands MULTI, EXEC, DEL, RPUSH, RPUSHX, PEXPIRE, LRANGE, SCAN, MEMORY and PTTL for keys that begin with \
             isolator:journal:, and the server memory"
        }
        ProbeError::Other => {
            "something else changes these keys: give the nodes a database of their own"
        }
        ProbeError::Seal(_) | ProbeError::Random => "try again",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_password_is_exposed_only_where_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        std::fs::write(&key, "k".repeat(64)).unwrap();
        let warned = async |more: &str| {
            let mut journals =
                json!({ "address": "redis://192.0.2.1", "keyFile": key, "timeout": "100ms" });
            if !more.is_empty() {
                journals["passwordFile"] = json!(more);
            }
            let config = json!({ "sessions": { "journals": journals } }).to_string();
            let config = Config::parse(&config, None, Path::new("")).unwrap();
            let mut findings = Findings::recorded();
            super::journals(&config, &mut findings).await;
            findings.said()
        };
        let without = warned("").await;
        assert!(without.contains("can read which journals change"), "{without}");
        let with = warned("/no/password").await;
        assert!(with.contains("can read the password, and which journals change"), "{with}");
    }
}
