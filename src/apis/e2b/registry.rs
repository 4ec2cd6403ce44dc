//! The sandboxes of E2B's clients: sessions, with what their creators said of them and the secrets that open them.
//!
//! A sandbox has the handle of its session as its id. The session is the truth: it says whether the sandbox lives, and why it
//! has ended. A record here that has no open session is forgotten when the next one is added.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use axum::http::header::HOST;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri};
use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;

use super::deadlines::Deadlines;
use super::error::{E2bError, ErrorKind, PAUSED, not_found};
use super::secret::{FileQuery, Secret, SignatureExpired};
use super::watchers::Watchers;
use crate::node::{LostHandle, Node, Thing};
use crate::sessions::{AtDeadline, InUse, NoSession, Registry};

/// The port of processes and files, and that of code.
const PORTS: [u16; 2] = [49_983, 49_999];

/// The headers of requests to a sandbox.
const SANDBOX_ID: &str = "e2b-sandbox-id";
const SANDBOX_PORT: &str = "e2b-sandbox-port";
const ACCESS_TOKEN: &str = "x-access-token";
const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";

/// The sandboxes of a server; cheap to clone. They stay when the configuration is loaded again.
#[derive(Clone)]
pub(crate) struct Sandboxes {
    sessions: Arc<Registry>,
    records: Arc<Mutex<HashMap<String, Arc<Sandbox>>>>,
}

/// A description of a sandbox by its creator.
#[derive(Debug, Clone, Default)]
pub(crate) struct Description {
    /// The template as the creator named it.
    pub template: String,
    pub metadata: BTreeMap<String, String>,
    /// Variables of all of its programs.
    pub env: BTreeMap<String, String>,
    /// What happens at its timeout.
    pub at_timeout: AtDeadline,
    /// Whether a request to it ends its pause.
    pub resumes_itself: bool,
}

/// A sandbox of a client.
pub(crate) struct Sandbox {
    pub id: String,
    pub client: Client,
    pub description: Description,
    /// The times of its processes.
    pub(super) deadlines: Deadlines,
    /// The watchers of its folders.
    pub(super) watchers: Watchers,
    access_token: Secret,
    traffic_token: Secret,
    sessions: Arc<Registry>,
}

impl Sandbox {
    /// Its session, for a request to it. If it is paused, it goes on, or the request is refused, as its creator has asked.
    ///
    /// # Errors
    ///
    /// When the session has ended or is paused: 502, with the reason.
    pub(crate) fn session(&self) -> Result<InUse, E2bError> {
        self.session_if(self.description.resumes_itself)
    }

    /// Whether it is there. Only a request with its secret, which was checked, lets it go on.
    ///
    /// # Errors
    ///
    /// As [`Self::session`].
    pub(super) fn is_there(&self, head: &Parts) -> Result<(), E2bError> {
        let has_secret = head.headers.contains_key(ACCESS_TOKEN);
        self.session_if(has_secret && self.description.resumes_itself).map(drop)
    }

    /// Its session, which goes on if it is paused and `resumes`.
    fn session_if(&self, resumes: bool) -> Result<InUse, E2bError> {
        let session = self.sessions.take(&self.client, &self.id).map_err(|none| match none {
            NoSession::Gone(gone) => gone_sandbox(&self.id, &gone.why.to_string()),
            NoSession::Lost(lost) => E2bError::lost(ErrorKind::SandboxGone, *lost),
            NoSession::Unknown => unknown_sandbox(&self.id),
        })?;
        if session.is_paused() {
            if !resumes {
                return Err(gone_sandbox(&self.id, PAUSED));
            }
            session.resume();
        }
        Ok(session)
    }

    /// The variables that its creator has set for all of its programs.
    pub(crate) fn env(&self) -> &BTreeMap<String, String> {
        &self.description.env
    }

    /// The secret for requests to its processes and files.
    pub(super) fn access_token(&self) -> &str {
        self.access_token.text()
    }

    /// The secret for requests to its code.
    pub(super) fn traffic_token(&self) -> &str {
        self.traffic_token.text()
    }
}

