//! The files that an image comes in: those of a directory, or of a tar archive that is read in place.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use super::digest::Digest;
use super::entries::{self, Kind};
use super::error::{Doing, StoreError};
use super::path;
use super::steps::Steps;

/// Members that are remembered of an archive. Those of an image lie at most two directories deep and are
/// a few for each layer; an archive with more of them is a root file system.
const DEEPEST: usize = 3;
const MEMBERS: usize = 100_000;

/// Links from one member to the next.
const LINKS: usize = 8;

/// The files that an image comes in.
pub(super) enum Blobs {
    Directory(PathBuf),
    Archive(Tape),
}

/// A tar archive and where its members are.
pub(super) struct Tape {
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
            Self::Archive(tape) => tape.members.contains_key(Path::new(path)),
        }
    }

    /// Opens a file.
    pub(super) fn open(&self, path: &str) -> Result<Box<dyn Read + '_>, StoreError> {
        let missing = || StoreError::unusable(path, "it is missing");
        // It comes out of a manifest.
        let clean = path::relative(path.as_bytes(), path::DEPTH * 2);
        let clean = clean.map_err(|message| StoreError::unusable(path, message))?;
        match self {
            Self::Directory(directory) => {
                let path = directory.join(clean);
                // Whatever else it may be could keep us waiting.
                if !fs::metadata(&path).is_ok_and(|found| found.is_file()) {
                    return Err(missing());
                }
                Ok(Box::new(File::open(&path).at("open", &path)?))
            }
            Self::Archive(tape) => Ok(Box::new(tape.open(clean).ok_or_else(missing)?)),
        }
    }

    /// Reads a small file.
    pub(super) fn read(&self, path: &str, most: u64) -> Result<Vec<u8>, StoreError> {
        let mut content = Vec::new();
        let read = self.open(path)?.take(most.saturating_add(1)).read_to_end(&mut content);
        read.doing(|| format!("can't read {path}"))?;
        if content.len() as u64 > most {
            return Err(StoreError::unusable(path, format!("it has more than {most} bytes")));
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

impl Tape {
    /// Finds the members of an archive. Returns whether it has a mark of its end, too.
    pub(super) fn index(file: File, steps: &Steps) -> io::Result<(Self, bool)> {
        let mut members = HashMap::new();
        let reader = Range { file: &file, position: 0, left: u64::MAX };
        let whole = entries::for_each(reader, |header, _| -> io::Result<()> {
            if steps.go_on().is_err() {
                return Err(io::Error::other("nobody waits for it"));
            }
            // Odd paths are the unpacker's to refuse.
            let Ok(path) = path::relative(&header.path, 1024) else { return Ok(()) };
            if path.iter().count() > DEEPEST || members.len() >= MEMBERS {
                return Ok(());
            }
            match header.kind {
                Kind::File => {
                    let (position, size) = (header.position, header.size);
                    members.insert(path, Member::File { position, size });
                }
                // Old versions of Docker keep a layer once for the images of one archive.
                Kind::SymbolicLink => {
                    if let Some(target) = beside(&path, &header.link) {
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
        for _ in 0..LINKS {
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

/// What a link means that lies at a path.
fn beside(path: &Path, target: &[u8]) -> Option<PathBuf> {
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

/// A part of a file, read without a position that others share.
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
