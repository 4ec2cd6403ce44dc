//! Fields for the network of a sandbox. There is none, so a client can only ask for less than what E2B gives.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::apis::e2b::error::E2bError;

/// The rules that a client wants. Those that deny something hold anyway. All other fields are for traffic of the sandbox.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Network {
    allow_public_traffic: Option<bool>,
    allow_out: Option<Vec<String>>,
    /// Everything is denied.
    #[serde(rename = "denyOut")]
    _deny_out: Option<Vec<String>>,
    dns_servers: Unused,
    egress_proxy: Unused,
    mask_request_host: Unused,
    https_ports: Unused,
    rules: Unused,
}

impl Network {
    /// Refuses rules that would let something through.
    ///
    /// # Errors
    ///
    /// The first field that asks for it.
    pub(super) fn check(&self) -> Result<(), E2bError> {
        let refused =
            |field: &str, why: &str| Err(E2bError::invalid(&format!("network.{field}"), why));
        if self.allow_out.as_ref().is_some_and(|all| !all.is_empty()) {
            return refused("allowOut", "sandboxes have no network, so nothing can be let out");
        }
        if self.allow_public_traffic == Some(true) {
            return refused("allowPublicTraffic", "no port of a sandbox can be reached");
        }
        let others = [
            ("dnsServers", self.dns_servers),
            ("egressProxy", self.egress_proxy),
            ("maskRequestHost", self.mask_request_host),
            ("httpsPorts", self.https_ports),
            ("rules", self.rules),
        ];
        match others.into_iter().find(|(_, others)| others.is_asked()) {
            Some((field, _)) => refused(field, "sandboxes have no network"),
            None => Ok(()),
        }
    }
}

/// A field for something that sandboxes don't have: it can only ask for nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unused {
    is_asked: bool,
}

impl Unused {
    /// Whether it asks for something.
    pub(super) const fn is_asked(self) -> bool {
        self.is_asked
    }
}

impl<'de> Deserialize<'de> for Unused {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let is_empty = match Value::deserialize(deserializer)? {
            Value::Null => true,
            Value::Array(all) => all.is_empty(),
            Value::Object(all) => all.is_empty(),
            Value::String(text) => text.is_empty(),
            Value::Bool(_) | Value::Number(_) => false,
        };
        Ok(Self { is_asked: !is_empty })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::apis::body;

    fn check(network: &Value) -> Result<(), String> {
        let read = body::read::<Network>(network.to_string().as_bytes());
        read.map_err(|error| format!("network.{error}"))?
            .check()
            .map_err(|error| error.message().to_owned())
    }

    #[test]
    fn only_rules_that_deny_are_accepted() {
        for fine in [
            json!({}),
            json!({"denyOut": ["0.0.0.0/0"]}),
            json!({"allowOut": [], "allowPublicTraffic": false, "egressProxy": null}),
        ] {
            assert_eq!(check(&fine), Ok(()), "{fine}");
        }
        for (refused, field) in [
            (json!({"allowOut": ["1.1.1.1"]}), "network.allowOut"),
            (json!({"allowPublicTraffic": true}), "network.allowPublicTraffic"),
            (json!({"egressProxy": {"address": "a:1"}}), "network.egressProxy"),
            (json!({"rules": {"a.example": []}}), "network.rules"),
            (json!({"httpsPorts": [8443]}), "network.httpsPorts"),
            (json!({"dnsServers": ["1.1.1.1"]}), "network.dnsServers"),
            (json!({"maskRequestHost": false}), "network.maskRequestHost"),
            (json!({"denyOut": "0.0.0.0/0"}), "network.denyOut"),
            (json!({"newField": false}), "network.newField"),
        ] {
            let message = check(&refused).unwrap_err();
            assert!(message.starts_with(&format!("{field}: ")), "{message}");
        }
    }
}
