//! The origins of web pages that can call: those on this machine and those in `http.allowedOrigins`.

use axum::http::{HeaderValue, Uri};

/// Pages on this machine.
const LOCAL: [&str; 6] = [
    "http://localhost:*",
    "http://127.0.0.1:*",
    "http://[::1]:*",
    "https://localhost:*",
    "https://127.0.0.1:*",
    "https://[::1]:*",
];

/// The origins that can call, as they are written in a configuration.
pub(crate) fn listed(allowed: &[String]) -> Vec<String> {
    LOCAL.iter().map(|origin| (*origin).to_owned()).chain(allowed.to_vec()).collect()
}

/// The origins that can call.
#[derive(Debug)]
pub(crate) struct Origins {
    /// Those on the machine of the browser.
    local: Vec<(Origin, Ports)>,
    /// Those of the configuration.
    listed: Vec<(Origin, Ports)>,
}

#[derive(Debug, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
}

#[derive(Debug, Clone, Copy)]
enum Ports {
    All,
    One(u16),
}

impl Origins {
    /// Those on this machine, and those of the configuration.
    pub(crate) fn new(allowed: &[String]) -> Self {
        let entry = |text: &str| match text.trim().strip_suffix(":*") {
            Some(base) => Some((parse(base)?.0, Ports::All)),
            None => parse(text.trim()).and_then(|(origin, port)| Some((origin, Ports::One(port?)))),
        };
        Self {
            local: LOCAL.into_iter().filter_map(entry).collect(),
            listed: allowed.iter().filter_map(|text| entry(text)).collect(),
        }
    }

    /// Whether a page of this origin can call.
    pub(crate) fn allow(&self, origin: &HeaderValue) -> bool {
        has(&self.local, origin) || self.allow_listed(origin)
    }

    /// Whether it can because the configuration has it. A page of `http://localhost` on another machine is not one of this machine.
    pub(crate) fn allow_listed(&self, origin: &HeaderValue) -> bool {
        has(&self.listed, origin)
    }
}

fn has(all: &[(Origin, Ports)], origin: &HeaderValue) -> bool {
    let Some((origin, port)) = origin.to_str().ok().and_then(parse) else { return false };
    all.iter().any(|(allowed, ports)| {
        *allowed == origin
            && match ports {
                Ports::All => true,
                Ports::One(one) => port == Some(*one),
            }
    })
}

/// An origin and its port, if the scheme has one.
fn parse(text: &str) -> Option<(Origin, Option<u16>)> {
    let uri: Uri = text.parse().ok()?;
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let authority = uri.authority()?;
    let has_more = uri.path() != "/" || uri.query().is_some() || text.ends_with('/');
    if has_more || authority.as_str().contains('@') {
        return None;
    }
    // Browsers leave out the usual port.
    let port = authority.port_u16().or(match scheme.as_str() {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    });
    let host = authority.host().to_ascii_lowercase();
    Some((Origin { scheme, host }, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(origins: &Origins, origin: &str) -> bool {
        origins.allow(&HeaderValue::from_str(origin).unwrap())
    }

    #[test]
    fn pages_on_this_machine_can_call() {
        let origins = Origins::new(&[]);
        for origin in [
            "http://localhost:5173",
            "http://localhost",
            "https://127.0.0.1:8443",
            "http://[::1]:80",
            "HTTP://LOCALHOST:1",
        ] {
            assert!(allowed(&origins, origin), "{origin}");
            assert!(!origins.allow_listed(&HeaderValue::from_str(origin).unwrap()), "{origin}");
        }
    }

    #[test]
    fn a_listed_page_can_call_with_its_scheme_host_and_port() {
        let listed =
            ["https://agent.example:443", "http://[2001:db8::1]:8080", "http://any.example:*"];
        let origins = Origins::new(&listed.map(str::to_owned));
        for origin in [
            "https://agent.example",
            "https://agent.example:443",
            "https://Agent.Example",
            "http://[2001:db8::1]:8080",
            "http://any.example",
            "http://any.example:1234",
        ] {
            assert!(allowed(&origins, origin), "{origin}");
        }
        for origin in [
            "http://agent.example",
            "https://agent.example:8443",
            "https://www.agent.example",
            "https://agent.example.evil.example",
            "https://agent.example@evil.example",
            "https://evil.example@agent.example",
            "https://agent.example:443@evil.example",
            "https://agent.example/",
            "https://agent.example/path",
            "https://agent.example?x",
            "https://any.example",
            "http://[2001:db8::1]",
            "http://localhost.evil.example",
            "http://127.0.0.1.evil.example",
            "null",
            "file://",
            "localhost",
            "*",
            "",
            " ",
        ] {
            assert!(!allowed(&origins, origin), "{origin}");
        }
        assert!(!origins.allow(&HeaderValue::from_bytes(b"http://localhost\xff").unwrap()));
    }
}
