//! Authorization at a registry: with a password, or with a token that is fetched with it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_auth::ChallengeParser;
use reqwest::header::{HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Response, Url};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::error::RegistryError;
use super::http::{Http, place};
use crate::engine::store::credentials::Login;

/// Longest answer of a token server, in bytes. Tokens have a few thousand.
const MAX_TOKEN_ANSWER: u64 = 256 << 10;

/// The authorization for the requests to a registry.
pub(super) struct Access {
    login: Option<Login>,
    /// The requested right: to read one repository.
    scope: String,
    current: Mutex<Option<HeaderValue>>,
}

/// The authorization that a registry requires.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String> },
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

impl Access {
    pub(super) fn new(login: Option<Login>, repository: &str) -> Self {
        // Not the scope that the registry asks for: a token for more could be used for more.
        let scope = format!("repository:{repository}:pull");
        Self { login, scope, current: Mutex::default() }
    }

    /// The header to send.
    pub(super) async fn current(&self) -> Option<HeaderValue> {
        self.current.lock().await.clone()
    }

    /// Fetches the authorization that a registry requires when it refuses the one that was `sent`. `None` if there is nothing
    /// to try.
    pub(super) async fn renew(
        &self,
        http: &Http,
        sent: Option<&HeaderValue>,
        refusal: &Response,
    ) -> Result<Option<HeaderValue>, RegistryError> {
        let mut current = self.current.lock().await;
        if current.as_ref() != sent {
            // Another request has done so meanwhile.
            return Ok(current.clone());
        }
        let headers = refusal.headers().get_all(WWW_AUTHENTICATE);
        let found = headers.iter().filter_map(|value| value.to_str().ok()).find_map(challenge);
        let renewed = match (found, &self.login) {
            (Some(Challenge::Bearer { realm, service }), _) => {
                Some(format!("Bearer {}", self.token(http, &realm, service.as_deref()).await?))
            }
            (Some(Challenge::Basic), Some(login)) if sent.is_none() => Some(basic(login)),
            _ => None,
        };
        *current = renewed.as_deref().map(secret).transpose()?;
        Ok(current.clone())
    }

    /// Asks a token server, which the registry names and which is not trusted more than the registry. It gets the
    /// password only over TLS or on this machine, which the check of its address makes sure of.
    async fn token(
        &self,
        http: &Http,
        realm: &str,
        service: Option<&str>,
    ) -> Result<String, RegistryError> {
        let mut url = Url::parse(realm).map_err(|_| RegistryError::NoTokenServer)?;
        url.query_pairs_mut().append_pair("scope", &self.scope);
        url.query_pairs_mut().extend_pairs(service.map(|service| ("service", service)));
        let login = self.login.as_ref().map(|login| secret(&basic(login))).transpose()?;
        let answer = http.send(&url, "application/json", login.as_ref()).await?;
        if !answer.status().is_success() {
            let (place, status) = (place(&url), answer.status());
            return Err(RegistryError::NoToken { place, status });
        }
        let answer = http.body(answer, MAX_TOKEN_ANSWER).all().await?;
        let answer: Option<TokenAnswer> = serde_json::from_slice(&answer).ok();
        let token = answer.and_then(|answer| answer.token.or(answer.access_token));
        token.ok_or_else(|| RegistryError::AnswerWithoutToken(place(&url)))
    }
}

/// The first challenge of a header that can be met.
fn challenge(header: &str) -> Option<Challenge> {
    ChallengeParser::new(header).flatten().find_map(|challenge| {
        let value = |name: &str| {
            let mut parameters = challenge.params.iter();
            let found = parameters.find(|(found, _)| found.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        if challenge.scheme.eq_ignore_ascii_case("bearer") {
            Some(Challenge::Bearer { realm: value("realm")?, service: value("service") })
        } else {
            challenge.scheme.eq_ignore_ascii_case("basic").then_some(Challenge::Basic)
        }
    })
}

fn basic(login: &Login) -> String {
    format!("Basic {}", STANDARD.encode(format!("{}:{}", login.user, login.password)))
}

/// A header that is not logged.
fn secret(text: &str) -> Result<HeaderValue, RegistryError> {
    let value = HeaderValue::from_str(text);
    let mut value = value.map_err(|_| RegistryError::UnsendableToken)?;
    value.set_sensitive(true);
    Ok(value)
}
