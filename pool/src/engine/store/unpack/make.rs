//! Creates what an entry of a layer describes.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Uid, chownat, fchmod, fchown, fstat, futimens, linkat,
    mkdirat, symlinkat, utimensat,
};

use super::{DirectoryAttributes, EntryError, Unpacker};
use crate::engine::store::check::{ALLOWED_MODE, times};
use crate::engine::store::path;
use crate::engine::store::tar_reader::{EntryKind, Header};
use crate::engine::store::tree::{self, OpenDirectory};
use crate::folders;

impl Unpacker<'_> {
    /// Creates the file of an entry. Returns whether the directories on the way are still the same.
    pub(super) fn make(
        &mut self,
        place: &OpenDirectory,
        name: &OsStr,
        header: &Header,
        content: &mut dyn Read,
    ) -> Result<bool, EntryError> {
        match header.kind {
            EntryKind::Directory => {
                let existing = tree::stat(&place.fd, name)?;
                let is_directory = |found| tree::kind(&found) == FileType::Directory;
                let keep = existing.is_some_and(is_directory) || clear(place, name)?;
                if !existing.is_some_and(is_directory) {
                    mkdirat(&place.fd, name, Mode::RWXU)?;
                }
                let fd = tree::enter(&place.fd, name)?;
                self.change_directory(&fd, header)?;
                Ok(keep)
            }
            EntryKind::File => {
                let keep = clear(place, name)?;
                self.write(place, name, header, content)?;
                Ok(keep)
            }
            EntryKind::SymbolicLink => {
                let depth = place.path.iter().count();
                path::target(&header.link, depth, self.limits.path)?;
                let keep = clear(place, name)?;
                symlinkat(OsStr::from_bytes(&header.link), &place.fd, name)?;
                let (user, group) = owner(header)?;
                if self.chown {
                    chownat(&place.fd, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
                }
                utimensat(&place.fd, name, &times(header.mtime), AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(keep)
            }
            EntryKind::HardLink => self.link(place, name, header),
            EntryKind::Other(what) => {
                Err(format!("it is {what}, which is not allowed in an image").as_str().into())
            }
        }
    }

    fn write(
        &mut self,
        place: &OpenDirectory,
        name: &OsStr,
        header: &Header,
        content: &mut dyn Read,
    ) -> Result<(), EntryError> {
        // Before the first byte: a file that is too large is not begun.
        let bytes = self.bytes.saturating_add(header.size);
        if bytes > self.limits.bytes {
            return Err(format!(
                "the files of the image are larger than {} bytes together",
                self.limits.bytes
            )
            .as_str()
            .into());
        }
        self.bytes = bytes;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut file = tree::open(&place.fd, name, flags)?;
        let mut written = 0;
        let mut buffer = vec![0; BUFFER.min(header.size.max(1) as usize)];
        loop {
            let read = content.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            file.write_all(&buffer[..read])?;
            written += read as u64;
            self.job.check_canceled()?;
        }
        if written != header.size {
            return Err("the archive ends in the middle of the file".into());
        }
        let (user, group) = owner(header)?;
        if self.chown {
            fchown(&file, user, group)?;
        }
        fchmod(&file, Mode::from_raw_mode(header.mode & ALLOWED_MODE))?;
        futimens(&file, &times(header.mtime))?;
        Ok(())
    }

    /// Creates a hard link. Its target must be a file that the image has already.
    fn link(
        &self,
        place: &OpenDirectory,
        name: &OsStr,
        header: &Header,
    ) -> Result<bool, EntryError> {
        let target = path::relative(&header.link, self.limits.path)?;
        let nothing = || EntryError::from("the target of the hard link is no file of the image");
        let (Some(parent), Some(file)) = (target.parent(), target.file_name()) else {
            return Err(nothing());
        };
        let from = self.find(parent)?.ok_or_else(nothing)?;
        let found = tree::stat(&from.fd, file)?.ok_or_else(nothing)?;
        if tree::kind(&found) != FileType::RegularFile {
            return Err(nothing());
        }
        let existing = tree::stat(&place.fd, name)?;
        if existing
            .is_some_and(|other| (other.st_dev, other.st_ino) == (found.st_dev, found.st_ino))
        {
            return Ok(true);
        }
        let keep = clear(place, name)?;
        linkat(&from.fd, file, &place.fd, name, AtFlags::empty())?;
        Ok(keep)
    }

    pub(super) fn change_directory(
        &mut self,
        fd: &OwnedFd,
        header: &Header,
    ) -> Result<(), EntryError> {
        let (user, group) = owner(header)?;
        if self.chown {
            fchown(fd, user, group)?;
        }
        let finish =
            DirectoryAttributes { mode: header.mode & ALLOWED_MODE, times: Some(header.mtime) };
        self.directories.insert(fstat(fd)?.st_ino, finish);
        Ok(())
    }
}

/// Size of the buffer, in bytes.
const BUFFER: usize = 128 * 1024;

/// Removes an existing file in the place of an entry. Returns false if that was a directory, or a link that may lead to one.
fn clear(place: &OpenDirectory, name: &OsStr) -> Result<bool, EntryError> {
    let Some(existing) = tree::stat(&place.fd, name)? else { return Ok(true) };
    folders::remove_at(place.fd.as_fd(), name)?;
    Ok(tree::kind(&existing) == FileType::RegularFile)
}

fn owner(header: &Header) -> Result<(Option<Uid>, Option<Gid>), EntryError> {
    // To chown, the largest number means "do not change".
    let id = |id: u64| u32::try_from(id).ok().filter(|id| *id != u32::MAX);
    let unknown = "the number of its owner is out of range";
    let user = id(header.uid).ok_or(unknown)?;
    let group = id(header.gid).ok_or(unknown)?;
    Ok((Some(Uid::from_raw(user)), Some(Gid::from_raw(group))))
}
