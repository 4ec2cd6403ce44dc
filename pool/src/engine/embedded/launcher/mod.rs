//! The launcher: the process that makes sandboxes.
//!
//! Making a sandbox takes forks without an exec, which only a process with a single thread may do. So the
//! server starts its own binary again as the launcher, in two steps. The outer process enters new process
//! and mount namespaces and starts the inner one, which is process 1 in them and the parent of every
//! sandbox's process 1.
//!
//! When a launcher dies, nothing has to be cleaned up: the kernel kills everything in its process namespace,
//! unfinished sandboxes included, and its mounts go with the mount namespace. The launcher ends when the
//! server's end of their socket is closed, whatever the reason.

mod binder;
mod loopback;
mod maker;
mod mapped;
mod mounting;
mod standing;
mod user_namespace;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change,
    mount_remount, unmount,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    PidfdFlags, Signal, WaitOptions, pidfd_open, set_parent_process_death_signal, wait,
};
use rustix::thread::{UnshareFlags, set_thread_groups, unshare_unsafe};
use syscalls::{Sysno, syscall};

pub(super) use self::binder::layers;
use self::maker::{MakeError, Maker};
use super::cgroups;
use super::layout::{BUILDING, EMPTY, FIRST_PID, IMAGES, LAYER, PACKAGES, ROOT, SHARED};
use super::plan::Plan;
use super::protocol::{self, LauncherPaths, LauncherReply, LauncherRequest, ReceiveError};
use crate::error_chain::error_chain;
use crate::quote::escaped;

/// The hidden subcommand that makes the binary a launcher.
pub const SUBCOMMAND: &str = "launcher";

/// The argument of a launcher without root.
pub(super) const ROOTLESS: &str = "rootless";

/// The argument of the inner process.
const INNER: &str = "inner";

/// The directory in which the launcher mounts the parts of sandboxes. Every system has it, and the launcher, which has its own
/// mount namespace, does not need its content.
const VIEW: &str = "/tmp";

/// A control group hierarchy without controllers, for its option only.
const FAVORED: &str = "/tmp/favored";

/// A mount of `/sys` that is visible in whole.
const WHOLE_SYSFS: &str = "/tmp/sys";

/// Runs the launcher if the process was started as one, and returns its exit code. `arguments` are those of
/// the process without its name; `log` starts logging. Must be called while the process has a single thread.
pub fn run(arguments: &[String], log: impl FnOnce()) -> Option<ExitCode> {
    let begin = || {
        if let Err(error) = close_inherited() {
            complain(&format!("isolator {SUBCOMMAND}: inherited descriptors stay open: {error}"));
        }
        // Before it gives up any right to.
        for refused in standing::set_back() {
            complain(&format!("isolator {SUBCOMMAND}: {refused}"));
        }
    };
    let step = match arguments {
        [subcommand] if subcommand == SUBCOMMAND => {
            begin();
            outer()
        }
        [subcommand, step] if subcommand == SUBCOMMAND && step == ROOTLESS => {
            begin();
            become_root_of_a_namespace().and_then(|()| outer())
        }
        [subcommand, step] if subcommand == SUBCOMMAND && step == INNER => {
            log();
            inner()
        }
        _ => return None,
    };
    Some(match step {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("isolator {SUBCOMMAND}: {error}"));
            ExitCode::FAILURE
        }
    })
}

/// Closes the descriptors that the server was started with and has passed on: everything that starts there would keep files open
/// that are none of its business. The launcher has opened none yet.
#[allow(unsafe_code)]
fn close_inherited() -> io::Result<()> {
    const FIRST: usize = 3;
    // SAFETY: nothing in this process has a descriptor except the standard streams.
    let closed = unsafe { syscall!(Sysno::close_range, FIRST, u32::MAX, 0) };
    closed.map(|_| ()).map_err(|error| io::Error::from_raw_os_error(error.into_raw()))
}

/// An error of standard error is ignored: the sandboxes must be made all the same.
fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "{}", escaped(message));
}

/// Enters the namespaces, starts the inner process and waits for it.
fn outer() -> io::Result<()> {
    // Otherwise the directory in which the server was started would stay in use.
    std::env::set_current_dir("/")?;
    enter_namespaces()?;
    let mut inner = Command::new("/proc/self/exe")
        .args([SUBCOMMAND, INNER])
        .stdin(Stdio::inherit())
        .stdout(Stdio::null())
        .spawn()?;
    // Only the inner process may hold the socket: it closes when that process ends.
    let null = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    inner.wait().map(|_| ())
}

/// Enters a user namespace, and waits until the server has given it users.
fn become_root_of_a_namespace() -> io::Result<()> {
    let server = io::stdin().as_fd().try_clone_to_owned()?;
    unshare(UnshareFlags::NEWUSER)?;
    protocol::send(&server, &LauncherReply::Entered, &[])?;
    match protocol::receive(&server)? {
        // It can only return from a sandbox's network namespace to one that it owns.
        Some((LauncherRequest::Mapped, _)) => unshare(UnshareFlags::NEWNET),
        _ => Err(io::Error::other("the server sent no mapping of users")),
    }
}

