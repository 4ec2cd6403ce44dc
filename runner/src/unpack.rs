//! Unpacks the workspace from a tar stream in frames.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use isolator_runner::wire::{self, Failed, FailedCause, Kind, WireError};
use rustix::fs::StatVfsMountFlags;

use crate::changes::Known;

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

    /// Skips the rest of the tar and returns the first frame after it.
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
            self.advance()?;
        }
        let rest = &self.payload[self.at..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}

/// The files of a request, as they were before the program.
pub(crate) struct Given {
    /// The modification time that all of them get.
    modified: SystemTime,
    /// By paths below the workspace.
    contents: BTreeMap<PathBuf, Content>,
    /// A random key of the digests: a program can't write another content with the same digest.
    key: RandomState,
}

/// The content of a file, as its size and a digest.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Content {
    size: u64,
    digest: u64,
}

/// How far the modification time is set back. File times have a resolution of a few milliseconds, and a file
/// that the program writes at once must get another time.
const BACKDATE: Duration = Duration::from_secs(1);

/// Bytes that are copied at once. A digest depends on it.
const CHUNK: u64 = 64 * 1024;

impl Given {
    /// No files.
    pub(crate) fn none() -> Self {
        let now = SystemTime::now();
        let modified = now.checked_sub(BACKDATE).unwrap_or(now);
        Self { modified, contents: BTreeMap::new(), key: RandomState::new() }
    }

    /// Copies everything, and returns what it was.
    fn copy(&self, mut from: impl Read, to: &mut impl Write) -> io::Result<Content> {
        let (mut size, mut hasher, mut chunk) = (0, self.key.build_hasher(), Vec::new());
        while from.by_ref().take(CHUNK).read_to_end(&mut chunk)? > 0 {
            size += chunk.len() as u64;
            hasher.write(&chunk);
            to.write_all(&chunk)?;
            chunk.clear();
        }
        Ok(Content { size, digest: hasher.finish() })
    }
}

impl Known for Given {
    /// Compares the modification time, and then the content: a program can set the time back, move another file there, or write
    /// through a mapping.
    fn has(&mut self, path: &Path, metadata: &Metadata, file: &File) -> io::Result<bool> {
        let (size, modified) = (metadata.len(), metadata.modified()?);
        match self.contents.get(path) {
            Some(content) if modified == self.modified && size == content.size => {
                Ok(self.copy(file.take(size), &mut io::sink())? == *content)
            }
            _ => Ok(false),
        }
    }
}

/// The bits of a file's mode that the server decides: reading, writing and executing.
pub(crate) const MODES: u32 = 0o777;

/// Unpacks the tar into `workdir`. No tar at all leaves the workspace empty.
///
/// The server packs only files, and has checked their names. Anything else is refused, and so is a name that
/// leads out of the workspace. The workspace is new and empty, so it has no links that could lead out.
pub(crate) fn unpack(tar: &mut impl Read, workdir: &str) -> Result<Given, Failed> {
    let workdir = Path::new(workdir);
    let mut archive = tar::Archive::new(tar);
    let mut made = BTreeSet::new();
    let mut given = Given::none();
    for entry in archive.entries().map_err(|error| failed(workdir, &error))? {
        let mut entry = entry.map_err(|error| failed(workdir, &error))?;
        let name = entry.path().map_err(|error| failed(workdir, &error))?.into_owned();
        let path = workdir.join(&name);
        if !is_below(&name) || !entry.header().entry_type().is_file() {
            let error =
                io::Error::new(io::ErrorKind::InvalidData, "it is not a file of the workspace");
            return Err(failed(&path, &error));
        }
        let mode = entry.header().mode().map_err(|error| failed(&path, &error))?;
        let content = write_file(&path, &mut entry, mode & MODES, &given, &mut made)
            .map_err(|error| failed(&path, &error))?;
        given.contents.insert(name, content);
    }
    Ok(given)
}

/// Whether a name stays below its start.
pub(crate) fn is_below(name: &Path) -> bool {
    let mut parts = name.components();
    parts.clone().next().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

fn write_file(
    path: &Path,
    content: &mut impl Read,
    mode: u32,
    given: &Given,
    made: &mut BTreeSet<PathBuf>,
) -> io::Result<Content> {
    if let Some(folder) = path.parent()
        && !made.contains(folder)
    {
        fs::create_dir_all(folder)?;
        made.insert(folder.to_owned());
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    let content = given.copy(content, &mut file)?;
    file.set_modified(given.modified)?;
    Ok(content)
}

pub(crate) fn failed(path: &Path, error: &io::Error) -> Failed {
    let cause = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FailedCause::WorkspaceFull,
        _ => FailedCause::Workspace,
    };
    Failed { cause, message: format!("{}: {error}", path.display()) }
}

/// Whether the file system that holds `path` can be written but has no block or no inode left.
pub(crate) fn is_full(path: impl AsRef<Path>) -> bool {
    rustix::fs::statvfs(path.as_ref()).is_ok_and(|disk| {
        let has_limits = disk.f_blocks > 0 && !disk.f_flag.contains(StatVfsMountFlags::RDONLY);
        has_limits && (disk.f_bavail == 0 || (disk.f_files > 0 && disk.f_favail == 0))
    })
}

#[cfg(test)]
mod tests {
    use tar::EntryType;

    use super::*;

    /// Unpacks one entry into a new workspace. Returns the error, and the names in the workspace's parent and in the workspace.
    fn unpack_one(name: &[u8], kind: EntryType) -> (Option<String>, Vec<String>) {
        let outside = tempfile::tempdir().unwrap();
        let workdir = outside.path().join("workdir");
        fs::create_dir(&workdir).unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(3);
        header.set_mode(0o644);
        // The crate's own ways to set a name refuse what is tried here.
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_cksum();
        let mut tar = tar::Builder::new(Vec::new());
        tar.append(&header, &b"abc"[..]).unwrap();
        let tar = tar.into_inner().unwrap();
        let done = unpack(&mut &tar[..], workdir.to_str().unwrap());
        let found = [outside.path(), &workdir].into_iter().flat_map(|folder| {
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name())
        });
        let found = found.map(|name| name.into_string().unwrap()).collect();
        (done.err().map(|failed| failed.message), found)
    }

    #[test]
    fn a_name_that_leads_out_of_the_workspace_is_refused() {
        let absolute = std::env::temp_dir().join("isolator-runner-leads-out");
        let absolute = absolute.to_str().unwrap().as_bytes();
        for name in [b"../x".as_slice(), b"a/../../x", b"..", b".", b"/", absolute] {
            let (error, found) = unpack_one(name, EntryType::Regular);
            assert!(error.is_some_and(|error| error.contains("not a file of the workspace")));
            assert_eq!(found, ["workdir"]);
        }
        assert_eq!(
            unpack_one(b"x", EntryType::Regular),
            (None, vec!["workdir".into(), "x".into()])
        );
    }

    #[test]
    fn links_and_folders_are_rejected() {
        for kind in [EntryType::Directory, EntryType::Symlink, EntryType::GNUSparse] {
            let (error, found) = unpack_one(b"x", kind);
            assert!(error.is_some(), "{kind:?}");
            assert_eq!(found, ["workdir"]);
        }
    }
}
