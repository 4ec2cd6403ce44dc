//! Requests for packages by programs that run: a socket in the sandbox, whose clients are the commands `pip` and `npm`.
//!
//! A client sends one line and waits for others, the last of which is the answer. The runner passes the lines on between the client and the
//! server. It never waits for either of them: a client belongs to the program.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use isolator_runner::paths::INSTALL_ADDRESS;
use isolator_runner::wire::{Kind, MAX_INSTALL_REQUEST, MAX_INSTALLS, refused};
use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
    sockopt,
};
use serde_json::json;

use crate::frame_writer::FrameWriter;
use crate::poll::{self, readable};
use crate::process::would_block;

/// How long a client may take to send its request, and to read the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Clients that are accepted. Others wait until one of these has gone.
const MAX_CLIENTS: usize = 16;

/// How often a client is read before the runner looks at everything else again.
const READS_AT_ONCE: usize = 16;

/// Bytes that wait for a client up to which lines about the progress are added. The answer is always.
const MAX_UNSENT_PROGRESS: usize = 16 * 1024;

/// The socket, and the requests that are under way.
pub(crate) struct Installs {
    /// `None` if the network is not the sandbox's own and the address is taken there. Then there are no requests.
    listener: Option<OwnedFd>,
    clients: Vec<Client>,
    /// The number of the newest request.
    number: u32,
}

/// A client of the socket.
struct Client {
    socket: UnixStream,
    state: State,
    unsent: Vec<u8>,
    /// It can't be written to anymore. The poll does not say so if only its end for reading is closed.
    is_broken: bool,
}

enum State {
    /// It sends its request.
    Asks { received: Vec<u8>, is_too_long: bool, until: Instant },
    /// The server has the request with this number.
    Waits(u32),
    /// The answer is on its way to it.
    Reads { until: Instant },
}

impl Installs {
    /// Listens. No program runs yet that could take the address.
    pub(crate) fn listen() -> Self {
        Self { listener: listener(INSTALL_ADDRESS).ok(), clients: Vec::new(), number: 0 }
    }

    /// The descriptors to poll. The last one is the socket, if there is one.
    pub(crate) fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let clients = self.clients.iter().map(|client| {
            let mut flags = match client.state {
                State::Asks { .. } => PollFlags::IN,
                // Its end is reported in any case. More that it sends is never read.
                State::Waits(_) | State::Reads { .. } => PollFlags::empty(),
            };
            flags.set(PollFlags::OUT, !client.unsent.is_empty());
            PollFd::new(&client.socket, flags)
        });
        clients.chain(self.accepting().map(|listener| readable(listener.as_fd())))
    }

    /// The socket, if there is room for another client.
    fn accepting(&self) -> Option<&OwnedFd> {
        self.listener.as_ref().filter(|_| self.clients.len() < MAX_CLIENTS)
    }

    /// Whether a client has come, given the last of the descriptors that were polled.
    pub(crate) fn is_asked(&self, last: Option<&PollFd<'_>>) -> bool {
        self.accepting().is_some() && last.is_some_and(|last| !last.revents().is_empty())
    }

    /// Takes new clients if some have come, passes on their requests, and lets go of those that have their answer or have gone. Never
    /// waits for a client.
    ///
    /// # Errors
    ///
    /// When the server's end of the stream is gone.
    pub(crate) fn relay(
        &mut self,
        is_asked: bool,
        to_server: &mut FrameWriter<File>,
    ) -> io::Result<()> {
        if is_asked {
            self.accept();
        }
        let Self { clients, number, .. } = self;
        let mut at = 0;
        while at < clients.len() {
            let waiting = clients.iter().filter(|it| matches!(it.state, State::Waits(_))).count();
            let client = &mut clients[at];
            let request = client.request();
            if request.is_some() && waiting >= MAX_INSTALLS {
                let reason = format!(
                    "{MAX_INSTALLS} requests for packages are under way in this sandbox: wait until one of them has ended"
                );
                client.answer(&refused("busy", &reason));
            } else if let Some(request) = request {
                *number = number.wrapping_add(1);
                client.state = State::Waits(*number);
                send(to_server, Kind::Install, *number, &request)?;
            }
            client.send();
            if client.is_there() {
                at += 1;
            } else if let State::Waits(number) = clients.swap_remove(at).state {
                send(to_server, Kind::InstallEnded, number, &[])?;
            }
        }
        Ok(())
    }

    fn accept(&mut self) {
        while let Some(listener) = self.accepting() {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = accept_with(listener, flags) else { return };
            // Processes of other sandboxes have no number in this one.
            if !sockopt::socket_peercred(&socket).is_ok_and(|it| it.pid.as_raw_pid() > 0) {
                continue;
            }
            let until = Instant::now() + CLIENT_TIMEOUT;
            let state = State::Asks { received: Vec::new(), is_too_long: false, until };
            self.clients.push(Client {
                socket: socket.into(),
                state,
                unsent: Vec::new(),
                is_broken: false,
            });
        }
    }

    /// Passes on a line about the progress of a request. It is left out if the client does not read.
    pub(crate) fn progress(&mut self, number: u32, text: &[u8]) {
        let Some(client) = self.waiting(number) else { return };
        if client.unsent.len() < MAX_UNSENT_PROGRESS {
            let text = String::from_utf8_lossy(text);
            client.unsent.extend_from_slice(json!({ "progress": text }).to_string().as_bytes());
            client.unsent.push(b'\n');
            client.send();
        }
    }

    /// Passes on the answer to a request. The client may be gone.
    pub(crate) fn answer(&mut self, number: u32, answer: &str) {
        if let Some(client) = self.waiting(number) {
            client.answer(answer);
            client.send();
        }
    }

    /// Answers all requests, because the server is gone, and takes no others.
    pub(crate) fn close(&mut self) {
        self.listener = None;
        for client in &mut self.clients {
            client.answer(&refused("failed", "the server of this sandbox has ended"));
            client.send();
        }
    }

    fn waiting(&mut self, number: u32) -> Option<&mut Client> {
        let is_it = |client: &&mut Client| matches!(client.state, State::Waits(it) if it == number);
        self.clients.iter_mut().find(is_it)
    }
}

