//! The listener for operators: metrics, the page of the state, and health, at an address of its own, next to clients on any transport.
//!
//! Its answers are not for clients, so it has tokens of its own, or answers only this machine. All that it changes is that the
//! configuration is loaded again, and that the server is taken out of use. Some tokens can only read the metrics. Without tokens,
//! requests must name this machine, so that no web page reads it under a name of the page's (DNS rebinding).

use std::convert::Infallible;
use std::future::ready;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap};
use axum::http::uri::Authority;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::certificate::Certificate;
use super::health::Health;
use super::page::page;
use super::reload::Reload;
use super::{Ending, connections, drain, head, listen};
use crate::address::ListenAddress;
use crate::config::Config;
use crate::current::Current;
use crate::metrics::{Format, Metrics};
use crate::node::Node;
use crate::notice::Notice;
use crate::web::{LOCAL_HOSTS, Tokens, client_of};

/// Connections at the same time: more than operators have, and few compared to those of clients.
const MAX_CONNECTIONS: usize = 32;

/// Those of one address, where other machines can reach the listener: a client without a token must not take them all.
const OF_OTHERS: usize = 8;

/// How long nothing of an answer can be read, and how long a connection can be idle. A scrape that hangs takes a connection
/// for so long, and nothing else.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// Advice about too many connections.
const HINT: &str = "see which programs ask the listener for operators, and why so often";

/// The path of the metrics.
const METRICS: &str = "/metrics";

/// The answer to a token that can only read the metrics.
const METRICS_ONLY: &str =
    "this token can only read /metrics; operators have tokens of admin.tokens\n";

/// The answer where nothing is.
const NOTHING_HERE: &str = "there is nothing here: the state is at /status, metrics at /metrics, checks of health at /healthz and /readyz\n";

/// A listener that is ready to serve.
pub(crate) struct Admin {
    listener: TcpListener,
    address: SocketAddr,
    certificate: Option<Certificate>,
    operators: Operators,
    node: Node,
}

/// The operators that are answered; cheap to clone. They change with the configuration.
#[derive(Debug, Clone)]
pub(crate) struct Operators {
    bound: IpAddr,
    guard: Current<Guard>,
}

impl Operators {
    /// The operators that are answered under another configuration, to be used from [`set`](Self::set) on.
    ///
    /// # Errors
    ///
    /// When the file of tokens can't be used, or other machines could ask without a token.
    pub(crate) fn guard(&self, config: &Config) -> anyhow::Result<Guard> {
        Guard::new(config, self.bound)
    }

    /// Answers others from now on.
    pub(crate) fn set(&self, guard: Guard) {
        self.guard.set(guard);
    }
}

/// Serves operators until this is dropped.
#[derive(Debug)]
pub(crate) struct Serving {
    _end: DropGuard,
    _watching: AbortOnDropHandle<Infallible>,
    /// The tasks that serve and remember. Dropping the two above ends them.
    _tasks: TaskTracker,
}

/// The operators that are answered.
#[derive(Debug)]
pub(crate) enum Guard {
    /// Those with one of the tokens, and others that can only read the metrics.
    Tokens { operators: Box<Tokens>, metrics: Option<Box<Tokens>> },
    /// This machine, under one of its own names.
    ThisMachine(IpAddr),
}

impl Admin {
    /// Listens where the configuration says; `None` if it names no address.
    ///
    /// # Errors
    ///
    /// When it can't listen there, a file can't be used, or other machines could ask without a token.
    pub(crate) async fn bind(config: &Config) -> anyhow::Result<Option<Self>> {
        let Some(address) = config.admin.address else { return Ok(None) };
        Self::listen(config, address).await.map(Some)
    }

