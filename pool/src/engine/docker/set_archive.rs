//! A set of packages as a tar archive, read from the disk while it is sent.
//! The store keeps the set unchanged meanwhile. Its content is not trusted, so no link is followed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::Stream;
use isolator_runner::paths;
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;

/// Bytes that are read and sent at once, and how many of such pieces may wait.
const PIECE: usize = 256 * 1024;
const WAITING: usize = 4;

/// Hexadecimal digits of a set's name in the volume that are the time of its folders.
const TIME_DIGITS: usize = 7;

/// Deepest nesting of folders.
const MAX_DEPTH: usize = 64;

/// Mode of the folder of all sets: it can't be listed, not even by its owner.
const UNLISTED: u32 = 0o111;

/// Begins to read a set, which becomes a folder in the folder of all sets. Returns the bytes of its files, and the archive, whose
/// root is the volume's. Dropping the archive ends the reading.
///
/// # Errors
///
/// When the set can't be read.
pub(super) async fn read(
    set: PathBuf,
    name: &str,
) -> io::Result<(u64, impl Stream<Item = io::Result<Bytes>> + Send + 'static)> {
    let measured = set.clone();
    let size = tokio::task::spawn_blocking(move || size(&measured, MAX_DEPTH));
    let size = size.await.map_err(io::Error::other)??;
    let sets = Path::new(paths::PACKAGE_SETS).file_name().unwrap_or(OsStr::new("")).to_owned();
    let folder = Path::new(&sets).join(name);
    // Python looks into a folder again if its time has changed, as it does if another set takes the place of this one.
    let time = name.get(..TIME_DIGITS).and_then(|name| u64::from_str_radix(name, 16).ok());
    let time = time.unwrap_or(0);
    let (sender, mut pieces) = mpsc::channel(WAITING);
    tokio::task::spawn_blocking(move || {
        let mut archive = Builder::new(Pieces { piece: Vec::new(), sender: sender.clone() });
        let written = append_folder(&mut archive, Path::new(&sets), UNLISTED, 0)
            .and_then(|()| append(&mut archive, &set, &folder, time, MAX_DEPTH))
            .and_then(|()| archive.into_inner())
            .and_then(|mut pieces| pieces.flush());
        if let Err(error) = written {
            // If the receiver is gone, the error has no reader.
            let _ = sender.blocking_send(Err(error));
        }
    });
    Ok((size, futures_util::stream::poll_fn(move |context| pieces.poll_recv(context))))
}

/// The folder of all sets as an archive, without any.
pub(super) fn empty() -> Bytes {
    let mut archive = Builder::new(Vec::new());
    let sets = Path::new(paths::PACKAGE_SETS).file_name().unwrap_or(OsStr::new(""));
    append_folder(&mut archive, Path::new(sets), UNLISTED, 0)
        .expect("writing to a vector can't fail");
    archive.into_inner().expect("writing to a vector can't fail").into()
}

fn size(folder: &Path, depth: usize) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let metadata = entry?;
        let (path, metadata) = (metadata.path(), metadata.metadata()?);
        if metadata.is_dir() {
            bytes += size(&path, deeper(depth)?)?;
        } else {
            bytes += metadata.len();
        }
    }
    Ok(bytes)
}

fn deeper(depth: usize) -> io::Result<usize> {
    depth.checked_sub(1).ok_or_else(|| io::Error::other("its folders are nested too deep"))
}

/// Appends a folder with everything in it, in the order of the names.
fn append(
    archive: &mut Builder<Pieces>,
    from: &Path,
    to: &Path,
    time: u64,
    depth: usize,
) -> io::Result<()> {
    append_folder(archive, to, 0o755, time)?;
    let entries = fs::read_dir(from)?.collect::<io::Result<Vec<_>>>()?;
    let mut names: Vec<_> = entries.into_iter().map(|entry| entry.file_name()).collect();
    names.sort_unstable();
    for name in names {
        let (from, to) = (from.join(&name), to.join(&name));
        let metadata = fs::symlink_metadata(&from)?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            append(archive, &from, &to, time, deeper(depth)?)?;
        } else if kind.is_symlink() {
            let mut header = header(EntryType::Symlink, 0o777);
            archive.append_link(&mut header, &to, fs::read_link(&from)?)?;
        } else if kind.is_file() {
            append_file(archive, &from, &to)?;
        } else {
            let message = format!("{} is neither a file nor a folder", from.display());
            return Err(io::Error::other(message));
        }
    }
    Ok(())
}

