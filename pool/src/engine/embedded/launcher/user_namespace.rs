//! The users of namespaces. Only a process outside of a user namespace can map its users, and the launcher stands still while a
//! sandbox is made. So a fork of it, the mapper, does that.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use syscalls::{Sysno, syscall};

use crate::engine::embedded::host::Ids;

/// A request: the number of a process in the launcher's namespace, the first user and the number of users.
type Request = [u32; 3];

/// Starts the mapper, which ends with the launcher. Returns its process and the socket on which it is [asked](ask); `None` in the
/// mapper, which has to [serve](serve_mapper). The calling process must have a single thread.
pub(super) fn start_mapper() -> io::Result<Option<(Pid, OwnedFd)>> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
    let Some(mapper) = fork()? else {
        rustix::stdio::dup2_stdin(&theirs)?;
        return Ok(None);
    };
    Ok(Some((mapper, ours)))
}

/// Maps users until the launcher is gone.
pub(super) fn serve_mapper() -> io::Result<()> {
    let launcher = io::stdin();
    let mut request = [0; size_of::<Request>()];
    while recv(&launcher, &mut request, RecvFlags::empty())?.0 == request.len() {
        let [process, first, count] =
            [0, 4, 8].map(|at| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| request[at + byte])));
        let mapped = map(process, Ids { first, count });
        let error = mapped.err().map_or(0, |error| error.raw_os_error().unwrap_or(-1));
        send(&launcher, &error.to_ne_bytes(), SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// Has the mapper map the users and groups of this process's namespace, which is new.
pub(super) fn ask(mapper: &OwnedFd, ids: Ids) -> Result<(), Errno> {
    let mut request = [0; size_of::<Request>()];
    let numbers: Request = [getpid().as_raw_pid() as u32, ids.first, ids.count];
    for (bytes, number) in request.chunks_exact_mut(4).zip(numbers) {
        bytes.copy_from_slice(&number.to_ne_bytes());
    }
    send(mapper, &request, SendFlags::NOSIGNAL)?;
    let mut error = [0; size_of::<i32>()];
    match recv(mapper, &mut error, RecvFlags::empty())? {
        (length, _) if length == error.len() => match i32::from_ne_bytes(error) {
            0 => Ok(()),
            error => Err(Errno::from_raw_os_error(error)),
        },
        _ => Err(Errno::PIPE),
    }
}

fn map(process: u32, ids: Ids) -> io::Result<()> {
    let map = format!("0 {} {}", ids.first, ids.count);
    fs::write(format!("/proc/{process}/uid_map"), &map)?;
    fs::write(format!("/proc/{process}/gid_map"), &map)
}

/// Makes a namespace that belongs to this process's user, and maps its users. The calling process must have a single thread.
pub(super) fn make(mapper: &OwnedFd, ids: Ids) -> io::Result<File> {
    let (mut said, mut says) = io::pipe()?;
    let child = fork()?;
    let Some(child) = child else {
        #[allow(unsafe_code)]
        // SAFETY: the process has a single thread and shares its descriptors with no other.
        let is_made = unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }
            .and_then(|()| ask(mapper, ids))
            .is_ok();
        let _ = io::Write::write_all(&mut says, &[u8::from(is_made)]);
        loop {
            // The parent ends it.
            rustix::event::pause();
        }
    };
    drop(says);
    let mut is_made = [0];
    let made = match io::Read::read_exact(&mut said, &mut is_made) {
        Ok(()) if is_made == [1] => File::open(format!("/proc/{}/ns/user", child.as_raw_pid())),
        _ => Err(io::Error::other("the namespace can't be made")),
    };
    let _ = kill_process(child, Signal::KILL);
    let _ = waitpid(Some(child), WaitOptions::empty());
    made
}

/// Forks. The calling process must have a single thread. `None` in the child.
#[allow(unsafe_code)]
pub(super) fn fork() -> io::Result<Option<Pid>> {
    const SIGCHLD: usize = 17;
    // SAFETY: the process has a single thread, so the child has all of it.
    let pid = unsafe { syscall!(Sysno::clone, SIGCHLD, 0, 0, 0, 0) };
    let pid = pid.map_err(|error| io::Error::from_raw_os_error(error.into_raw()))?;
    Ok(Pid::from_raw(pid as i32))
}
