//! Admission of requests to the APIs: their client, the name by which they call this machine, and the memory that a request and its
//! answer can take. The rules are those of MCP.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::response::Response;
use hyper::body::{Body as _, Frame};
use isolator_pool::pool::admission::Client;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::address::Network;
use crate::calls::budget::{Budget, Share};
use crate::current::Current;
use crate::web::{Peer, Refused, Rules, Side, Weighed, bearer, receive};

/// The header with a token, for clients that can't send it as a bearer.
pub(crate) const API_KEY: &str = "x-api-key";

/// How long a client that has closed its sending side is waited for. Almost all that do so are gone, and one that waits for a short
/// program is answered.
const HALF_CLOSED_GRACE: Duration = Duration::from_secs(2);

/// Admits requests to the APIs of a listener; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    /// The clients that can call, and the names of this machine.
    rules: Current<Rules>,
    /// Bodies that are being received and served, those of MCP among them.
    bodies: Budget,
    /// Answers that are still being sent. A server that stops waits for them.
    answers: TaskTracker,
    /// Cancelled when no more requests are served.
    draining: CancellationToken,
}

/// The sender of a request that was let in, with what the request takes of the server.
#[derive(Debug)]
pub(crate) struct Caller {
    /// The client.
    pub(crate) client: Client,
    /// The bytes of the request, and then those of its answer.
    pub(crate) share: Share,
    side: Side,
    gate: Gate,
    answer: TaskTrackerToken,
}

/// How often the token of a client is looked for whose answer is still being sent.
const CHECK_EVERY: Duration = Duration::from_secs(3);

/// A stream that breaks off when its client is not known anymore.
struct WhileKnown {
    body: Body,
    gate: Gate,
    client: Client,
    next_check: Interval,
}

impl Gate {
    /// With the rules and the memory of a listener.
    pub(crate) fn new(
        rules: Current<Rules>,
        bodies: Budget,
        answers: TaskTracker,
        draining: CancellationToken,
    ) -> Self {
        Self { rules, bodies, answers, draining }
    }

    /// Checks the head of a request, apart from its client: the name by which it calls this machine, and whether requests are
    /// still served.
    ///
    /// # Errors
    ///
    /// The refusal.
    pub(crate) fn check(&self, head: &Parts) -> Result<(), Refused> {
        self.check_named(head, |_| false)
    }

    /// The same for an API that has names of its own.
    ///
    /// # Errors
    ///
    /// The refusal.
    pub(crate) fn check_named(
        &self,
        head: &Parts,
        is_own: impl Fn(&Authority) -> bool,
    ) -> Result<(), Refused> {
        let host = head.headers.get(HOST).and_then(|host| host.to_str().ok());
        let host = host.ok_or(Refused::NoHost)?;
        // One that is no host was refused before.
        let is_allowed = |host: &Authority| is_own(host) || self.rules.get().allow_host(host);
        if !host.parse::<Authority>().is_ok_and(|host| is_allowed(&host)) {
            return Err(Refused::Host(host.chars().take(100).collect()));
        }
        if self.draining.is_cancelled() { Err(Refused::ShuttingDown) } else { Ok(()) }
    }

    /// The client of a request. A token in it has to be valid; without one, the address has to be in one of the networks `open_to`,
    /// unless there are no tokens at all.
    ///
    /// # Errors
    ///
    /// The refusal.
    pub(crate) fn client(&self, head: &Parts, open_to: &[Network]) -> Result<Client, Refused> {
        let peer = head.extensions.get::<Peer>();
        let rules = self.rules.get();
        let Some(tokens) = &rules.tokens else { return Ok(Peer::client(peer)) };
        let key = || head.headers.get(API_KEY).and_then(|key| key.to_str().ok());
        match bearer(&head.headers).or_else(key) {
            Some(token) => tokens.client(token),
            None => {
                let is_open =
                    peer.is_some_and(|Peer(at)| open_to.iter().any(|network| network.has(at.ip())));
                if !is_open {
                    return Err(Refused::NoToken);
                }
                // Local pages are those of the machine on which the browser runs.
                let is_here = peer.is_some_and(|Peer(at)| at.ip().to_canonical().is_loopback());
                let mut pages = head.headers.get_all(ORIGIN).iter();
                if !is_here && pages.any(|origin| !rules.origins.allow_listed(origin)) {
                    return Err(Refused::Origin);
                }
                Ok(Peer::client(peer))
            }
        }
    }

    /// Whether a client that was let in before would be let in now: its token may have been removed or have expired.
    pub(crate) fn still_knows(&self, client: &Client) -> bool {
        match (&self.rules.get().tokens, client) {
            (Some(tokens), Client::Token(_)) => tokens.knows(client),
            (Some(_), Client::Address(_)) => false,
            _ => true,
        }
    }