fn enter_namespaces() -> io::Result<()> {
    unshare(UnshareFlags::NEWPID | UnshareFlags::NEWNS)?;
    // Mounts that the host removes must not stay here, and nothing propagates back.
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    Ok(mount_change("/", slave)?)
}

#[allow(unsafe_code)]
fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    // SAFETY: the process has a single thread and shares its descriptors with no other.
    Ok(unsafe { unshare_unsafe(namespaces) }?)
}

fn inner() -> io::Result<()> {
    // No process inside a namespace can kill its process 1; this signal comes from outside.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // Otherwise sandboxes would keep the groups of the server's user.
    set_thread_groups(&[])?;
    let server = io::stdin().as_fd().try_clone_to_owned()?;
    // Sandboxes inherit the standard streams that they are not given.
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let Some((LauncherRequest::Begin(paths), binder)) = protocol::receive(&server)? else {
        return Ok(());
    };
    let Some((mapper, asked)) = user_namespace::start_mapper()? else {
        drop((server, binder));
        return user_namespace::serve_mapper();
    };
    mount_paths(&paths, &asked)?;
    unmount_the_rest()?;
    set_apart_from_sandboxes();
    if let Some(binder) = binder.into_iter().next()
        && user_namespace::fork()?.is_none()
    {
        drop((server, asked));
        return binder::serve(&binder);
    }
    let mapper = pidfd_open(mapper, PidfdFlags::empty())?;
    let maker = Maker::new(asked)?;
    protocol::send(&server, &LauncherReply::Ready, &[])?;
    Launcher { server, mapper, maker, sandboxes: BTreeMap::new() }.serve()
}

/// Mounts the paths where sandboxes can reach them: a sandbox has users of its own, who may not be allowed
/// into this user's directories.
fn mount_paths(paths: &LauncherPaths, mapper: &OwnedFd) -> io::Result<()> {
    let nothing = MountFlags::NOSUID | MountFlags::NODEV;
    mount("proc", "/proc", "proc", nothing | MountFlags::NOEXEC, None)?;
    let packages = paths.packages.as_deref().map(open_directory).transpose()?;
    let images = open_directory(&paths.images)?;
    let shared = open_directory(&paths.shared)?;
    let building = paths.building.as_ref();
    let building = building
        .map(|building| Ok::<_, io::Error>((open_directory(&building.root)?, building.ids)))
        .transpose()?;
    mount("tmpfs", VIEW, "tmpfs", nothing, Some(c"mode=711"))?;
    for directory in [IMAGES, SHARED, PACKAGES, EMPTY, LAYER, ROOT] {
        fs::create_dir(directory)?;
    }
    let view = |source: &OwnedFd, target| {
        mount_bind(format!("/proc/self/fd/{}", source.as_raw_fd()), target)
    };
    if let Some((root, ids)) = building {
        fs::create_dir(BUILDING)?;
        mapped::mount_mapped(&root, BUILDING, ids, mapper)?;
    }
    let packages = packages.map(|packages| (packages, PACKAGES));
    for (source, target) in [(images, IMAGES), (shared, SHARED)].into_iter().chain(packages) {
        view(&source, target)?;
        mount_remount(target, MountFlags::BIND | MountFlags::RDONLY | nothing, c"")?;
    }
    show_whole_sysfs();
    if let Some(version) = paths.favordynmods {
        match cgroups::favor_changes(version, Path::new(FAVORED)) {
            // So it is with kernels that don't know the option, and in containers: sandboxes take longer to make.
            Err(error) => tracing::debug!(%error, "changes of control groups are not favoured"),
            Ok(()) => tracing::debug!("changes of control groups are favoured"),
        }
    }
    Ok(())
}

/// Mounts `/sys` once more if parts of it are hidden, as in a container, where it can only be read. Otherwise the kernel refuses a
/// `/sys` to sandboxes.
fn show_whole_sysfs() {
    let is_container =
        statvfs("/sys").is_ok_and(|sys| sys.f_flag.contains(StatVfsMountFlags::RDONLY));
    if is_container {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let mounted = fs::create_dir(WHOLE_SYSFS).and_then(|()| {
            Ok(mount("sysfs", WHOLE_SYSFS, "sysfs", flags | MountFlags::RDONLY, None)?)
        });
        if let Err(error) = mounted {
            // Without the rights of the machine's root, it depends on what the container shows.
            tracing::debug!(%error, "/sys can't be mounted in whole");
        }
    }
}

