//! The addresses that a server listens at, and the networks that it knows, as a user writes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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

/// The addresses that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// The bits, and zeros after them.
    bits: u128,
    /// How many bits all of its addresses have in common, counted as for IPv6.
    prefix: u32,
}

/// A text that is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no address and no network: expected one such as \"192.0.2.7\", \"10.0.0.0/8\" or \"2001:db8::/32\""
)]
pub struct NoNetwork(String);

impl Network {
    /// Whether an address is in it. An IPv4 address written as one of IPv6 is the same.
    pub(crate) fn has(self, address: IpAddr) -> bool {
        kept(bits(address), self.prefix) == self.bits
    }
}

/// An address in the form that all have.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn kept(bits: u128, prefix: u32) -> u128 {
    let rest = u128::BITS - prefix;
    bits.checked_shr(rest).and_then(|bits| bits.checked_shl(rest)).unwrap_or_default()
}

impl FromStr for Network {
    type Err = NoNetwork;

    fn from_str(text: &str) -> Result<Self, NoNetwork> {
        let wrong = || NoNetwork(text.chars().take(60).collect());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u32>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let length = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(length);
        if prefix > length {
            return Err(wrong());
        }
        let prefix = u128::BITS - length + prefix;
        Ok(Self { bits: kept(bits(address), prefix), prefix })
    }
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
    fn a_network_has_the_addresses_that_begin_with_its_bits() {
        for (network, address, is_in) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.1.2.3/8", "10.9.9.9", true),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
            ("192.0.2.7", "::ffff:192.0.2.7", true),
            ("0.0.0.0/0", "203.0.113.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("2001:db8::/32", "2001:db8:1::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
        ] {
            let network: Network = network.parse().unwrap();
            assert_eq!(network.has(address.parse().unwrap()), is_in, "{network:?} {address}");
        }
        for wrong in [
            "",
            "localhost",
            "10.0.0.0/33",
            "10.0.0/8",
            "::/129",
            "10.0.0.0/",
            "a/8",
            "10.0.0.1:80",
        ] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong:?}");
        }
    }

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
