//! Clients, the senders of requests: slots and memory are shared fairly between them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The sender of a request. Requests of one client are served in the order of their arrival.
///
/// Its text is for people and logs, and differs for any two clients. A token has its name; one whose name is also the text of
/// another client has `token:` before it, which no other text begins with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Client {
    /// The only client of a server with one host.
    Host,
    /// The holders of a token of this name.
    Token(Arc<str>),
    /// The callers from an address without a token.
    Address(Place),
    /// The server, for what it does without being asked.
    Server,
}

/// The text of [`Client::Host`].
const HOST: &str = "host";

/// The text of [`Client::Server`]. No token has a name with a space.
const SERVER: &str = "the server";

impl Client {
    /// The client with a token of this name.
    pub fn named(name: &str) -> Self {
        Self::Token(name.into())
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str(HOST),
            Self::Token(name) if is_text_of_another(name) => write!(f, "token:{name}"),
            Self::Token(name) => f.write_str(name),
            Self::Address(place) => place.fmt(f),
            Self::Server => f.write_str(SERVER),
        }
    }
}

fn is_text_of_another(name: &str) -> bool {
    name == HOST || name.parse::<IpAddr>().is_ok()
}

/// The origin of connections, as far as addresses identify it: a client with one of the addresses of a place can have all
/// of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place(IpAddr);

/// The part of an IPv6 address that names a network. Its owner chooses the rest.
const NETWORK: u128 = !(u64::MAX as u128);

impl Place {
    /// This machine, under all of its loopback addresses.
    pub const LOOPBACK: Self = Self(IpAddr::V4(Ipv4Addr::LOCALHOST));

    /// The place of an address. An IPv4 address written as one of IPv6 is the same, and an IPv6 network of 64 bits is one place.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            address if address.is_loopback() => Self::LOOPBACK,
            IpAddr::V6(address) => Self(Ipv6Addr::from_bits(address.to_bits() & NETWORK).into()),
            address => Self(address),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(network) => write!(f, "{network}/64"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(address: &str) -> Place {
        Place::of(address.parse().unwrap())
    }

    #[test]
    fn a_place_is_this_machine_an_ipv4_address_or_an_ipv6_network() {
        for (one, other, is_same) in [
            ("127.0.0.1", "127.0.0.2", true),
            ("127.0.0.1", "127.255.255.254", true),
            ("127.0.0.1", "::1", true),
            ("127.0.0.1", "::ffff:127.0.0.9", true),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("192.0.2.1", "127.0.0.1", false),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            // Not loopback, although its network has the address that is.
            ("::1", "::2", false),
        ] {
            assert_eq!(place(one) == place(other), is_same, "{one} {other}");
        }
    }

    #[test]
    fn no_two_clients_have_the_same_text() {
        let at = |address| Client::Address(place(address));
        for (client, text) in [
            (Client::Host, "host"),
            (Client::Server, "the server"),
            (at("127.0.0.9"), "127.0.0.1"),
            (at("192.0.2.1"), "192.0.2.1"),
            (at("2001:db8::1"), "2001:db8::/64"),
            (Client::named("ci@build"), "ci@build"),
            (Client::named("host"), "token:host"),
            (Client::named("127.0.0.1"), "token:127.0.0.1"),
            (Client::named("server"), "server"),
            (Client::named("127.1"), "127.1"),
        ] {
            assert_eq!(client.to_string(), text);
        }
    }
}