    async fn listen(config: &Config, address: ListenAddress) -> anyhow::Result<Self> {
        let addresses = address.candidates();
        if let Some(problem) = problem(config) {
            bail!(problem);
        }
        let others = addresses.iter().find(|address| !address.ip().is_loopback());
        // On this machine nothing crosses a network, and checks of health need no certificate.
        let tls = config.http.tls.clone().filter(|_| others.is_some());
        let certificate = tls.map(Certificate::read).transpose().context("http.tls")?;
        if certificate.is_none() && others.is_some() {
            tracing::warn!(
                "without http.tls, the tokens of operators cross the network unencrypted"
            );
        }
        let listener = listen(&addresses).await.context("admin.address")?;
        let address = listener.local_addr()?;
        let guard = Current::new(Guard::new(config, address.ip())?);
        let operators = Operators { bound: address.ip(), guard };
        let node = config.node.node().clone();
        Ok(Self { listener, address, certificate, operators, node })
    }

    /// The operators that are answered.
    pub(crate) fn operators(&self) -> Operators {
        self.operators.clone()
    }

    /// Begins to serve.
    pub(crate) fn start(self, metrics: Metrics, health: Health, reload: Reload) -> Serving {
        let Self { listener, address, certificate, operators, node } = self;
        let scheme = if certificate.is_some() { "https" } else { "http" };
        tracing::info!(admin = format!("{scheme}://{address}"), "listening for operators");
        let tasks = TaskTracker::new();
        let (of_status, of_health) = (metrics.clone(), health.clone());
        let of_drain = health.clone();
        let watching = AbortOnDropHandle::new(tasks.spawn(metrics.clone().watch()));
        let router = Router::new()
            .route(METRICS, get(move |headers: HeaderMap| ready(written(&metrics, &headers))))
            .route("/status", get(async || page()))
            .route("/status.json", get(move || ready(status(&of_status, &of_health))))
            .route(
                "/drain",
                post(move |headers: HeaderMap| ready(drain::answer(of_drain.server(), &headers))),
            )
            .route("/reload", post(move |headers: HeaderMap| reload.clone().answer(headers)))
            .fallback((StatusCode::NOT_FOUND, NOTHING_HERE))
            .layer(from_fn_with_state(operators.guard, check));
        let router = health.route(router).layer(from_fn(head::check));
        let limits = connections::Limits {
            all: MAX_CONNECTIONS,
            of_address: if address.ip().is_loopback() { MAX_CONNECTIONS } else { OF_OTHERS },
            write_timeout: WRITE_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
            hints: [HINT; 2],
        };
        let end = CancellationToken::new();
        let ending = Ending { stop: end.clone(), end: end.clone(), ..Ending::default() };
        tasks.spawn(async move {
            // Operators go on asking a server that is being drained.
            let notice = Notice::default();
            connections::serve(listener, certificate, router, limits, &node, notice, ending).await;
        });
        Serving { _end: end.drop_guard(), _watching: watching, _tasks: tasks }
    }
}

/// The problem that keeps a server from listening where the configuration says, as far as it is known without listening.
pub(super) fn problem(config: &Config) -> Option<String> {
    let addresses = config.admin.address?.candidates();
    let address = addresses.iter().find(|address| !address.ip().is_loopback())?;
    config.admin.tokens.is_none().then(|| {
        format!(
            "other machines can reach {address}, and anyone who reaches it can see what this server does: create a \
             token with `isolator token NAME`, put its line into a file and set admin.tokens to that file, or listen \
             for operators on 127.0.0.1"
        )
    })
}

/// Lets a request through, or refuses it.
async fn check(State(guard): State<Current<Guard>>, request: Request, next: Next) -> Response {
    match guard.get().refusal(request.uri().path(), request.headers()) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    }
}

impl Guard {
    fn new(config: &Config, bound: IpAddr) -> anyhow::Result<Self> {
        let read = |path: &Option<PathBuf>| path.clone().map(Tokens::read).transpose();
        let metrics = read(&config.admin.metrics_tokens).context("admin.metricsTokens")?;
        match read(&config.admin.tokens).context("admin.tokens")? {
            Some(operators) => {
                Ok(Self::Tokens { operators: Box::new(operators), metrics: metrics.map(Box::new) })
            }
            None if bound.is_loopback() => Ok(Self::ThisMachine(bound)),
            None => bail!("admin.tokens is required, because other machines can reach {bound}"),
        }
    }

