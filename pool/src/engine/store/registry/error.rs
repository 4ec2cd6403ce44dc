//! Why a registry did not provide an image.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use reqwest::{StatusCode, Url};

use crate::error_chain::error_chain;

/// Why a registry did not provide an image. `place` is an address without its secrets.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegistryError {
    #[error("{}", error_chain(.0))]
    Client(#[source] reqwest::Error),
    #[error("{0}")]
    Address(#[source] <Url as FromStr>::Err),
    #[error("{place} was not asked: {source}")]
    NotAsked { place: String, source: RefusedAddress },
    #[error("{place}: {}", error_chain(source))]
    Request { place: String, source: reqwest::Error },
    #[error("{place}: no answer within {patience:?}")]
    NoAnswer { place: String, patience: Duration },
    #[error("{0} redirects to no address")]
    NoTarget(String),
    #[error("it redirects more than {0} times")]
    TooManyRedirects(usize),
    #[error("{place} is too slow: {received} bytes of an answer in {waited:.0?}")]
    TooSlow { place: String, received: u64, waited: Duration },
    #[error("{place} sends an answer of more than {most} bytes")]
    TooLong { place: String, most: u64 },
    #[error("its token server has no address")]
    NoTokenServer,
    #[error("{place} gives no token: {status}")]
    NoToken { place: String, status: StatusCode },
    #[error("{0} answers without a token")]
    AnswerWithoutToken(String),
    #[error("its token has characters that can't be sent")]
    UnsendableToken,
    /// The registry's own words, with its status.
    #[error("{0}")]
    Refused(String),
}

/// Why an address that came from a registry is not asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum RefusedAddress {
    #[error("it would not be encrypted")]
    Unencrypted,
    #[error("{0} is not a public address, and the registry is elsewhere")]
    NotPublic(IpAddr),
    #[error("{name}: {source}")]
    Name { name: String, source: Box<RefusedAddress> },
}
