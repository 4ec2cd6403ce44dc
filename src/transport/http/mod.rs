//! MCP over streamable HTTP, at `/mcp`, and health checks, at `/healthz` and `/readyz`.
//!
//! A request comes in by [`connections`] and passes [`cors`] and [`guard`]. Then rmcp checks its host, and its origin
//! once more, and handles it. [`alive`] keeps the answer from being silent for long.
//! Revision 2026-07-28 has no sessions, so any of several servers can answer any request; older clients get a session.

mod accept;
mod admin;
mod alive;
mod certificate;
mod connections;
mod cors;
pub(crate) mod drain;
mod guard;
mod head;
mod health;
mod local;
mod manager;
mod page;

pub(crate) mod reload;
mod sessions;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use axum::Router;
use axum::extract::Request;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::any;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use admin::{Admin, Operators, Serving};
pub(crate) use local::Local;

use self::certificate::Certificate;
use self::guard::Guard;
pub(crate) use self::health::Health;
use self::sessions::Sessions;
use crate::apis::access::Gate;
use crate::apis::{self, Apis};
use crate::calls::budget::Budget;
use crate::config::{Config, HttpConfig};
use crate::current::Current;
use crate::descriptors::Plan;
use crate::mcp::server::Server;
use crate::metrics::Reason;
use crate::transport::message::{Limits, MAX_MESSAGE};
use crate::web::{Rules, Tokens, open_to_others};

/// A listener that is ready to serve.
pub(crate) struct Http {
    listener: TcpListener,
    address: SocketAddr,
    certificate: Option<Certificate>,
    access: Access,
    settings: HttpConfig,
}

/// The clients that can call a listener, and how much they can send; cheap to clone. It changes with the configuration while the
/// server listens.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    kind: Listener,
    rules: Current<Rules>,
    bodies: Budget,
}

/// A kind of listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listener {
    /// At an address of this machine.
    At(IpAddr),
    /// At the local socket, for one client.
    Local,
}

impl Access {
    fn new(kind: Listener, config: &Config) -> anyhow::Result<Self> {
        let rules = Current::new(kind.rules(config)?);
        let access = Self { kind, rules, bodies: Budget::new(0, 0) };
        access.set_bodies(config);
        Ok(access)
    }

    /// The rules of another configuration, to be used from [`set`](Self::set) on.
    ///
    /// # Errors
    ///
    /// When the file of tokens can't be used, or other machines could call without a token.
    pub(crate) fn rules(&self, config: &Config) -> anyhow::Result<Rules> {
        self.kind.rules(config)
    }

    /// Why every request is refused, if that is so.
    fn refuses_all(&self) -> Option<Reason> {
        self.rules.get().tokens.as_ref()?.refuses_all()
    }

    /// Uses other rules for requests that come from now on.
    pub(crate) fn set(&self, rules: Rules, config: &Config) {
        self.rules.set(rules);
        self.set_bodies(config);
    }

    fn set_bodies(&self, config: &Config) {
        let in_flight = config.requests.max_in_flight.as_usize();
        let of_one = if self.kind == Listener::Local { in_flight } else { in_flight / 2 };
        self.bodies.set_limits(in_flight, of_one);
    }
}

impl Listener {
    fn rules(self, config: &Config) -> anyhow::Result<Rules> {
        match self {
            Self::At(bound) => Rules::new(&config.http, bound),
            // No tokens, and no names but those of this machine.
            Self::Local => {
                let settings = HttpConfig { tokens: None, ..config.http.clone() };
                Rules::new(&settings, Ipv4Addr::LOCALHOST.into())
            }
        }
    }
}

/// The steps in which a server ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ending {
    /// No more calls are taken, and `/readyz` says so.
    pub draining: CancellationToken,
    /// The connections of clients.
    pub connections: TaskTracker,
    /// The answers that are still being sent. When connections end, their streams are cut.
    pub answers: TaskTracker,
    /// All requests are refused.
    pub closed: CancellationToken,
    /// No more connections are accepted; open ones finish their answers.
    pub stop: CancellationToken,
    /// All connections end now.
    pub end: CancellationToken,
}

/// Problems of the files that the configuration names, with the key of each.
pub(crate) fn problems_of_files(config: &Config) -> Vec<(&'static str, String)> {
    let mut problems = Vec::new();
    let settings = &config.http;
    for (key, path) in [("http.tokens", &settings.tokens), ("admin.tokens", &config.admin.tokens)] {
        if let Some(Err(error)) = path.clone().map(Tokens::read) {
            problems.push((key, error.to_string()));
        }
    }
    if let Some(problem) = admin::problem(config) {
        problems.push(("admin.address", problem));
    }
    if let Some(Err(error)) = settings.tls.clone().map(Certificate::read) {
        problems.push(("http.tls", format!("{error:#}")));
    }
    problems
}

