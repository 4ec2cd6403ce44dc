//! The section `http`.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::{Check, three_quarters};
use super::schema::follows;
use super::section::{Text, Unit as _, any_duration, duration, section};

/// Two or three for each of some hundreds of clients.
const MAX_CONNECTIONS: usize = 1024;

/// The same, where trainers send a thousand programs at once, each on a connection of its own, and from one address.
const MAX_CONNECTIONS_WITH_BATCHES: usize = 2048;

section! {
    /// How clients reach `serve --http`.
    #[derive(Clone)]
    pub struct HttpConfig {
        /// File with the accepted tokens, one a line as `isolator token` prints it, relative to this file. Read again when it
        /// changes. Without it, only clients on this machine are served.
        #[serde(skip_serializing)]
        pub tokens: Option<PathBuf> = None,
        /// Certificate for TLS.
        #[serde(skip_serializing)]
        pub tls: Option<TlsConfig> = None,
        /// Host names that clients use for this machine, with or without a port, in addition to localhost and its address.
        /// Requests for other names are refused.
        pub allowed_hosts: Vec<String> = Vec::new(),
        /// Origins of web pages that can call, in addition to pages on this machine, such as "https://agent.example:443".
        pub allowed_origins: Vec<String> = Vec::new(),
        /// Maximum number of open connections; others are refused. There are fewer if file descriptors are few. Default: 1024, or
        /// 2048 with apis.sandboxFusion or apis.piston.
        #[schemars(range(min = 1, max = 65_536))]
        #[schemars(transform = follows)]
        pub max_connections: usize = MAX_CONNECTIONS,
        /// Maximum number of them from one address, which several clients behind a proxy share. Others are closed. Default:
        /// three quarters of maxConnections.
        #[schemars(range(min = 1))]
        #[schemars(transform = follows)]
        pub max_connections_per_address: usize = three_quarters(MAX_CONNECTIONS),
        /// How long a client can read nothing of an answer before its connection is closed.
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        pub write_timeout: Duration = Duration::from_secs(30),
        /// How long a connection can be idle between two requests before it is closed. A proxy in front of the server must
        /// close it sooner.
        // Longer than the 60 seconds of nginx and most other proxies. A proxy that waits longer than the server sends
        // requests into connections that are being closed.
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        pub idle_timeout: Duration = Duration::from_secs(75),
        /// How long an answer can be silent. Then a comment is sent, so that no proxy takes the connection for dead.
        // Proxies do so after 30 seconds at the earliest.
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        pub keep_alive: Duration = Duration::from_secs(15),
        /// How long all calls are still served after a signal to stop, while /readyz already answers with 503, so that a load
        /// balancer sends its clients to other servers.
        #[serde(with = "Text")]
        #[schemars(schema_with = "any_duration")]
        pub drain_notice: Duration = Duration::ZERO,
        /// How long programs can go on when the server stops.
        // Clients still wait for answers, and service managers kill a service only after thirty seconds or more.
        #[serde(with = "Text")]
        #[schemars(schema_with = "any_duration")]
        pub drain: Duration = Duration::from_secs(10),
    }
}

/// Certificate for TLS.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// File with the certificate and its chain in PEM, relative to this file.
    pub certificate: PathBuf,
    /// File with the certificate's private key in PEM, relative to this file.
    pub key: PathBuf,
}

impl HttpConfig {
    /// `have_batches` says whether clients may send many programs at once.
    pub(super) fn check(&mut self, have_batches: bool, check: &mut Check<'_>) {
        if have_batches && !check.is_set("http.maxConnections") {
            self.max_connections = MAX_CONNECTIONS_WITH_BATCHES;
        }
        for (at, origin) in self.allowed_origins.iter().enumerate() {
            // Without a scheme it matches nothing; without a port its meaning depends on the library's version.
            let place = origin.split_once("://").map(|(_, place)| place.trim_start_matches('['));
            if !place.is_some_and(|place| place.contains(':') && !place.contains('/')) {
                check.problem(
                    format!("http.allowedOrigins[{at}]"),
                    format!("{origin:?} is not an origin: it needs a scheme and a port, as in \"https://agent.example:443\""),
                );
            }
        }
        let of_address = &mut self.max_connections_per_address;
        check.share("http.maxConnectionsPerAddress", of_address, self.max_connections);
        self.tokens = self.tokens.take().map(|path| check.directory.join(path));
        if let Some(TlsConfig { certificate, key }) = &mut self.tls {
            *certificate = check.directory.join(&certificate);
            *key = check.directory.join(&key);
        }
    }
}
