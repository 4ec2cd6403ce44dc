//! The file of the audit log: lines are added at its end, and it is replaced by a new one when it is long.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::config::AuditConfig;

/// The file and those before it.
#[derive(Debug)]
pub(super) struct AuditFile {
    path: PathBuf,
    max: u64,
    keep: usize,
    file: File,
    /// Device and inode.
    identity: (u64, u64),
    length: u64,
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn open(path: &Path) -> io::Result<(File, Metadata)> {
    // Only its owner reads it. A pipe without a reader is an error, and nobody waits for one.
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    Ok((file, metadata))
}

impl AuditFile {
    pub(super) fn open(config: &AuditConfig) -> io::Result<Self> {
        let AuditConfig { path, max, keep, .. } = config;
        let (file, metadata) = open(path)?;
        let (identity, length) = (identity(&metadata), metadata.len());
        Ok(Self { path: path.clone(), max: *max, keep: *keep, file, identity, length })
    }

    /// Adds a line, all of it or nothing.
    pub(super) fn add(&mut self, line: &str) -> io::Result<()> {
        self.reopen_if_moved()?;
        if self.length > 0 && self.length + line.len() as u64 > self.max {
            self.rotate();
        }
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            // A part of a line would spoil the next one, too. If this fails as well, a reader finds the broken line.
            let _ = self.file.set_len(self.length);
            return Err(error);
        }
        self.length += line.len() as u64;
        Ok(())
    }

    /// Opens the file again if another one, or none, has its name: a program that rotates logs has moved it away.
    pub(super) fn reopen_if_moved(&mut self) -> io::Result<()> {
        let is_same = fs::metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity);
        if is_same { Ok(()) } else { self.reopen() }
    }

    fn reopen(&mut self) -> io::Result<()> {
        let (file, metadata) = open(&self.path)?;
        self.file = file;
        self.identity = identity(&metadata);
        self.length = metadata.len();
        Ok(())
    }

    /// Moves the file to the newest of the older ones. If that fails it goes on to grow, because no line may be lost for it.
    fn rotate(&mut self) {
        if let Err(error) = self.try_rotate() {
            let path = self.path.display();
            tracing::error!(%path, %error, "the audit log could not be rotated and goes on to grow");
        }
    }

    fn try_rotate(&mut self) -> io::Result<()> {
        if self.keep == 0 {
            fs::remove_file(&self.path)?;
            return self.reopen();
        }
        for number in (1..self.keep).rev() {
            match fs::rename(self.older(number), self.older(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.path, self.older(1))?;
        self.reopen()
    }

    fn older(&self, number: usize) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
}
