//! The check of addresses that a registry leads the server to.
//!
//! Redirects and the addresses of token servers come from the registry, which is not trusted. The server often
//! runs inside a company's network, and requests from there reach what the registry itself can't.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::error::RefusedAddress;

/// From where an address can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    Public,
    /// A network of a company or of a home.
    Private,
    /// One cable. Clouds answer with the secrets of a machine there.
    Link,
    Machine,
    /// Not the address of a single host.
    Reserved,
}

/// Checks every address before a request is sent to it.
#[derive(Debug)]
pub(super) struct Guard {
    registry: Url,
    /// Where the registry is: the most public of its addresses. Not known if a proxy looks it up.
    reach: OnceLock<Reach>,
    /// The names that were checked. Other names are those of the operator's proxies, which may be anywhere.
    names: Mutex<BTreeSet<String>>,
}

impl Guard {
    pub(super) fn new(registry: Url) -> Self {
        Self { registry, reach: OnceLock::new(), names: Mutex::default() }
    }

    /// Checks an address that came from the registry. The addresses of a name are checked when it is looked up.
    pub(super) fn check(&self, url: &Url) -> Result<(), RefusedAddress> {
        // The traffic to a registry on this machine can't be intercepted.
        let is_safe = match url.scheme() {
            "https" => true,
            "http" => self.registry.scheme() == "http" && url.host() == self.registry.host(),
            _ => false,
        };
        if !is_safe {
            return Err(RefusedAddress::Unencrypted);
        }
        let host = url.host_str().unwrap_or_default();
        match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => self.admit(host, address),
            Err(_) => {
                let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
                names.insert(host.to_owned());
                Ok(())
            }
        }
    }

    /// Whether a host may have an address.
    fn admit(&self, host: &str, address: IpAddr) -> Result<(), RefusedAddress> {
        let there = reach(address);
        let here = if self.is_registry(host) {
            *self.reach.get_or_init(|| there)
        } else {
            self.reach.get().copied().unwrap_or(Reach::Public)
        };
        match (here, there) {
            (_, Reach::Public) | (Reach::Machine, Reach::Private) => Ok(()),
            (here, there) if here == there => Ok(()),
            _ => Err(RefusedAddress::NotPublic(address)),
        }
    }

    fn is_registry(&self, host: &str) -> bool {
        self.registry.host_str() == Some(host)
    }

    /// The addresses of a name that may be used.
    fn select(
        &self,
        name: &str,
        mut found: Vec<SocketAddr>,
    ) -> Result<Vec<SocketAddr>, RefusedAddress> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if !names.contains(name) {
            return Ok(found);
        }
        drop(names);
        // The first one says where the registry is.
        found.sort_by_key(|address| reach(address.ip()));
        let mut refused = None;
        found.retain(|address| match self.admit(name, address.ip()) {
            Ok(()) => true,
            Err(error) => {
                refused.get_or_insert(error);
                false
            }
        });
        match refused {
            Some(source) if found.is_empty() => {
                Err(RefusedAddress::Name { name: name.to_owned(), source: source.into() })
            }
            _ => Ok(found),
        }
    }
}

/// Looks names up, and leaves out the addresses that are not admitted. The request goes to one of these, so a name
/// can't be given another address between the check and the request.
pub(super) struct Resolver(pub(super) Arc<Guard>);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = Arc::clone(&self.0);
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let admitted: Addrs = Box::new(guard.select(name.as_str(), found)?.into_iter());
            Ok(admitted)
        })
    }
}

fn reach(address: IpAddr) -> Reach {
    match address {
        IpAddr::V4(address) => reach_v4(address),
        IpAddr::V6(address) => reach_v6(address),
    }
}

fn reach_v4(address: Ipv4Addr) -> Reach {
    match address.octets() {
        [0 | 127, ..] => Reach::Machine,
        [169, 254, ..] => Reach::Link,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Reach::Private,
        [192, 0, 0, _] | [198, 18 | 19, ..] | [224..=255, ..] => Reach::Reserved,
        _ => Reach::Public,
    }
}

