//! The parts of HTTP that MCP and the [APIs](crate::apis) share: the clients of requests, what they may call, and how their
//! bodies and answers are weighed. Nothing here knows a protocol.

mod body;
mod half_close;
mod origins;
mod outcome;
mod refused;
mod rules;
mod tokens;

use std::net::SocketAddr;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use isolator_pool::pool::admission::{Client, Place};

pub(crate) use self::body::{Weighed, discard, discard_rest, receive};
pub(crate) use self::half_close::{AnswerBody, Patient, Received, Side};
pub(crate) use self::outcome::{OUTCOME, OutcomeSlot, asks_for_status, set_outcome, set_status};
pub(crate) use self::refused::Refused;
pub(crate) use self::rules::{Rules, open_to_others};
pub(crate) use self::tokens::{Token, TokenForm, Tokens};

/// Names of this machine for itself.
pub(crate) const LOCAL_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// The address that a request came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Peer {
    /// The client at this address, if it has no token.
    pub(crate) fn client(peer: Option<&Self>) -> Client {
        Client::Address(peer.map_or(Place::LOOPBACK, |Self(address)| Place::of(address.ip())))
    }
}

/// The client whose token a request has as a bearer.
///
/// # Errors
///
/// The refusal of a request that has none of the tokens.
pub(crate) fn client_of(tokens: &Tokens, headers: &HeaderMap) -> Result<Client, Refused> {
    tokens.client(bearer(headers).ok_or(Refused::NoToken)?)
}

/// The token of the header, whose scheme may be written in any case.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
