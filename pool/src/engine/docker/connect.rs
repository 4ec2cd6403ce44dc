//! The address of the engine: the configured one, that of the environment, that of the current docker
//! context, or one of the default sockets, in this order.
//!
//! Hosts start their MCP servers with almost no environment, so `DOCKER_HOST` alone is not enough.

use std::env;
use std::fmt;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use bollard::{API_DEFAULT_VERSION, Docker};
use serde::Deserialize;

use super::error::Translate;
use crate::engine::{Call, EngineError};

/// Seconds after which the client library gives up a call. It equals our longest timeout, that of
/// fetching an image; all others are shorter.
const LIBRARY_TIMEOUT_S: u64 = Call::FetchImage.deadline().as_secs();

const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

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
    /// The address is of a kind that is not supported.
    #[error(
        "the engine address {0:?} is not supported: use unix:///path, tcp://host:port, or an ssh \
         tunnel to one of these"
    )]
    Unsupported(String),
    /// None of the default paths is a socket.
    #[error("no container engine was found; there is no socket at any of these paths: {}", .0.join(", "))]
    NotFound(Vec<String>),
    /// The selected docker context can't be used.
    #[error("docker context {name:?} can't be used: {message}")]
    Context {
        /// Its name.
        name: String,
        /// What is wrong with it.
        message: String,
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
        if let Some(address) = given {
            return Self::parse(address, tls_from_environment());
        }
        if let Some(address) = env::var("DOCKER_HOST").ok().filter(|address| !address.is_empty()) {
            return Self::parse(&address, tls_from_environment());
        }
        if let Some(address) = from_context()? {
            return Ok(address);
        }
        let candidates = default_sockets();
        let is_socket = |path: &&PathBuf| {
            fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
        };
        match candidates.iter().find(is_socket) {
            Some(path) => Ok(Self::Unix(path.clone())),
            None => Err(ConnectError::NotFound(
                candidates.iter().map(|path| path.display().to_string()).collect(),
            )),
        }
    }

    /// Reads an address in the form of `DOCKER_HOST`.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Unsupported`].
    pub fn parse(address: &str, certificates: Option<PathBuf>) -> Result<Self, ConnectError> {
        if let Some(path) = address.strip_prefix("unix://") {
            return Ok(Self::Unix(path.into()));
        }
        let host = address.strip_prefix("tcp://").or_else(|| address.strip_prefix("http://"));
        match (host, address.strip_prefix("https://"), certificates) {
            (Some(host), None, None) => Ok(Self::Tcp(host.trim_end_matches('/').to_owned())),
            (Some(host), None, Some(certificates)) | (None, Some(host), Some(certificates)) => {
                let host = host.trim_end_matches('/').to_owned();
                Ok(Self::Tls { host, certificates })
            }
            _ => Err(ConnectError::Unsupported(address.to_owned())),
        }
    }
}

/// The directory of certificates, if the environment asks for TLS as it would ask the docker client.
fn tls_from_environment() -> Option<PathBuf> {
    let verify = env::var("DOCKER_TLS_VERIFY").is_ok_and(|value| !value.is_empty());
    verify.then(|| {
        env::var_os("DOCKER_CERT_PATH").map_or_else(|| docker_directory().join(""), PathBuf::from)
    })
}

fn docker_directory() -> PathBuf {
    if let Some(directory) = env::var_os("DOCKER_CONFIG") {
        return directory.into();
    }
    home().unwrap_or_default().join(".docker")
}

fn home() -> Option<PathBuf> {
    env::var_os("HOME").map(PathBuf::from)
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
#[serde(rename_all = "PascalCase")]
struct ContextMeta {
    name: String,
    endpoints: std::collections::BTreeMap<String, ContextEndpoint>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContextEndpoint {
    host: Option<String>,
}

/// The address of the selected docker context; `None` if that is the default one.
fn from_context() -> Result<Option<EngineAddress>, ConnectError> {
    let directory = docker_directory();
    let selected = env::var("DOCKER_CONTEXT").ok().or_else(|| {
        let text = fs::read_to_string(directory.join("config.json")).ok()?;
        serde_json::from_str::<DockerConfig>(&text).ok()?.current_context
    });
    let Some(name) = selected.filter(|name| !name.is_empty() && name != "default") else {
        return Ok(None);
    };
    let wrong = |message: String| ConnectError::Context { name: name.clone(), message };
    let (id, meta) = find_context(&directory, &name)
        .ok_or_else(|| wrong("it is not in docker's list of contexts".to_owned()))?;
    let host = meta
        .endpoints
        .get("docker")
        .and_then(|endpoint| endpoint.host.clone())
        .ok_or_else(|| wrong("it has no docker endpoint".to_owned()))?;
    let tls = directory.join("contexts/tls").join(id).join("docker");
    let certificates = tls.join("cert.pem").exists().then_some(tls);
    EngineAddress::parse(&host, certificates).map(Some)
}

/// Contexts lie in directories named after a hash of their name; the name itself is in the file.
fn find_context(directory: &Path, name: &str) -> Option<(String, ContextMeta)> {
    for entry in fs::read_dir(directory.join("contexts/meta")).ok()? {
        let entry = entry.ok()?;
        let text = fs::read_to_string(entry.path().join("meta.json")).ok()?;
        let meta: ContextMeta = serde_json::from_str(&text).ok()?;
        if meta.name == name {
            return Some((entry.file_name().to_string_lossy().into_owned(), meta));
        }
    }
    None
}

/// Opens a client and agrees on the version of the API.
///
/// # Errors
///
/// [`EngineError::Unreachable`] if nothing answers.
pub async fn connect(address: &EngineAddress) -> Result<Docker, EngineError> {
    let shown = address.to_string();
    let translate = Translate { call: Call::Check, address: &shown };
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
    .map_err(|e| translate.error(e))?;
    docker.negotiate_version().await.map_err(|e| translate.error(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_docker_client_reads_them() {
        let unix = EngineAddress::parse("unix:///run/x.sock", None);
        assert_eq!(unix, Ok(EngineAddress::Unix("/run/x.sock".into())));
        let tcp = EngineAddress::parse("tcp://127.0.0.1:2375", None);
        assert_eq!(tcp, Ok(EngineAddress::Tcp("127.0.0.1:2375".into())));
        let tls = EngineAddress::parse("tcp://engine:2376", Some("/certs".into()));
        let host = "engine:2376".to_owned();
        assert_eq!(tls, Ok(EngineAddress::Tls { host, certificates: "/certs".into() }));
        for unsupported in ["ssh://somewhere", "https://engine:2376", "engine:2375", ""] {
            assert!(EngineAddress::parse(unsupported, None).is_err(), "{unsupported:?}");
        }
    }

    #[test]
    fn a_context_is_found_by_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let meta = directory.path().join("contexts/meta/abc");
        fs::create_dir_all(&meta).unwrap();
        let text = r#"{"Name":"lab","Metadata":{},"Endpoints":{"docker":{"Host":"tcp://lab:2375","SkipTLSVerify":false}}}"#;
        fs::write(meta.join("meta.json"), text).unwrap();
        let (id, meta) = find_context(directory.path(), "lab").unwrap();
        assert_eq!(
            (id.as_str(), meta.endpoints["docker"].host.as_deref()),
            ("abc", Some("tcp://lab:2375"))
        );
        assert!(find_context(directory.path(), "other").is_none());
    }
}
