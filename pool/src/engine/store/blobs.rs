//! The files of an image layout, in a directory or in a tar archive that is read in place.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use super::blocking_job::BlockingJob;
use super::digest::Digest;
use super::error::{IoContext, StoreError};
use super::path;
use super::tar_reader::{self, EntryKind};

/// Which members of an archive are indexed. An image has a few for each layer, at most two directories deep;
/// an archive with more members is a root file system.
const MAX_MEMBER_DEPTH: usize = 3;
const MAX_MEMBERS: usize = 100_000;

/// Longest chain of links between members.
const MAX_LINKS: usize = 8;

/// The files of an image layout.
pub(super) enum Blobs {
    Directory(PathBuf),
    Archive(IndexedArchive),
}

/// A tar archive and the positions of its members.
pub(super) struct IndexedArchive {
    file: File,
    members: HashMap<PathBuf, Member>,
}

enum Member {
    File { position: u64, size: u64 },
    Link(PathBuf),
}

impl Blobs {
    /// Whether there is such a file.
    pub(super) fn has(&self, path: &str) -> bool {
        match self {
            Self::Directory(directory) => directory.join(path).is_file(),
            Self::Archive(archive) => archive.members.contains_key(Path::new(path)),
        }
    }

    /// Opens a file.
    pub(super) fn open(&self, path: &str) -> Result<Box<dyn Read + '_>, StoreError> {
        let missing = || StoreError::unusable(path, "it is missing");
        // The path comes from a manifest and is not trusted.
        let clean = path::relative(path.as_bytes(), path::MAX_DEPTH * 2);
        let clean = clean.map_err(|message| StoreError::unusable(path, message))?;
        match self {
            Self::Directory(directory) => {
                let path = directory.join(clean);
                // Opening a FIFO, for example, could block.
                if !fs::metadata(&path).is_ok_and(|found| found.is_file()) {
                    return Err(missing());
                }
                Ok(Box::new(File::open(&path).at("open", &path)?))
            }
            Self::Archive(archive) => Ok(Box::new(archive.open(clean).ok_or_else(missing)?)),
        }
    }

    /// Reads a small file.
    pub(super) fn read(&self, path: &str, most: u64) -> Result<Vec<u8>, StoreError> {
        let mut content = Vec::new();
        let read = self.open(path)?.take(most.saturating_add(1)).read_to_end(&mut content);
        read.context(|| format!("can't read {path}"))?;
        if content.len() as u64 > most {
            return Err(StoreError::unusable(path, format!("it is larger than {most} bytes")));
        }
        Ok(content)
    }

    /// Reads a small file that is named by its digest.
    pub(super) fn read_blob(&self, digest: &Digest, most: u64) -> Result<Vec<u8>, StoreError> {
        let path = blob(digest);
        let content = self.read(&path, most)?;
        Digest::of(&content).expect(&path, digest)?;
        Ok(content)
    }
}

/// Where a blob is in an OCI image layout.
pub(super) fn blob(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

impl IndexedArchive {
    /// Indexes an archive. Also returns whether it has an end-of-archive mark.
    pub(super) fn index(file: File, job: &BlockingJob) -> io::Result<(Self, bool)> {
        let mut members = HashMap::new();
        let reader = Range { file: &file, position: 0, left: u64::MAX };
        let whole = tar_reader::for_each(reader, |header, _| -> io::Result<()> {
            job.check_canceled()?;
            // The unpacker refuses odd paths.
            let Ok(path) = path::relative(&header.path, 1024) else { return Ok(()) };
            if path.iter().count() > MAX_MEMBER_DEPTH || members.len() >= MAX_MEMBERS {
                return Ok(());
            }
            match header.kind {
                EntryKind::File => {
                    let (position, size) = (header.position, header.size);
                    members.insert(path, Member::File { position, size });
                }
                // Old versions of Docker store a layer once and link to it from other images.
                EntryKind::SymbolicLink => {
                    if let Some(target) = link_target(&path, &header.link) {
                        members.insert(path, Member::Link(target));
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok((Self { file, members }, whole))
    }

    /// The archive itself.
    pub(super) fn whole(&self) -> Range<'_> {
        Range { file: &self.file, position: 0, left: u64::MAX }
    }

    fn open(&self, mut path: PathBuf) -> Option<Range<'_>> {
        for _ in 0..MAX_LINKS {
            match self.members.get(&path)? {
                Member::File { position, size } => {
                    return Some(Range { file: &self.file, position: *position, left: *size });
                }
                Member::Link(target) => path = target.clone(),
            }
        }
        None
    }
}

/// The path that a link at `path` leads to.
fn link_target(path: &Path, target: &[u8]) -> Option<PathBuf> {
    let mut found = path.parent()?.to_owned();
    for component in Path::new(str::from_utf8(target).ok()?).components() {
        match component {
            Component::Normal(name) => found.push(name),
            Component::ParentDir if found.pop() => {}
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(found)
}

/// A part of a file, with a read position of its own.
pub(super) struct Range<'a> {
    file: &'a File,
    position: u64,
    left: u64,
}

impl Read for Range<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut buffer[..most], self.position)?;
        self.position += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}
