//! Brings up a sandbox's loopback interface, which is down in a new network namespace.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

/// From `linux/netlink.h` and `linux/rtnetlink.h`.
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLMSG_ERROR: u16 = 2;
const RTM_NEWLINK: u16 = 16;

/// From `linux/if.h`.
const IFF_UP: u32 = 1;

/// The index of the loopback interface in every namespace.
const LOOPBACK: u32 = 1;

/// Length of a header, and of a request that names only the interface.
const HEADER: usize = 16;
const REQUEST: usize = 32;

/// Brings up the interface in the network namespace of this process. Allocates nothing.
pub(super) fn bring_up() -> Result<(), Errno> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &request(), SendFlags::empty())?;
    let mut answer = [0; 256];
    let (length, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    match error_of(&answer[..length]) {
        Some(0) => Ok(()),
        Some(error) => Err(Errno::from_raw_os_error(-error)),
        None => Err(Errno::PROTO),
    }
}

fn request() -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(&(REQUEST as u32).to_ne_bytes());
    put(&RTM_NEWLINK.to_ne_bytes());
    put(&(NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    // Sequence number, sender, family and type of the interface: none of these matters.
    put(&[0; 12]);
    put(&LOOPBACK.to_ne_bytes());
    // The flags, and the mask of those to change.
    put(&IFF_UP.to_ne_bytes());
    put(&IFF_UP.to_ne_bytes());
    bytes
}

/// The error number of an answer, which follows the header; 0 means success.
fn error_of(answer: &[u8]) -> Option<i32> {
    let kind = answer.get(4..6)?.try_into().ok().map(u16::from_ne_bytes)?;
    let number = answer.get(HEADER..HEADER + 4)?.try_into().ok().map(i32::from_ne_bytes)?;
    (kind == NLMSG_ERROR).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_is_as_long_as_it_says() {
        let request = request();
        assert_eq!(u32::from_ne_bytes(request[..4].try_into().unwrap()) as usize, request.len());
        assert_eq!(request[20..24], LOOPBACK.to_ne_bytes());
    }

    #[test]
    fn an_answer_tells_its_error_number() {
        let mut answer = [0; 36];
        answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        assert_eq!(error_of(&answer), Some(0));
        answer[16..20].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert_eq!(error_of(&answer), Some(-1));
        assert_eq!(error_of(&answer[..18]), None);
    }
}
