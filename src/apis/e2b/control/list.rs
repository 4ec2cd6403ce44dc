//! Lists the sandboxes of a client, filtered and in pages.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::listed;
use crate::apis::body::NoFields;
use crate::apis::e2b::E2b;
use crate::apis::e2b::error::E2bError;
use crate::apis::e2b::registry::Sandbox;
use crate::sessions::OpenSession;

/// Sandboxes of a page, at most and if a request does not say.
const PAGE: usize = 100;

/// The header with the token of the next page.
const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");

/// A version of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// All that run.
    One,
    /// In pages, also those that are paused.
    Two,
}

/// The sandboxes that a client asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Query {
    metadata: BTreeMap<String, String>,
    /// Both, if it is empty.
    states: Vec<State>,
    started_after: Option<SystemTime>,
    template: Option<String>,
    /// Whether the oldest come first.
    ascending: bool,
    limit: Option<usize>,
    /// The last one of the page before.
    after: Option<Position>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Paused,
}

/// The place of a sandbox in the list: its start in milliseconds, and its id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Position(u128, String);

impl Position {
    fn of(session: &OpenSession) -> Self {
        let started = session.opened_at().duration_since(SystemTime::UNIX_EPOCH);
        Self(started.unwrap_or_default().as_millis(), session.id.clone())
    }

    fn token(&self) -> String {
        format!("{}-{}", self.0, self.1)
    }

    fn read(token: &str) -> Option<Self> {
        let (started, id) = token.split_once('-')?;
        let is_id_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let is_id = id.len() <= 64 && id.bytes().all(is_id_byte);
        Some(Self(started.parse().ok()?, id.to_owned())).filter(|_| is_id)
    }
}

impl Query {
    fn read(query: &str, version: Version) -> Result<Self, E2bError> {
        let mut read = Self::default();
        if version == Version::One {
            read.states.push(State::Running);
        }
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let wrong = |why: &str| Err(E2bError::invalid(&name, why));
            if version == Version::One && ["state", "limit", "nextToken"].contains(&&*name) {
                return wrong("this list has all sandboxes that run; ask for it at /v2/sandboxes");
            }
            match &*name {
                "metadata" => read.metadata.extend(metadata(&value)),
                "state" => {
                    for state in value.split(',').filter(|state| !state.is_empty()) {
                        read.states.push(match state {
                            "running" => State::Running,
                            "paused" => State::Paused,
                            _ => return wrong("must be running or paused"),
                        });
                    }
                }
                "startedAfter" => match instant(&value) {
                    Some(time) => read.started_after = Some(time),
                    None => return wrong("must be a date such as 2027-01-31T00:00:00Z"),
                },
                "template" => read.template = Some(value.into_owned()),
                "order" => match &*value {
                    "asc" => read.ascending = true,
                    "desc" => read.ascending = false,
                    _ => return wrong("must be asc or desc"),
                },
                "limit" => match value.parse() {
                    Ok(limit @ 1..=PAGE) => read.limit = Some(limit),
                    _ => return wrong("must be a number from 1 to 100"),
                },
                "nextToken" => match Position::read(&value) {
                    Some(position) => read.after = Some(position),
                    None => return wrong("is not a token of this list"),
                },
                _ => return wrong("this server does not know this parameter"),
            }
        }
        Ok(read)
    }

    fn selects(&self, session: &OpenSession, sandbox: Option<&Sandbox>) -> bool {
        let state = if session.is_paused() { State::Paused } else { State::Running };
        let description = sandbox.map(|sandbox| &sandbox.description);
        let template = description.map_or(&session.language.name, |it| &it.template);
        let has = |(name, value): (&String, &String)| {
            description.is_some_and(|it| it.metadata.get(name) == Some(value))
        };
        (self.states.is_empty() || self.states.contains(&state))
            && self.started_after.is_none_or(|after| session.opened_at() > after)
            && self.template.as_ref().is_none_or(|wanted| wanted == template)
            && self.metadata.iter().all(has)
    }

    fn comes_after(&self, position: &Position) -> bool {
        match &self.after {
            None => true,
            Some(after) if self.ascending => position > after,
            Some(after) => position < after,
        }
    }
}

/// Names and values, which clients encode twice.
fn metadata(text: &str) -> impl Iterator<Item = (String, String)> {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    form_urlencoded::parse(text.as_bytes())
        .map(move |(name, value)| (decoded(&name), decoded(&value)))
}

