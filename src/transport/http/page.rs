//! The page on which operators see the state of a server. It is one document without anything from elsewhere, and its policy
//! lets nothing else run in it.

use std::sync::LazyLock;

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::{Digest as _, Sha256};

const STYLE: &str = include_str!("status/page.css");
const SCRIPT: &str = include_str!("status/page.js");

/// The document, with its style and its script.
static PAGE: LazyLock<String> = LazyLock::new(|| {
    include_str!("status/page.html").replace("STYLE", STYLE).replace("SCRIPT", SCRIPT)
});

/// Only this style and this script, and only requests to the server itself.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let digest = |text: &str| BASE64.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        digest(STYLE),
        digest(SCRIPT)
    )
});

/// Answers with the page.
pub(super) fn page() -> Response {
    let headers: [(HeaderName, &str); 5] = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, &POLICY),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, PAGE.as_str()).into_response()
}