impl Http {
    /// Listens at the first of the addresses that this machine has.
    ///
    /// # Errors
    ///
    /// When it can't listen there, a file can't be used, or other machines could call without a token.
    pub(crate) async fn bind(addresses: &[SocketAddr], config: &Config) -> anyhow::Result<Self> {
        let settings = config.http.clone();
        let others = addresses.iter().find(|address| !address.ip().is_loopback());
        if let (None, Some(address)) = (&settings.tokens, others) {
            bail!(open_to_others(address));
        }
        let has_tokens = settings.tokens.is_some();
        let certificate = settings.tls.clone().map(Certificate::read);
        let certificate = certificate.transpose().context("http.tls")?;
        if certificate.is_none() && has_tokens && others.is_some() {
            tracing::warn!("without http.tls, tokens and programs cross the network unencrypted");
        }
        if let (Some(node), false) = (config.node.node().name(), has_tokens) {
            tracing::warn!(
                %node,
                "without http.tokens, a client is an address: all clients behind a load balancer share sessions, limits and answers"
            );
        }
        let listener = listen(addresses).await?;
        let address = listener.local_addr()?;
        let access = Access::new(Listener::At(address.ip()), config)?;
        Ok(Self { listener, address, certificate, access, settings })
    }

    /// The clients that can call.
    pub(crate) fn access(&self) -> Access {
        self.access.clone()
    }

    /// The URL for clients.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.certificate.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/mcp", self.address)
    }

    /// Serves until the end.
    pub(crate) async fn serve(
        self,
        server: Server,
        health: Health,
        config: &Config,
        ending: Ending,
    ) {
        let sessions = Arc::new(Sessions::new(config.limits.max_timeout, config.node.node()));
        let Access { rules, bodies, .. } = self.access;
        let (answers, draining) = (ending.answers.clone(), ending.draining.clone());
        let gate = Gate::new(rules.clone(), bodies.clone(), answers, draining);
        let (serving, notice) = (server.clone(), server.notice());
        let apis = Apis::new(move || serving.serving(), gate);
        let limits = Limits::new(config.limits.max_files);
        let keep_alive = self.settings.keep_alive;
        let guard = Guard::new(rules.clone(), sessions, bodies, limits, &ending, keep_alive);
        let router = protocol(server, guard, rules.clone(), ending.stop.clone())
            .merge(apis::route(&apis))
            .fallback(async move |request: Request| {
                apis::nothing_here(&apis, request, NOTHING_HERE).await
            })
            .layer(cors::layer(rules.clone()))
            .layer(from_fn_with_state(rules, cors::refuse_others));
        let router = health.route(router).layer(from_fn(head::check));
        let limits = limits_of_connections(&self.settings, Plan::new(config));
        let Self { listener, certificate, .. } = self;
        let node = config.node.node();
        connections::serve(listener, certificate, router, limits, node, notice, ending).await;
    }
}

/// The protocol at its path, behind a guard.
fn protocol(
    server: Server,
    guard: Guard,
    rules: Current<Rules>,
    stop: CancellationToken,
) -> Router {
    let protocol = StreamableHttpServerConfig::default()
        // `alive` does it, for all answers.
        .with_sse_keep_alive(None)
        .with_max_request_body_bytes(MAX_MESSAGE)
        .enforce_origin_validation()
        .with_json_response(true)
        .with_cancellation_token(stop);
    let manager = guard.sessions().manager();
    let service = StreamableHttpService::new(move || Ok(server.for_another()), manager, protocol);
    let service = any(move |request: Request| {
        let mut service = service.clone();
        let rules = rules.get();
        let config = service.config.with_allowed_hosts(rules.hosts());
        service.config = config.with_allowed_origins(rules.listed_origins());
        async move { service.handle(request).await }
    });
    Router::new()
        .route("/mcp", service.clone())
        .route("/mcp/", service)
        .layer(from_fn_with_state(Arc::new(guard), guard::guard))
}

/// Goes on to the next address only if the machine does not have this one. A port that is in use is an error, or
/// clients would reach the other program.
pub(super) async fn listen(addresses: &[SocketAddr]) -> anyhow::Result<TcpListener> {
    let mut missing = None;
    for address in addresses {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                missing.get_or_insert((address, error));
            }
            bound => return bound.with_context(|| format!("can't listen on {address}")),
        }
    }
    let (address, error) = missing.context("there is no address to listen on")?;
    Err(error).with_context(|| format!("can't listen on {address}"))
}

/// The answer where nothing is.
const NOTHING_HERE: &str =
    "there is nothing here: MCP clients use /mcp, checks of health /healthz and /readyz\n";

/// The configured limits of connections, and at most what the file descriptors allow.
fn limits_of_connections(settings: &HttpConfig, plan: Plan) -> connections::Limits {
    let (all, configured) = (plan.connections, settings.max_connections);
    let mut of_address = settings.max_connections_per_address;
    if all < configured {
        tracing::warn!(
            descriptors = plan.limit,
            connections = all,
            configured,
            "there are too few file descriptors for http.maxConnections; see `isolator doctor`"
        );
        // An address has the same share of fewer.
        of_address = (of_address * all / configured).max(1);
    }
    let HttpConfig { write_timeout, idle_timeout, .. } = *settings;
    let hints =
        ["see http.maxConnections and `isolator doctor`", "see http.maxConnectionsPerAddress"];
    connections::Limits { all, of_address, write_timeout, idle_timeout, hints }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_next_address_is_taken_only_if_there_is_no_such_address() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        // This one is for documentation, so no machine has it.
        let nowhere = "192.0.2.1:0".parse().unwrap();
        let listener = listen(&[nowhere, any]).await.unwrap();
        let used = listener.local_addr().unwrap();
        assert!(used.ip().is_loopback());
        for (addresses, hint) in [([used, any], used), ([nowhere, nowhere], nowhere)] {
            let message = listen(&addresses).await.unwrap_err().to_string();
            assert!(message.contains(&hint.to_string()), "{message}");
        }
    }
}
