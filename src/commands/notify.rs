//! What a server tells the service manager that started it, as systemd expects of a unit with `Type=notify` or
//! `Type=notify-reload`.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The socket of the service manager. Without it, nobody wants to know.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// A server that clients reach over HTTP. One on standard input and output is no service.
#[derive(Debug)]
pub(super) struct Service {
    url: String,
}

impl Service {
    /// The one at this URL.
    pub(super) fn new(url: String) -> Self {
        Self { url }
    }

    /// It listens, and calls are served from now on.
    pub(super) fn ready(&self) {
        tell(&format!("READY=1\nSTATUS=serving clients at {}", self.url));
    }

    /// It loads its configuration again.
    pub(super) fn reloading(&self) {
        // By the time, the manager knows that this is about its latest request.
        let since = monotonic_us();
        tell(&format!(
            "RELOADING=1\nMONOTONIC_USEC={since}\nSTATUS=loading the configuration again"
        ));
    }

    /// It has done so, or the configuration is wrong.
    pub(super) fn reloaded(&self, is_successful: bool) {
        match is_successful {
            true => self.ready(),
            false => tell(&format!(
                "READY=1\nSTATUS=serving clients at {}; the new configuration is wrong and not used, see the log",
                self.url
            )),
        }
    }

    /// It takes no more calls and ends.
    pub(super) fn stopping(&self) {
        tell("STOPPING=1\nSTATUS=stopping");
    }
}

/// Does not wait. A message that can't be sent is logged: the unit then fails with a timeout, and the log says why.
fn tell(state: &str) {
    let Some(socket) = env::var_os(VARIABLE).filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(%error, socket = %socket.display(), "can't tell the service manager about this server");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

/// The time of the clock that the manager compares, in microseconds.
#[allow(unsafe_code)]
fn monotonic_us() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes into a structure that is ours. If it fails, which it can't with this clock, the time is zero.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}
