//! The file of the audit log: lines are added at its end, and it is replaced by a new one when it is long.
//!
//! Several writers can share a file: other servers, and one of the same server from before a reload. Each locks it to add a
//! line or to rename it.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};

use crate::config::AuditConfig;

/// How long a line waits for the other writers of the file. Each of them has the lock for the time of one line, and longer only
/// if its disk hangs or its process was stopped.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The first and the longest pause before a lock that another writer has is tried again.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// Permissions that only the owner of a file may have: its lines say which client ran what.
const BY_OTHERS: u32 = 0o066;

/// The file and those before it.
#[derive(Debug)]
pub(super) struct AuditFile {
    path: PathBuf,
    max: u64,
    keep: usize,
    file: Arc<File>,
    /// Device and inode.
    identity: (u64, u64),
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Why a file that is there can't be an audit log.
pub(super) fn unsuitable(found: &Metadata) -> Option<&'static str> {
    if !found.is_file() {
        return Some("it is not a file");
    }
    let is_open_to_others = found.mode() & BY_OTHERS != 0;
    is_open_to_others
        .then_some("others than its owner can read or write it, so run `chmod 600` on it")
}

fn open(path: &Path) -> io::Result<(Arc<File>, (u64, u64))> {
    // Only its owner reads it. A pipe without a reader is an error; opening it does not wait for one.
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    match unsuitable(&metadata) {
        Some(why) => Err(io::Error::other(why)),
        None => Ok((Arc::new(file), identity(&metadata))),
    }
}

fn timed_out(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// The lock of a file. It unlocks the file instead of closing it, because a child process that is being started has the file open
/// as well.
#[derive(Debug)]
struct Lock(Arc<File>);

impl Lock {
    /// Takes the lock; `None` if another writer has it.
    fn take_now(file: &Arc<File>) -> io::Result<Option<Self>> {
        match retry_on_intr(|| flock(file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(Some(Self(Arc::clone(file)))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for the lock. A blocking call could wait for ever for a process that was stopped.
    fn take(file: &Arc<File>, until: Instant) -> io::Result<Self> {
        let mut pause = FIRST_PAUSE;
        loop {
            if let Some(lock) = Self::take_now(file)? {
                return Ok(lock);
            }
            if Instant::now() >= until {
                return Err(timed_out("another process keeps it locked"));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // An open file that is locked can be unlocked.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl AuditFile {
    pub(super) fn open(config: &AuditConfig) -> io::Result<Self> {
        let AuditConfig { path, max, keep, .. } = config;
        let (file, identity) = open(path)?;
        // A file system without locks is an error now, and not at the first line.
        drop(Lock::take_now(&file)?);
        Ok(Self { path: path.clone(), max: max.as_bytes(), keep: *keep, file, identity })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line, all of it or nothing.
    pub(super) fn add(&mut self, line: &str) -> io::Result<()> {
        let until = Instant::now() + LOCK_TIMEOUT;
        let mut can_rotate = true;
        loop {
            self.reopen_if_moved()?;
            let _lock = Lock::take(&self.file, until)?;
            if !self.is_in_place() {
                // Another writer has rotated it before this one had the lock.
                if Instant::now() >= until {
                    return Err(timed_out("another file gets its name all the time"));
                }
                continue;
            }
            // Other writers may have added lines since the last one.
            let length = self.file.metadata()?.len();
            if can_rotate && length > 0 && length + line.len() as u64 > self.max {
                // The new file has to be locked as well, and others may add to it before that.
                can_rotate = self.rotate() && Instant::now() < until;
                continue;
            }
            if let Err(error) = self.file.write_all(line.as_bytes()) {
                // A part of a line would spoil the next one, too. If this fails as well, a reader finds the broken line.
                let _ = self.file.set_len(length);
                return Err(error);
            }
            return Ok(());
        }
    }

    /// Whether the file still has its name.
    fn is_in_place(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity)
    }

    /// Opens the file again if another one, or none, has its name: a program that rotates logs has moved it away.
    pub(super) fn reopen_if_moved(&mut self) -> io::Result<()> {
        if self.is_in_place() { Ok(()) } else { self.reopen() }
    }

    fn reopen(&mut self) -> io::Result<()> {
        (self.file, self.identity) = open(&self.path)?;
        Ok(())
    }

    /// Moves the file to the newest of the older ones, and returns whether that was possible. If not, it goes on to grow, because
    /// no line may be lost for it.
    fn rotate(&mut self) -> bool {
        let rotated = self.try_rotate();
        if let Err(error) = &rotated {
            let path = self.path.display();
            tracing::error!(%path, %error, "the audit log could not be rotated and goes on to grow");
        }
        rotated.is_ok()
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
