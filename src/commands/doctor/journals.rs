//! Whether the server that keeps journals of sessions can be used, if the configuration names one.

use isolator_pool::error_chain::error_chain;

use super::findings::Findings;
use crate::config::Config;
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
        findings.warn(
            &format!("{address}: machines between this one and the server can read the password, and which journals change"),
            "use rediss://, or a network that only the nodes and the server have",
        );
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
