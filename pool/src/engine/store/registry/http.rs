//! Requests to a registry. The size, the time and the redirects of answers are bounded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue, LOCATION};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};
use tokio::time::timeout;

use super::error::RegistryError;
use super::guard::{Guard, Resolver};
use crate::quote::quoted;

/// Redirects of one request. Registries use one or two, to their object storage.
const MAX_REDIRECTS: usize = 5;

/// The slowest registry that is waited for, in bytes for each second.
const MIN_SPEED: u64 = 8 << 10;

const USER_AGENT: &str = concat!("isolator/", env!("CARGO_PKG_VERSION"));

/// A client for one registry.
pub(super) struct Http {
    client: Client,
    guard: Arc<Guard>,
    /// How long an answer may take to begin, and how far its content may be behind [`MIN_SPEED`].
    patience: Duration,
}

impl Http {
    pub(super) fn new(registry: &Url, patience: Duration) -> Result<Self, RegistryError> {
        // Fails if it was installed before, which is fine: this program has only one provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let guard = Arc::new(Guard::new(registry.clone()));
        let client = Client::builder()
            // Ours are followed by `follow`, which checks them.
            .redirect(Policy::none())
            .referer(false)
            .dns_resolver(Arc::new(Resolver(Arc::clone(&guard))))
            .user_agent(USER_AGENT)
            .build();
        let client = client.map_err(RegistryError::Client)?;
        Ok(Self { client, guard, patience })
    }

    /// Sends one request.
    pub(super) async fn send(
        &self,
        url: &Url,
        accept: &'static str,
        authorization: Option<&HeaderValue>,
    ) -> Result<Response, RegistryError> {
        let place = place(url);
        if let Err(source) = self.guard.check(url) {
            return Err(RegistryError::NotAsked { place, source });
        }
        let mut request = self.client.get(url.clone()).header(ACCEPT, accept);
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        match timeout(self.patience, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(RegistryError::Request { place, source: error.without_url() }),
            Err(_) => Err(RegistryError::NoAnswer { place, patience: self.patience }),
        }
    }

    /// Sends a request and follows redirects. Only the registry itself gets the authorization. Also returns whether
    /// the answer is the registry's own.
    pub(super) async fn follow(
        &self,
        url: &Url,
        accept: &'static str,
        authorization: Option<&HeaderValue>,
    ) -> Result<(Response, bool), RegistryError> {
        let registry = url.origin();
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let is_own = url.origin() == registry;
            let authorization = authorization.filter(|_| is_own);
            let answer = self.send(&url, accept, authorization).await?;
            if !is_redirect(answer.status()) {
                return Ok((answer, is_own));
            }
            let target = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let target = target.and_then(|target| url.join(target).ok());
            url = target.ok_or_else(|| RegistryError::NoTarget(place(&url)))?;
        }
        Err(RegistryError::TooManyRedirects(MAX_REDIRECTS))
    }

    /// The content of an answer, of which at most `most` bytes are read.
    pub(super) fn body(&self, answer: Response, most: u64) -> Body {
        Body { answer, most, received: 0, waited: Duration::ZERO, patience: self.patience }
    }
}

/// The content of an answer while it arrives.
pub(super) struct Body {
    answer: Response,
    most: u64,
    received: u64,
    waited: Duration,
    patience: Duration,
}

impl Body {
    /// The next part.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, RegistryError> {
        let is_long = self.answer.content_length().is_some_and(|length| length > self.most);
        if is_long && self.received == 0 {
            return Err(self.too_long());
        }
        // Only waiting counts, not what is done with the parts.
        let allowed = self.patience + Duration::from_secs(self.received / MIN_SPEED);
        let started = Instant::now();
        let part = timeout(allowed.saturating_sub(self.waited), self.answer.chunk()).await;
        self.waited += started.elapsed();
        let place = || place(self.answer.url());
        let part = part.map_err(|_| {
            let (received, waited) = (self.received, self.waited);
            RegistryError::TooSlow { place: place(), received, waited }
        })?;
        let part = part.map_err(|error| RegistryError::Request {
            place: place(),
            source: error.without_url(),
        })?;
        self.received += part.as_ref().map_or(0, |part| part.len() as u64);
        if self.received > self.most { Err(self.too_long()) } else { Ok(part) }
    }

    /// All of it.
    pub(super) async fn all(mut self) -> Result<Vec<u8>, RegistryError> {
        let mut content = Vec::new();
        while let Some(part) = self.next().await? {
            content.extend_from_slice(&part);
        }
        Ok(content)
    }

    fn too_long(&self) -> RegistryError {
        RegistryError::TooLong { place: place(self.answer.url()), most: self.most }
    }
}

/// An address for messages. What follows the path may be a secret.
pub(super) fn place(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    quoted(&format!("{}://{host}{port}{}", url.scheme(), url.path()))
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}