impl Client {
    /// The request, once all of it has come.
    fn request(&mut self) -> Option<Vec<u8>> {
        let State::Asks { received, is_too_long, until } = &mut self.state else { return None };
        let mut buffer = [0; 4096];
        for _ in 0..READS_AT_ONCE {
            match self.socket.read(&mut buffer) {
                Ok(0) => {
                    self.answer(&refused("failed", "the request has no end: it is one line"));
                    return None;
                }
                Ok(count) => {
                    received.extend_from_slice(&buffer[..count]);
                    if received.len() > MAX_INSTALL_REQUEST {
                        // The rest is read, too: otherwise the client would get an error instead of the answer.
                        *is_too_long = true;
                        received.drain(..received.len() - count);
                    }
                }
                Err(error) if would_block(&error) && Instant::now() < *until => return None,
                Err(_) => {
                    self.answer(&refused("failed", "the request did not come in time"));
                    return None;
                }
            }
            let Some(end) = received.iter().position(|byte| *byte == b'\n') else { continue };
            if *is_too_long {
                let most = MAX_INSTALL_REQUEST / 1024;
                let reason = format!("a request for packages can have {most} KiB");
                self.answer(&refused("too_large", &reason));
                return None;
            }
            received.truncate(end);
            return Some(std::mem::take(received));
        }
        None
    }

    fn answer(&mut self, answer: &str) {
        self.unsent.extend_from_slice(answer.as_bytes());
        self.unsent.push(b'\n');
        self.state = State::Reads { until: Instant::now() + CLIENT_TIMEOUT };
    }

    /// Writes as much as the socket takes.
    fn send(&mut self) {
        while !self.unsent.is_empty() {
            match self.socket.write(&self.unsent) {
                Ok(count) => drop(self.unsent.drain(..count)),
                Err(error) if would_block(&error) => return,
                Err(_) => {
                    self.unsent.clear();
                    self.is_broken = true;
                    return;
                }
            }
        }
    }

    /// Whether it still waits for something.
    fn is_there(&self) -> bool {
        let is_late = match self.state {
            State::Asks { until, .. } => Instant::now() >= until,
            State::Waits(_) => false,
            State::Reads { until } => self.unsent.is_empty() || Instant::now() >= until,
        };
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        let is_gone = poll::wait(&mut fds, Duration::ZERO).unwrap_or(true);
        !is_late && !is_gone && !self.is_broken
    }
}

/// Listens at an address in the sandbox's network namespace. Queued clients are bounded by the backlog.
fn listener(address: &[u8]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(address)?)?;
    listen(&socket, 16)?;
    Ok(socket)
}

/// Sends a message about the request with this number.
///
/// # Errors
///
/// When the server's end of the stream is gone.
pub(crate) fn send(
    to_server: &mut FrameWriter<File>,
    kind: Kind,
    number: u32,
    bytes: &[u8],
) -> io::Result<()> {
    to_server.send_bytes(kind, &[&number.to_be_bytes()[..], bytes].concat())
}

#[cfg(test)]
mod tests;
