//! Lists and sends the files that a program or a cell created or changed in the workspace.
//!
//! The program controls names, links and sizes, and may have left a process that goes on changing them. So no
//! link is followed, only regular files are opened, and everything has a limit.

use std::ffi::{CStr, CString, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use isolator_runner::wire::{ChangedFile, Kind, MAX_FILES, MAX_IN_TMP, MAX_PATH, WantedFiles};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};

use crate::frame_writer::FrameWriter;

/// Limits of the search, in directory entries and time. The client waits for it.
const MAX_ENTRIES: usize = 20_000;
const MAX_TIME: Duration = Duration::from_secs(1);

/// Deepest nesting of folders; each that is open takes a descriptor.
const MAX_DEPTH: usize = 64;

/// Bytes that are read and sent at once.
const CHUNK: usize = 64 * 1024;

/// Extensions of pictures that hosts can show.
const PICTURES: [&str; 5] = ["png", "jpg", "jpeg", "gif", "webp"];

/// The files that are known, and so are not listed.
pub(crate) trait Known {
    /// Whether a file is as it was.
    ///
    /// # Errors
    ///
    /// When the file can't be read.
    fn has(&mut self, path: &Path, metadata: &Metadata, file: &File) -> io::Result<bool>;

    /// Whether unchanged files are sent, too, if they match a pattern.
    const SENDS_KNOWN: bool = false;
}

/// Sends the files that are wanted after a program or a cell, which ran for `wall`. Returns whether there are others, and what it left in
/// `/tmp`.
///
/// # Errors
///
/// When the server's end of the stream is gone.
pub(crate) fn report<K: Known>(
    workdir: &Path,
    known: &mut K,
    wanted: Option<&WantedFiles>,
    wall: Duration,
    to_server: &mut FrameWriter<File>,
) -> io::Result<(bool, Vec<String>)> {
    let Some(wanted) = wanted else { return Ok((false, Vec::new())) };
    let is_complete = send(workdir, known, wanted, to_server)?;
    Ok((!is_complete, in_tmp(wall)))
}

/// Lists the files that were created or changed, in the order of their names, and sends those that
/// are wanted. Returns whether the list is complete.
///
/// # Errors
///
/// When the server's end of the stream is gone.
pub(crate) fn send<K: Known>(
    workdir: &Path,
    known: &mut K,
    wanted: &WantedFiles,
    to_server: &mut FrameWriter<File>,
) -> io::Result<bool> {
    let mut walk = Walk {
        known,
        wanted: Wanted::new(wanted),
        left: wanted.most,
        listed: 0,
        entries_seen: 0,
        until: Instant::now() + MAX_TIME,
        is_complete: true,
        to_server,
    };
    match openat(CWD, workdir, FOLDER, Mode::empty()) {
        Ok(folder) => walk.folder(&folder, Path::new(""), 0)?,
        Err(_) => walk.is_complete = false,
    }
    Ok(walk.is_complete)
}

/// The paths below `/tmp` of files that were written within the last `wall`, also in folders there. They do not come back, and a program
/// may not know that. Names of temporary files are left out.
fn in_tmp(wall: Duration) -> Vec<String> {
    // The clock of files goes in steps.
    const STEP: Duration = Duration::from_millis(4);
    const MOST_ENTRIES: usize = 100;
    let began = SystemTime::now().checked_sub(wall + STEP);
    let (Some(began), Ok(folder)) = (began, openat(CWD, "/tmp", FOLDER, Mode::empty())) else {
        return Vec::new();
    };
    let is_new = |folder: &OwnedFd, name: &CStr| {
        let file = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let changed = Duration::new(file.st_mtime.try_into().ok()?, file.st_mtime_nsec as u32);
        Some(file.st_size > 0 && UNIX_EPOCH + changed >= began)
    };
    let (mut names, mut entries_left) = (Vec::new(), MOST_ENTRIES);
    let mut folders = vec![(folder, PathBuf::new())];
    while let Some((folder, path)) = folders.pop() {
        for entry in Dir::read_from(&folder).into_iter().flatten().flatten() {
            let Some(left) = entries_left.checked_sub(1) else { break };
            entries_left = left;
            let name = entry.file_name();
            if name.to_bytes().starts_with(b".") || name.to_bytes().starts_with(b"tmp") {
                continue;
            }
            let below = path.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            match entry.file_type() {
                FileType::RegularFile if is_new(&folder, name).unwrap_or_default() => {
                    names.push(text(&below));
                }
                FileType::Directory if path.as_os_str().is_empty() => {
                    let opened = openat(&folder, name, FOLDER, Mode::empty());
                    folders.extend(opened.ok().map(|opened| (opened, below)));
                }
                _ => {}
            }
        }
    }
    names.sort_unstable();
    names.truncate(MAX_IN_TMP);
    names
}

/// A folder, and no link to one.
pub(crate) const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Non-blocking, in case a pipe has taken the place of a file.
const FILE: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

struct Walk<'a, K> {
    known: &'a mut K,
    wanted: Wanted,
    /// Bytes that may still be sent.
    left: u64,
    listed: usize,
    entries_seen: usize,
    until: Instant,
    is_complete: bool,
    to_server: &'a mut FrameWriter<File>,
}

