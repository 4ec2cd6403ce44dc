//! The address of the engine: the configured one, that of the environment, that of the current docker
//! context, or one of the default sockets, in this order.
//!
//! Hosts start their MCP servers with almost no environment, so `DOCKER_HOST` alone is not enough.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use bollard::{API_DEFAULT_VERSION, Docker};
use serde::Deserialize;

use super::error::translate;
use crate::engine::docker_config;
use crate::engine::store::Digest;
use crate::engine::{Call, EngineError};

/// Seconds after which the client library gives up a call. It equals our longest timeout, that of
/// fetching an image; all others are shorter.
const LIBRARY_TIMEOUT_S: u64 = Call::FetchImage.deadline().as_secs();

const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

/// The ports of addresses without one.
const PLAIN_PORT: u16 = 2375;
const TLS_PORT: u16 = 2376;

const NO_PIPES: &str = "named pipes are only on Windows: use unix:///path or tcp://host:port";

/// The address of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineAddress {
    /// A socket on this machine.
    Unix(PathBuf),
    /// Plain TCP, `host:port`. Anyone who reaches the port controls the machine.
    Tcp(String),
    /// TCP with TLS, `host:port`, with `ca.pem`, `cert.pem` and `key.pem` in the directory.
    Tls {
        /// `host:port`.
        host: String,
        /// The directory of the certificates.
        certificates: PathBuf,
    },
}

/// Why the address of an engine could not be found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// An address can't be used.
    #[error("the engine address {address:?} in {place} can't be used: {why}")]
    Address {
        /// Where it is set.
        place: &'static str,
        /// The address.
        address: String,
        /// The problem, and how to fix it.
        why: String,
    },
    /// None of the default paths is a socket.
    #[error("no container engine was found; there is no socket at any of these paths: {}", .0.join(", "))]
    NotFound(Vec<String>),
    /// The selected docker context can't be used.
    #[error(
        "docker context {name:?} can't be used: {why}; `docker context use default` or DOCKER_CONTEXT selects another, \
         and engine.host or DOCKER_HOST comes before it"
    )]
    Context {
        /// Its name.
        name: String,
        /// The problem.
        why: String,
    },
}

impl Default for EngineAddress {
    /// The socket of an ordinary installation.
    fn default() -> Self {
        Self::Unix(DEFAULT_SOCKET.into())
    }
}

impl fmt::Display for EngineAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(host) => write!(f, "tcp://{host}"),
            Self::Tls { host, .. } => write!(f, "tcp://{host} (TLS)"),
        }
    }
}

impl EngineAddress {
    /// Finds the engine. `given` is the operator's address, in the form of `DOCKER_HOST`.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub fn find(given: Option<&str>) -> Result<Self, ConnectError> {
        if let Some(address) = Self::named(given)? {
            return Ok(address);
        }
        if let Some(address) = from_context()? {
            return Ok(address);
        }
        default_socket().ok_or_else(|| {
            let paths = default_sockets().into_iter().map(|path| path.display().to_string());
            ConnectError::NotFound(paths.collect())
        })
    }

    /// The address that the operator or the environment names, if one of them does.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Address`].
    pub fn named(given: Option<&str>) -> Result<Option<Self>, ConnectError> {
        let read = |place, address: &str| {
            Self::parse(address, tls_from_environment())
                .map(Some)
                .map_err(|why| ConnectError::Address { place, address: address.to_owned(), why })
        };
        match (given, variable("DOCKER_HOST")) {
            (Some(address), _) => read("engine.host", address),
            (None, Some(address)) => read("DOCKER_HOST", &address),
            (None, None) => Ok(None),
        }
    }

    /// Addresses to try if none is configured: that of the current docker context, and the first of the default sockets that
    /// exists. Also returns why the context can't be used, if it can't.
    pub fn usual() -> (Vec<Self>, Option<ConnectError>) {
        let (of_context, unusable) = match from_context() {
            Ok(address) => (address, None),
            Err(error) => (None, Some(error)),
        };
        let socket = default_socket().filter(|socket| of_context.as_ref() != Some(socket));
        (of_context.into_iter().chain(socket).collect(), unusable)
    }

    /// Reads an address in the form of `DOCKER_HOST`, or the path of a socket. The error says what to write.
    fn parse(address: &str, certificates: Option<PathBuf>) -> Result<Self, String> {
        let address = unquoted(address);
        if address.is_empty() {
            return Err("it is empty".to_owned());
        }
        let path = address.strip_prefix("unix://").or_else(|| address.strip_prefix("unix:"));
        if let Some(path) = path.or_else(|| address.starts_with('/').then_some(address)) {
            return match path.starts_with('/') {
                true => Ok(Self::Unix(path.into())),
                false => Err(format!("the path is not absolute: write unix:///{path}")),
            };
        }
        let Some((scheme, host)) = address.split_once("://") else {
            return Err(match address.starts_with("npipe:") {
                true => NO_PIPES.to_owned(),
                false => format!("it has no scheme: write tcp://{address} or unix:///{address}"),
            });
        };
        let host = host.trim_end_matches('/');
        if matches!(scheme, "tcp" | "http" | "https")
            && (host.is_empty() || host.contains(|c: char| c == '/' || c.is_whitespace()))
        {
            return Err(format!("it has no host and port: write {scheme}://host:port"));
        }
        // As the docker client does.
        let has_port = host.rsplit(']').next().is_some_and(|end| end.contains(':'));
        let host = match (scheme, has_port) {
            ("tcp", false) => {
                format!("{host}:{}", if certificates.is_some() { TLS_PORT } else { PLAIN_PORT })
            }
            _ => host.to_owned(),
        };
        match (scheme, certificates) {
            ("tcp" | "http", None) => Ok(Self::Tcp(host)),
            ("tcp" | "http" | "https", Some(certificates)) => Ok(Self::Tls { host, certificates }),
            ("https", None) => {
                Err("TLS needs certificates: set DOCKER_TLS_VERIFY and DOCKER_CERT_PATH".to_owned())
            }
            ("ssh", _) => Err(format!(
                "Isolator does not start ssh: run `ssh -N -L /tmp/docker.sock:{DEFAULT_SOCKET} {host}`, and use \
                 unix:///tmp/docker.sock"
            )),
            ("npipe", _) => Err(NO_PIPES.to_owned()),
            _ => Err(format!("{scheme:?} is not supported: use unix:///path or tcp://host:port")),
        }
    }
}

