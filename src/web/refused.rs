//! Why a request goes no further than its head and body. Each interface writes it in its own form; for MCP it is a line of text.

use axum::http::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::calls::{Again, CallOutcome};

/// Why a request is refused before anything is done for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// There is no token in it.
    #[error("a bearer token is required")]
    NoToken,
    /// Its token is in no line of the file.
    #[error("the token is not known")]
    UnknownToken,
    /// Its token has expired.
    #[error("the token has expired")]
    ExpiredToken,
    /// The file of tokens can't be read.
    #[error("the server can't read its tokens; tell its operator")]
    UnreadableTokens,
    /// It calls this machine by a name that is not listed.
    #[error("requests for {0} are refused; see http.allowedHosts")]
    Host(String),
    /// It has no token, and comes from a page of another machine that is not listed.
    #[error("pages of this origin can't call without a token; see http.allowedOrigins")]
    Origin,
    /// It names no host.
    #[error("a Host header is required")]
    NoHost,
    /// Its body has more than this many bytes.
    #[error("the body is larger than {} MiB", .0 >> 20)]
    TooLarge(usize),
    /// Its body came too slowly.
    #[error("the body did not arrive in time")]
    TooSlow,
    /// Its body ended early, or was no body.
    #[error("{0}")]
    BrokenBody(String),
    /// Its client has too much in memory.
    #[error(
        "requests and answers that were not read yet take too much memory; read your answers and try again"
    )]
    TooMuchInMemory,
    /// The server is stopping.
    #[error("the server is shutting down")]
    ShuttingDown,
}

impl Refused {
    /// The status of the answer.
    pub(crate) const fn status(&self) -> StatusCode {
        match self {
            Self::NoToken | Self::UnknownToken | Self::ExpiredToken | Self::UnreadableTokens => {
                StatusCode::UNAUTHORIZED
            }
            Self::Host(_) | Self::Origin => StatusCode::FORBIDDEN,
            Self::NoHost | Self::BrokenBody(_) => StatusCode::BAD_REQUEST,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::TooMuchInMemory | Self::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Whether the same request may be served a moment later.
    pub(crate) const fn is_busy(&self) -> bool {
        matches!(self, Self::TooMuchInMemory | Self::ShuttingDown)
    }

    /// The outcome of a request that is refused with it.
    pub(crate) const fn outcome(&self) -> CallOutcome {
        CallOutcome::NotRun(if self.is_busy() { Again::Later(1) } else { Again::Never })
    }

    /// Adds the headers that belong to it: a challenge (RFC 6750: without a token it has no error code), or when to try again.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap) {
        if self.is_busy() {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        let challenge = match self {
            Self::NoToken => "Bearer realm=\"isolator\"".to_owned(),
            _ if self.status() == StatusCode::UNAUTHORIZED => format!(
                "Bearer realm=\"isolator\", error=\"invalid_token\", error_description=\"{self}\""
            ),
            _ => return,
        };
        if let Ok(challenge) = HeaderValue::from_str(&challenge) {
            headers.insert(WWW_AUTHENTICATE, challenge);
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = (self.status(), format!("{self}\n")).into_response();
        self.add_headers(response.headers_mut());
        response
    }
}
