//! The upper layer of a root to which programs can add files: folders with the modes that permit it, and the account of the
//! programs' user.
//!
//! A folder of an overlay has the mode and owner of its copy in the upper layer, and the content of both layers. The copies here
//! have the sticky bit, and never belong to the programs' user. So programs can add files, but they can't remove, rename or replace
//! those of the image, nor the runner's folder and the mount points.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid, chmodat, chownat, fstat, mkdirat, open, openat,
    openat2,
};
use rustix::io::Errno;

use crate::engine::embedded::host::Ids;
use crate::engine::embedded::plan::Account;

/// The folder of the upper layer in the file system of the layer.
const UPPER: &CStr = c"upper";

/// The folders to which programs can add files, after the root itself. Each comes after the one above it, which has to be there
/// for it. Those that an image does not have are left out: programs can make them.
const FOLDERS: [&CStr; 22] = [
    c"app",
    c"code",
    c"data",
    c"etc",
    c"home",
    c"media",
    c"mnt",
    c"opt",
    c"run",
    c"srv",
    c"usr",
    c"usr/local",
    c"usr/local/bin",
    c"usr/local/etc",
    c"usr/local/lib",
    c"usr/local/share",
    c"var",
    c"var/cache",
    c"var/lib",
    c"var/log",
    c"var/opt",
    c"workspace",
];

/// A folder that belongs to the programs' user, if the image has it.
const OWN_FOLDER: &CStr = c"workspace";

/// The files that list users and groups.
const PASSWD: &CStr = c"etc/passwd";
const GROUP: &CStr = c"etc/group";

/// The shell of the account if the image has it, and the one that every image has.
const BASH: &CStr = c"bin/bash";
const SH: &CStr = c"bin/sh";

/// Bytes of an image's list of users or groups that are kept. No system has a longer one.
const LONGEST_LIST: u64 = 256 << 10;

/// The kernel's number for an owner who is no user of the launcher's namespace. In a sandbox it would be a user.
const UNMAPPED: u32 = 65_534;

/// Every user may add files, and only an owner may remove or rename them.
const OPEN: Mode = Mode::RWXU.union(Mode::RWXG).union(Mode::RWXO).union(Mode::SVTX);