/// An address without surrounding blanks and quotes, which shells and files of variables leave there.
fn unquoted(address: &str) -> &str {
    let address = address.trim();
    let inner =
        ['"', '\''].iter().find_map(|quote| address.strip_prefix(*quote)?.strip_suffix(*quote));
    inner.map_or(address, unquoted)
}

/// A variable of the environment, unless it is empty.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !unquoted(value).is_empty())
}

/// The directory of certificates, if the environment asks for TLS as it would ask the docker client.
fn tls_from_environment() -> Option<PathBuf> {
    let verify = env::var("DOCKER_TLS_VERIFY").is_ok_and(|value| !value.is_empty());
    verify.then(|| {
        variable("DOCKER_CERT_PATH")
            .map(PathBuf::from)
            .or_else(docker_config::directory)
            .unwrap_or_default()
    })
}

fn home() -> Option<PathBuf> {
    env::var_os("HOME").map(PathBuf::from)
}

/// The first of the default paths at which there is a socket.
fn default_socket() -> Option<EngineAddress> {
    let is_socket =
        |path: &PathBuf| fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    default_sockets().into_iter().find(is_socket).map(EngineAddress::Unix)
}

fn default_sockets() -> Vec<PathBuf> {
    let mut sockets = vec![PathBuf::from(DEFAULT_SOCKET)];
    if let Some(home) = home() {
        sockets.push(home.join(".docker/run/docker.sock"));
    }
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    if let Some(runtime) = &runtime {
        sockets.push(runtime.join("docker.sock"));
    }
    sockets.push("/run/podman/podman.sock".into());
    if let Some(runtime) = runtime {
        sockets.push(runtime.join("podman/podman.sock"));
    }
    sockets
}

/// The part of docker's `config.json` that selects a context.
#[derive(Deserialize)]
struct DockerConfig {
    #[serde(rename = "currentContext")]
    current_context: Option<String>,
}

/// A context's `meta.json`.
#[derive(Deserialize)]
struct ContextMeta {
    #[serde(rename = "Endpoints", default)]
    endpoints: BTreeMap<String, ContextEndpoint>,
}

#[derive(Deserialize)]
struct ContextEndpoint {
    #[serde(rename = "Host")]
    host: Option<String>,
}

/// The address of the selected docker context; `None` if that is the default one.
fn from_context() -> Result<Option<EngineAddress>, ConnectError> {
    let directory = docker_config::directory().unwrap_or_default();
    let selected = variable("DOCKER_CONTEXT").or_else(|| current_context(&directory));
    let Some(name) = selected.filter(|name| !name.is_empty() && name != "default") else {
        return Ok(None);
    };
    address_of_context(&directory, &name).map_err(|why| ConnectError::Context { name, why })
}

/// The context that is selected in docker's configuration. Without a configuration that can be read docker uses the default
/// one, too.
fn current_context(directory: &Path) -> Option<String> {
    let file = directory.join("config.json");
    let read = fs::read_to_string(&file)
        .and_then(|text| serde_json::from_str::<DockerConfig>(&text).map_err(io::Error::from));
    match read {
        Ok(config) => config.current_context,
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            let file = file.display();
            tracing::warn!("{file} can't be read, so no docker context is selected: {error}");
            None
        }
    }
}

