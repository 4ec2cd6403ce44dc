//! The workspace: a tar stream in frames, unpacked where the program will start.

use std::io::{self, Read};
use std::path::Path;

use isolator_runner::wire::{self, Failed, FailedCause, Kind, WireError};

/// The payloads of consecutive [`Kind::Tar`] frames as one stream of bytes.
pub(crate) struct TarFrames<'a, R> {
    stream: &'a mut R,
    payload: Vec<u8>,
    at: usize,
    next: Option<(Kind, Vec<u8>)>,
    ended: bool,
}

impl<'a, R: Read> TarFrames<'a, R> {
    pub(crate) fn new(stream: &'a mut R) -> Self {
        Self { stream, payload: Vec::new(), at: 0, next: None, ended: false }
    }

    /// Passes over what is left of the tar and returns the first frame behind it.
    pub(crate) fn finish(mut self) -> Result<Option<(Kind, Vec<u8>)>, WireError> {
        while !self.ended {
            self.advance()?;
        }
        Ok(self.next)
    }

    fn advance(&mut self) -> Result<(), WireError> {
        match wire::read_frame(self.stream)? {
            Some((Kind::Tar, payload)) => {
                self.payload = payload;
                self.at = 0;
            }
            other => {
                self.next = other;
                self.ended = true;
            }
        }
        Ok(())
    }
}

impl<R: Read> Read for TarFrames<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.payload.len() {
            if self.ended {
                return Ok(0);
            }
            self.payload.clear();
            self.at = 0;
            self.advance().map_err(io::Error::other)?;
        }
        let rest = &self.payload[self.at..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}

/// Unpacks the tar into `workdir`. No tar at all leaves the workspace empty.
pub(crate) fn unpack(tar: &mut impl Read, workdir: &str) -> Result<(), Failed> {
    let mut archive = tar::Archive::new(tar);
    archive.set_preserve_permissions(false);
    archive.set_preserve_mtime(false);
    archive.set_overwrite(false);
    archive.unpack(workdir).map_err(|error| Failed {
        cause: if is_no_room(&error) { FailedCause::WorkspaceFull } else { FailedCause::Workspace },
        message: with_causes(&error),
    })
}

/// An error and its causes: the tar library's own message names the file, the cause says why.
fn with_causes(error: &io::Error) -> String {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(current) = cause {
        message.push_str(": ");
        message.push_str(&current.to_string());
        cause = current.source();
    }
    message
}

/// Whether a disk is full, at whatever depth the tar library has wrapped the system's error.
fn is_no_room(error: &io::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(io) = current.downcast_ref::<io::Error>()
            && matches!(io.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        {
            return true;
        }
        cause = current.source();
    }
    false
}

/// Whether the file system that holds `path` has no block or no inode left.
pub(crate) fn is_full(path: impl AsRef<Path>) -> bool {
    rustix::fs::statvfs(path.as_ref()).is_ok_and(|disk| {
        disk.f_blocks > 0 && (disk.f_bavail == 0 || (disk.f_files > 0 && disk.f_favail == 0))
    })
}