/// Unmounts everything that sandboxes don't need: every sandbox begins with a copy of all mounts.
fn unmount_the_rest() -> io::Result<()> {
    // The kernel mounts those of a sandbox only where it sees the machine's.
    const KEPT: [&str; 4] = ["/", "/proc", "/sys", "/dev"];
    // In a container each of them can be a mount. Where no devices can be made, sandboxes have these.
    let is_device =
        |target: &str| maker::DEVICES.iter().any(|(_, path)| path.to_bytes() == target.as_bytes());
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let parts = |line: &'_ str| -> Option<(String, bool)> {
        let (mount, file_system) = line.split_once(" - ")?;
        Some((mount.split(' ').nth(4)?.to_owned(), file_system.starts_with("cgroup")))
    };
    let mounts: Vec<_> = mounts.lines().filter_map(parts).collect();
    for (target, _) in mounts.iter().rev() {
        let has_groups =
            |(group, is_group): &(String, bool)| *is_group && Path::new(group).starts_with(target);
        let is_kept = KEPT.contains(&target.as_str())
            || is_device(target)
            || Path::new(target).starts_with(VIEW)
            || mounts.iter().any(has_groups);
        if !is_kept {
            // In a user namespace some can't be unmounted, and paths with spaces are written otherwise.
            let _ = unmount(target, UnmountFlags::DETACH);
        }
    }
    Ok(())
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
}

/// Makes the numbers of later processes here higher than those of processes in sandboxes. A library that compares its
/// process's number with the last one then notices that it was forked.
fn set_apart_from_sandboxes() {
    // Without this right there are no templates, which look at their number.
    let _ = fs::write("/proc/sys/kernel/ns_last_pid", FIRST_PID.to_string());
}

struct Launcher {
    server: OwnedFd,
    /// The process without which no sandbox can be made.
    mapper: OwnedFd,
    maker: Maker,
    /// Process 1 of every living sandbox.
    sandboxes: BTreeMap<String, OwnedFd>,
}

impl Launcher {
    /// Makes sandboxes until the server is gone.
    fn serve(mut self) -> io::Result<()> {
        loop {
            let (is_asked, ended) = self.wait()?;
            for name in ended {
                self.sandboxes.remove(&name);
            }
            reap();
            if !is_asked {
                continue;
            }
            match protocol::receive(&self.server) {
                Ok(None) => return Ok(()),
                Ok(Some((LauncherRequest::Begin(_) | LauncherRequest::Mapped, _))) => {
                    return Err(io::Error::other("the server sent its first message twice"));
                }
                Ok(Some((LauncherRequest::Create { name, plan }, _))) => {
                    self.create(name, &plan)?;
                }
                // The sandboxes of other requests must not end with this one.
                Err(ReceiveError::Unreadable { name: Some(name), message }) => {
                    protocol::send(&self.server, &LauncherReply::failed(name, message), &[])?;
                }
                Err(error @ ReceiveError::Unreadable { name: None, .. }) => {
                    complain(&format!("isolator {SUBCOMMAND}: {error}"));
                }
                Err(ReceiveError::Socket(error)) => return Err(error),
            }
        }
    }

    /// Waits for a request or for the end of a sandbox. Returns whether there is a request, and the ended ones.
    fn wait(&self) -> io::Result<(bool, Vec<String>)> {
        let mut fds = vec![
            PollFd::new(&self.server, PollFlags::IN),
            PollFd::new(&self.mapper, PollFlags::IN),
        ];
        fds.extend(self.sandboxes.values().map(|process| PollFd::new(process, PollFlags::IN)));
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !fds[1].revents().is_empty() {
            return Err(io::Error::other("the process that maps users has ended"));
        }
        let has_ended = fds[2..].iter().map(|fd| !fd.revents().is_empty());
        let ended = self.sandboxes.keys().zip(has_ended).filter(|(_, ended)| *ended);
        let ended = ended.map(|(name, _)| name.clone()).collect();
        Ok((!fds[0].revents().is_empty(), ended))
    }

    fn create(&mut self, name: String, plan: &Plan) -> io::Result<()> {
        match self.try_create(plan) {
            Ok(mut descriptors) => {
                let answer = LauncherReply::Created { name: name.clone(), error: None };
                protocol::send(&self.server, &answer, &descriptors)?;
                // No descriptor is made for it: there may be none left.
                self.sandboxes.extend(descriptors.pop().map(|process| (name, process)));
                Ok(())
            }
            Err(error) => {
                protocol::send(&self.server, &LauncherReply::failed(name, error_chain(&error)), &[])
            }
        }
    }

    /// Makes and starts a sandbox. Returns the descriptors for the server: the stream, the log, process 1.
    fn try_create(&mut self, plan: &Plan) -> Result<Vec<OwnedFd>, CreateError> {
        let kind = if plan.is_template() { SocketType::SEQPACKET } else { SocketType::STREAM };
        let streams = || -> io::Result<_> {
            let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
            let (log, their_log) = pipe_with(PipeFlags::CLOEXEC)?;
            // The output of a template is no message.
            let output = if plan.is_template() { &their_log } else { &theirs }.try_clone()?;
            Ok((ours, log, [theirs, output, their_log]))
        };
        let (ours, log, theirs) = streams().map_err(CreateError::Streams)?;
        let process = self.maker.make(plan, theirs)?;
        Ok(vec![ours, log, process])
    }
}

/// Reaps every child that has ended: process 1 of sandboxes, and what templates have left behind, whose parent is the launcher
/// when they end.
fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Why a sandbox was not made. The server gets the message.
#[derive(Debug, thiserror::Error)]
enum CreateError {
    #[error("the sandbox's streams can't be made: {0}")]
    Streams(#[source] io::Error),
    #[error(transparent)]
    NotMade(#[from] MakeError),
}
