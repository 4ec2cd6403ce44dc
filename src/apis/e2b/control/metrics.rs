//! Samples of how much of its limits a sandbox uses.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use isolator_pool::pool::session::UsageSample;
use serde_json::{Value, json};

use super::{Asked, cores, date};
use crate::apis::body::NoFields;
use crate::apis::e2b::E2b;
use crate::apis::e2b::error::E2bError;
use crate::sessions::OpenSession;

/// Maximum number of sandboxes whose newest samples a request can ask for.
const MAX_SANDBOXES: usize = 100;

/// The samples that a client asks for: from one second to another, with both.
#[derive(Debug, Default, PartialEq, Eq)]
struct Query {
    start: Option<u64>,
    end: Option<u64>,
}

impl Query {
    fn read(query: &str) -> Result<Self, E2bError> {
        let mut read = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let time = match &*name {
                "start" => &mut read.start,
                "end" => &mut read.end,
                _ => return Err(unknown(&name)),
            };
            let seconds = value.parse().map_err(|_| {
                E2bError::invalid(&name, "must be a time, in whole seconds since 1970")
            })?;
            *time = Some(seconds);
        }
        if read.start.zip(read.end).is_some_and(|(start, end)| end < start) {
            return Err(E2bError::invalid("end", "is before start"));
        }
        Ok(read)
    }

    fn selects(&self, sample: &UsageSample) -> bool {
        let at = seconds(sample.at);
        self.start.is_none_or(|start| at >= start) && self.end.is_none_or(|end| at <= end)
    }
}

/// The ids of a list.
fn ids(query: &str) -> Result<Vec<String>, E2bError> {
    let mut ids = Vec::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name != "sandbox_ids" {
            return Err(unknown(&name));
        }
        ids.extend(value.split(',').filter(|id| !id.is_empty()).map(str::to_owned));
        if ids.len() > MAX_SANDBOXES {
            let message = format!("names more than {MAX_SANDBOXES} sandboxes");
            return Err(E2bError::invalid("sandbox_ids", message));
        }
    }
    if ids.is_empty() {
        return Err(E2bError::invalid("sandbox_ids", "is required: ids with commas between them"));
    }
    Ok(ids)
}

fn unknown(parameter: &str) -> E2bError {
    E2bError::invalid(parameter, "this server does not know this parameter")
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

fn shown(session: &OpenSession, sample: &UsageSample) -> Value {
    json!({
        "timestamp": date(sample.at),
        "timestampUnix": seconds(sample.at),
        "cpuCount": cores(session),
        "cpuUsedPct": (sample.cpu * 10_000.0).round() / 100.0,
        "memUsed": sample.memory,
        "memTotal": session.resources.memory.as_bytes(),
        "memCache": sample.cache,
        "diskUsed": sample.disk,
        "diskTotal": sample.disk_size,
    })
}

/// The samples of a sandbox, the oldest first.
pub(super) async fn of_one(
    State(e2b): State<E2b>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, E2bError> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let Asked::<NoFields> { owned, session, .. } = Asked::receive(&e2b, &id, request).await?;
    let query = Query::read(&query)?;
    // One that was opened over MCP has none before a client asks.
    session.session.sample_usage();
    let samples = session.session.usage();
    let body = samples.iter().filter(|it| query.selects(it)).map(|it| shown(&session, it));
    let body = Value::Array(body.collect());
    Ok(owned.answer(StatusCode::OK, &body))
}

/// The newest sample of each sandbox of a list. Those that are gone, and those without samples, are left out.
pub(super) async fn of_many(
    State(e2b): State<E2b>,
    request: Request,
) -> Result<Response, E2bError> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let owned = e2b.owned(request).await?;
    let NoFields {} = owned.fields()?;
    let mut found = BTreeMap::new();
    for id in ids(&query)? {
        let Ok(session) = owned.session(&id) else { continue };
        session.session.sample_usage();
        if let Some(sample) = session.session.usage().last() {
            found.insert(id, shown(&session, sample));
        }
    }
    Ok(owned.answer(StatusCode::OK, &json!({ "sandboxes": found })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_both_of_its_ends() {
        let at = |milliseconds| UsageSample {
            at: SystemTime::UNIX_EPOCH + Duration::from_millis(milliseconds),
            cpu: 0.0,
            memory: 0,
            cache: 0,
            disk: 0,
            disk_size: 0,
        };
        let query = Query::read("start=2&end=3").unwrap();
        let selected = [1999, 2000, 3999, 4000].map(|time| query.selects(&at(time)));
        assert_eq!(selected, [false, true, true, false]);
        assert!(Query::read("").unwrap().selects(&at(0)));
    }

    #[test]
    fn a_parameter_that_is_wrong_is_named() {
        for (query, field) in
            [("start=x", "start"), ("end=1.5", "end"), ("start=2&end=1", "end"), ("step=5", "step")]
        {
            let error = Query::read(query).unwrap_err();
            assert!(error.message().starts_with(&format!("{field}: ")), "{query}: {error}");
        }
        assert_eq!(ids("sandbox_ids=a%2Cb,c").unwrap(), ["a", "b", "c"]);
        for query in
            ["", "sandbox_ids=", "sandboxIds=a", &format!("sandbox_ids={}", "a,".repeat(101))]
        {
            assert!(ids(query).is_err(), "{query}");
        }
    }
}