    /// Why a request for a path is refused, if it is. The metrics are only read, so its method does not matter.
    fn refusal(&self, path: &str, headers: &HeaderMap) -> Option<Response> {
        match self {
            Self::Tokens { operators, metrics } => {
                let refused = client_of(operators, headers).err()?;
                let is_reader =
                    metrics.as_ref().is_some_and(|metrics| client_of(metrics, headers).is_ok());
                match is_reader {
                    true if path == METRICS => None,
                    true => Some((StatusCode::FORBIDDEN, METRICS_ONLY).into_response()),
                    false => Some(refused.into_response()),
                }
            }
            Self::ThisMachine(address) => {
                let is_own = names_this_machine(headers, *address);
                let refusal =
                    (StatusCode::FORBIDDEN, "only requests for this machine are answered here\n");
                (!is_own).then(|| refusal.into_response())
            }
        }
    }
}

/// Whether a request names this machine, or nothing, as it may in HTTP/1.0.
fn names_this_machine(headers: &HeaderMap, address: IpAddr) -> bool {
    let Some(host) = headers.get(HOST) else { return true };
    let host = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    host.is_some_and(|host| {
        let host = host.host().trim_start_matches('[').trim_end_matches(']');
        let is_local = LOCAL_HOSTS.iter().any(|local| host.eq_ignore_ascii_case(local));
        is_local || host.parse() == Ok(address)
    })
}

/// The data of the page.
fn status(metrics: &Metrics, health: &Health) -> Response {
    match serde_json::to_vec(&metrics.status(&health.not_ready())) {
        Ok(json) => {
            let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
            (headers, json).into_response()
        }
        Err(error) => failed("the state", &error),
    }
}

fn written(metrics: &Metrics, headers: &HeaderMap) -> Response {
    let format = format(headers);
    match metrics.written(format) {
        Ok(text) => {
            let headers = [(CONTENT_TYPE, format.media_type()), (CACHE_CONTROL, "no-store")];
            (headers, text).into_response()
        }
        Err(error) => failed("the metrics", &error),
    }
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> Response {
    tracing::error!(%error, "{what} could not be written");
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{what} could not be written\n")).into_response()
}

/// The format that a client likes best. A client that names none gets the one that all know.
fn format(headers: &HeaderMap) -> Format {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let (mut open_metrics, mut plain) = (0.0, 0.0_f32);
    for range in values.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
        let weight = weight.unwrap_or(1.0);
        match kind.as_str() {
            "application/openmetrics-text" => open_metrics = weight.max(open_metrics),
            "text/plain" | "text/*" => plain = weight.max(plain),
            _ => {}
        }
    }
    if open_metrics > 0.0 && open_metrics >= plain {
        Format::OpenMetrics
    } else {
        Format::Prometheus
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_client_gets_the_format_that_it_likes_best() {
        for (accept, expected) in [
            ("", Format::Prometheus),
            ("*/*", Format::Prometheus),
            ("text/html, */*;q=0.8", Format::Prometheus),
            ("application/openmetrics-text", Format::OpenMetrics),
            (
                "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
                Format::OpenMetrics,
            ),
            ("application/openmetrics-text; q=0.1, text/plain", Format::Prometheus),
            ("application/openmetrics-text;q=0", Format::Prometheus),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(format(&headers), expected, "{accept}");
        }
    }

    #[test]
    fn without_tokens_only_names_of_this_machine_are_answered() {
        let own: IpAddr = "127.0.0.7".parse().unwrap();
        let names = |host: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static(host));
            names_this_machine(&headers, own)
        };
        for host in ["localhost:9464", "127.0.0.1", "[::1]:9464", "127.0.0.7:9464", "LOCALHOST"] {
            assert!(names(host), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:9464", "127.0.0.8", ""] {
            assert!(!names(host), "{host}");
        }
        assert!(names_this_machine(&HeaderMap::new(), own));
    }
}
