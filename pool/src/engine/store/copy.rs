//! Copying a root, to build another image on it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fchmod, fchown, fstat, futimens,
    linkat, mkdirat, symlinkat, utimensat,
};

use super::blocking_job::BlockingJob;
use super::check::{ALLOWED_MODE, times};
use super::error::{IoContext, StoreError};
use super::tree::{self, IfMissing, Root};

/// Copies a root into another, which is empty: content, owners, modes, times and links of both kinds.
pub(super) fn copy(from: &Root, to: &Root, job: &BlockingJob) -> Result<(), StoreError> {
    let chown = rustix::process::geteuid().is_root();
    let mut copier = Copier { to, job, chown, linked: HashMap::new() };
    let copied = copier.directory(from.fd(), to.fd(), &mut PathBuf::new());
    copied.context(|| "can't copy an image".to_owned())
}

struct Copier<'a> {
    to: &'a Root,
    job: &'a BlockingJob,
    chown: bool,
    /// Paths of the copies of files that have several names, by inode.
    linked: HashMap<u64, PathBuf>,
}

impl Copier<'_> {
    fn directory(&mut self, from: &OwnedFd, to: &OwnedFd, path: &mut PathBuf) -> io::Result<()> {
        for name in tree::names(from)? {
            self.job.check_canceled()?;
            let Some(found) = tree::stat(from, &name)? else { continue };
            path.push(&name);
            match tree::kind(&found) {
                FileType::Directory => {
                    mkdirat(to, &name, Mode::RWXU)?;
                    let (from, to) = (tree::enter(from, &name)?, tree::enter(to, &name)?);
                    self.directory(&from, &to, path)?;
                }
                FileType::Symlink => self.link(from, to, &name, &found)?,
                FileType::RegularFile => self.file(from, to, &name, path, &found)?,
                kind => {
                    let kind = tree::in_words(kind);
                    return Err(io::Error::other(format!("{} is a {kind}", path.display())));
                }
            }
            path.pop();
        }
        // After its contents: creating these changes its time, and its mode may forbid it.
        self.describe(to, &fstat(from)?)
    }

    fn link(&self, from: &OwnedFd, to: &OwnedFd, name: &OsStr, found: &Stat) -> io::Result<()> {
        symlinkat(tree::link(from, name)?, to, name)?;
        if self.chown {
            let (user, group) = owner(found);
            chownat(to, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        utimensat(to, name, &times(mtime(found)), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    fn file(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        name: &OsStr,
        path: &Path,
        found: &Stat,
    ) -> io::Result<()> {
        if found.st_nlink > 1 {
            if let Some(copy) = self.linked.get(&found.st_ino) {
                let place = self.to.directory(copy.parent().unwrap_or(copy), IfMissing::Fail)?;
                let file = copy.file_name().unwrap_or_default();
                return Ok(linkat(&place.fd, file, to, name, AtFlags::empty())?);
            }
            self.linked.insert(found.st_ino, path.to_owned());
        }
        let mut source = tree::open(from, name, OFlags::RDONLY)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut copy = tree::open(to, name, flags)?;
        io::copy(&mut source, &mut copy)?;
        self.describe(&copy.into(), found)
    }

    fn describe(&self, fd: &OwnedFd, like: &Stat) -> io::Result<()> {
        if self.chown {
            let (user, group) = owner(like);
            fchown(fd, user, group)?;
        }
        fchmod(fd, Mode::from_raw_mode(like.st_mode & ALLOWED_MODE))?;
        futimens(fd, &times(mtime(like)))?;
        Ok(())
    }
}

fn owner(stat: &Stat) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))
}

fn mtime(stat: &Stat) -> (i64, u32) {
    (stat.st_mtime, stat.st_mtime_nsec as u32)
}