fn append_folder<W: Write>(
    archive: &mut Builder<W>,
    to: &Path,
    mode: u32,
    time: u64,
) -> io::Result<()> {
    let mut header = header(EntryType::Directory, mode);
    header.set_mtime(time);
    archive.append_data(&mut header, to, io::empty())
}

fn append_file(archive: &mut Builder<Pieces>, from: &Path, to: &Path) -> io::Result<()> {
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let file = File::options().read(true).custom_flags(no_link).open(from)?;
    let metadata = file.metadata()?;
    let is_program = metadata.permissions().mode() & 0o100 != 0;
    let mut header = header(EntryType::Regular, if is_program { 0o755 } else { 0o644 });
    header.set_size(metadata.len());
    header.set_mtime(metadata.mtime().try_into().unwrap_or(0));
    let mut content = file.take(metadata.len());
    archive.append_data(&mut header, to, &mut content)?;
    match content.limit() {
        0 => Ok(()),
        _ => Err(io::Error::other(format!("{} became shorter", from.display()))),
    }
}

/// A header of something that belongs to root.
fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    header
}

/// Sends what is written, in pieces.
struct Pieces {
    piece: Vec<u8>,
    sender: mpsc::Sender<io::Result<Bytes>>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.piece);
        if piece.is_empty() {
            return Ok(());
        }
        let sent = self.sender.blocking_send(Ok(piece.into()));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt;

    use super::*;

    #[tokio::test]
    async fn an_archive_has_everything_with_plain_modes_and_follows_no_link() {
        let set = tempfile::tempdir().unwrap();
        let path = |name: &str| set.path().join(name);
        fs::create_dir_all(path("lib/package")).unwrap();
        fs::write(path("lib/package/module.py"), "x = 1").unwrap();
        fs::write(path("lib/large"), vec![7; 3 * PIECE]).unwrap();
        fs::write(path("tool"), "#!").unwrap();
        fs::set_permissions(path("tool"), fs::Permissions::from_mode(0o4700)).unwrap();
        std::os::unix::fs::symlink("/etc/shadow", path("link")).unwrap();
        let (size, archive) = read(set.path().to_owned(), "name").await.unwrap();
        assert_eq!(size, 3 * PIECE as u64 + 5 + 2 + "/etc/shadow".len() as u64);
        let pieces: Vec<Bytes> = archive.try_collect().await.unwrap();
        let bytes = pieces.concat();
        let mut archive = tar::Archive::new(&bytes[..]);
        let found = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
            let path = entry.path().unwrap().display().to_string();
            (path, header.mode().unwrap(), header.size().unwrap())
        });
        let found: Vec<_> = found.collect();
        let expected = [
            ("sets", 0o111, 0),
            ("sets/name", 0o755, 0),
            ("sets/name/lib", 0o755, 0),
            ("sets/name/lib/large", 0o644, 3 * PIECE as u64),
            ("sets/name/lib/package", 0o755, 0),
            ("sets/name/lib/package/module.py", 0o644, 5),
            ("sets/name/link", 0o777, 0),
            ("sets/name/tool", 0o755, 2),
        ];
        let expected: Vec<_> =
            expected.map(|(path, mode, size)| (path.to_owned(), mode, size)).into();
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn special_files_are_an_error_of_the_archive() {
        let set = tempfile::tempdir().unwrap();
        let pipe = set.path().join("pipe");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let (_, archive) = read(set.path().to_owned(), "name").await.unwrap();
        let error = archive.try_collect::<Vec<_>>().await.unwrap_err().to_string();
        assert!(error.contains("pipe is neither"), "{error}");
    }
}