/// The address in a context. Its folder is named after a hash of its name, so no other context matters.
fn address_of_context(directory: &Path, name: &str) -> Result<Option<EngineAddress>, String> {
    let id = id_of_context(name);
    let file = directory.join("contexts/meta").join(&id).join("meta.json");
    let text = fs::read_to_string(&file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "it is not in docker's list of contexts".to_owned(),
        _ => format!("{} can't be read: {error}", file.display()),
    })?;
    let meta: ContextMeta = serde_json::from_str(&text)
        .map_err(|error| format!("{} is no description of a context: {error}", file.display()))?;
    let endpoint = meta.endpoints.get("docker").ok_or("it has no docker endpoint")?;
    // Without an address it is that of the default context.
    let Some(host) = endpoint.host.as_deref().filter(|host| !host.is_empty()) else {
        return Ok(None);
    };
    let tls = directory.join("contexts/tls").join(id).join("docker");
    let certificates = tls.join("cert.pem").exists().then_some(tls);
    let address = EngineAddress::parse(host, certificates);
    address.map(Some).map_err(|why| format!("its address is {host:?}, and {why}"))
}

fn id_of_context(name: &str) -> String {
    Digest::of(name.as_bytes()).hex().to_owned()
}

/// Opens a client and agrees on the version of the API.
///
/// # Errors
///
/// [`EngineError::Unreachable`] if nothing answers.
pub async fn connect(address: &EngineAddress) -> Result<Docker, EngineError> {
    let shown = address.to_string();
    let failed = |error| translate(Call::Check, &shown, error);
    let docker = match address {
        EngineAddress::Unix(path) => Docker::connect_with_unix(
            &path.to_string_lossy(),
            LIBRARY_TIMEOUT_S,
            API_DEFAULT_VERSION,
        ),
        EngineAddress::Tcp(host) => Docker::connect_with_http(
            &format!("tcp://{host}"),
            LIBRARY_TIMEOUT_S,
            API_DEFAULT_VERSION,
        ),
        EngineAddress::Tls { host, certificates } => Docker::connect_with_ssl(
            &format!("tcp://{host}"),
            &certificates.join("key.pem"),
            &certificates.join("cert.pem"),
            &certificates.join("ca.pem"),
            LIBRARY_TIMEOUT_S,
            API_DEFAULT_VERSION,
        ),
    }
    .map_err(&failed)?;
    docker.negotiate_version().await.map_err(&failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_docker_client_reads_them() {
        for unix in ["unix:///run/x.sock", "unix:/run/x.sock", "/run/x.sock", " \"/run/x.sock\" "] {
            let address = EngineAddress::parse(unix, None);
            assert_eq!(address, Ok(EngineAddress::Unix("/run/x.sock".into())), "{unix:?}");
        }
        for tcp in ["tcp://127.0.0.1:2375", "'tcp://127.0.0.1:2375/'\n", "tcp://127.0.0.1"] {
            let address = EngineAddress::parse(tcp, None);
            assert_eq!(address, Ok(EngineAddress::Tcp("127.0.0.1:2375".into())), "{tcp:?}");
        }
        let tls = EngineAddress::parse("tcp://engine", Some("/certs".into()));
        let host = "engine:2376".to_owned();
        assert_eq!(tls, Ok(EngineAddress::Tls { host, certificates: "/certs".into() }));
    }

    #[test]
    fn an_address_that_can_t_be_used_is_explained() {
        for (address, advice) in [
            ("ssh://me@lab", "ssh -N -L /tmp/docker.sock:/var/run/docker.sock me@lab"),
            ("https://engine:2376", "DOCKER_CERT_PATH"),
            ("engine:2375", "tcp://engine:2375"),
            ("unix://run/x.sock", "unix:///run/x.sock"),
            ("npipe:////./pipe/docker_engine", "Windows"),
            ("tcp://", "tcp://host:port"),
            ("fd://", "unix:///path"),
            ("''", "empty"),
        ] {
            let why = EngineAddress::parse(address, None).unwrap_err();
            assert!(why.contains(advice), "{address}: {why}");
        }
    }

    #[test]
    fn a_context_is_found_among_unreadable_ones() {
        let directory = tempfile::tempdir().unwrap();
        let contexts = directory.path().join("contexts/meta");
        let write = |name: &str, text: &str| {
            let meta = contexts.join(id_of_context(name));
            fs::create_dir_all(&meta).unwrap();
            fs::write(meta.join("meta.json"), text).unwrap();
        };
        write("lab", r#"{"Name":"lab","Endpoints":{"docker":{"Host":"tcp://lab:2375"}}}"#);
        write("empty", "");
        write("bare", r#"{"Name":"bare"}"#);
        write("far", r#"{"Name":"far","Endpoints":{"docker":{"Host":"ssh://far"}}}"#);
        write("local", r#"{"Name":"local","Endpoints":{"docker":{}}}"#);
        fs::write(contexts.join("stray"), "").unwrap();
        let address = |name: &str| address_of_context(directory.path(), name);
        assert_eq!(address("lab"), Ok(Some(EngineAddress::Tcp("lab:2375".into()))));
        assert_eq!(address("local"), Ok(None));
        for (name, why) in [
            ("empty", "no description"),
            ("bare", "no docker endpoint"),
            ("far", "ssh -N"),
            ("other", "not in docker's list"),
        ] {
            let error = address(name).unwrap_err();
            assert!(error.contains(why), "{name}: {error}");
        }
    }
}