/// A request to a sandbox, as far as it says which sandbox and why it may.
struct Claim<'a> {
    parts: &'a Parts,
    access_token: Option<&'a str>,
    traffic_token: Option<&'a str>,
    /// The query, if it is a request for a file.
    file: Option<FileQuery>,
    kind: Kind,
}

/// A kind of request to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `/health` says only whether the sandbox is there.
    Health,
    /// `/execute` and `/contexts`.
    Code,
    /// `/files`.
    Files,
    /// Processes, the file system and the rest.
    Other,
}

impl Kind {
    fn of(path: &str) -> Self {
        match path.trim_start_matches('/').split('/').next() {
            Some("health") => Self::Health,
            Some("execute" | "contexts") => Self::Code,
            Some("files") => Self::Files,
            _ => Self::Other,
        }
    }
}

impl Sandboxes {
    /// The sandboxes that are sessions of this registry.
    pub(crate) fn new(sessions: Arc<Registry>) -> Self {
        Self { sessions, records: Arc::default() }
    }

    /// Adds the sandbox of a session.
    ///
    /// # Errors
    ///
    /// When the kernel returns no random bytes for its secrets.
    pub(super) fn add(
        &self,
        session: &InUse,
        description: Description,
    ) -> Result<Arc<Sandbox>, getrandom::Error> {
        let sandbox = Arc::new(Sandbox {
            id: session.id.clone(),
            client: session.client.clone(),
            description,
            deadlines: Deadlines::default(),
            watchers: Watchers::default(),
            access_token: Secret::new(self.sessions.node())?,
            traffic_token: Secret::new(self.sessions.node())?,
            sessions: Arc::clone(&self.sessions),
        });
        session.session.sample_usage();
        let mut records = lock(&self.records);
        records.retain(|id, _| self.sessions.is_open(id));
        // Two that connect at the same time get the same secrets.
        Ok(Arc::clone(records.entry(session.id.clone()).or_insert(sandbox)))
    }

    /// The sandbox with this id, if a client of E2B has created it or has connected to it.
    pub(super) fn find(&self, id: &str) -> Option<Arc<Sandbox>> {
        lock(&self.records).get(id).cloned()
    }

    /// The sandbox of a request to one: named by a header, the host, a secret, or a signature. `domain` is that of `apis.e2b`.
    ///
    /// # Errors
    ///
    /// When there is no such sandbox, or the request does not show that it may use it.
    pub(crate) fn of_data_request(
        &self,
        parts: &Parts,
        domain: Option<&str>,
    ) -> Result<Arc<Sandbox>, E2bError> {
        let claim = Claim::read(parts)?;
        let sandbox = match named(parts, domain)? {
            Some(id) => self.find(id).ok_or_else(|| self.missing(id))?,
            None => self.by_secret(&claim)?,
        };
        if claim.is_granted(&sandbox)? {
            return Ok(sandbox);
        }
        Err(E2bError::new(ErrorKind::Unauthenticated, claim.refusal()))
    }

    /// The sandbox that the secret or signature of a request opens.
    fn by_secret(&self, claim: &Claim<'_>) -> Result<Arc<Sandbox>, E2bError> {
        let all: Vec<_> = lock(&self.records).values().cloned().collect();
        let mut found = None;
        // All are compared, so that the time gives nothing away.
        for sandbox in all {
            if claim.has_secret() && claim.is_granted(&sandbox)? {
                found = Some(sandbox);
            }
        }
        found.ok_or_else(|| match claim.lost(self.sessions.node()) {
            Some(lost) => E2bError::lost(ErrorKind::SandboxGone, lost),
            None => {
                let message = match claim.has_secret() {
                    true => {
                        "the sandbox was not found: none has this X-Access-Token or signature. It has ended, or the \
                         server was started again; with E2b-Sandbox-Id the answer says why"
                    }
                    false => {
                        "the request names no sandbox: send E2b-Sandbox-Id and X-Access-Token, or a signed URL of a \
                         file"
                    }
                };
                E2bError::new(ErrorKind::Unauthenticated, message)
            }
        })
    }