impl<K: Known> Walk<'_, K> {
    fn folder(&mut self, folder: &OwnedFd, path: &Path, depth: usize) -> io::Result<()> {
        let Ok(entries) = Dir::read_from(folder) else {
            self.is_complete = false;
            return Ok(());
        };
        let mut names = Vec::new();
        for entry in entries {
            let Ok(entry) = entry else {
                self.is_complete = false;
                break;
            };
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            self.entries_seen += 1;
            if self.is_over() {
                break;
            }
            names.push((entry.file_name().to_owned(), entry.file_type()));
        }
        names.sort_unstable_by(|a: &(CString, _), b| a.0.cmp(&b.0));
        for (name, kind) in names {
            if self.is_over() {
                break;
            }
            let path = path.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            match kind {
                FileType::RegularFile => self.file(folder, &name, path)?,
                FileType::Directory if depth < MAX_DEPTH => {
                    match openat(folder, &name, FOLDER, Mode::empty()) {
                        Ok(folder) => self.folder(&folder, &path, depth + 1)?,
                        Err(_) => self.is_complete = false,
                    }
                }
                FileType::Directory => self.is_complete = false,
                // Links, pipes and sockets mean nothing outside of the sandbox.
                _ => {}
            }
        }
        Ok(())
    }

    fn file(&mut self, folder: &OwnedFd, name: &CStr, path: PathBuf) -> io::Result<()> {
        let file = openat(folder, name, FILE, Mode::empty()).map(File::from);
        let file = file.map_err(io::Error::from).and_then(|file| Ok((file.metadata()?, file)));
        let Ok((metadata, mut file)) = file else {
            self.is_complete = false;
            return Ok(());
        };
        if !metadata.is_file() {
            return Ok(());
        }
        let size = metadata.len();
        let is_known = self.known.has(&path, &metadata, &file).unwrap_or_default();
        if is_known && !(K::SENDS_KNOWN && self.wanted.globs.is_match(&path)) {
            return Ok(());
        }
        // It may have been read to be compared.
        if file.rewind().is_err() {
            self.is_complete = false;
            return Ok(());
        }
        let path_text = text(&path);
        if self.listed == MAX_FILES || path_text.len() > MAX_PATH {
            self.is_complete = false;
            return Ok(());
        }
        self.listed += 1;
        let sent = size <= self.left && self.wanted.has(&path);
        self.to_server.queue_message(Kind::File, &ChangedFile { path: path_text, size, sent })?;
        if sent {
            self.left -= size;
            let began = Instant::now();
            self.content(file, size)?;
            // The server sets the speed of sending, and limits it.
            self.until += began.elapsed();
        }
        Ok(())
    }

    /// Sends up to `size` bytes. The file may have become shorter since its size was read.
    fn content(&mut self, file: File, size: u64) -> io::Result<()> {
        let mut file = file.take(size);
        let mut buffer = vec![0; CHUNK.min(usize::try_from(size).unwrap_or(CHUNK))];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => self.to_server.queue(Kind::Content, &buffer[..count])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The server sees that there is less than the announced size.
                Err(_) => return Ok(()),
            }
        }
    }

    fn is_over(&mut self) -> bool {
        let is_over = self.entries_seen > MAX_ENTRIES || Instant::now() >= self.until;
        self.is_complete &= !is_over;
        is_over
    }
}

/// Opens a file below the workspace for reading, by the path that [`text`] made. No link is followed.
///
/// # Errors
///
/// When there is no such regular file, or it can't be read.
pub(crate) fn open(workdir: &Path, path: &str) -> io::Result<File> {
    let path = path_of(path);
    let mut folder = openat(CWD, workdir, FOLDER, Mode::empty())?;
    let mut parts: Vec<_> = path.components().collect();
    let not_there = || io::Error::from(io::ErrorKind::NotFound);
    let Some(Component::Normal(name)) = parts.pop() else { return Err(not_there()) };
    for part in parts {
        let Component::Normal(part) = part else { return Err(not_there()) };
        folder = openat(&folder, part, FOLDER, Mode::empty())?;
    }
    let file = File::from(openat(&folder, name, FILE, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_there()) }
}

/// The path that [`text`] wrote.
pub(crate) fn path_of(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = rest.strip_prefix(b"\\x").and_then(|digits| digits.get(..2));
        let escaped = escaped.and_then(|digits| std::str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[4..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

/// A path as text. Bytes that are not UTF-8 become `\xff`, and a backslash before an x `\x5c`, so that different names stay
/// different.
pub(crate) fn text(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        text.push_str(&chunk.valid().replace("\\x", "\\x5cx"));
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Decides which files are sent.
struct Wanted {
    globs: GlobSet,
    pictures: bool,
}

impl Wanted {
    /// The server has checked the patterns; an invalid one matches nothing.
    fn new(wanted: &WantedFiles) -> Self {
        let mut globs = GlobSetBuilder::new();
        for glob in &wanted.globs {
            if let Ok(glob) = GlobBuilder::new(glob).literal_separator(true).build() {
                globs.add(glob);
            }
        }
        Self { globs: globs.build().unwrap_or_default(), pictures: wanted.pictures }
    }

    fn has(&self, path: &Path) -> bool {
        let is_picture = || {
            let extension = path.extension().and_then(|extension| extension.to_str());
            extension.is_some_and(|it| PICTURES.iter().any(|known| it.eq_ignore_ascii_case(known)))
        };
        self.globs.is_match(path) || (self.pictures && is_picture())
    }
}

// The fuzzers include this file by its path.
#[cfg(test)]
#[path = "changes/tests.rs"]
mod tests;
