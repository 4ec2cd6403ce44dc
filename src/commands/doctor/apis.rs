//! The APIs that are on: the variables that a client of E2B sets, and settings that its SDKs can't work with.

use super::findings::Findings;
use crate::config::Config;

/// Prints how clients of E2B reach a server with this configuration.
pub(super) fn e2b(config: &Config, findings: &mut Findings) {
    let Some(e2b) = &config.apis.e2b else { return };
    findings.part("apis.e2b");
    let scheme = if config.http.tls.is_some() { "https" } else { "http" };
    findings.fine(&format!(
        "clients set E2B_API_URL and E2B_SANDBOX_URL, both to the address of `serve --http` ({scheme}://HOST:PORT)"
    ));
    if let Some(domain) = &e2b.domain {
        let what = format!(
            "or only E2B_DOMAIN={domain}, if api.{domain} and all names of the form 49983-ID.{domain} lead to the server"
        );
        match &config.http.tls {
            Some(_) => findings.fine(&format!("{what}, and its certificate is for *.{domain}")),
            None => findings.warn(
                &format!("{what}: SDKs use https for these names, and http.tls is not set"),
                &format!(
                    "set http.tls to a certificate for *.{domain}, or put a proxy with one in front"
                ),
            ),
        }
    }
    findings.fine(match &config.http.tokens {
        Some(_) => {
            "and E2B_API_KEY to a token in http.tokens; SDKs from 2.31 to 2.45 need one that `isolator token --e2b NAME` has made"
        }
        None => {
            "and E2B_API_KEY to any text, such as e2b_00, because without http.tokens every client on this machine is served"
        }
    });
    if config.sessions.max == 0 {
        findings.missing(
            "sandboxes are sessions, and sessions.max is 0",
            "set sessions.max to how many sandboxes can be open",
        );
    }
    if e2b.max_timeout > config.sessions.max_age {
        findings.fine("sessions.maxAge bounds the timeout of a sandbox, not apis.e2b.maxTimeout, which is longer");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn found(text: &str) -> String {
        let config = Config::parse(text, None, Path::new("")).map_err(drop).unwrap();
        let mut findings = Findings::recorded();
        e2b(&config, &mut findings);
        findings.said()
    }

    #[test]
    fn clients_of_e2b_learn_their_variables() {
        assert_eq!(found("{}"), "");
        let open = found(r#"{"apis": {"e2b": {}}}"#);
        for part in ["E2B_API_URL", "E2B_SANDBOX_URL", "http://HOST:PORT", "any text"] {
            assert!(open.contains(part), "{part}: {open}");
        }
        let domain = found(
            r#"{"apis": {"e2b": {"domain": "sandbox.example"}}, "http": {"tokens": "tokens"}, "sessions": {"max": 0}}"#,
        );
        for part in [
            "E2B_DOMAIN=sandbox.example",
            "http.tls is not set",
            "--e2b NAME",
            "MISSING  sandboxes",
        ] {
            assert!(domain.contains(part), "{part}: {domain}");
        }
    }
}