/// A date in RFC 3339's form with any offset from UTC.
fn instant(text: &str) -> Option<SystemTime> {
    let text = text.trim();
    // A plus that was not encoded is a space.
    let at = text.get(10..)?.rfind(['+', '-', ' ']).map(|at| at + 10);
    let Some(at) = at.filter(|_| !text.ends_with(['Z', 'z'])) else {
        return humantime::parse_rfc3339_weak(text).ok();
    };
    let (local, offset) = text.split_at_checked(at)?;
    let (hours, minutes) = offset[1..].split_once(':')?;
    let at_most =
        |text: &str, most| text.parse::<u8>().ok().filter(|it| *it <= most).map(u64::from);
    let seconds = at_most(hours, 23)? * 3600 + at_most(minutes, 59)? * 60;
    let offset_time = Duration::from_secs(seconds);
    let local = humantime::parse_rfc3339_weak(&format!("{local}Z")).ok()?;
    if offset.starts_with('-') {
        local.checked_add(offset_time)
    } else {
        local.checked_sub(offset_time)
    }
}

/// Lists sandboxes.
pub(super) async fn list(
    e2b: E2b,
    request: Request,
    version: Version,
) -> Result<Response, E2bError> {
    let asked = request.uri().clone();
    let owned = e2b.owned(request).await?;
    let NoFields {} = owned.fields()?;
    let query = Query::read(asked.query().unwrap_or_default(), version)?;
    let page = match version {
        Version::One => usize::MAX,
        Version::Two => query.limit.unwrap_or(PAGE),
    };
    let sessions = owned.now.calls.sessions().of(&owned.client);
    let mut found: Vec<_> = sessions
        .iter()
        .map(|session| (Position::of(session), session, e2b.sandboxes.find(&session.id)))
        .filter(|(position, session, sandbox)| {
            query.selects(session, sandbox.as_deref()) && query.comes_after(position)
        })
        .collect();
    found.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    if !query.ascending {
        found.reverse();
    }
    let has_more = found.len() > page;
    found.truncate(page);
    let next = found.last().filter(|_| has_more).map(|(position, ..)| position.token());
    let body: Vec<_> =
        found.iter().map(|(_, session, sandbox)| listed(session, sandbox.as_deref())).collect();
    let mut response = owned.answer(StatusCode::OK, &Value::Array(body));
    if let Some(Ok(token)) = next.map(|token| HeaderValue::from_str(&token)) {
        response.headers_mut().insert(NEXT_TOKEN, token);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(query: &str) -> Result<Query, E2bError> {
        Query::read(query, Version::Two)
    }

    #[test]
    fn the_filters_of_both_sdks_are_understood() {
        let query = Query::read(
            "metadata=a%252520b%3Dc%25253Dd&state=running%2Cpaused&startedAfter=2026-01-31T01%3A00%3A00%2B01%3A00\
             &template=base&order=asc&limit=2&nextToken=17-n1-abc",
            Version::Two,
        );
        let query = query.unwrap();
        assert_eq!(query.metadata["a b"], "c=d");
        assert_eq!(query.states, [State::Running, State::Paused]);
        let midnight = humantime::parse_rfc3339("2026-01-31T00:00:00Z").unwrap();
        assert_eq!(query.started_after, Some(midnight));
        assert_eq!(query.after, Some(Position(17, "n1-abc".to_owned())));
        assert_eq!(two("state=running&state=paused").unwrap().states.len(), 2);
    }

    #[test]
    fn dates_have_any_offset() {
        for text in [
            "2026-01-31T00:00:00Z",
            "2026-01-31T00:00:00.000Z",
            "2026-01-31T02:30:00+02:30",
            "2026-01-31T02:30:00 02:30",
            "2026-01-30T19:00:00.000000-05:00",
        ] {
            assert_eq!(instant(text), instant("2026-01-31T00:00:00Z"), "{text}");
        }
        for text in [
            "",
            "today",
            "2026-01-31",
            "2026-01-31T00:00:00+1",
            "2026-01-31T00:00:00+x:y",
            "2026-01-31T00:00:00+24:00",
            "2026-01-31T00:00:00+99999999999999999:00",
        ] {
            assert_eq!(instant(text), None, "{text}");
        }
    }

    #[test]
    fn a_parameter_that_is_wrong_is_named() {
        for (query, field) in [
            ("state=stopped", "state"),
            ("order=up", "order"),
            ("limit=0", "limit"),
            ("limit=101", "limit"),
            ("nextToken=x", "nextToken"),
            ("nextToken=1-%00", "nextToken"),
            ("startedAfter=now", "startedAfter"),
            ("teamID=1", "teamID"),
        ] {
            let error = two(query).unwrap_err();
            assert!(error.message().starts_with(&format!("{field}: ")), "{query}: {error}");
        }
        // The first version has neither pages nor those that are paused.
        for query in ["state=paused", "limit=1", "nextToken=1-a"] {
            let error = Query::read(query, Version::One).unwrap_err();
            assert!(error.message().contains("/v2/sandboxes"), "{query}: {error}");
        }
        let query = Query::read("template=base&order=asc", Version::One).unwrap();
        assert_eq!(query.states, [State::Running]);
    }
}
