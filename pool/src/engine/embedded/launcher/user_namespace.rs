//! The users of namespaces. Only a process outside of a user namespace can map its users, and the launcher stands still while a
//! sandbox is made. So a fork of it, the mapper, does that.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use syscalls::{Sysno, syscall};

use crate::engine::embedded::host::Ids;

/// A request: the number of a process in the launcher's namespace, the first user, the number of users, and whether a process
/// with these users may set its groups.
type Request = [u32; 4];

/// An answer: the number of the process, and that of an error or 0.
type Answer = [u32; 2];

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
    while let Some([process, first, count, sets_groups]) = receive::<4>(&launcher)? {
        let mapped = map(process, Ids { first, count }, sets_groups != 0);
        let error = mapped.err().map_or(0, |error| error.raw_os_error().unwrap_or(-1));
        let answer: Answer = [process, error as u32];
        send_numbers(&launcher, answer)?;
    }
    Ok(())
}

/// Has the mapper map the users and groups of this process's namespace, which is new. Allocates nothing.
pub(super) fn ask(mapper: &OwnedFd, ids: Ids, sets_groups: bool) -> Result<(), Errno> {
    let process = getpid().as_raw_pid() as u32;
    let request: Request = [process, ids.first, ids.count, sets_groups.into()];
    send_numbers(mapper, request)?;
    loop {
        let [of, error]: Answer = receive(mapper)?.ok_or(Errno::PIPE)?;
        match error {
            // Of a process that was killed before it had read its answer.
            _ if of != process => {}
            0 => return Ok(()),
            error => return Err(Errno::from_raw_os_error(error as i32)),
        }
    }
}

fn send_numbers<const N: usize>(socket: impl AsFd, numbers: [u32; N]) -> Result<(), Errno> {
    send(socket, numbers.map(u32::to_ne_bytes).as_flattened(), SendFlags::NOSIGNAL).map(|_| ())
}

/// Receives numbers; `None` if the other side is gone.
fn receive<const N: usize>(socket: impl AsFd) -> Result<Option<[u32; N]>, Errno> {
    let mut numbers = [[0; 4]; N];
    let (length, _) = recv(socket, numbers.as_flattened_mut(), RecvFlags::empty())?;
    Ok((length == 4 * N).then(|| numbers.map(u32::from_ne_bytes)))
}

fn map(process: u32, ids: Ids, sets_groups: bool) -> io::Result<()> {
    if !sets_groups {
        fs::write(format!("/proc/{process}/setgroups"), "deny")?;
    }
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
            .and_then(|()| ask(mapper, ids, true))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_does_not_take_the_answer_to_another_one() {
        let kind = SocketType::SEQPACKET;
        let (ours, mapper) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        let own = getpid().as_raw_pid() as u32;
        let refused = Errno::PERM.raw_os_error() as u32;
        for (of, error) in [(own + 1, 0), (own, refused), (own + 1, refused), (own, 0)] {
            send_numbers(&mapper, [of, error]).unwrap();
        }
        let ids = Ids { first: 1000, count: 10 };
        assert_eq!(ask(&ours, ids, true), Err(Errno::PERM));
        assert_eq!(ask(&ours, ids, true), Ok(()));
        assert_eq!(receive(&mapper).unwrap(), Some([own, 1000, 10, 1]));
    }
}
