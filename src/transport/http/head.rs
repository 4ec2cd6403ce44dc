//! Checks of the first lines of a request, before any code acts on them.
//!
//! A web page can make a browser call this machine under a name of the page's (DNS rebinding), so it matters which host a request
//! names. There must be no doubt about it.

use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::connections::MAX_HEADERS;

/// The characters around a name and a value: a colon, a space, and the end of the line.
const AROUND: usize = 4;

/// Refuses requests whose host is in doubt, and those with too many headers.
pub(super) async fn check(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match problem(&parts) {
        Some(refusal) => refusal.into_response(),
        None => next.run(Request::from_parts(parts, body)).await,
    }
}

fn problem(parts: &Parts) -> Option<(StatusCode, &'static str)> {
    if length(&parts.headers) > MAX_HEADERS {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Some((status, "the headers take more than 64 KiB\n"));
    }
    let bad = |message| Some((StatusCode::BAD_REQUEST, message));
    let mut hosts = parts.headers.get_all(HOST).iter();
    // Checks of health may do without one, in HTTP/1.0.
    let host = hosts.next()?;
    if hosts.next().is_some() {
        return bad("there must be one Host header\n");
    }
    let host = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    let Some(host) = host.filter(is_host) else {
        return bad("the Host header must be a name or an address, with or without a port\n");
    };
    if parts.uri.authority().is_some_and(|target| *target != host) {
        return bad("the target and the Host header name different hosts\n");
    }
    None
}

/// Whether an authority is a host and perhaps a port, and nothing else.
fn is_host(authority: &Authority) -> bool {
    let rest = authority.as_str().strip_prefix(authority.host());
    rest.is_some_and(|rest| rest.is_empty() || authority.port_u16().is_some())
}

fn length(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + AROUND).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(target: &str, headers: &[(&str, &str)]) -> Option<u16> {
        let mut request = Request::builder().uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        problem(&parts).map(|(status, _)| status.as_u16())
    }

    #[test]
    fn requests_name_one_host() {
        assert_eq!(status("/healthz", &[]), None);
        for host in ["localhost", "127.0.0.1:8080", "[::1]:8080", "[::1]", "a.example:1"] {
            assert_eq!(status("/mcp", &[("host", host)]), None, "{host}");
        }
        assert_eq!(status("http://a.example/mcp", &[("host", "a.example")]), None);
        for (target, hosts) in [
            ("/mcp", &["localhost", "localhost"][..]),
            ("/mcp", &["127.0.0.1:18777.evil.example"]),
            ("/mcp", &["localhost@evil.example"]),
            ("/mcp", &["localhost:99999"]),
            ("/mcp", &["localhost:"]),
            ("/mcp", &["localhost/x"]),
            ("/mcp", &[""]),
            ("http://evil.example/mcp", &["localhost"]),
            ("http://localhost:1/mcp", &["localhost:2"]),
        ] {
            let headers: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            assert_eq!(status(target, &headers), Some(400), "{target} {hosts:?}");
        }
    }

    #[test]
    fn headers_are_limited_together() {
        let host = ("host", "localhost");
        let long = "x".repeat(MAX_HEADERS / 2);
        assert_eq!(status("/mcp", &[host, ("a", &long)]), None);
        assert_eq!(status("/mcp", &[host, ("a", &long), ("b", &long)]), Some(431));
    }
}