    fn missing(&self, id: &str) -> E2bError {
        if self.sessions.is_open(id) {
            let message = "no client of E2B has connected to this session; connect to it first";
            return E2bError::new(ErrorKind::Unauthenticated, message);
        }
        match self.sessions.why_gone(id) {
            Some(why) => gone_sandbox(id, &why.to_string()),
            None => match self.sessions.node().lost(id, Thing::Sandbox) {
                Some(lost) => E2bError::lost(ErrorKind::SandboxGone, lost),
                None => unknown_sandbox(id),
            },
        }
    }
}

impl<'a> Claim<'a> {
    fn read(parts: &'a Parts) -> Result<Self, E2bError> {
        let kind = Kind::of(parts.uri.path());
        let query = parts.uri.query().unwrap_or_default();
        let file = (kind == Kind::Files).then(|| FileQuery::read(query)).transpose()?;
        Ok(Self {
            parts,
            access_token: header(&parts.headers, ACCESS_TOKEN)?,
            traffic_token: header(&parts.headers, TRAFFIC_TOKEN)?,
            file,
            kind,
        })
    }

    /// Whether it has a secret that opens one sandbox.
    fn has_secret(&self) -> bool {
        self.access_token.is_some()
            || self.traffic_token.is_some() && self.kind == Kind::Code
            || self.file.as_ref().is_some_and(FileQuery::is_signed)
    }

    /// Why its secret opens no sandbox of this node, if a node has made the secret.
    fn lost(&self, node: &Node) -> Option<LostHandle> {
        let secrets = [self.access_token, self.traffic_token].into_iter().flatten();
        secrets.into_iter().find_map(|secret| node.lost(secret, Thing::Sandbox))
    }

    /// Whether it may use this sandbox. A secret that is wrong is not replaced by another that is right.
    fn is_granted(&self, sandbox: &Sandbox) -> Result<bool, E2bError> {
        if let Some(token) = self.access_token {
            return Ok(sandbox.access_token.is(token));
        }
        match (&self.file, self.kind) {
            (_, Kind::Health) => Ok(true),
            (_, Kind::Code) => {
                Ok(self.traffic_token.is_some_and(|token| sandbox.traffic_token.is(token)))
            }
            (Some(file), Kind::Files) if file.is_signed() => {
                let signed = file.is_signed_with(&sandbox.access_token, &self.parts.method);
                signed.map_err(|SignatureExpired| {
                    E2bError::new(ErrorKind::Unauthenticated, "signature is already expired")
                })
            }
            (_, Kind::Files | Kind::Other) => Ok(false),
        }
    }

    fn refusal(&self) -> &'static str {
        match (self.access_token, &self.file) {
            (Some(_), _) => "X-Access-Token is not the access token of this sandbox",
            (None, Some(file)) if file.is_signed() => {
                "the signature is not that of this path, user and operation"
            }
            (None, Some(_)) => "X-Access-Token or a signature is required",
            (None, None) => {
                "X-Access-Token is required, and must be the access token of this sandbox"
            }
        }
    }
}

/// The id that the headers or the host of a request name.
///
/// # Errors
///
/// When they name two, or a port that can't be reached.
fn named<'a>(parts: &'a Parts, domain: Option<&str>) -> Result<Option<&'a str>, E2bError> {
    let by_header = header(&parts.headers, SANDBOX_ID)?;
    let by_host = domain.and_then(|domain| label(host_of(&parts.headers, &parts.uri)?, domain));
    let port = header(&parts.headers, SANDBOX_PORT)?.map(str::parse);
    let port = match port.transpose() {
        Ok(port) => port,
        Err(_) => return Err(E2bError::invalid(SANDBOX_PORT, "is not the number of a port")),
    };
    let ports = [port, by_host.map(|(port, _)| port)];
    if let Some(closed) = ports.into_iter().flatten().find_map(closed_port) {
        return Err(closed);
    }
    match (by_header, by_host) {
        (Some(header), Some((_, host))) if header != host => {
            Err(E2bError::invalid("E2b-Sandbox-Id", "is another sandbox than that of the host"))
        }
        (header, host) => Ok(header.or(host.map(|(_, id)| id))),
    }
}

