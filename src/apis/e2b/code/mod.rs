//! Code: cells of a sandbox's contexts, whose output is streamed as it comes.

mod contexts;
mod execute;
mod lines;
mod outbox;

use std::collections::BTreeMap;
use std::fmt;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{delete, get, post};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::E2b;
use super::error::{E2bError, ErrorKind};
use crate::apis::Apis;
use crate::apis::access::Caller;
use crate::apis::operation::Operation;
use crate::calls::CallError;
use axum::http::request::Parts;

/// The largest body of a request.
const MAX_BODY: usize = 16 << 20;

const EXECUTE: Operation = Operation { method: "POST", route: "/execute", name: "e2b.execute" };
const LIST: Operation = Operation { method: "GET", route: "/contexts", name: "e2b.list_contexts" };
const CREATE: Operation =
    Operation { method: "POST", route: "/contexts", name: "e2b.create_context" };
const RESTART: Operation =
    Operation { method: "POST", route: "/contexts/{id}/restart", name: "e2b.restart_context" };
const REMOVE: Operation =
    Operation { method: "DELETE", route: "/contexts/{id}", name: "e2b.remove_context" };

/// Its paths.
pub(super) fn route(apis: &Apis, e2b: &E2b) -> Router {
    let state = || e2b.clone();
    let execute = EXECUTE.observed(apis, post(execute::execute).with_state(state()));
    let list = LIST.observed(apis, get(contexts::list).with_state(state()));
    let create = CREATE.observed(apis, post(contexts::create).with_state(state()));
    let restart = RESTART.observed(apis, post(contexts::restart).with_state(state()));
    let remove = REMOVE.observed(apis, delete(contexts::remove).with_state(state()));
    Router::new()
        .route("/execute", execute)
        .route("/contexts", list.merge(create))
        .route("/contexts/{id}", remove)
        .route("/contexts/{id}/restart", restart)
}

/// The names of the fields.
const FIELDS: [&str; 5] = ["code", "context_id", "language", "env_vars", "cwd"];

/// The fields of a request, as they came; each of them is taken with its type. Others are passed over.
#[derive(Debug, Default)]
struct Fields(BTreeMap<&'static str, Box<RawValue>>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Known;

        impl<'de> Visitor<'de> for Known {
            type Value = Fields;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Fields::default();
                while let Some(name) = map.next_key::<String>()? {
                    match FIELDS.into_iter().find(|field| *field == name) {
                        Some(field) => drop(fields.0.insert(field, map.next_value()?)),
                        None => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(Known)
    }
}

impl Fields {
    /// Receives the body of a request, and returns it with its fields; nothing is the same as no fields.
    async fn receive(
        caller: &mut Caller,
        head: &Parts,
        body: Body,
    ) -> Result<(Self, Bytes), E2bError> {
        let body = caller.receive(head, body, MAX_BODY).await.map_err(E2bError::refused)?;
        if body.is_empty() {
            return Ok((Self::default(), body));
        }
        match serde_json::from_slice(&body) {
            Ok(fields) => Ok((fields, body)),
            Err(error) if error.is_data() => {
                Err(E2bError::invalid("body", "must be a JSON object"))
            }
            Err(error) => {
                Err(E2bError::invalid("body", format!("is not JSON: {error}")).caused_by(error))
            }
        }
    }

    /// Takes a field, if it has this type. One that is null is the same as one that is not there.
    fn take<T: DeserializeOwned>(&mut self, name: &str) -> serde_json::Result<Option<T>> {
        self.0.remove(name).map_or(Ok(None), |value| serde_json::from_str(value.get()))
    }

    /// Takes a text.
    fn text(&mut self, name: &str) -> Result<Option<String>, E2bError> {
        self.take(name).map_err(|_| E2bError::invalid(name, "must be a text"))
    }

    /// Takes an object of texts.
    fn texts(&mut self, name: &str) -> Result<Vec<(String, String)>, E2bError> {
        let fields = self.take::<BTreeMap<String, Box<RawValue>>>(name);
        let fields = fields.map_err(|_| E2bError::invalid(name, "must be an object of texts"))?;
        let text = |(key, value): (String, Box<RawValue>)| match serde_json::from_str(value.get()) {
            Ok(text) => Ok((key, text)),
            Err(_) => Err(E2bError::invalid(&format!("{name}.{key}"), "must be a text")),
        };
        fields.unwrap_or_default().into_iter().map(text).collect()
    }
}

/// The error of a call; something that is named and not there is a 404, as these clients expect it.
fn of_call(error: CallError) -> E2bError {
    let kind = match &error {
        CallError::Invalid(invalid) if invalid.field == "context_id" => Some(ErrorKind::NotFound),
        _ => None,
    };
    match kind {
        Some(kind) => E2bError::new(kind, error.to_string()).caused_by(error),
        None => E2bError::of_call(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_fields_are_kept_as_they_came() {
        let body = r#"{"code": "a\n", "x": [0, [1]], "language": null, "cwd": 1, "env_vars": {"A": "1"}, "code": "b"}"#;
        let mut fields: Fields = serde_json::from_str(body).unwrap();
        assert_eq!(
            fields.0.keys().copied().collect::<Vec<_>>(),
            ["code", "cwd", "env_vars", "language"]
        );
        assert_eq!(fields.text("code").unwrap().as_deref(), Some("b"));
        assert_eq!(fields.text("code").unwrap(), None);
        assert_eq!(fields.text("language").unwrap(), None);
        assert!(fields.text("cwd").is_err());
        assert_eq!(fields.texts("env_vars").unwrap(), [("A".to_owned(), "1".to_owned())]);
        for (body, is_data) in
            [("[]", true), ("7", true), ("null", true), ("{", false), ("{\"x\": [}", false)]
        {
            assert_eq!(
                serde_json::from_str::<Fields>(body).unwrap_err().is_data(),
                is_data,
                "{body}"
            );
        }
    }
}
