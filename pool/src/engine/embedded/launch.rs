//! The launcher: the process that makes sandboxes.
//!
//! Making one takes forks without an exec, which only a process of a single thread may do, so it is not
//! the server that does it but a small program beside it: this one, the same binary. It comes in two
//! steps. The outer one enters new process and mount namespaces and starts the inner one, which is
//! process 1 in them and the parent of every sandbox's process 1.
//!
//! So nothing has to be watched or cleaned up for a launcher that dies: the kernel ends what is in its
//! process namespace with it, sandboxes that are being made included, and the mounts go with the mount
//! namespace. It dies itself when the server's end of its socket is closed, however that came about.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;

use libcontainer::container::builder::ContainerBuilder;
use libcontainer::oci_spec::runtime::Spec;
use libcontainer::syscall::syscall::SyscallType;
use libcontainer::workload::{Executor, ExecutorError, ExecutorValidationError, default};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    mount_remount,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, set_parent_process_death_signal, waitpid,
};
use rustix::thread::{UnshareFlags, set_thread_groups, unshare_unsafe};
use seccompiler::BpfProgram;
use serde_json::Value;

use super::cgroup::PLACE;
use super::guest::Guest;
use super::layout::{BUILDING, IMAGES, ROOTS, SHARED};
use super::loopback;
use super::protocol::{self, Answer, Devices, Kind, Places, Request};
use super::root::Mounted;
use crate::engine::seccomp;
use crate::error_chain::chain;

/// The hidden subcommand of the binary that is the launcher.
pub const SUBCOMMAND: &str = "launcher";

/// The argument that makes it one without root.
pub(super) const ROOTLESS: &str = "rootless";

/// The argument that makes it the inner one.
const INNER: &str = "inner";

/// Where the launcher sees what sandboxes are made from. Its mount namespace is its own, and what was there
/// is of no use to it; every system has the directory.
const VIEW: &str = "/tmp";

/// What `libcontainer` keeps of its containers.
const STATE: &str = "/tmp/state";

/// The specifications of sandboxes that are being made.
const BUNDLES: &str = "/tmp/bundles";

/// The most of a failed sandbox's log that is passed on, in bytes.
const LONGEST_LOG: usize = 2048;