fn reach_v6(address: Ipv6Addr) -> Reach {
    let v4 = |high: u16, low: u16| {
        let [[a, b], [c, d]] = [high, low].map(u16::to_be_bytes);
        reach_v4(Ipv4Addr::new(a, b, c, d))
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Reach::Machine,
        // Addresses of version 4 in other forms: mapped, compatible, translated, and those of a tunnel.
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] | [0x64, 0xff9b, .., high, low] => v4(high, low),
        [0x2002, high, low, ..] => v4(high, low),
        [0xfe80..=0xfebf, ..] => Reach::Link,
        [0xfec0..=0xfeff | 0xfc00..=0xfdff, ..] => Reach::Private,
        [0x2001, 0, ..] | [0xff00..=0xffff, ..] => Reach::Reserved,
        _ => Reach::Public,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELSEWHERE: [&str; 18] = [
        "127.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "255.255.255.255",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:10.0.0.1]",
        "[64:ff9b::a00:1]",
        "[2002:a00:1::]",
        "[fe80::1]",
        "[fd00:ec2::254]",
    ];

    fn guard(registry: &str) -> Guard {
        let registry = Url::parse(registry).unwrap();
        let guard = Guard::new(registry.clone());
        guard.check(&registry).unwrap();
        guard
    }

    fn allows(guard: &Guard, url: &str) -> bool {
        guard.check(&Url::parse(url).unwrap()).is_ok()
    }

    #[test]
    fn a_public_registry_leads_only_to_public_addresses_over_tls() {
        let guard = guard("https://198.51.100.1/");
        assert!(
            allows(&guard, "https://203.0.113.9:8443/x") && allows(&guard, "https://[2606::1]/")
        );
        for host in ELSEWHERE {
            assert!(!allows(&guard, &format!("https://{host}/")), "{host}");
        }
        // Numbers are other ways to write an address.
        assert!(!allows(&guard, "https://2130706433/") && !allows(&guard, "https://0x7f.1/"));
        for url in ["http://198.51.100.1/", "http://203.0.113.9/", "ftp://203.0.113.9/"] {
            assert!(!allows(&guard, url), "{url}");
        }
    }

    #[test]
    fn a_registry_in_a_network_leads_to_that_network_and_not_to_this_machine() {
        let guard = guard("https://10.0.0.5:5000/");
        assert!(allows(&guard, "https://192.168.0.7/") && allows(&guard, "https://203.0.113.9/"));
        for host in ["127.0.0.1", "169.254.169.254", "[::1]", "224.0.0.1"] {
            assert!(!allows(&guard, &format!("https://{host}/")), "{host}");
        }
    }

    #[test]
    fn a_registry_of_this_machine_leads_without_tls_only_to_its_own_host() {
        let guard = guard("http://127.0.0.1:5000/");
        assert!(allows(&guard, "http://127.0.0.1:9000/") && allows(&guard, "https://10.0.0.1/"));
        for url in ["http://127.0.0.2/", "http://203.0.113.9/", "https://169.254.169.254/"] {
            assert!(!allows(&guard, url), "{url}");
        }
    }

    #[tokio::test]
    async fn names_are_checked_by_what_they_stand_for() {
        let guard = Arc::new(guard("https://198.51.100.1/"));
        let resolver = Resolver(Arc::clone(&guard));
        let look_up = || resolver.resolve("localhost".parse().unwrap());
        assert!(look_up().await.is_ok(), "a proxy may be anywhere");
        assert!(allows(&guard, "https://localhost/"), "it was not looked up yet");
        let refused = look_up().await.err().expect("it is this machine").to_string();
        assert!(refused.contains("localhost") && refused.contains("public"), "{refused}");
    }

    #[test]
    fn a_registry_can_t_move_to_another_network_while_it_is_used() {
        let guard = guard("https://registry.example/");
        let select = |name: &str, addresses: &[&str]| {
            let found = addresses.iter().map(|it| SocketAddr::new(it.parse().unwrap(), 0));
            guard.select(name, found.collect())
        };
        let both = select("registry.example", &["127.0.0.1", "203.0.113.9"]).unwrap();
        assert_eq!(both.len(), 1, "{both:?}");
        assert!(select("registry.example", &["127.0.0.1"]).is_err());
        assert!(!allows(&guard, "https://127.0.0.1/"));
    }
}
