//! Notifications to the service manager that started a server, as systemd expects of a unit with `Type=notify` or
//! `Type=notify-reload`.

use std::convert::Infallible;
use std::env;
use std::ffi::OsStr;
use std::future::pending;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// The socket of the service manager. Without it, there is none.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// How long, in microseconds, the manager waits for the next sign of life, and of which process.
const WATCHDOG: [&str; 2] = ["WATCHDOG_USEC", "WATCHDOG_PID"];

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

    /// Gives signs of life as often as the manager wants, as long as the server can serve: the caller's task runs, another
    /// thread of the runtime takes a task, and a thread that may wait comes to the end of `look`. Never returns.
    ///
    /// The engine does not count: calls to it have deadlines, what hangs is replaced, and a new server would have the same one.
    pub(super) async fn stay_alive(&self, look: impl Fn() + Clone + Send + 'static) -> Infallible {
        let [within, process] = WATCHDOG.map(|name| env::var(name).ok());
        let Some(within) = sign_within(within.as_deref(), process.as_deref()) else {
            return pending().await;
        };
        let tasks = TaskTracker::new();
        loop {
            let look = look.clone();
            let looked = AbortOnDropHandle::new(tasks.spawn(tokio::task::spawn_blocking(look)));
            match tokio::time::timeout(within, looked).await {
                Ok(Ok(Ok(()))) => tell("WATCHDOG=1"),
                _ => tracing::error!(
                    "this server can't look at its own state, so the service manager gets no sign of life"
                ),
            }
            tokio::time::sleep(within / SIGNS).await;
        }
    }

    /// It takes no more calls and ends.
    pub(super) fn stopping(&self) {
        tell("STOPPING=1\nSTATUS=stopping");
    }
}

/// Signs of life in the time in which the manager wants one.
const SIGNS: u32 = 3;

/// How long the manager waits for the next sign of life of this process, if it does.
fn sign_within(within: Option<&str>, process: Option<&str>) -> Option<Duration> {
    let is_ours = process.is_none_or(|process| process.parse() == Ok(std::process::id()));
    let within = within?.parse().ok().filter(|within| *within > 0 && is_ours)?;
    Some(Duration::from_micros(within))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_life_are_only_for_the_process_that_the_manager_watches() {
        let own = std::process::id().to_string();
        let minute = Some(Duration::from_secs(60));
        for (within, process, expected) in [
            (Some("60000000"), None, minute),
            (Some("60000000"), Some(own.as_str()), minute),
            (Some("60000000"), Some("1"), None),
            (Some("60000000"), Some(""), None),
            (Some("0"), None, None),
            (Some("soon"), None, None),
            (None, None, None),
        ] {
            assert_eq!(sign_within(within, process), expected, "{within:?} {process:?}");
        }
    }
}
