//! The addresses that a server listens at, as a user writes them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Where to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenAddress {
    /// Only this machine can connect.
    Loopback(u16),
    /// One address, or all of this machine's.
    At(SocketAddr),
}

/// A text that is no such address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It is a URL.
    #[error("expected an address without {0}://, such as 127.0.0.1:8000")]
    Url(&'static str),
    /// The port is missing or out of range.
    #[error("expected a port from 0 to 65535, as in 8000 or 127.0.0.1:8000")]
    Port,
    /// Anything else.
    #[error(
        "expected a port, or ADDRESS:PORT such as 127.0.0.1:8000, where ADDRESS is an IP address or \
         localhost, and an IPv6 address is in brackets"
    )]
    Other,
}

impl ListenAddress {
    /// The socket addresses to try. A machine without IPv4 has only the second.
    pub(crate) fn candidates(self) -> Vec<SocketAddr> {
        match self {
            Self::Loopback(port) => {
                vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]
            }
            Self::At(address) => vec![address],
        }
    }
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::At(address));
        }
        if let Some(scheme) =
            ["http", "https"].into_iter().find(|scheme| text.starts_with(&format!("{scheme}://")))
        {
            return Err(AddressError::Url(scheme));
        }
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        let is_loopback = host.is_empty() || host.eq_ignore_ascii_case("localhost");
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        match port.parse() {
            // The standard library would also take a sign.
            Ok(port) if is_loopback && is_number => Ok(Self::Loopback(port)),
            Err(_) if is_number => Err(AddressError::Port),
            _ => Err(AddressError::Other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_means_this_machine() {
        for text in ["8000", ":8000", "localhost:8000", "LocalHost:8000"] {
            assert_eq!(text.parse(), Ok(ListenAddress::Loopback(8000)), "{text}");
        }
        let tried = ListenAddress::Loopback(8000).candidates();
        assert_eq!(tried, ["127.0.0.1:8000".parse().unwrap(), "[::1]:8000".parse().unwrap()]);
    }

    #[test]
    fn an_address_is_taken_as_it_is() {
        for text in ["127.0.0.1:8000", "0.0.0.0:0", "[::1]:8000", "[::]:65535"] {
            let address = text.parse().unwrap();
            assert_eq!(text.parse(), Ok(ListenAddress::At(address)), "{text}");
            assert_eq!(ListenAddress::At(address).candidates(), [address]);
        }
    }

    #[test]
    fn wrong_addresses_are_explained() {
        for (texts, hint) in [
            (
                &["", ":", "127.0.0.1", "localhost", "nonsense", "example.com:80", "-1", "+80"][..],
                "a port, or",
            ),
            (&["::1:8000", "[::1]", "localhost:http", "127.0.0.1:", "1.2.3.4.5:80"], "in brackets"),
            (&["65536", "localhost:99999", "127.0.0.1:70000"], "from 0 to 65535"),
            (&["http://127.0.0.1:8000", "http://localhost:8000/mcp"], "without http://"),
            (&["https://0.0.0.0:443"], "without https://"),
        ] {
            for text in texts {
                let message = text.parse::<ListenAddress>().unwrap_err().to_string();
                assert!(message.contains(hint), "{text:?}: {message}");
            }
        }
    }
}
