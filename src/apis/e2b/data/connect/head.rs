//! The headers of a call.

use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};

use super::ProtocolError;

/// How often a stream without other messages sends one that keeps it alive, if its client does not say.
const KEEPALIVE: Duration = Duration::from_secs(90);

/// The most that a client can ask for as interval or timeout: longer than any sandbox lives.
const MOST_DIGITS: usize = 10;

/// Whether a call streams in any direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Shape {
    Unary,
    Stream,
}

impl Shape {
    pub(in super::super) const fn content_type(self) -> &'static str {
        match self {
            Self::Unary => "application/json",
            Self::Stream => "application/connect+json",
        }
    }
}

/// The encoding of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Encoding {
    Identity,
    Gzip,
}

/// What a call says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Head {
    pub shape: Shape,
    /// That of the client's messages.
    pub encoding: Encoding,
    /// That which the client asks for.
    pub accepted: Encoding,
    /// The whole time of the call, if it is limited.
    pub timeout: Option<Duration>,
    /// How long a stream can be silent.
    pub keepalive: Duration,
}

impl Head {
    /// Reads the headers of a call of this shape.
    ///
    /// # Errors
    ///
    /// When a header has a value that the protocol does not know.
    pub(in super::super) fn read(headers: &HeaderMap, shape: Shape) -> Result<Self, ProtocolError> {
        let content_type = text(headers, CONTENT_TYPE.as_str()).unwrap_or_default();
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case(shape.content_type()) {
            return Err(ProtocolError::ContentType(content_type, shape));
        }
        if let Some(version) = text(headers, VERSION)
            && version.trim() != "1"
        {
            return Err(ProtocolError::Version(version));
        }
        let (sent, asked) = match shape {
            Shape::Unary => (CONTENT_ENCODING.as_str(), ACCEPT_ENCODING.as_str()),
            Shape::Stream => ("connect-content-encoding", "connect-accept-encoding"),
        };
        let advice = "give a whole number of milliseconds from 1, with at most 10 digits";
        let timeout = number(headers, "connect-timeout-ms", advice)?.map(Duration::from_millis);
        let advice = "give a whole number of seconds from 1, with at most 10 digits";
        let keepalive = number(headers, "keepalive-ping-interval", advice)?;
        Ok(Self {
            shape,
            encoding: encoding(headers, sent)?,
            accepted: accepted(headers, asked),
            timeout,
            keepalive: keepalive.map_or(KEEPALIVE, Duration::from_secs),
        })
    }
}

/// The header with the protocol's version, which clients may leave out.
const VERSION: &str = "connect-protocol-version";

/// The value of a header, in a form that can be shown.
fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

fn number(
    headers: &HeaderMap,
    header: &'static str,
    advice: &'static str,
) -> Result<Option<u64>, ProtocolError> {
    let Some(value) = text(headers, header) else { return Ok(None) };
    let digits = value.trim();
    let is_number = digits.len() <= MOST_DIGITS && digits.bytes().all(|it| it.is_ascii_digit());
    match digits.parse() {
        Ok(number @ 1..) if is_number => Ok(Some(number)),
        _ => Err(ProtocolError::Header { header, value, advice }),
    }
}

fn encoding(headers: &HeaderMap, header: &'static str) -> Result<Encoding, ProtocolError> {
    let Some(value) = text(headers, header) else { return Ok(Encoding::Identity) };
    match value.trim().to_ascii_lowercase().as_str() {
        "" | "identity" => Ok(Encoding::Identity),
        "gzip" => Ok(Encoding::Gzip),
        _ => Err(ProtocolError::Encoding { header, value }),
    }
}

