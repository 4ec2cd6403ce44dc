//! The variables of tools: those that they need to reach an index, and no others of this server.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;

use super::secrets::Secrets;

/// Variables that any program needs, and those for the way to other machines.
const COMMON: [&str; 24] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "XDG_CONFIG_HOME",
    "XDG_CONFIG_DIRS",
    "XDG_DATA_HOME",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "SSL_CLIENT_CERT",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "NODE_USE_SYSTEM_CA",
    "NETRC",
];

/// The variables of a tool with their names, and the credentials in them.
pub(super) struct Environment {
    pub variables: BTreeMap<String, OsString>,
    /// The credentials, which must not be shown.
    pub secrets: Secrets,
}

impl Environment {
    /// The common variables, and those of this process that `wanted` selects.
    pub(super) fn with(wanted: impl Fn(&str) -> bool) -> Self {
        let mut found = Self { variables: BTreeMap::new(), secrets: Secrets::default() };
        for (name, value) in env::vars_os() {
            let Some(name) = name.to_str() else { continue };
            if COMMON.contains(&name) || wanted(name) {
                if let Some(value) = value.to_str().filter(|_| name != "PATH" && name != "HOME") {
                    found.secrets.add_variable(name, value);
                }
                found.variables.insert(name.to_owned(), value);
            }
        }
        found
    }

    pub(super) fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.variables.insert(name.to_owned(), value.into());
    }
}
