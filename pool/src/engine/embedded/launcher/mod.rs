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
mod exec;
mod joined_group;
mod loopback;
mod mapped;
mod root;
mod standing;
mod user_namespace;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::error::LibcontainerError;
use libcontainer::syscall::syscall::SyscallType;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, mount_remount, unmount,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, set_parent_process_death_signal, waitpid,
};
use rustix::thread::{UnshareFlags, set_thread_groups, unshare_unsafe};
use seccompiler::BpfProgram;
use serde_json::Value;

pub(super) use self::binder::layers;
use self::exec::Exec;
use self::joined_group::JoinedGroup;
use self::root::SandboxMounts;
use super::cgroups::{self, CGROUP_MOUNT};
use super::layout::{BUILDING, EMPTY, FIRST_PID, IMAGES, PACKAGES, ROOTS, SHARED};
use super::protocol::{
    self, Devices, LauncherPaths, LauncherReply, LauncherRequest, ReceiveError, Role, SandboxKind,
};
use crate::engine::seccomp::{self, Filtered};
use crate::error_chain::error_chain;
use crate::folders;
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

/// Where `libcontainer` keeps the state of its containers.
const STATE: &str = "/tmp/state";

/// A control group hierarchy without controllers, for its option only.
const FAVORED: &str = "/tmp/favored";

/// The specifications of sandboxes that are being made.
const BUNDLES: &str = "/tmp/bundles";

/// Longest part of a failed sandbox's log that is passed on, in bytes.
const MAX_LOG: usize = 2048;

