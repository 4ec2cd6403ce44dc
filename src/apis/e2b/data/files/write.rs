//! Files from a client.

use axum::body::Body;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use isolator_pool::pool::session::agent::Entry;
use serde_json::{Value, json};

use super::WRITE;
use super::parts::{Parts, Pieces, of_form};
use crate::apis::answer;
use crate::apis::e2b::data::call::DataCall;
use crate::apis::e2b::data::connect::head::Encoding;
use crate::apis::e2b::data::messages::filesystem;
use crate::apis::e2b::error::E2bError;
use crate::apis::e2b::{FileQuery, check_owner};
use crate::audit::Note;
use crate::calls::SentFile;
use crate::web::Refused;

/// Files of one form.
const MAX_FILES: usize = 10_000;

/// The field of a form that has a file.
const FILE: &str = "file";

/// The beginning of the names of headers with metadata of a file.
const METADATA: &str = "x-metadata-";

/// Writes the files of a request, and answers with their names.
///
/// # Errors
///
/// When one of them can't be written. Those before it are.
pub(super) async fn serve(
    call: &mut DataCall,
    query: FileQuery,
    body: Body,
) -> Result<Response, E2bError> {
    refuse_metadata(&call.parts.headers)?;
    let pieces = Pieces::new(body, encoding(&call.parts.headers)?);
    let mut note = call.begin(&WRITE)?;
    let path = query.path.filter(|path| !path.is_empty());
    let path = path.map(|path| filesystem::path(Some(path), "path")).transpose()?;
    let written = match (kind(&call.parts.headers)?, path) {
        (Kind::Form(boundary), path) => {
            form(call, Parts::new(pieces, boundary), path, &mut note).await?
        }
        (Kind::File, Some(path)) => vec![file(call, pieces, &path, &mut note).await?],
        (Kind::File, None) => {
            let message = "is required in the URL for a body of application/octet-stream";
            return Err(E2bError::invalid("path", message));
        }
    };
    note.answered("success");
    Ok(answer(StatusCode::OK, &Value::Array(written.iter().map(described).collect())))
}

/// A kind of body.
enum Kind {
    /// The content of a file.
    File,
    /// A form with this boundary between its parts.
    Form(String),
}

fn kind(headers: &HeaderMap) -> Result<Kind, E2bError> {
    let given = headers.get(CONTENT_TYPE).map(|it| String::from_utf8_lossy(it.as_bytes()));
    let given = given.unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "multipart/form-data" => multer::parse_boundary(&given)
            .map(Kind::Form)
            .map_err(|error| E2bError::invalid("Content-Type", error.to_string()).caused_by(error)),
        "application/octet-stream" => Ok(Kind::File),
        _ => Err(E2bError::invalid(
            "Content-Type",
            format!("is {given:?}: send application/octet-stream or multipart/form-data"),
        )),
    }
}

fn encoding(headers: &HeaderMap) -> Result<Encoding, E2bError> {
    let Some(given) = headers.get(CONTENT_ENCODING) else { return Ok(Encoding::Identity) };
    match given.to_str().map(|it| it.trim().to_ascii_lowercase()).as_deref() {
        Ok("" | "identity") => Ok(Encoding::Identity),
        Ok("gzip") => Ok(Encoding::Gzip),
        _ => Err(E2bError::invalid("Content-Encoding", "has to be identity or gzip")),
    }
}

/// Refuses what would be lost.
fn refuse_metadata(headers: &HeaderMap) -> Result<(), E2bError> {
    match headers.keys().find(|name| name.as_str().starts_with(METADATA)) {
        None => Ok(()),
        Some(name) => Err(E2bError::invalid(
            name.as_str(),
            "files of this server have no metadata: write it into a file next to this one",
        )),
    }
}

async fn form(
    call: &mut DataCall,
    mut parts: Parts,
    path: Option<String>,
    note: &mut Note,
) -> Result<Vec<Entry>, E2bError> {
    let mut written = Vec::new();
    match take_files(call, &mut parts, path.as_deref(), note, &mut written).await {
        Ok(()) if written.is_empty() => {
            Err(E2bError::invalid("the form", format!("has no file in a field \"{FILE}\"")))
        }
        Ok(()) => Ok(written),
        Err(error) if written.is_empty() => Err(error),
        // Those before it are written.
        Err(error) => Err(error.after_a_part()),
    }
}

/// Writes the files of a form, one after the other.
async fn take_files(
    call: &mut DataCall,
    parts: &mut Parts,
    path: Option<&str>,
    note: &mut Note,
    written: &mut Vec<Entry>,
) -> Result<(), E2bError> {
    while let Some(part) = parts.next().await {
        let mut part = part.map_err(of_form)?;
        if part.name() != Some(FILE) {
            let name: String = part.name().unwrap_or_default().chars().take(64).collect();
            let message = format!("has the field {name:?}: each file is in a field \"{FILE}\"");
            return Err(E2bError::invalid("the form", message));
        }
        let target = match (path, part.file_name()) {
            (Some(_), _) if !written.is_empty() => {
                let message = "is in the URL, so the form can have one file; without it, each has its own name";
                return Err(E2bError::invalid("path", message));
            }
            (Some(path), _) => path.to_owned(),
            (None, Some(name)) if !name.is_empty() => {
                filesystem::path(Some(name.to_owned()), "filename")?
            }
            (None, _) => {
                let message = "is required for each file of the form, or path in the URL";
                return Err(E2bError::invalid("filename", message));
            }
        };
        if written.len() == MAX_FILES {
            let message = format!("has more than {MAX_FILES} files: send them in several requests");
            return Err(E2bError::invalid("the form", message));
        }
        // Its name is kept until the answer was read.
        if !call.caller.share.grow(2 * target.len()) {
            return Err(E2bError::refused(Refused::TooMuchInMemory));
        }
        let mut file = begin(call, &target, note).await?;
        while let Some(piece) = part.next().await {
            check_owner(&call.caller)?;
            file.write(piece.map_err(of_form)?).await.map_err(E2bError::of_agent)?;
        }
        written.push(file.finish(note).await.map_err(E2bError::of_agent)?);
    }
    Ok(())
}

async fn file(
    call: &DataCall,
    mut pieces: Pieces,
    path: &str,
    note: &mut Note,
) -> Result<Entry, E2bError> {
    let mut file = begin(call, path, note).await?;
    while let Some(piece) = pieces.next().await {
        check_owner(&call.caller)?;
        file.write(piece?).await.map_err(E2bError::of_agent)?;
    }
    file.finish(note).await.map_err(E2bError::of_agent)
}

async fn begin(call: &DataCall, path: &str, note: &mut Note) -> Result<SentFile, E2bError> {
    let session = call.sandbox.session()?;
    call.now.calls.write_file(session, path, note).await.map_err(E2bError::of_call)
}

/// A written file, as clients expect it.
fn described(entry: &Entry) -> Value {
    json!({ "name": entry.name, "type": "file", "path": entry.path })
}
