//! The socket to the server, which is the template's standard input: one packet for a request, one for an answer.

use core::ptr::null_mut;

use linux_raw_sys::general::iovec;
use linux_raw_sys::net::{
    AF_UNIX, MSG_CMSG_CLOEXEC, MSG_NOSIGNAL, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, cmsghdr,
    msghdr, sockaddr_un,
};

use crate::call::{Errno, Sysno, exit, syscall};
use crate::protocol::exit_code::{NO_REQUEST, NOT_ANSWERED};
use crate::protocol::{ADDRESS, FOR_TEMPLATE, PASSED_DESCRIPTORS, REQUEST_DESCRIPTORS};

const SERVER: i32 = 0;

/// Maximum number of descriptors of a message: those that a fork passes.
const MOST: usize = PASSED_DESCRIPTORS;

/// A request of the server.
pub(crate) struct Request {
    /// The user and group of the sandbox's programs.
    pub(crate) user: u32,
    pub(crate) group: u32,
    descriptors: [i32; REQUEST_DESCRIPTORS],
}

impl Request {
    /// The process whose namespaces are those of the sandbox.
    pub(crate) fn process(&self) -> i32 {
        self.descriptors[0]
    }

    /// Whether it asks for another template.
    pub(crate) fn is_for_template(&self) -> bool {
        self.user == FOR_TEMPLATE
    }

    /// The socket over which the fork and the server tell each other that it is in its place. Another template gets its requests on it.
    pub(crate) fn server(&self) -> i32 {
        self.descriptors[1]
    }
}

/// A step of a fork that failed.
#[derive(Clone, Copy)]
pub(crate) struct Failed {
    /// The number of the step.
    pub(crate) step: u32,
    pub(crate) errno: i32,
}

impl Failed {
    pub(crate) fn at(step: u32) -> impl Fn(Errno) -> Self {
        move |error| Self { step, errno: error.into_raw() }
    }
}

/// Descriptors as the kernel passes them along with a message.
#[repr(C)]
struct Control {
    header: cmsghdr,
    descriptors: [i32; MOST],
}

impl Control {
    const fn of(count: usize) -> Self {
        let header = cmsghdr {
            cmsg_len: size_of::<cmsghdr>() + count * size_of::<i32>(),
            cmsg_level: SOL_SOCKET as _,
            cmsg_type: SCM_RIGHTS as _,
        };
        Self { header, descriptors: [-1; MOST] }
    }
}

/// Waits for the next request; `None` when the server's end is closed.
pub(crate) fn receive() -> Option<Request> {
    let mut numbers = [0_u32; 2];
    let mut control = Control::of(0);
    let mut part =
        iovec { iov_base: (&raw mut numbers).cast(), iov_len: size_of_val(&numbers) as _ };
    loop {
        let mut message = message(&mut part, &mut control, size_of::<Control>());
        // SAFETY: the message points to live variables of this frame.
        let received =
            unsafe { syscall!(Sysno::recvmsg, SERVER, &raw mut message, MSG_CMSG_CLOEXEC) };
        match received {
            Ok(0) => return None,
            Ok(length) if length == size_of_val(&numbers) => break,
            Err(Errno::EINTR) => {}
            // It is not a request.
            Ok(_) | Err(_) => exit(NO_REQUEST),
        }
    }
    let bytes = control.header.cmsg_len.saturating_sub(size_of::<cmsghdr>());
    if bytes / size_of::<i32>() != REQUEST_DESCRIPTORS {
        exit(NO_REQUEST);
    }
    let [process, server, ..] = control.descriptors;
    Some(Request { user: numbers[0], group: numbers[1], descriptors: [process, server] })
}

fn message(part: &mut iovec, control: &mut Control, length: usize) -> msghdr {
    msghdr {
        msg_name: null_mut(),
        msg_namelen: 0,
        msg_iov: (&raw mut *part).cast(),
        msg_iovlen: 1,
        msg_control: (&raw mut *control).cast(),
        msg_controllen: length,
        msg_flags: 0,
    }
}

/// Closes the descriptors of a request, and sends the result to the server.
pub(crate) fn answer(request: Request, failed: Option<Failed>) {
    for descriptor in &request.descriptors {
        // SAFETY: no memory is passed.
        let _ = unsafe { syscall!(Sysno::close, *descriptor) };
    }
    let failed = failed.unwrap_or(Failed { step: 0, errno: 0 });
    let numbers = [failed.step, failed.errno as u32];
    // SAFETY: the numbers live as long as the call.
    let sent = unsafe {
        syscall!(
            Sysno::sendto,
            SERVER,
            &raw const numbers,
            size_of::<[u32; 2]>(),
            MSG_NOSIGNAL,
            0,
            0
        )
    };
    if sent.is_err() {
        exit(NOT_ANSWERED);
    }
}

/// Passes descriptors to the runner of the sandbox, which listens at an address of its network namespace.
pub(crate) fn pass_on(descriptors: [i32; PASSED_DESCRIPTORS]) -> Result<(), Errno> {
    let mut address = sockaddr_un { sun_family: AF_UNIX as _, sun_path: [0; 108] };
    // Its first byte is zero: the name is no file's.
    for (to, from) in address.sun_path[1..].iter_mut().zip(ADDRESS) {
        *to = *from as _;
    }
    let length = size_of_val(&address.sun_family) + 1 + ADDRESS.len();
    let mut control = Control::of(descriptors.len());
    control.descriptors[..descriptors.len()].copy_from_slice(&descriptors);
    let mut word = [b'f'];
    let mut part = iovec { iov_base: (&raw mut word).cast(), iov_len: 1 };
    let length_of_control = control.header.cmsg_len;
    let message = message(&mut part, &mut control, length_of_control);
    // SAFETY: all pointers are to live variables of this frame.
    unsafe {
        let socket = syscall!(Sysno::socket, AF_UNIX, SOCK_SEQPACKET, 0)?;
        syscall!(Sysno::connect, socket, &raw const address, length)?;
        syscall!(Sysno::sendmsg, socket, &raw const message, MSG_NOSIGNAL)?;
    }
    Ok(())
}
