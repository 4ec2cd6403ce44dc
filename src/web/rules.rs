//! The clients that can call under a configuration: tokens, names of this machine, and origins of pages.

use std::fmt::Display;
use std::net::IpAddr;

use anyhow::{Context as _, bail};
use axum::http::uri::Authority;

use super::LOCAL_HOSTS;
use super::origins::{self, Origins};
use super::tokens::Tokens;
use crate::config::HttpConfig;

/// The rules of a configuration for clients.
#[derive(Debug)]
pub(crate) struct Rules {
    /// The clients that can call; all if there are no tokens.
    pub(crate) tokens: Option<Tokens>,
    /// The pages that can.
    pub(crate) origins: Origins,
    /// Their origins, as they are written.
    listed: Vec<String>,
    /// The names by which clients call this machine.
    hosts: Vec<String>,
}

impl Rules {
    /// Those of a configuration, for a server that listens at this address.
    ///
    /// # Errors
    ///
    /// When the file of tokens can't be used, or other machines could call without a token.
    pub(crate) fn new(settings: &HttpConfig, bound: IpAddr) -> anyhow::Result<Self> {
        if settings.tokens.is_none() && !bound.is_loopback() {
            bail!(open_to_others(&bound));
        }
        let tokens = settings.tokens.clone().map(Tokens::read).transpose();
        Ok(Self {
            tokens: tokens.context("http.tokens")?,
            origins: Origins::new(&settings.allowed_origins),
            listed: origins::listed(&settings.allowed_origins),
            hosts: hosts(bound, &settings.allowed_hosts),
        })
    }

    /// The names by which clients call this machine, as they are written.
    pub(crate) fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The origins of the pages that can call, as they are written.
    pub(crate) fn listed_origins(&self) -> &[String] {
        &self.listed
    }

    /// Whether a request can call this machine by this name: an entry without a port stands for all ports.
    pub(crate) fn allow_host(&self, host: &Authority) -> bool {
        let is_same = |one: &str, other: &str| {
            let bare = |name: &str| name.trim_matches(['[', ']']).to_ascii_lowercase();
            bare(one) == bare(other)
        };
        self.hosts.iter().any(|allowed| match allowed.parse::<Authority>() {
            Ok(named) if named.port().is_some() => {
                is_same(named.host(), host.host()) && named.port_u16() == host.port_u16()
            }
            Ok(named) => is_same(named.host(), host.host()),
            // An address of IPv6 without brackets.
            Err(_) => is_same(allowed, host.host()),
        })
    }
}

/// The error for an address that other machines reach without a token.
pub(crate) fn open_to_others(address: &dyn Display) -> String {
    format!(
        "other machines can reach {address}, and anyone who reaches it can run programs: create a token with \
         `isolator token NAME`, put its line into a file and set http.tokens to that file, or listen on 127.0.0.1"
    )
}

fn hosts(bound: IpAddr, allowed: &[String]) -> Vec<String> {
    let own = (!bound.is_unspecified()).then(|| bound.to_string());
    if own.is_none() && allowed.is_empty() {
        tracing::warn!(
            "only requests to localhost are answered: list the names by which clients call this machine \
             in http.allowedHosts"
        );
    }
    LOCAL_HOSTS.iter().map(|host| (*host).to_owned()).chain(own).chain(allowed.to_vec()).collect()
}
