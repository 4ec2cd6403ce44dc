//! The APIs that are on: the variables that their clients set, and settings that these can't work with.

use super::findings::Findings;
use crate::config::Config;

/// Prints how clients of the APIs reach a server with this configuration.
pub(super) fn clients(config: &Config, findings: &mut Findings) {
    let scheme = if config.http.tls.is_some() { "https" } else { "http" };
    let server = format!("{scheme}://HOST:PORT");
    if let Some(fusion) = &config.apis.sandbox_fusion {
        findings.part("apis.sandboxFusion");
        findings.fine(&format!(
            "clients set SANDBOX_FUSION_ENDPOINT to the address of `serve --http`, {server}; verl sets \
             reward_model.sandbox_fusion.url to {server}/run_code"
        ));
        no_token(config, !fusion.open_to.is_empty(), findings);
    }
    if let Some(piston) = &config.apis.piston {
        findings.part("apis.piston");
        findings.fine(&format!(
            "clients set PISTON_ENDPOINTS to the address of `serve --http` and the path, {server}/api/v2"
        ));
        no_token(config, !piston.open_to.is_empty(), findings);
    }
    e2b(config, &server, findings);
}

/// Prints which clients of an API that computes rewards need a token. Most of them can't send one.
fn no_token(config: &Config, is_open: bool, findings: &mut Findings) {
    match (&config.http.tokens, is_open) {
        (None, _) => findings.fine("and need no token, because http.tokens is not set"),
        (Some(_), true) => {
            findings.fine("and need no token from addresses in openTo; others send one as Authorization: Bearer");
        }
        (Some(_), false) => findings.fine(
            "and send a token as Authorization: Bearer or X-API-Key, which most can't: openTo names addresses that need none",
        ),
    }
}

/// Prints how clients of E2B reach it.
fn e2b(config: &Config, server: &str, findings: &mut Findings) {
    let Some(e2b) = &config.apis.e2b else { return };
    findings.part("apis.e2b");
    findings.fine(&format!(
        "clients set E2B_API_URL and E2B_SANDBOX_URL, both to the address of `serve --http` ({server})"
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
        clients(&config, &mut findings);
        findings.said()
    }

    #[test]
    fn clients_that_compute_rewards_learn_their_variables() {
        let open = found(r#"{"apis": {"sandboxFusion": {}, "piston": {}}}"#);
        for part in [
            "SANDBOX_FUSION_ENDPOINT",
            "http://HOST:PORT/run_code",
            "PISTON_ENDPOINTS",
            "http://HOST:PORT/api/v2",
            "http.tokens is not set",
        ] {
            assert!(open.contains(part), "{part}: {open}");
        }
        let closed = found(r#"{"apis": {"piston": {}}, "http": {"tokens": "tokens"}}"#);
        assert!(closed.contains("openTo names") && !closed.contains("SANDBOX_FUSION"), "{closed}");
        let named = found(
            r#"{"apis": {"piston": {"openTo": ["10.0.0.0/8"]}}, "http": {"tokens": "tokens"}}"#,
        );
        assert!(named.contains("no token from addresses in openTo"), "{named}");
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
