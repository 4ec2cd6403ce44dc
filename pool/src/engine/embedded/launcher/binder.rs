//! The binder: a fork of the launcher that mounts sets of packages in sandboxes.
//!
//! A request waits for its set, so this must not wait until the launcher has made the sandbox that it is making. The binder
//! mounts the set where the launcher's mounts are, goes into the sandbox's mounts for two system calls, and returns. Nothing in the
//! sandbox takes part, so the sandbox may be frozen. Programs may run in it: they can't see the binder, because it does not enter their
//! namespace of processes, and can't change what the path of the mount point leads to. A later set is mounted over the earlier one, whose
//! files stay in use by the programs that have opened them.
//!
//! Each sandbox has an overlay of its own for the same reason as for its image, see `maker/ready.rs`.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::mount::MountAttrFlags;
use rustix::thread::{
    LinkNameSpaceType, ThreadNameSpaceType, move_into_link_name_space, move_into_thread_name_spaces,
};

use isolator_runner::paths;

use super::mounting::{self, HARMLESS};
use crate::engine::embedded::layout::{EMPTY, PACKAGES};
use crate::engine::embedded::protocol::{self, BindReply, BindRequest};

/// Binds sets until the server is gone.
///
/// # Errors
///
/// When the binder can't go on: the server sent something else, or it can't return from a sandbox.
pub(super) fn serve(server: &OwnedFd) -> io::Result<()> {
    let home = File::open("/proc/self/ns/mnt")?;
    while let Some((BindRequest { set }, descriptors)) = protocol::receive(server)? {
        let bound = match descriptors.first() {
            Some(process) => bind(&set, process, &home),
            None => Err(BindError::NoSandbox),
        };
        let error = match bound {
            Err(BindError::NotReturned(error)) => return Err(error),
            bound => bound.err().map(|error| error.to_string()),
        };
        protocol::send(server, &BindReply { error }, &[])?;
    }
    Ok(())
}

/// Why a set was not mounted in a sandbox.
#[derive(Debug, thiserror::Error)]
enum BindError {
    #[error("the server sent no sandbox")]
    NoSandbox,
    #[error("the set can't be mounted: {0}")]
    NotMounted(#[source] io::Error),
    #[error("the sandbox's mounts can't be entered: {0}")]
    NotEntered(#[source] io::Error),
    #[error("the set can't be mounted in the sandbox: {0}")]
    NotPlaced(#[source] io::Error),
    /// This process is still among the mounts of the sandbox, and must end.
    #[error("the binder can't return from a sandbox: {0}")]
    NotReturned(#[source] io::Error),
}

fn bind(set: &Path, process: &OwnedFd, home: &File) -> Result<(), BindError> {
    let mounted = mount(set).map_err(BindError::NotMounted)?;
    move_into_thread_name_spaces(process.as_fd(), ThreadNameSpaceType::MOUNT)
        .map_err(|error| BindError::NotEntered(error.into()))?;
    let placed = place(&mounted);
    move_into_link_name_space(home.as_fd(), Some(LinkNameSpaceType::Mount))
        .map_err(|error| BindError::NotReturned(error.into()))?;
    placed.map_err(BindError::NotPlaced)
}

/// Mounts a set, nowhere yet.
pub(super) fn mount(set: &Path) -> io::Result<OwnedFd> {
    let lower = layers(set).ok_or_else(|| io::Error::other("this is no path of a set"))?;
    let attributes = HARMLESS.union(MountAttrFlags::MOUNT_ATTR_RDONLY);
    Ok(mounting::new(c"overlay", [(c"lowerdir", &*CString::new(lower)?)], attributes)?)
}

/// The layers of the overlay of a set, given its path below the folder of all sets. An overlay needs at least two.
pub(in crate::engine::embedded) fn layers(set: &Path) -> Option<String> {
    let is_plain = |part: Component<'_>| {
        let Component::Normal(part) = part else { return false };
        // Characters that would end the path, or the option, of an overlay.
        !part.as_encoded_bytes().iter().any(|byte| b":,\\".contains(byte))
    };
    let is_path = set.components().next().is_some() && set.components().all(is_plain);
    let path: PathBuf = Path::new(PACKAGES).join(set);
    is_path.then(|| format!("{}:{EMPTY}", path.display()))
}

/// Moves it to its mount point, as seen from inside the sandbox.
fn place(mounted: &OwnedFd) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let target = openat2(CWD, paths::PACKAGES, flags, Mode::empty(), resolve)?;
    Ok(mounting::place(mounted, target)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_path_below_the_folder_of_sets_is_one() {
        let good = layers(Path::new("0a1b/files"));
        assert_eq!(good.as_deref(), Some("/tmp/packages/0a1b/files:/tmp/empty"));
        for bad in ["", "/etc", "../images", "a/../../b", "a:b", "a,upperdir=b", "a\\"] {
            assert_eq!(layers(Path::new(bad)), None, "{bad:?}");
        }
    }
}