/// The encoding that a client asks for. Clients name all that they know in each request, most of them without a wish, so gzip is used only
/// if it is the one that the client prefers.
pub(in super::super) fn accepted(headers: &HeaderMap, header: &str) -> Encoding {
    let all: Vec<String> = headers
        .get_all(header)
        .iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase())
        .collect();
    let mut best = (Encoding::Identity, 0);
    let mut others = 0;
    for one in all.iter().flat_map(|value| value.split(',')) {
        let mut parts = one.split(';');
        let name = parts.next().unwrap_or_default().trim();
        let quality = parts.find_map(|part| part.trim().strip_prefix("q=")).map_or(1000, |text| {
            // Thousandths, as many as the standard allows.
            text.trim().parse::<f32>().map_or(0, |it| (it.clamp(0.0, 1.0) * 1000.0) as u32)
        });
        match name {
            "gzip" | "x-gzip" => best = (Encoding::Gzip, quality),
            _ => others = others.max(quality),
        }
    }
    if best.1 > others { best.0 } else { Encoding::Identity }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(given: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            )
        };
        given.iter().map(pair).collect()
    }

    const JSON: (&str, &str) = ("content-type", "application/json");
    const STREAM: (&str, &str) = ("content-type", "application/connect+json; charset=utf-8");

    #[test]
    fn calls_of_the_newest_clients_are_understood() {
        let sent = headers(&[
            STREAM,
            ("connect-protocol-version", "1"),
            ("connect-timeout-ms", "60000"),
            ("keepalive-ping-interval", "50"),
        ]);
        let head = Head::read(&sent, Shape::Stream).unwrap();
        assert_eq!(head.timeout, Some(Duration::from_secs(60)));
        assert_eq!(head.keepalive, Duration::from_secs(50));
        assert_eq!((head.encoding, head.accepted), (Encoding::Identity, Encoding::Identity));
        let plain = Head::read(&headers(&[JSON]), Shape::Unary).unwrap();
        assert_eq!((plain.timeout, plain.keepalive), (None, KEEPALIVE));
    }

    #[test]
    fn headers_that_can_not_be_used_are_refused() {
        for (shape, given) in [
            (Shape::Unary, vec![]),
            (Shape::Unary, vec![STREAM]),
            (Shape::Stream, vec![JSON]),
            (Shape::Unary, vec![("content-type", "application/proto")]),
            (Shape::Unary, vec![JSON, ("connect-protocol-version", "2")]),
            (Shape::Unary, vec![JSON, ("connect-timeout-ms", "0")]),
            (Shape::Unary, vec![JSON, ("connect-timeout-ms", "-1")]),
            (Shape::Unary, vec![JSON, ("connect-timeout-ms", "+1")]),
            (Shape::Unary, vec![JSON, ("connect-timeout-ms", "12345678901")]),
            (Shape::Stream, vec![STREAM, ("keepalive-ping-interval", "soon")]),
            (Shape::Unary, vec![JSON, ("content-encoding", "br")]),
            (Shape::Stream, vec![STREAM, ("connect-content-encoding", "zstd")]),
        ] {
            assert!(Head::read(&headers(&given), shape).is_err(), "{given:?}");
        }
        // For streams, the encoding of the whole body is not that of messages.
        let read =
            Head::read(&headers(&[STREAM, ("connect-content-encoding", "gzip")]), Shape::Stream);
        assert_eq!(read.unwrap().encoding, Encoding::Gzip);
    }

    #[test]
    fn gzip_is_used_when_a_client_prefers_it() {
        for (value, expected) in [
            ("gzip", Encoding::Gzip),
            ("GZIP;q=0.5", Encoding::Gzip),
            ("gzip, identity;q=0.5", Encoding::Gzip),
            ("gzip, deflate, br, zstd", Encoding::Identity),
            ("gzip;q=0", Encoding::Identity),
            ("gzip;q=x", Encoding::Identity),
            ("identity", Encoding::Identity),
            ("", Encoding::Identity),
            ("*", Encoding::Identity),
        ] {
            let given = headers(&[("accept-encoding", value)]);
            assert_eq!(accepted(&given, "accept-encoding"), expected, "{value}");
        }
    }
}
