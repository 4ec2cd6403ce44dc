//! A file for a client.

use std::io;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH,
    CONTENT_TYPE, VARY,
};
use axum::response::Response;
use isolator_pool::pool::session::agent::{AgentError, FileReader};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::READ;
use crate::apis::e2b::FileQuery;
use crate::apis::e2b::data::call::DataCall;
use crate::apis::e2b::data::connect::head::{Encoding, accepted};
use crate::apis::e2b::data::gzip::Compressing;
use crate::apis::e2b::data::messages::filesystem;
use crate::apis::e2b::error::E2bError;
use crate::audit::Note;
use crate::sessions::InUse;

/// A file that a client reads.
struct Download {
    reader: FileReader,
    /// Bytes that were read ahead.
    first: Option<Bytes>,
    compressing: Option<Compressing>,
    /// Bytes that the client was promised and has not got.
    promised: Option<u64>,
    sent: u64,
    note: Note,
    _session: InUse,
}

/// Why a file ends in the middle. The client sees that its connection does.
#[derive(Debug, thiserror::Error)]
enum Interrupted {
    #[error(transparent)]
    Agent(AgentError),
    #[error("the file has become shorter while it was read")]
    Shorter,
    #[error(transparent)]
    Compress(#[from] io::Error),
}

/// Answers with a file.
///
/// # Errors
///
/// When it can't be read.
pub(super) async fn serve(
    call: &mut DataCall,
    query: FileQuery,
    is_head: bool,
) -> Result<Response, E2bError> {
    let path = filesystem::path(query.path, "path")?;
    let session = call.sandbox.session()?;
    let mut note = call.begin(&READ)?;
    let mut reader = match call.now.calls.read_file(&session, &path, &mut note).await {
        Ok(reader) => reader,
        Err(error) => return Err(E2bError::of_call(error)),
    };
    // Files of the kernel say that they are empty, so a first look decides.
    let first = match reader.size() {
        0 => reader.next().await.transpose().map_err(E2bError::of_agent)?,
        _ => None,
    };
    let encoding = accepted(&call.parts.headers, ACCEPT_ENCODING.as_str());
    let size = Some(reader.size()).filter(|_| first.is_none());
    let is_compressed = encoding == Encoding::Gzip && size != Some(0);
    let promised = size.filter(|_| !is_compressed);
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(CONTENT_DISPOSITION, attachment(&path));
    if is_compressed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if let Some(size) = promised {
        headers.insert(CONTENT_LENGTH, size.into());
    }
    let compressing = is_compressed.then(Compressing::new);
    let download =
        Download { reader, first, compressing, promised, sent: 0, note, _session: session };
    if !is_head {
        let pieces = futures_util::stream::unfold(Some(download), |download| async move {
            let mut download = download?;
            match download.next().await {
                Ok(None) => None,
                Ok(Some(piece)) => Some((Ok(piece), Some(download))),
                Err(error) => {
                    tracing::debug!(%error, "a file could not be read to its end");
                    Some((Err(error), None))
                }
            }
        });
        *response.body_mut() = Body::from_stream(pieces);
    }
    Ok(response)
}

impl Download {
    /// The next piece for the client; `None` after the last one.
    async fn next(&mut self) -> Result<Option<Bytes>, Interrupted> {
        loop {
            if self.promised == Some(0) {
                return Ok(self.end());
            }
            let read = match self.first.take() {
                Some(first) => Some(first),
                None => self.reader.next().await.transpose().map_err(Interrupted::Agent)?,
            };
            let Some(mut piece) = read else {
                if self.promised.is_some() {
                    return Err(Interrupted::Shorter);
                }
                return match self.compressing.take() {
                    Some(compressing) => Ok(Some(compressing.finish()?)),
                    None => Ok(self.end()),
                };
            };
            if let Some(promised) = &mut self.promised {
                // A file that has grown ends where the client expects its end.
                let most = usize::try_from(*promised).unwrap_or(usize::MAX);
                piece.truncate(most);
                *promised -= piece.len() as u64;
                // The connection does not ask for more than the length that was announced.
                if *promised == 0 {
                    self.note.answered("success");
                }
            }
            self.sent += piece.len() as u64;
            let piece = match &mut self.compressing {
                Some(compressing) => compressing.push(&piece)?,
                None => piece,
            };
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }

    fn end(&mut self) -> Option<Bytes> {
        self.note.answered("success");
        None
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.note.returned(self.sent);
    }
}

/// The name under which a browser saves a file.
fn attachment(path: &str) -> HeaderValue {
    let name = path.rsplit('/').next().unwrap_or_default();
    let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
    // It has no other letters than those of ASCII.
    HeaderValue::try_from(format!("attachment; filename*=UTF-8''{name}"))
        .unwrap_or(HeaderValue::from_static("attachment"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_of_a_file_is_a_header() {
        for (path, expected) in [
            ("/a/b.txt", "attachment; filename*=UTF-8''b%2Etxt"),
            ("é\"\r\n", "attachment; filename*=UTF-8''%C3%A9%22%0D%0A"),
            ("/", "attachment; filename*=UTF-8''"),
        ] {
            assert_eq!(attachment(path), expected);
        }
    }
}
