//! The files of a session's workspace.

use std::io;

use isolator_runner::wire::{self, Kind, Listed, MAX_FILES, MAX_PATH, Read, ReadEnded, ReadError};

use super::exchange::{exchange, message, parse, told, unexpected};
use super::task::SHORT_TIMEOUT;
use super::{EndReason, FilePart, SessionError};
use crate::run::outcome::ChangedFile;
use crate::sandbox::{Armed, Sandbox};

/// Lists them, and tells whether that is all. The outer error is a session that is gone.
pub(super) async fn list(
    sandbox: &mut Sandbox<Armed>,
) -> Result<Result<(Vec<ChangedFile>, bool), SessionError>, EndReason> {
    let mut files = Vec::new();
    let message = wire::header(Kind::List, 0).to_vec();
    let listed = exchange(sandbox, message, None, SHORT_TIMEOUT, |(kind, payload), _| match kind {
        Kind::File if files.len() < MAX_FILES => {
            let wire::ChangedFile { path, size, .. } = parse(kind, &payload)?;
            if path.len() > MAX_PATH {
                return Err(format!("it listed a path of {} bytes", path.len()));
            }
            files.push(ChangedFile { path, size, content: None });
            Ok(None)
        }
        Kind::Listed => parse::<Listed>(kind, &payload).map(Some),
        other => Err(unexpected(other)),
    });
    match listed.await {
        Ok(Listed { more }) => Ok(Ok((files, !more))),
        Err(broken) => Err(EndReason::Lost(told(&broken))),
    }
}

/// Reads a part of one. The outer error is a session that is gone.
pub(super) async fn read(
    sandbox: &mut Sandbox<Armed>,
    read: Read,
) -> Result<Result<FilePart, SessionError>, EndReason> {
    let mut content = Vec::new();
    let most = read.length;
    let message = message(Kind::Read, &read);
    let ended = exchange(sandbox, message, None, SHORT_TIMEOUT, |(kind, payload), _| match kind {
        Kind::Content if (content.len() + payload.len()) as u64 <= most => {
            content.extend_from_slice(&payload);
            Ok(None)
        }
        Kind::ReadEnded => parse::<ReadEnded>(kind, &payload).map(Some),
        other => Err(unexpected(other)),
    });
    match ended.await {
        Ok(ReadEnded { size: Some(size), error: None }) => Ok(Ok(FilePart { content, size })),
        Ok(ReadEnded { error, .. }) => Ok(Err(SessionError::NoSuchFile(match error {
            Some(ReadError::System(number)) => io::Error::from_raw_os_error(number).to_string(),
            Some(ReadError::NoSuchFile) | None => {
                "there is no such file (links and pipes are not read)".to_owned()
            }
        }))),
        Err(broken) => Err(EndReason::Lost(told(&broken))),
    }
}