/// Runs the launcher if the process was started as one, and returns its exit code. `arguments` are those of
/// the process without its name; `log` starts logging. Must be called while the process has a single thread.
pub fn run(arguments: &[String], log: impl FnOnce()) -> Option<ExitCode> {
    let begin = || {
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
    mount_paths(&paths)?;
    unmount_the_rest()?;
    set_apart_from_sandboxes();
    if let Some(binder) = binder.into_iter().next()
        && user_namespace::fork()?.is_none()
    {
        drop(server);
        return binder::serve(&binder);
    }
    let programs =
        |for_whom| seccomp::kernel_programs(for_whom).map(Rc::from).map_err(io::Error::other);
    let filters =
        Filters { program: programs(Filtered::Program)?, template: programs(Filtered::Template)? };
    protocol::send(&server, &LauncherReply::Ready, &[])?;
    let devices = paths.devices;
    Launcher { server, filters, devices, sandboxes: BTreeMap::new() }.serve()
}

/// Mounts the paths where sandboxes can reach them: a sandbox has users of its own, who may not be allowed
/// into this user's directories.
fn mount_paths(paths: &LauncherPaths) -> io::Result<()> {
    let nothing = MountFlags::NOSUID | MountFlags::NODEV;
    mount("proc", "/proc", "proc", nothing | MountFlags::NOEXEC, None)?;
    if let Some(groups) = &paths.groups
        && groups != Path::new(CGROUP_MOUNT)
    {
        // Where both versions are mounted, `libcontainer` would take the first.
        mount_bind_recursive(groups, CGROUP_MOUNT)?;
    }
    let packages = paths.packages.as_deref().map(open_directory).transpose()?;
    let images = open_directory(&paths.images)?;
    let shared = open_directory(&paths.shared)?;
    let building = paths.building.as_ref();
    let building = building
        .map(|building| Ok::<_, io::Error>((open_directory(&building.root)?, building.ids)))
        .transpose()?;
    mount("tmpfs", VIEW, "tmpfs", nothing, Some(c"mode=711"))?;
    for directory in [IMAGES, SHARED, PACKAGES, EMPTY, STATE, BUNDLES, ROOTS] {
        fs::create_dir(directory)?;
    }
    let view = |source: &OwnedFd, target| {
        mount_bind(format!("/proc/self/fd/{}", source.as_raw_fd()), target)
    };
    if let Some((root, ids)) = building {
        fs::create_dir(BUILDING)?;
        mapped::mount_mapped(&root, BUILDING, ids)?;
    }
    let packages = packages.map(|packages| (packages, PACKAGES));
    for (source, target) in [(images, IMAGES), (shared, SHARED)].into_iter().chain(packages) {
        view(&source, target)?;
        mount_remount(target, MountFlags::BIND | MountFlags::RDONLY | nothing, c"")?;
    }
    if let Some(version) = paths.favordynmods {
        match cgroups::favor_changes(version, Path::new(FAVORED)) {
            // So it is with kernels that don't know the option, and in containers: sandboxes take longer to make.
            Err(error) => tracing::debug!(%error, "changes of control groups are not favoured"),
            Ok(()) => tracing::debug!("changes of control groups are favoured"),
        }
    }
    Ok(())
}

/// Unmounts everything that sandboxes don't need. Every sandbox begins with a copy of all mounts, and `libcontainer` reads the
/// list of them a dozen times for each.
fn unmount_the_rest() -> io::Result<()> {
    // The kernel mounts those of a sandbox only where it sees the machine's.
    const KEPT: [&str; 4] = ["/", "/proc", "/sys", "/dev"];
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    for line in mounts.lines().rev() {
        let Some((mount, file_system)) = line.split_once(" - ") else { continue };
        let Some(target) = mount.split(' ').nth(4) else { continue };
        let is_kept = KEPT.contains(&target)
            || Path::new(target).starts_with(VIEW)
            || file_system.starts_with("cgroup")
            || Path::new(CGROUP_MOUNT).starts_with(target);
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

/// The filters of system calls.
struct Filters {
    program: Rc<[BpfProgram]>,
    template: Rc<[BpfProgram]>,
}

/// Why a sandbox was not made. The server gets the message.
#[derive(Debug, thiserror::Error)]
enum CreateError {
    #[error("{0}")]
    Group(#[source] io::Error),
    #[error("the sandbox's users can't be mapped: {0}")]
    Users(#[source] io::Error),
    #[error("the sandbox's files can't be mounted: {0}")]
    Files(#[source] io::Error),
    #[error("the sandbox's loopback interface can't be brought up: {0}")]
    Loopback(#[source] io::Error),
    #[error("{} ({log})", error_chain(source))]
    Container { source: Box<LibcontainerError>, log: String },
    #[error("the sandbox has no process")]
    NoProcess,
    #[error(transparent)]
    Library(#[from] LibcontainerError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

struct Launcher {
    server: OwnedFd,
    filters: Filters,
    devices: Devices,
    /// Process 1 of every living sandbox.
    sandboxes: BTreeMap<String, (Pid, OwnedFd)>,
}

impl Launcher {
    /// Makes sandboxes until the server is gone.
    fn serve(mut self) -> io::Result<()> {
        loop {
            let (is_asked, ended) = self.wait()?;
            for name in ended {
                self.reap(&name);
            }
            if !is_asked {
                continue;
            }
            match protocol::receive(&self.server) {
                Ok(None) => return Ok(()),
                Ok(Some((LauncherRequest::Begin(_) | LauncherRequest::Mapped, _))) => {
                    return Err(io::Error::other("the server sent its first message twice"));
                }
                Ok(Some((LauncherRequest::Create { name, spec, kind, group }, _))) => {
                    self.create(name, spec, kind, group.as_deref())?;
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
        let mut fds = vec![PollFd::new(&self.server, PollFlags::IN)];
        fds.extend(self.sandboxes.values().map(|(_, process)| PollFd::new(process, PollFlags::IN)));
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_ended = fds[1..].iter().map(|fd| !fd.revents().is_empty());
        let ended = self.sandboxes.keys().zip(has_ended).filter(|(_, ended)| *ended);
        let ended = ended.map(|(name, _)| name.clone()).collect();
        Ok((!fds[0].revents().is_empty(), ended))
    }

    fn create(
        &mut self,
        name: String,
        spec: Value,
        kind: SandboxKind,
        group: Option<&Path>,
    ) -> io::Result<()> {
        let created = match group.map(JoinedGroup::join).transpose() {
            Ok(joined_group) => {
                let created = self.create_kind(&name, spec, kind);
                joined_group.map_or(Ok(()), JoinedGroup::leave)?;
                created
            }
            Err(error) => Err(CreateError::Group(error)),
        };
        let (answer, descriptors) = match created {
            Ok((pid, descriptors)) => {
                let process = descriptors[protocol::DESCRIPTORS - 1].try_clone()?;
                self.sandboxes.insert(name.clone(), (pid, process));
                (LauncherReply::Created { name, error: None }, descriptors)
            }
            Err(error) => {
                remove_files(&name);
                (LauncherReply::failed(name, error_chain(&error)), Vec::new())
            }
        };
        protocol::send(&self.server, &answer, &descriptors)
    }

    fn create_kind(
        &self,
        name: &str,
        spec: Value,
        kind: SandboxKind,
    ) -> Result<(Pid, Vec<OwnedFd>), CreateError> {
        let SandboxKind::Image { image, layer, role } = kind else {
            return self.try_create(name, &spec, false);
        };
        let mut spec = spec;
        let users = match &role {
            Role::Program { entered_by: Some((owner, ids)) } => {
                let users = user_namespace::make(*owner, *ids).map_err(CreateError::Users)?;
                user_namespace::join(&mut spec, &users);
                Some(users)
            }
            Role::Program { entered_by: None } | Role::Template { .. } => None,
        };
        let is_template = matches!(role, Role::Template { .. });
        let files = SandboxMounts::new(name, &image, layer).and_then(|files| {
            if let Role::Template { program } = &role {
                files.hide_program(program)?;
            }
            Ok(files)
        });
        let files = files.and_then(|files| match self.devices {
            Devices::Own => files.with_devices(),
            Devices::Host => Ok(files),
        });
        let files = files.map_err(CreateError::Files)?;
        let created = self.try_create(name, &spec, is_template);
        // The sandbox's own namespaces have them now.
        drop((files, users));
        created
    }

    /// Makes and starts a sandbox. Returns its process 1 and the descriptors for the server: the stream, the
    /// log, the process.
    fn try_create(
        &self,
        name: &str,
        spec: &Value,
        is_template: bool,
    ) -> Result<(Pid, Vec<OwnedFd>), CreateError> {
        let bundle = Path::new(BUNDLES).join(name);
        let prepare = || -> io::Result<_> {
            fs::create_dir(&bundle)?;
            fs::write(bundle.join("config.json"), spec.to_string())?;
            let kind = if is_template { SocketType::SEQPACKET } else { SocketType::STREAM };
            let stream = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
            Ok((stream, pipe_with(PipeFlags::CLOEXEC)?))
        };
        let ((ours, theirs), (log, their_log)) = prepare()?;
        // The output of a template is no message.
        let their_output = if is_template { &their_log } else { &theirs };
        let their_output = their_output.try_clone()?;
        let programs = if is_template { &self.filters.template } else { &self.filters.program };
        let built = ContainerBuilder::new(name.to_owned(), SyscallType::default())
            .with_executor(Exec { programs: Rc::clone(programs) })
            .with_root_path(STATE)?
            .with_stdin(theirs)
            .with_stdout(their_output)
            .with_stderr(their_log)
            .as_init(&bundle)
            .with_systemd(false)
            .with_detach(true)
            .build();
        let mut container = built.map_err(|source| {
            // The failure was in another process, whose log says more than its error.
            CreateError::Container { source: Box::new(source), log: read_log(&log) }
        })?;
        let pid = container.pid().and_then(|pid| Pid::from_raw(pid.as_raw()));
        let pid = pid.ok_or(CreateError::NoProcess)?;
        let loopback = if is_template { Ok(()) } else { loopback::bring_up(pid) };
        let started = loopback
            .map_err(CreateError::Loopback)
            .and_then(|()| container.start().map_err(CreateError::from));
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
        if let Err(error) = started {
            let _ = rustix::process::pidfd_send_signal(&process, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
            return Err(error);
        }
        Ok((pid, vec![ours, log, process]))
    }

    /// Reaps process 1 of a sandbox that has ended, and removes the sandbox's files.
    fn reap(&mut self, name: &str) {
        if let Some((pid, _)) = self.sandboxes.remove(name) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        remove_files(name);
    }
}

/// Removes the files that the launcher keeps of a sandbox, in a tmpfs.
fn remove_files(name: &str) {
    for directory in [STATE, BUNDLES] {
        remove_folder(&Path::new(directory).join(name));
    }
}

/// Removes a folder in the launcher's memory. One that stays goes with the launcher.
fn remove_folder(folder: &Path) {
    if let Err(error) = folders::remove(folder) {
        let folder = folder.display();
        complain(&format!("isolator {SUBCOMMAND}: {folder} can't be removed: {error}"));
    }
}

/// The current content of a log, on one line.
fn read_log(log: &OwnedFd) -> String {
    let mut said = vec![0; MAX_LOG];
    let read = rustix::io::ioctl_fionbio(log, true)
        .and_then(|()| rustix::io::read(log, &mut said))
        .unwrap_or_default();
    let said = String::from_utf8_lossy(&said[..read]);
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}
