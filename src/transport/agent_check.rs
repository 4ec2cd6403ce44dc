//! The agent check of HAProxy: a listener that answers each connection with one line, by which a balancer weighs this node.
//!
//! The line says how much of the node is free, in percent of the weight that the balancer's operator has set, and never more than
//! that. HAProxy keeps `drain` until it is told `ready`, also when the node was started again; so a node says that in the first minute in
//! which a balancer asks it, and not later, when it would end a state that the balancer's operator has set.
//!
//! No request is read. The line is written to a new connection at once, and the rest is bounded in number and time, so neither slow
//! clients nor many keep the balancer from its answer.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::http::Health;
use crate::config::Config;

/// Connections that are closed politely at the same time. If there are more, the oldest one ends at once.
const MAX_CONNECTIONS: usize = 128;

/// How long a client can take to close its side, and how much of what it sends is read meanwhile.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_READ: usize = 4096;

/// For how long a line is used again.
const LINE_AGE: Duration = Duration::from_millis(50);

/// How long a node says to a balancer that it is ready again, after its start.
const READY_FOR: Duration = Duration::from_secs(60);

/// Most addresses of balancers that are known.
const MAX_BALANCERS: usize = 256;

/// Most bytes of the reason why a node is down.
const MAX_REASON: usize = 100;

/// After accepting failed, most likely because there are no file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// A listener that is ready to answer.
pub(crate) struct AgentCheck {
    listener: TcpListener,
    address: SocketAddr,
}

/// Answers until this is dropped.
#[derive(Debug)]
pub(crate) struct Answering {
    _accepting: AbortOnDropHandle<()>,
    _tasks: TaskTracker,
}

/// How a node is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum NodeState<'a> {
    /// The part of its slots that is taken.
    Serves(f64),
    Drains,
    /// Why it can't serve.
    IsDown(&'a str),
}

impl AgentCheck {
    /// Listens where the configuration says; `None` if it names no address.
    ///
    /// # Errors
    ///
    /// When it can't listen there.
    pub(crate) async fn bind(config: &Config) -> anyhow::Result<Option<Self>> {
        let Some(address) = config.node.agent_check else { return Ok(None) };
        let listener =
            super::http::listen(&address.candidates()).await.context("node.agentCheck")?;
        let address = listener.local_addr()?;
        Ok(Some(Self { listener, address }))
    }

    /// Begins to answer.
    pub(crate) fn start(self, health: Health) -> Answering {
        let Self { listener, address } = self;
        tracing::info!(agent_check = %address, "listening for the agent checks of a load balancer");
        let tasks = TaskTracker::new();
        let accepting = tasks.spawn(accept(listener, health, tasks.clone()));
        Answering { _accepting: AbortOnDropHandle::new(accepting), _tasks: tasks }
    }
}

async fn accept(listener: TcpListener, health: Health, tasks: TaskTracker) {
    let mut closing: VecDeque<AbortHandle> = VecDeque::new();
    let mut balancers: HashMap<IpAddr, Instant> = HashMap::new();
    let mut known: [Option<(Instant, String)>; 2] = [None, None];
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let is_new = is_new(&mut balancers, peer.ip());
        let known = &mut known[usize::from(is_new)];
        let line = match known.take().filter(|(since, _)| since.elapsed() < LINE_AGE) {
            Some(known) => known,
            None => (Instant::now(), line_of(&health, is_new)),
        };
        // There is room for a line in every new connection.
        let written = stream.try_write(line.1.as_bytes());
        *known = Some(line);
        if written.is_err() {
            continue;
        }
        closing.retain(|task| !task.is_finished());
        if closing.len() >= MAX_CONNECTIONS
            && let Some(oldest) = closing.pop_front()
        {
            oldest.abort();
        }
        let closed = timeout(CLOSE_TIMEOUT, close(stream));
        closing.push_back(tasks.spawn(async { drop(closed.await) }).abort_handle());
    }
}

/// Whether the balancer at this address has asked for the first time not long ago. The path to it can open long after the start.
fn is_new(balancers: &mut HashMap<IpAddr, Instant>, address: IpAddr) -> bool {
    if balancers.len() < MAX_BALANCERS {
        balancers.entry(address).or_insert_with(Instant::now);
    }
    balancers.get(&address).is_some_and(|since| since.elapsed() < READY_FOR)
}

/// Closes a connection after its client has read the line. What a client sends is read before: a connection with unread bytes is
/// reset, and the line with it.
async fn close(mut stream: TcpStream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let (mut all, mut bytes) = (0, [0; 512]);
    while let Ok(read @ 1..) = stream.read(&mut bytes).await {
        all += read;
        if all > MAX_READ {
            return;
        }
    }
}

fn line_of(health: &Health, is_new: bool) -> String {
    if health.is_drained() {
        return line(NodeState::Drains, is_new);
    }
    match health.not_ready().first() {
        Some(reason) => line(NodeState::IsDown(&reason.what), is_new),
        None => line(NodeState::Serves(health.load()), is_new),
    }
}

/// The line for a state. A node that `is_new` may have been drained before it was started again.
fn line(state: NodeState<'_>, is_new: bool) -> String {
    let ready = if is_new { "ready " } else { "" };
    match state {
        NodeState::Drains => "drain\n".to_owned(),
        NodeState::IsDown(why) => {
            let why: String =
                why.chars().map(|it| if it.is_control() { ' ' } else { it }).collect();
            format!("{ready}down#{}\n", &why[..why.floor_char_boundary(MAX_REASON)])
        }
        // A weight of zero would take it out, although it serves those that wait.
        NodeState::Serves(load) => {
            format!("{ready}up {}%\n", ((1.0 - load) * 100.0).round().clamp(1.0, 100.0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_how_much_is_free_and_never_more_than_all() {
        for (load, expected) in [
            (0.0, "up 100%\n"),
            (0.25, "up 75%\n"),
            (1.0, "up 1%\n"),
            (7.5, "up 1%\n"),
            (-1.0, "up 100%\n"),
        ] {
            assert_eq!(line(NodeState::Serves(load), false), expected);
        }
        assert_eq!(line(NodeState::Serves(0.5), true), "ready up 50%\n");
    }

    #[tokio::test(start_paused = true)]
    async fn each_balancer_is_told_that_the_node_is_ready_when_it_first_asks() {
        let mut balancers = HashMap::new();
        let address = |last| IpAddr::from([192, 0, 2, last]);
        assert!(is_new(&mut balancers, address(1)));
        sleep(READY_FOR).await;
        assert!(!is_new(&mut balancers, address(1)));
        assert!(is_new(&mut balancers, address(2)));
        for last in 0..=255 {
            is_new(&mut balancers, address(last));
        }
        assert!(!is_new(&mut balancers, IpAddr::from([198, 51, 100, 1])));
        assert_eq!(balancers.len(), MAX_BALANCERS);
    }

    #[test]
    fn a_node_that_drains_or_is_down_says_so_in_one_line() {
        assert_eq!(line(NodeState::Drains, true), "drain\n");
        assert_eq!(line(NodeState::IsDown("no\nsandbox"), false), "down#no sandbox\n");
        assert_eq!(
            line(NodeState::IsDown(&"é".repeat(99)), false).len(),
            "down#\n".len() + MAX_REASON
        );
    }
}
