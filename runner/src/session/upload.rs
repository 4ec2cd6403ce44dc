//! Writes the files that come with a cell into a workspace that earlier cells have used.
//!
//! They may have put links or pipes in the way. No link is followed, and anything in the way of a file is replaced.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use isolator_runner::wire::Failed;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use crate::changes::FOLDER;
use crate::unpack::{MODES, failed, is_below};

/// Non-blocking, in case a pipe is there.
const FILE: OFlags =
    OFlags::WRONLY.union(OFlags::NONBLOCK).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Unpacks the tar into `workdir`. The files named in `appended` are added to those that are there, the others replace them.
/// `wrote` is called with each file once it is written.
///
/// # Errors
///
/// When a file can't be written. Those before it are there.
pub(super) fn upload(
    tar: &mut impl Read,
    workdir: &Path,
    appended: &[String],
    mut wrote: impl FnMut(&Path, &File),
) -> Result<(), Failed> {
    let mut archive = tar::Archive::new(tar);
    for entry in archive.entries().map_err(|error| failed(workdir, &error))? {
        let mut entry = entry.map_err(|error| failed(workdir, &error))?;
        let name = entry.path().map_err(|error| failed(workdir, &error))?.into_owned();
        let fail = |error: io::Error| failed(&workdir.join(&name), &error);
        if !is_below(&name) || !entry.header().entry_type().is_file() {
            return Err(fail(io::Error::new(
                io::ErrorKind::InvalidData,
                "it is not a file of the workspace",
            )));
        }
        let mode = entry.header().mode().map_err(fail)?;
        let appends = appended.iter().any(|path| Path::new(path) == name);
        let mut file = open(workdir, &name, mode & MODES, appends).map_err(fail)?;
        io::copy(&mut entry, &mut file).map_err(fail)?;
        wrote(&name, &file);
    }
    Ok(())
}

fn open(workdir: &Path, name: &Path, mode: u32, appends: bool) -> io::Result<File> {
    let mut folder = openat(CWD, workdir, FOLDER, Mode::empty())?;
    let mut parts: Vec<_> = name.components().collect();
    let Some(Component::Normal(last)) = parts.pop() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    for part in parts {
        folder = enter(&folder, part.as_os_str().as_ref())?;
    }
    if appends {
        match openat(&folder, last, FILE | OFlags::APPEND, Mode::empty()) {
            Ok(file) => {
                let file = File::from(file);
                if file.metadata()?.is_file() {
                    return Ok(file);
                }
            }
            Err(Errno::NOENT) => {}
            // A link, or a pipe without a reader.
            Err(Errno::LOOP | Errno::NXIO) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match unlinkat(&folder, last, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let file =
        openat(&folder, last, FILE | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(mode))?;
    Ok(File::from(file))
}

/// Opens a folder, which is made if it is not there.
fn enter(folder: &OwnedFd, name: &Path) -> io::Result<OwnedFd> {
    match openat(folder, name, FOLDER, Mode::empty()) {
        Err(Errno::NOENT) => {}
        opened => return Ok(opened?),
    }
    match mkdirat(folder, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => Ok(openat(folder, name, FOLDER, Mode::empty())?),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn tar(files: &[(&str, &str)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, content.as_bytes()).unwrap();
        }
        tar.into_inner().unwrap()
    }

    fn put(workdir: &Path, files: &[(&str, &str)], appended: &[&str]) -> Result<(), Failed> {
        let appended: Vec<_> = appended.iter().map(|&path| path.to_owned()).collect();
        upload(&mut &tar(files)[..], workdir, &appended, |_, _| {})
    }

    #[test]
    fn files_replace_others_or_are_added_to_them() {
        let place = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(place.path().join(name)).unwrap();
        put(place.path(), &[("a", "1"), ("d/b", "1")], &[]).unwrap();
        put(place.path(), &[("a", "2"), ("d/b", "2"), ("new", "3")], &["d/b", "new"]).unwrap();
        assert_eq!([read("a"), read("d/b"), read("new")], ["2", "12", "3"]);
    }

    #[test]
    fn no_link_and_no_pipe_in_the_way_is_used() {
        let place = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let secret = outside.path().join("secret");
        fs::write(&secret, "untouched").unwrap();
        for name in ["link", "appended"] {
            std::os::unix::fs::symlink(&secret, place.path().join(name)).unwrap();
        }
        std::os::unix::fs::symlink(outside.path(), place.path().join("folder")).unwrap();
        rustix::fs::mknodat(
            CWD,
            place.path().join("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        put(
            place.path(),
            &[("link", "x"), ("appended", "x"), ("pipe", "x")],
            &["appended", "pipe"],
        )
        .unwrap();
        assert!(put(place.path(), &[("folder/file", "x")], &[]).is_err());
        assert_eq!(fs::read_to_string(&secret).unwrap(), "untouched");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        for name in ["link", "appended", "pipe"] {
            assert!(fs::symlink_metadata(place.path().join(name)).unwrap().is_file(), "{name}");
        }
    }
}
