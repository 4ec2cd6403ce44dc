use std::io::{BufRead as _, BufReader, PipeReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};

use isolator_runner::wire::{FrameDecoder, numbered};

use super::*;

/// The socket of a runner, and the server's end of its stream.
struct World {
    installs: Installs,
    to_server: FrameWriter<File>,
    server: PipeReader,
    decoder: FrameDecoder,
    address: String,
}

impl World {
    fn new(name: &str) -> Self {
        let address = format!("isolator-test-{name}-{}", std::process::id());
        let listener = Some(listener(address.as_bytes()).unwrap());
        let (server, writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&server, true).unwrap();
        Self {
            installs: Installs { listener, clients: Vec::new(), number: 0 },
            to_server: FrameWriter::new(File::from(OwnedFd::from(writer))),
            server,
            decoder: FrameDecoder::default(),
            address,
        }
    }

    fn client(&self, says: &[u8]) -> UnixStream {
        let address = SocketAddr::from_abstract_name(self.address.as_bytes()).unwrap();
        let mut client = UnixStream::connect_addr(&address).unwrap();
        client.write_all(says).unwrap();
        client
    }

    /// A few turns of the runner. Returns the frames that it has sent meanwhile.
    fn turns(&mut self) -> Vec<(Kind, u32, String)> {
        for _ in 0..40 {
            let mut fds: Vec<_> = self.installs.fds().collect();
            poll::wait(&mut fds, Duration::ZERO).unwrap();
            let is_asked = self.installs.is_asked(fds.last());
            self.installs.relay(is_asked, &mut self.to_server).unwrap();
            assert!(self.installs.clients.len() <= MAX_CLIENTS);
        }
        let mut piece = vec![0; 1 << 20];
        while let Ok(count @ 1..) = self.server.read(&mut piece) {
            self.decoder.feed(&piece[..count]);
        }
        let mut frames = Vec::new();
        while let Some((kind, payload)) = self.decoder.next_frame().unwrap() {
            let (number, rest) = numbered(kind, &payload).unwrap();
            frames.push((kind, number, String::from_utf8_lossy(rest).into_owned()));
        }
        frames
    }
}

/// The lines that a client gets until the end.
fn heard(client: &UnixStream) -> Vec<String> {
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    BufReader::new(client).lines().map(Result::unwrap).collect()
}

#[test]
fn a_request_goes_to_the_server_and_its_answer_comes_back() {
    let mut world = World::new("one");
    let client = world.client(b"{\"a\":");
    assert_eq!(world.turns(), []);
    (&client).write_all(b"1}\nmore").unwrap();
    assert_eq!(world.turns(), [(Kind::Install, 1, "{\"a\":1}".to_owned())]);
    world.installs.progress(1, b"it is built");
    world.installs.answer(7, "of another request");
    world.installs.answer(1, "{}");
    assert_eq!(world.turns(), []);
    // Bytes that the runner has never read cut the connection off after the answer.
    let mut lines = [String::new(), String::new()];
    let mut reader = BufReader::new(&client);
    for line in &mut lines {
        reader.read_line(line).unwrap();
    }
    assert_eq!(lines, ["{\"progress\":\"it is built\"}\n", "{}\n"]);
    assert!(world.installs.clients.is_empty());
}

#[test]
fn a_request_ends_with_its_client() {
    let mut world = World::new("gone");
    let client = world.client(b"first\n");
    assert_eq!(world.turns(), [(Kind::Install, 1, "first".to_owned())]);
    drop(client);
    assert_eq!(world.turns(), [(Kind::InstallEnded, 1, String::new())]);
    world.installs.answer(1, "too late");
    drop(world.client(b"half"));
    assert_eq!(world.turns(), []);
    assert!(world.installs.clients.is_empty());
}

#[test]
fn a_flood_of_clients_is_served_a_few_at_a_time() {
    let mut world = World::new("flood");
    let silent: Vec<_> = (0..8).map(|_| world.client(b"")).collect();
    let clients: Vec<_> = (0..8).map(|_| world.client(b"wanted\n")).collect();
    assert_eq!(world.turns().len(), MAX_INSTALLS);
    let late: Vec<_> = (0..8).map(|_| world.client(b"wanted\n")).collect();
    assert_eq!(world.turns(), []);
    for client in clients.iter().skip(MAX_INSTALLS).chain(&late) {
        assert!(heard(client)[0].contains("\"kind\":\"busy\""));
    }
    // Those that say nothing make room after a while.
    for client in &mut world.installs.clients {
        if let State::Asks { until, .. } = &mut client.state {
            *until = Instant::now();
        }
    }
    world.turns();
    assert!(silent.iter().all(|client| heard(client)[0].contains("did not come in time")));
    // The server is gone.
    world.installs.close();
    world.turns();
    for client in &clients[..MAX_INSTALLS] {
        assert!(heard(client)[0].contains("the server of this sandbox has ended"));
    }
    assert!(world.installs.clients.is_empty());
}

#[test]
fn a_request_that_is_too_long_or_never_ends_is_answered() {
    let mut world = World::new("long");
    let endless = world.client(b"no end");
    endless.shutdown(Shutdown::Write).unwrap();
    let long = world.client(&vec![b'x'; MAX_INSTALL_REQUEST + 5000]);
    assert_eq!(world.turns(), []);
    assert!(heard(&endless)[0].contains("has no end"));
    let kept = world.installs.clients.iter().map(|client| match &client.state {
        State::Asks { received, .. } => received.len(),
        _ => 0,
    });
    assert!(kept.sum::<usize>() <= MAX_INSTALL_REQUEST + 4096);
    (&long).write_all(b"\n").unwrap();
    assert_eq!(world.turns(), []);
    assert!(heard(&long)[0].contains("\"kind\":\"too_large\""));
}

#[test]
fn a_client_that_stops_reading_is_let_go_at_the_next_line() {
    let mut world = World::new("shut");
    let client = world.client(b"asks\n");
    assert_eq!(world.turns(), [(Kind::Install, 1, "asks".to_owned())]);
    client.shutdown(Shutdown::Read).unwrap();
    assert!(world.turns().is_empty() && world.installs.clients.len() == 1);
    world.installs.progress(1, b"half of it");
    // The poll would come back at once for as long as something waits for it.
    assert!(world.installs.clients.iter().all(|client| client.unsent.is_empty()));
    assert_eq!(world.turns(), [(Kind::InstallEnded, 1, String::new())]);
    assert!(world.installs.clients.is_empty());
}
