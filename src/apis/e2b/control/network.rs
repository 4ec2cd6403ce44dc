//! Fields for the network of a sandbox. There is none, so a client can only ask for less than what E2B gives.

use serde::Deserialize;
use serde_json::Value;

use crate::apis::e2b::error::E2bError;

/// The rules that a client wants. Those that deny something hold anyway.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Network {
    allow_public_traffic: Option<bool>,
    allow_out: Value,
    /// Everything is denied.
    #[serde(rename = "denyOut")]
    _deny_out: Value,
    /// Every request to a sandbox needs a secret, and the host is not shown to its programs.
    #[serde(flatten)]
    others: serde_json::Map<String, Value>,
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
        if !is_empty(&self.allow_out) {
            return refused("allowOut", "sandboxes have no network, so nothing can be let out");
        }
        if self.allow_public_traffic == Some(true) {
            return refused("allowPublicTraffic", "no port of a sandbox can be reached");
        }
        match self.others.iter().find(|(_, value)| !is_empty(value)) {
            Some((field, _)) => refused(field, "sandboxes have no network"),
            None => Ok(()),
        }
    }
}

/// Whether a field asks for nothing.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(network: Value) -> Result<(), String> {
        let network: Network = serde_json::from_value(network).unwrap();
        network.check().map_err(|error| error.message().to_owned())
    }

    #[test]
    fn only_rules_that_deny_are_accepted() {
        for fine in [
            json!({}),
            json!({"denyOut": ["0.0.0.0/0"]}),
            json!({"allowOut": [], "allowPublicTraffic": false, "egressProxy": null}),
        ] {
            assert_eq!(check(fine.clone()), Ok(()), "{fine}");
        }
        for (refused, field) in [
            (json!({"allowOut": ["1.1.1.1"]}), "network.allowOut"),
            (json!({"allowPublicTraffic": true}), "network.allowPublicTraffic"),
            (json!({"egressProxy": {"address": "a:1"}}), "network.egressProxy"),
            (json!({"rules": {"a.example": []}}), "network.rules"),
            (json!({"httpsPorts": [8443]}), "network.httpsPorts"),
            (json!({"newField": 1}), "network.newField"),
        ] {
            let message = check(refused).unwrap_err();
            assert!(message.starts_with(&format!("{field}: ")), "{message}");
        }
    }
}