/// The error for a port at which nothing of a sandbox answers; `None` for the two that do. Clients look for "port is not open".
pub(super) fn closed_port(port: u16) -> Option<E2bError> {
    let message = format!(
        "port {port} of a sandbox can't be reached: the port is not open, because sandboxes have no network"
    );
    (!PORTS.contains(&port)).then(|| E2bError::new(ErrorKind::SandboxGone, message))
}

/// The host that a request names, without its port.
pub(super) fn host_of<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let named = headers.get(HOST).and_then(|host| host.to_str().ok());
    let named = named.or(uri.authority().map(|authority| authority.as_str()))?;
    Some(named.rsplit_once(':').map_or(named, |(host, _)| host))
}

/// Whether a name of this machine is below the domain, or is the domain itself.
pub(super) fn is_below(host: &str, domain: &str) -> bool {
    let domain = without_port(domain);
    let Some(at) = host.len().checked_sub(domain.len()) else { return false };
    let Some((label, rest)) = host.split_at_checked(at) else { return false };
    // A certificate for all names below has no names that are two levels below.
    let label = label.strip_suffix('.').filter(|label| !label.is_empty() && !label.contains('.'));
    rest.eq_ignore_ascii_case(domain) && (at == 0 || label.is_some())
}

/// A domain without the port of the server, which is not a part of the name.
fn without_port(domain: &str) -> &str {
    domain.split(':').next().unwrap_or(domain)
}

/// The port and the id in the name of a sandbox below the domain: `49983-ID.DOMAIN`.
pub(super) fn label<'a>(host: &'a str, domain: &str) -> Option<(u16, &'a str)> {
    let is_domain = is_below(host, domain);
    let (label, _) = host.split_once('.').filter(|_| is_domain)?;
    let (port, id) = label.split_once('-')?;
    Some((port.parse().ok()?, id))
}

/// The value of a header that can be there once.
fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, E2bError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(E2bError::invalid(name, "is there twice"));
    }
    value.to_str().map(Some).map_err(|_| E2bError::invalid(name, "is not a text"))
}

/// The error for a sandbox that is gone.
fn gone_sandbox(id: &str, why: &str) -> E2bError {
    E2bError::new(ErrorKind::SandboxGone, not_found(Some(id), why))
}

fn unknown_sandbox(id: &str) -> E2bError {
    gone_sandbox(
        id,
        "this server has none with this id. When a server is started again, all sandboxes are gone",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_one_level_below_the_domain_are_names_of_this_machine() {
        for host in ["sandbox.example", "api.sandbox.example", "49983-a.Sandbox.Example"] {
            assert!(is_below(host, "sandbox.example:8443"), "{host}");
        }
        for host in
            ["example", "evilsandbox.example", "a.b.sandbox.example", ".sandbox.example", "", "x"]
        {
            assert!(!is_below(host, "sandbox.example"), "{host}");
        }
    }

    #[test]
    fn a_host_names_a_port_and_a_sandbox() {
        let of = |host| label(host, "sandbox.example:8443");
        assert_eq!(of("49983-0a1b.sandbox.example"), Some((49_983, "0a1b")));
        for host in [
            "api.sandbox.example",
            "sandbox.example",
            "x-1.sandbox.example",
            "1-a.b.sandbox.example",
        ] {
            assert_eq!(of(host), None, "{host}");
        }
    }

    #[test]
    fn each_kind_of_request_needs_its_own_secret() {
        for (path, kind) in [
            ("/health", Kind::Health),
            ("/execute", Kind::Code),
            ("/contexts/1/restart", Kind::Code),
            ("/files", Kind::Files),
            ("/process.Process/Start", Kind::Other),
            ("/", Kind::Other),
            ("/healthy", Kind::Other),
        ] {
            assert_eq!(Kind::of(path), kind, "{path}");
        }
    }
}