/// Runs the launcher, if the process was started to be one, and returns when it is done. `arguments` are
/// those of the process without its name, and `log` lets the log be written. Must be called while the
/// process has a single thread.
pub fn run(arguments: &[String], log: impl FnOnce()) -> Option<ExitCode> {
    let step = match arguments {
        [subcommand] if subcommand == SUBCOMMAND => outer(),
        [subcommand, step] if subcommand == SUBCOMMAND && step == ROOTLESS => {
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

#[allow(clippy::print_stderr, reason = "its standard error is the server's")]
fn complain(message: &str) {
    eprintln!("{message}");
}

/// Enters the namespaces, and waits for the inner one, which is not in its own sight alone.
fn outer() -> io::Result<()> {
    // The directory in which the server was started may be anywhere, and stay in use for nothing.
    std::env::set_current_dir("/")?;
    enter_namespaces()?;
    let mut inner = Command::new("/proc/self/exe")
        .args([SUBCOMMAND, INNER])
        .stdin(Stdio::inherit())
        .stdout(Stdio::null())
        .spawn()?;
    // The socket belongs to the inner one: with it ends the conversation.
    let null = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    inner.wait().map(|_| ())
}

/// Enters a user namespace, and waits until the server has given it users.
fn become_root_of_a_namespace() -> io::Result<()> {
    let server = io::stdin().as_fd().try_clone_to_owned()?;
    unshare(UnshareFlags::NEWUSER)?;
    protocol::send(&server, &Answer::Entered, &[])?;
    match protocol::receive(&server)? {
        // Back from a sandbox's network it comes only to one that is its own.
        Some((Request::Mapped, _)) => unshare(UnshareFlags::NEWNET),
        _ => Err(io::Error::other("the server gave it no users")),
    }
}

fn enter_namespaces() -> io::Result<()> {
    unshare(UnshareFlags::NEWPID | UnshareFlags::NEWNS)?;
    // What is unmounted on the host shall not stay mounted here, and nothing goes the other way.
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    Ok(mount_change("/", slave)?)
}

#[allow(unsafe_code)]
fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    // SAFETY: the process has a single thread, and goes on sharing its descriptors with nobody.
    Ok(unsafe { unshare_unsafe(namespaces) }?)
}

fn inner() -> io::Result<()> {
    // Process 1 of a namespace is killed by nobody in it; this signal comes from outside.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // Sandboxes would keep what groups the server's user is in.
    set_thread_groups(&[])?;
    let server = io::stdin().as_fd().try_clone_to_owned()?;
    // Sandboxes inherit the standard streams where they are given none.
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let Some((Request::Begin(places), _)) = protocol::receive(&server)? else { return Ok(()) };
    arrange(&places)?;
    let programs = seccomp::kernel_programs().map_err(io::Error::other)?;
    protocol::send(&server, &Answer::Ready, &[])?;
    let devices = places.devices;
    Launcher { server, programs: programs.into(), devices, sandboxes: BTreeMap::new() }.serve()
}

/// Mounts what is needed where it is looked for. Sandboxes have users of their own, for whom the way to a
/// directory of this user's may be closed.
fn arrange(places: &Places) -> io::Result<()> {
    let nothing = MountFlags::NOSUID | MountFlags::NODEV;
    mount("proc", "/proc", "proc", nothing | MountFlags::NOEXEC, None)?;
    if let Some(groups) = &places.groups
        && groups != Path::new(PLACE)
    {
        // Where both versions are mounted, `libcontainer` would take the first.
        mount_bind_recursive(groups, PLACE)?;
    }
    let images = open_directory(&places.images)?;
    let shared = open_directory(&places.shared)?;
    let building = places.building.as_deref().map(open_directory).transpose()?;
    mount("tmpfs", VIEW, "tmpfs", nothing, Some(c"mode=711"))?;
    for directory in [IMAGES, SHARED, STATE, BUNDLES, ROOTS] {
        fs::create_dir(directory)?;
    }
    let view = |source: &OwnedFd, target| {
        mount_bind(format!("/proc/self/fd/{}", source.as_raw_fd()), target)
    };
    if let Some(building) = building {
        fs::create_dir(BUILDING)?;
        view(&building, BUILDING)?;
    }
    for (source, target) in [(images, IMAGES), (shared, SHARED)] {
        view(&source, target)?;
        mount_remount(target, MountFlags::BIND | MountFlags::RDONLY | nothing, c"")?;
    }
    Ok(())
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
}

struct Launcher {
    server: OwnedFd,
    programs: Rc<[BpfProgram]>,
    devices: Devices,
    /// Process 1 of every sandbox that lives.
    sandboxes: BTreeMap<String, (Pid, OwnedFd)>,
}

impl Launcher {
    /// Makes sandboxes until the server is gone.
    fn serve(mut self) -> io::Result<()> {
        loop {
            let (is_asked, ended) = self.wait()?;
            for name in ended {
                self.bury(&name);
            }
            if !is_asked {
                continue;
            }
            match protocol::receive(&self.server)? {
                None => return Ok(()),
                Some((Request::Begin(_) | Request::Mapped, _)) => {
                    return Err(io::Error::other("the server began twice"));
                }
                Some((Request::Create { name, spec, kind, group }, _)) => {
                    self.create(name, spec, kind, group.as_deref())?;
                }
            }
        }
    }

    /// Waits for a request, or for the end of sandboxes.
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
        kind: Kind,
        group: Option<&Path>,
    ) -> io::Result<()> {
        let created = match group.map(Guest::enter).transpose() {
            Ok(guest) => {
                let created = self.create_kind(&name, spec, kind);
                guest.map_or(Ok(()), Guest::leave)?;
                created
            }
            Err(error) => Err(error.to_string()),
        };
        let (error, descriptors) = match created {
            Ok((pid, descriptors)) => {
                let process = descriptors[protocol::DESCRIPTORS - 1].try_clone()?;
                self.sandboxes.insert(name.clone(), (pid, process));
                (None, descriptors)
            }
            Err(error) => {
                forget(&name);
                (Some(error), Vec::new())
            }
        };
        protocol::send(&self.server, &Answer::Created { name, error }, &descriptors)
    }

    fn create_kind(
        &self,
        name: &str,
        spec: Value,
        kind: Kind,
    ) -> Result<(Pid, Vec<OwnedFd>), String> {
        let Kind::Image { image, layer } = kind else { return self.try_create(name, &spec, true) };
        let files = Mounted::new(name, &image, layer);
        let files = files.and_then(|files| match self.devices {
            Devices::Own => files.with_devices(),
            Devices::Host => Ok(files),
        });
        let files = files.map_err(|error| format!("its files can't be mounted: {error}"))?;
        let created = self.try_create(name, &spec, false);
        // They are mounted in the sandbox's own namespace now.
        drop(files);
        created
    }

    /// Makes and starts a sandbox. Gives its process 1, and the server's ends of the stream to it and of its
    /// log, and the process.
    fn try_create(
        &self,
        name: &str,
        spec: &Value,
        is_build: bool,
    ) -> Result<(Pid, Vec<OwnedFd>), String> {
        let programs = if is_build { Rc::default() } else { Rc::clone(&self.programs) };
        let bundle = Path::new(BUNDLES).join(name);
        let prepare = || -> io::Result<_> {
            fs::create_dir(&bundle)?;
            fs::write(bundle.join("config.json"), spec.to_string())?;
            let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
            let stream = socketpair(kind.0, kind.1, kind.2, None)?;
            Ok((stream, pipe_with(PipeFlags::CLOEXEC)?))
        };
        let ((ours, theirs), (log, their_log)) = prepare().map_err(|error| chain(&error))?;
        let their_output = theirs.try_clone().map_err(|error| chain(&error))?;
        let built = ContainerBuilder::new(name.to_owned(), SyscallType::default())
            .with_executor(Exec { programs })
            .with_root_path(STATE)
            .map_err(|error| chain(&error))?
            .with_stdin(theirs)
            .with_stdout(their_output)
            .with_stderr(their_log)
            .as_init(&bundle)
            .with_systemd(false)
            .with_detach(true)
            .build();
        let mut container = built.map_err(|error| {
            // What failed, failed in another process, which says more to its log than it passes on.
            format!("{} ({})", chain(&error), read_log(&log))
        })?;
        let pid = container.pid().and_then(|pid| Pid::from_raw(pid.as_raw()));
        let pid = pid.ok_or("the sandbox has no process")?;
        // A build has the network of the machine.
        let network = if is_build { Ok(()) } else { loopback::bring_up(pid) };
        let started = network
            .map_err(|error| format!("its loopback interface can't be brought up: {error}"))
            .and_then(|()| container.start().map_err(|error| chain(&error)));
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| error.to_string())?;
        if let Err(error) = started {
            let _ = rustix::process::pidfd_send_signal(&process, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
            return Err(error);
        }
        Ok((pid, vec![ours, log, process]))
    }

    /// Reaps process 1 of a sandbox that has ended, and drops what is kept of the sandbox.
    fn bury(&mut self, name: &str) {
        if let Some((pid, _)) = self.sandboxes.remove(name) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        forget(name);
    }
}

/// Removes the files of a sandbox, which lie in the launcher's own memory.
fn forget(name: &str) {
    for directory in [STATE, BUNDLES] {
        let _ = fs::remove_dir_all(PathBuf::from(directory).join(name));
    }
}

/// What is in a log at the moment, on one line.
fn read_log(log: &OwnedFd) -> String {
    let mut said = vec![0; LONGEST_LOG];
    let read = rustix::io::ioctl_fionbio(log, true)
        .and_then(|()| rustix::io::read(log, &mut said))
        .unwrap_or_default();
    let said = String::from_utf8_lossy(&said[..read]);
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What the server's parent had it ignore, or the server itself, is not for programs to ignore.
#[allow(unsafe_code)]
fn restore_signals() {
    const LAST: usize = 64;
    // The default handler, no flags, no mask: all of it is zero in the kernel's words.
    let default = [0_usize; 4];
    let length_of_mask = size_of::<u64>();
    for signal in 1..=LAST {
        // SAFETY: the kernel reads the action, which lives as long as the call, and writes nothing. Of the
        // two that can't be changed it says so.
        let _ = unsafe {
            syscalls::syscall!(
                syscalls::Sysno::rt_sigaction,
                signal,
                default.as_ptr(),
                0,
                length_of_mask
            )
        };
    }
}

/// Becomes the runner, as the last of all steps in a sandbox.
#[derive(Clone)]
struct Exec {
    programs: Rc<[BpfProgram]>,
}

impl Executor for Exec {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        restore_signals();
        for program in self.programs.iter() {
            seccompiler::apply_filter(program)
                .map_err(|error| ExecutorError::Other(format!("seccomp: {error}")))?;
        }
        default::get_executor().exec(spec)
    }

    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        Ok(())
    }
}
