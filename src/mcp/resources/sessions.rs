//! `isolator://sessions`: the caller's sessions, and the files in them.

use isolator_pool::pool::admission::Client;
use isolator_pool::pool::session::{FilePart, SessionError};
use percent_encoding::percent_decode_str;
use rmcp::model::{ErrorData, ResourceContents};
use serde::Serialize;
use serde_json::json;

use super::{JSON, as_json, not_found, part_of_run};
use crate::result::kept::{Range, ReadError, encoded, part_of};
use crate::result::media_type;
use crate::sessions::{InUse, NoSession, OpenSession, Sessions};

/// Their list.
pub(super) const SESSIONS: &str = "isolator://sessions";

/// A file of a session, or a range of it; without a path, the list of the files.
pub(super) const TEMPLATE: &str = "isolator://sessions/{session}/files/{+path}{?offset,length}";

const PREFIX: &str = "isolator://sessions/";

/// Whether an address is of this kind.
pub(super) fn is_one(uri: &str) -> bool {
    uri == SESSIONS || uri.starts_with(PREFIX)
}

#[derive(Serialize)]
struct SessionSummary {
    session: String,
    language: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    interpreter: Option<String>,
    expires_at: String,
    /// Whether a cell runs.
    running: bool,
    /// Whether it is frozen: nothing in it runs until the next call.
    frozen: bool,
    /// After the last cell.
    memory_bytes: u64,
    files: String,
}

#[derive(Serialize)]
struct Files {
    files: Vec<ListedFile>,
    /// Whether there are others, which are too many.
    more: bool,
}

#[derive(Serialize)]
struct ListedFile {
    path: String,
    size: u64,
    uri: String,
}

/// Reads the resource at an address.
///
/// # Errors
///
/// A message for the caller, if nothing is there or it can't be read.
pub(super) async fn read(
    sessions: &Sessions,
    client: &Client,
    uri: &str,
) -> Result<ResourceContents, ErrorData> {
    if uri == SESSIONS {
        let own: Vec<_> = sessions.of(client).iter().map(|session| listed(session)).collect();
        return Ok(text(as_json(&own), uri));
    }
    let (address, query) = uri.split_once('?').unwrap_or((uri, ""));
    let path = address.strip_prefix(PREFIX).unwrap_or_default();
    let (id, path) = path.split_once('/').unwrap_or((path, ""));
    let session = sessions.take(client, id).map_err(|none| match none {
        NoSession::Unknown => not_found(uri, "there is no such session"),
        NoSession::Lost(lost) => super::lost(uri, &lost),
        NoSession::Gone(gone) => not_found(uri, format!("the session is gone: {}", gone.why)),
    })?;
    match path.strip_prefix("files") {
        Some("" | "/") => list(&session, uri).await,
        Some(path) if path.starts_with('/') => {
            let path = percent_decode_str(&path[1..]).decode_utf8();
            let path = path.map_err(|_| not_found(uri, "the path is not UTF-8"))?;
            let contents = file(&session, uri, address, &path, query).await?;
            sessions.count_read();
            Ok(contents)
        }
        _ => Err(not_found(uri, "there is no such resource")),
    }
}

fn text(text: String, uri: &str) -> ResourceContents {
    ResourceContents::text(text, uri).with_mime_type(JSON)
}

fn listed(session: &OpenSession) -> SessionSummary {
    SessionSummary {
        session: session.id.clone(),
        language: session.language.name.clone(),
        interpreter: session.session.opened().interpreter.clone(),
        expires_at: session.expires_at(),
        running: session.session.is_running(),
        frozen: session.session.is_frozen(),
        memory_bytes: session.session.memory(),
        files: format!("{PREFIX}{}/files", session.id),
    }
}

async fn list(session: &InUse, uri: &str) -> Result<ResourceContents, ErrorData> {
    let (files, is_all) = session.session.list().await.map_err(|error| failed(uri, &error))?;
    let files = files.into_iter().map(|file| ListedFile {
        uri: format!("{PREFIX}{}/files/{}", session.id, encoded(&file.path)),
        path: file.path,
        size: file.size,
    });
    Ok(text(as_json(&Files { files: files.collect(), more: !is_all }), uri))
}

async fn file(
    session: &InUse,
    uri: &str,
    address: &str,
    path: &str,
    query: &str,
) -> Result<ResourceContents, ErrorData> {
    let wrong = |error: &ReadError| {
        ErrorData::invalid_params(error.to_string(), Some(json!({ "uri": uri })))
    };
    let range = Range::parse(query).map_err(|error| wrong(&error))?;
    let read = session.session.read(path, range.offset, range.bytes()).await;
    let FilePart { content, size } = read.map_err(|error| failed(uri, &error))?;
    let media_type = media_type::of(path, &content).to_owned();
    let part =
        part_of(content, size, &range, address, media_type).map_err(|error| wrong(&error))?;
    Ok(part_of_run(uri, part))
}

fn failed(uri: &str, error: &SessionError) -> ErrorData {
    match error {
        SessionError::NoSuchFile(_) => not_found(uri, error),
        error => ErrorData::internal_error(error.to_string(), Some(json!({ "uri": uri }))),
    }
}
