//! The workspace: a tar stream in frames, unpacked where the program will start.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

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
///
/// The server has checked the names, and the workspace is new and empty: there is nothing in it that
/// a name could be led astray by.
pub(crate) fn unpack(tar: &mut impl Read, workdir: &str) -> Result<(), Failed> {
    let workdir = Path::new(workdir);
    let mut archive = tar::Archive::new(tar);
    let mut made = BTreeSet::new();
    for entry in archive.entries().map_err(|error| failed(workdir, &error))? {
        let mut entry = entry.map_err(|error| failed(workdir, &error))?;
        let path = entry.path().map_err(|error| failed(workdir, &error))?.into_owned();
        let path = workdir.join(path);
        write_file(&path, &mut entry, &mut made).map_err(|error| failed(&path, &error))?;
    }
    Ok(())
}

fn write_file(
    path: &Path,
    content: &mut impl Read,
    made: &mut BTreeSet<PathBuf>,
) -> io::Result<()> {
    if let Some(folder) = path.parent()
        && !made.contains(folder)
    {
        fs::create_dir_all(folder)?;
        made.insert(folder.to_owned());
    }
    io::copy(content, &mut File::create_new(path)?)?;
    Ok(())
}

fn failed(path: &Path, error: &io::Error) -> Failed {
    let cause = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FailedCause::WorkspaceFull,
        _ => FailedCause::Workspace,
    };
    Failed { cause, message: format!("{}: {error}", path.display()) }
}

/// Whether the file system that holds `path` has no block or no inode left.
pub(crate) fn is_full(path: impl AsRef<Path>) -> bool {
    rustix::fs::statvfs(path.as_ref()).is_ok_and(|disk| {
        disk.f_blocks > 0 && (disk.f_bavail == 0 || (disk.f_files > 0 && disk.f_favail == 0))
    })
}