    /// Lets a client in.
    pub(crate) fn let_in(&self, head: &Parts, client: Client) -> Caller {
        let side = head.extensions.get::<Side>().cloned().unwrap_or_default();
        let share = self.bodies.share(&client);
        Caller { client, share, side, gate: self.clone(), answer: self.answers.token() }
    }
}

impl Caller {
    /// Receives the whole body of the request, at most `most` bytes.
    ///
    /// # Errors
    ///
    /// The refusal.
    pub(crate) async fn receive(
        &mut self,
        head: &Parts,
        mut body: Body,
        most: usize,
    ) -> Result<Bytes, Refused> {
        receive(&head.headers, &mut body, most, &mut self.share).await
    }

    /// Waits until the client is most likely gone: it has closed at least its sending side, and a moment has passed. One that is
    /// surely gone drops the future that answers it.
    pub(crate) async fn gone(&self) {
        self.departure().await;
    }

    /// The same for a task that outlives the request.
    pub(crate) fn departure(&self) -> impl Future<Output = ()> + Send + use<> {
        let side = self.side.clone();
        async move {
            side.closed().cancelled().await;
            tokio::time::sleep(HALF_CLOSED_GRACE).await;
        }
    }

    /// The caller of a task that goes on when this one is gone. It has the bytes of the request from now on.
    pub(crate) fn for_task(&mut self) -> Self {
        let Self { client, gate, answer, .. } = &*self;
        let (client, gate, answer) = (client.clone(), gate.clone(), answer.clone());
        Self { client, share: self.share.take(), side: Side::default(), gate, answer }
    }

    /// The answer to the client. Until it has read it, the bytes of the answer are counted as the client's.
    pub(crate) fn answer(mut self, response: Response) -> Response {
        // The request has been served. Of a stream the size is not known before.
        let size = response.body().size_hint().exact();
        self.share.replace(usize::try_from(size.unwrap_or_default()).unwrap_or(usize::MAX));
        let Self { client, share, gate, answer, .. } = self;
        let is_stream = size.is_none();
        response.map(|body| {
            let body = match &client {
                Client::Token(_) if is_stream => Body::new(WhileKnown::new(body, gate, client)),
                _ => body,
            };
            Body::new(Weighed::new(body, share, Some(answer)))
        })
    }

    /// Whether the client would still be let in.
    pub(crate) fn is_known(&self) -> bool {
        self.gate.still_knows(&self.client)
    }
}

impl WhileKnown {
    fn new(body: Body, gate: Gate, client: Client) -> Self {
        let mut next_check = interval_at(Instant::now() + CHECK_EVERY, CHECK_EVERY);
        next_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { body, gate, client, next_check }
    }
}

impl hyper::body::Body for WhileKnown {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        while self.next_check.poll_tick(context).is_ready() {
            if !self.gate.still_knows(&self.client) {
                let message = "the client has no valid token anymore";
                return Poll::Ready(Some(Err(axum::Error::new(io::Error::other(message)))));
            }
        }
        Pin::new(&mut self.body).poll_frame(context)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use axum::http::Request;

    use super::*;
    use crate::config::HttpConfig;
    use crate::web::{Token, TokenForm};

    fn head(from: [u8; 4], origin: Option<&str>) -> Parts {
        let mut request = Request::builder().header(HOST, "localhost");
        if let Some(origin) = origin {
            request = request.header(ORIGIN, origin);
        }
        let peer = Peer((Ipv4Addr::from(from), 1).into());
        request.extension(peer).body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_page_on_another_machine_needs_a_token_or_an_entry_in_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let tokens = folder.path().join("tokens");
        let (token, _) = Token::new("one", None, TokenForm::Isolator).unwrap();
        std::fs::write(&tokens, token.to_string()).unwrap();
        let settings = HttpConfig {
            tokens: Some(tokens),
            allowed_origins: vec!["https://agent.example:443".to_owned()],
            ..HttpConfig::default()
        };
        let rules = Rules::new(&settings, IpAddr::V4(Ipv4Addr::UNSPECIFIED)).unwrap();
        let (answers, draining) = (TaskTracker::new(), CancellationToken::new());
        let gate = Gate::new(Current::new(rules), Budget::new(1, 1), answers, draining);
        let open_to = ["10.0.0.0/8".parse().unwrap(), "127.0.0.1".parse().unwrap()];
        let client = |from, origin| gate.client(&head(from, origin), &open_to).map(drop);
        let (here, there) = ([127, 0, 0, 1], [10, 0, 0, 1]);
        assert_eq!(client(there, None), Ok(()));
        assert_eq!(client(there, Some("https://agent.example")), Ok(()));
        assert_eq!(client(here, Some("http://localhost:3000")), Ok(()));
        assert_eq!(client(there, Some("http://localhost:3000")), Err(Refused::Origin));
        assert_eq!(client([192, 0, 2, 1], None), Err(Refused::NoToken));
    }
}