/// Fills the upper layer of a root of an image. `ids` are the users that those of the sandbox are mapped to.
pub(super) fn fill(
    layer: &OwnedFd,
    image: &Path,
    account: &Account,
    ids: Option<Ids>,
) -> Result<(), Errno> {
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let image = open(image, folder, Mode::empty())?;
    let upper = openat(layer, UPPER, folder, Mode::empty())?;
    let first = ids.map_or(0, |ids| ids.first);
    let (uid, gid) = account.user;
    let owner =
        (Uid::from_raw(first.saturating_add(uid)), Gid::from_raw(first.saturating_add(gid)));
    open_folder(&upper, &image, c".", owner.0)?;
    for path in FOLDERS {
        match look_up(&image, path, folder) {
            Ok(found) => {
                mkdirat(&upper, path, Mode::RWXU)?;
                open_folder(&upper, &found, path, owner.0)?;
            }
            // It is not there, or it is a link or a file.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(error) => return Err(error),
        }
    }
    match chownat(&upper, OWN_FOLDER, Some(owner.0), Some(owner.1), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    let shell = [BASH, SH].into_iter().find(|shell| has(&image, shell)).unwrap_or(SH);
    let shell = shell.to_string_lossy();
    let Account { name, home, .. } = account;
    let of_user = format!("{name}:x:{uid}:{gid}:{name}:{home}:/{shell}\n");
    let of_group = format!("{name}:x:{gid}:\n");
    [(PASSWD, of_user), (GROUP, of_group)].into_iter().try_for_each(|(path, line)| {
        add_line(&upper, &image, path, &line)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    })
}

/// Lets every user add files to a folder of the upper layer. It has the owner of the image's folder, because the kernel follows
/// links in such folders only if they have the same owner, but not the programs' user, who could remove what is in it.
fn open_folder(upper: &OwnedFd, of_image: &OwnedFd, path: &CStr, user: Uid) -> Result<(), Errno> {
    let found = fstat(of_image)?;
    let of_image = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
    let is_taken = of_image.0 == user || of_image.0.as_raw() == UNMAPPED;
    let (uid, gid) = if is_taken { (Uid::ROOT, Gid::ROOT) } else { of_image };
    chownat(upper, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    chmodat(upper, path, OPEN, AtFlags::empty())
}

/// Looks a path of an image up, through no link.
fn look_up(image: &OwnedFd, path: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(image, path, flags | OFlags::NOFOLLOW, Mode::empty(), resolve)
}

/// Whether an image has a file, also through links.
fn has(image: &OwnedFd, path: &CStr) -> bool {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    openat2(image, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).is_ok()
}

/// Writes a list of the image to the upper layer, with a line before all others: the first line of a name or number counts. An image
/// whose folder for it is missing, or a link, has no such list, and the sandbox gets none.
fn add_line(upper: &OwnedFd, image: &OwnedFd, path: &CStr, line: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let mut list = match openat(upper, path, flags, mode) {
        Ok(list) => File::from(list),
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    list.write_all(line.as_bytes())?;
    // Opening a pipe would wait for its other end.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(found) = look_up(image, path, flags) else { return Ok(()) };
    let found = File::from(found);
    if found.metadata()?.is_file() {
        io::copy(&mut found.take(LONGEST_LIST), &mut list)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    /// Fills the layer of an image that `make` has put into a folder. Returns both.
    fn filled(make: impl FnOnce(&Path)) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        for path in ["image/etc", "image/home", "layer/upper"] {
            fs::create_dir_all(folder.path().join(path)).expect("a folder");
        }
        make(&image);
        let layer = fs::File::open(folder.path().join("layer")).expect("the layer").into();
        let (name, home) = ("user".to_owned(), "/home/user".to_owned());
        let account = Account { name, user: (1234, 1235), home };
        fill(&layer, &image, &account, None).expect("it is filled");
        let upper = folder.path().join("layer/upper");
        (folder, upper)
    }

    #[test]
    fn folders_of_the_image_are_open_and_those_it_does_not_have_are_left_out() {
        let (folder, upper) = filled(|image| {
            fs::create_dir_all(image.join("usr/local/lib")).expect("a folder");
            fs::create_dir(image.join("elsewhere")).expect("a folder");
            // Neither a link nor a file is a folder.
            symlink("../elsewhere", image.join("var")).expect("a link");
            fs::write(image.join("opt"), "").expect("a file");
        });
        for path in [".", "etc", "home", "usr", "usr/local", "usr/local/lib"] {
            let [made, given] = [upper.join(path), folder.path().join("image").join(path)]
                .map(|path| fs::metadata(path).expect("a folder"));
            assert_eq!(made.mode() & 0o7777, 0o1777, "{path}");
            assert_eq!((made.uid(), made.gid()), (given.uid(), given.gid()), "{path}");
        }
        let mut names: Vec<_> = fs::read_dir(&upper)
            .expect("the layer")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["etc", "home", "usr"]);
    }

    #[test]
    fn an_image_without_etc_has_no_lists() {
        let (_folder, upper) = filled(|image| {
            fs::remove_dir(image.join("etc")).expect("the folder");
        });
        assert!(!upper.join("etc").exists());
        let (_folder, upper) = filled(|image| {
            fs::remove_dir(image.join("etc")).expect("the folder");
            symlink("home", image.join("etc")).expect("a link");
        });
        assert!(!upper.join("etc").exists());
    }

    #[test]
    fn the_user_comes_before_those_of_the_image() {
        let (_folder, upper) = filled(|image| {
            fs::write(image.join("etc/passwd"), "root:x:0:0:::\n").expect("a list");
            fs::create_dir(image.join("bin")).expect("a folder");
            // As the machine sees it, this link leads nowhere.
            symlink("/usr/bin/bash-of-image", image.join("bin/bash")).expect("a link");
            fs::create_dir_all(image.join("usr/bin")).expect("a folder");
            fs::write(image.join("usr/bin/bash-of-image"), "").expect("a file");
        });
        let read = |path| fs::read_to_string(upper.join(path)).expect("a list");
        let user = "user:x:1234:1235:user:/home/user:/bin/bash\n";
        assert_eq!(read("etc/passwd"), format!("{user}root:x:0:0:::\n"));
        assert_eq!(read("etc/group"), "user:x:1235:\n");
        let mode = fs::metadata(upper.join("etc/passwd")).expect("a list").mode();
        assert_eq!(mode & 0o777, 0o644);
    }

    #[test]
    fn a_list_that_is_no_file_of_the_image_is_not_read() {
        let (_folder, upper) = filled(|image| {
            symlink("/etc/passwd", image.join("etc/passwd")).expect("a link");
            let pipe = image.join("etc/group");
            let mode = Mode::RUSR | Mode::WUSR;
            rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, mode, 0)
                .expect("a pipe");
        });
        let read = |path| fs::read_to_string(upper.join(path)).expect("a list");
        assert_eq!(read("etc/passwd"), "user:x:1234:1235:user:/home/user:/bin/sh\n");
        assert_eq!(read("etc/group"), "user:x:1235:\n");
    }
}
