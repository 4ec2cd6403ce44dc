//! The files of a session's workspace.

use std::io;
use std::time::Duration;

use isolator_runner::wire::{
    self, Kind, Listed, MAX_FILES, MAX_PATH, Read, ReadEnded, ReadError, WireError,
};

use super::usage::OtherMessages;
use super::{FilePart, SessionError};
use crate::run::exchange::{Place, Step, exchange, message};
use crate::run::outcome::ChangedFile;
use crate::sandbox::{Armed, Sandbox};

/// Why a file of a session can't be read.
#[derive(Debug, thiserror::Error)]
pub enum FileReadError {
    /// No file has this name.
    #[error("there is no such file (links and pipes are not read)")]
    NoSuchFile,
    /// The name is too long.
    #[error("the path is longer than {MAX_PATH} bytes")]
    PathTooLong,
    /// The system did not read it.
    #[error(transparent)]
    System(io::Error),
}

/// Longest time for listing or reading files.
const FILES_TIMEOUT: Duration = Duration::from_secs(20);

/// Lists them. The answer is true if those are all.
pub(super) async fn list(
    sandbox: &mut Sandbox<Armed>,
    others: &OtherMessages<'_>,
) -> Result<(Vec<ChangedFile>, bool), SessionError> {
    let mut files = Vec::new();
    let message = wire::header(Kind::List, 0).to_vec();
    let take = |kind, payload: &[u8]| match kind {
        Kind::File if files.len() < MAX_FILES => {
            let wire::ChangedFile { path, size, .. } = wire::parse_message(kind, payload)?;
            if path.len() > MAX_PATH {
                return Err(WireError::Unexpected(kind));
            }
            files.push(ChangedFile { path, size, content: None });
            Ok(Step::More)
        }
        Kind::Listed => Ok(Step::Last(wire::parse_message(kind, payload)?)),
        other => Err(WireError::Unexpected(other)),
    };
    let Listed { more } =
        exchange(sandbox, message, FILES_TIMEOUT, Place::InSession(others, None), take).await?;
    Ok((files, !more))
}

/// Reads a part of one.
pub(super) async fn read(
    sandbox: &mut Sandbox<Armed>,
    others: &OtherMessages<'_>,
    read: Read,
) -> Result<FilePart, SessionError> {
    let mut content = Vec::new();
    let most = read.length;
    let message = message(Kind::Read, &read)?;
    let take = |kind, payload: &[u8]| match kind {
        Kind::Content if (content.len() + payload.len()) as u64 <= most => {
            content.extend_from_slice(payload);
            Ok(Step::More)
        }
        Kind::ReadEnded => Ok(Step::Last(wire::parse_message(kind, payload)?)),
        other => Err(WireError::Unexpected(other)),
    };
    match exchange(sandbox, message, FILES_TIMEOUT, Place::InSession(others, None), take).await? {
        ReadEnded { size: Some(size), error: None } => Ok(FilePart { content, size }),
        ReadEnded { error: Some(ReadError::System(number)), .. } => {
            Err(FileReadError::System(io::Error::from_raw_os_error(number)).into())
        }
        ReadEnded { .. } => Err(FileReadError::NoSuchFile.into()),
    }
}
