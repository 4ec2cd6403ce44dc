//! What a server tells the service manager that started it, as systemd expects of a unit with `Type=notify`.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The socket of the service manager. Without it, nobody wants to know.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// The server listens, and calls are served from now on.
pub(super) fn ready(url: &str) {
    tell(&format!("READY=1\nSTATUS=serving clients at {url}"));
}

/// The server takes no more calls and ends.
pub(super) fn stopping() {
    tell("STOPPING=1\nSTATUS=stopping");
}

/// Does not wait. A message that can't be sent is logged: the unit then fails with a timeout, and the log says why.
fn tell(state: &str) {
    let Some(socket) = env::var_os(VARIABLE).filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(%error, ?socket, "can't tell the service manager about this server");
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
