//! Watches a file or a folder, and with it the folders below.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use isolator_runner::wire::agent::{Failure, MAX_WATCHED, MAX_WATCHERS, WatchEvent, WatchKind};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::writing;
use crate::changes::text;

/// Bytes of changes that are read at once.
const CHUNK: usize = 4096;

/// Maximum number of entries of new folders that are reported at once.
const MAX_PENDING: usize = 4096;

/// A tree that is watched.
pub(super) struct Watching {
    inotify: OwnedFd,
    /// The folders that are watched, by their numbers.
    folders: HashMap<i32, PathBuf>,
    /// The number of the path that the client has named.
    root: i32,
    recursive: bool,
    /// Changes that were not sent yet.
    pending: VecDeque<WatchEvent>,
    /// A file that was written for a client and has just lost its other name: the number that both changes have, and whether it replaces
    /// another.
    finished: Option<(u32, bool)>,
    /// Why no more changes come, once the pending ones are sent.
    ended: Option<Failure>,
}

impl Watching {
    /// Begins to watch. `others` trees are watched already.
    pub(super) fn begin(path: PathBuf, recursive: bool, others: usize) -> Result<Self, Failure> {
        if others >= MAX_WATCHERS {
            return Err(Failure::TooManyWatched);
        }
        let failed = |errno: Errno| match errno {
            Errno::MFILE => Failure::TooManyWatched,
            errno => Failure::System(errno.raw_os_error()),
        };
        let inotify =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        let mut watching = Self {
            inotify,
            folders: HashMap::new(),
            root: 0,
            recursive,
            pending: VecDeque::new(),
            finished: None,
            ended: None,
        };
        watching.root = watching.add(path.clone()).map_err(failed)?;
        if recursive {
            watching.add_below(&path, false)?;
        }
        Ok(watching)
    }

    /// The descriptor to poll.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// Whether there is something to send.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty() || self.ended.is_some()
    }

    /// The next change, if its message fits.
    ///
    /// # Errors
    ///
    /// When no more come.
    pub(super) fn next(
        &mut self,
        fits: impl FnOnce(usize) -> bool,
    ) -> Result<Option<Vec<u8>>, Failure> {
        if self.pending.is_empty() && self.ended.is_none() {
            self.read();
        }
        let Some(event) = self.pending.front() else {
            return self.ended.map_or(Ok(None), Err);
        };
        let body = serde_json::to_vec(event).unwrap_or_default();
        if !fits(body.len()) {
            return Ok(None);
        }
        self.pending.pop_front();
        Ok(Some(body))
    }

    fn add(&mut self, path: PathBuf) -> Result<i32, Errno> {
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        let number = inotify::add_watch(&self.inotify, &path, flags)?;
        self.folders.insert(number, path);
        Ok(number)
    }

    /// Watches the folders below one. With `reports`, what is found there is new.
    fn add_below(&mut self, folder: &Path, reports: bool) -> Result<(), Failure> {
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            // It may have been removed, or belong to another user.
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                let path = entry.path();
                if reports {
                    if self.pending.len() >= MAX_PENDING {
                        return Err(Failure::Overrun);
                    }
                    self.report(WatchKind::Create, &path);
                }
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                if self.folders.len() >= MAX_WATCHED {
                    return Err(Failure::TooManyWatched);
                }
                match self.add(path.clone()) {
                    Ok(_) => folders.push(path),
                    Err(Errno::NOSPC) => return Err(Failure::TooManyWatched),
                    // As above.
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Reads changes, until there is one to send or none is there.
    fn read(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); CHUNK];
        let mut changes = Vec::new();
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => changes.push(Change {
                    folder: event.wd(),
                    flags: event.events(),
                    cookie: event.cookie(),
                    name: event.file_name().map(|name| name.to_bytes().to_vec()),
                }),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => {
                    self.ended = Some(Failure::System(errno.raw_os_error()));
                    break;
                }
            }
            if reader.is_buffer_empty() {
                break;
            }
        }
        for change in changes {
            if let Err(failure) = self.take(change) {
                self.ended = Some(failure);
                return;
            }
        }
    }

    fn take(&mut self, change: Change) -> Result<(), Failure> {
        let Change { folder, flags, cookie, name } = change;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return Err(Failure::Overrun);
        }
        let is_root = folder == self.root;
        if flags.contains(ReadFlags::IGNORED) {
            self.folders.remove(&folder);
            // Nothing more can come.
            return if is_root { Err(Failure::System(libc::ENOENT)) } else { Ok(()) };
        }
        let Some(path) = self.folders.get(&folder) else { return Ok(()) };
        let path = match &name {
            Some(name) => path.join(OsStr::from_bytes(name)),
            // What happens to a folder below is reported by the one that has it.
            None if !is_root => return Ok(()),
            None => path.clone(),
        };
        let name = name.as_ref().map(|name| Path::new(OsStr::from_bytes(name)));
        if let Some(replaces) = name.and_then(writing::replaces) {
            if flags.contains(ReadFlags::MOVED_FROM) {
                self.finished = Some((cookie, replaces));
            }
            return Ok(());
        }
        let finished = self.finished.take().filter(|(finished, _)| *finished == cookie);
        let is_new = flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
        match finished {
            Some((_, replaces)) if flags.contains(ReadFlags::MOVED_TO) => {
                if !replaces {
                    self.report(WatchKind::Create, &path);
                }
                self.report(WatchKind::Write, &path);
            }
            _ if is_new => self.report(WatchKind::Create, &path),
            _ if flags.contains(ReadFlags::MODIFY) => self.report(WatchKind::Write, &path),
            _ if flags.contains(ReadFlags::ATTRIB) => self.report(WatchKind::Chmod, &path),
            _ if flags.intersects(ReadFlags::DELETE | ReadFlags::DELETE_SELF) => {
                self.report(WatchKind::Remove, &path);
            }
            _ if flags.intersects(ReadFlags::MOVED_FROM | ReadFlags::MOVE_SELF) => {
                self.report(WatchKind::Rename, &path);
            }
            _ => {}
        }
        if flags.contains(ReadFlags::MOVED_FROM | ReadFlags::ISDIR) {
            self.forget(&path);
        }
        if self.recursive && is_new && flags.contains(ReadFlags::ISDIR) {
            if self.folders.len() >= MAX_WATCHED {
                return Err(Failure::TooManyWatched);
            }
            if self.add(path.clone()).is_ok() {
                return self.add_below(&path, true);
            }
        }
        Ok(())
    }

    /// Stops to watch a folder that has another path now, and those below it. If that path is in the tree they are watched again.
    fn forget(&mut self, path: &Path) {
        self.folders.retain(|number, folder| {
            let stays = !folder.starts_with(path);
            if !stays {
                // An error means that it is gone.
                let _ = inotify::remove_watch(&self.inotify, *number);
            }
            stays
        });
    }

    /// Adds a change, unless it is the same as the one before.
    fn report(&mut self, kind: WatchKind, path: &Path) {
        let event = WatchEvent { kind, path: text(path) };
        if self.pending.back() != Some(&event) {
            self.pending.push_back(event);
        }
    }
}

/// A change, as the kernel reports it.
struct Change {
    folder: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<Vec<u8>>,
}
