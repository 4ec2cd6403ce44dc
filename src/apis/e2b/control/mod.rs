//! The control plane: sandboxes are created, listed, described, paused and ended by the owner of a token.

mod create;
mod lifetime;
mod list;
mod metrics;
mod network;
mod template;

use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{delete, get, post};
use axum::{Router, body::Body};
use isolator_pool::pool::admission::Client;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::error::{self, E2bError, ErrorKind};
use super::registry::Sandbox;
use super::{E2b, ENVD_VERSION, domain};
use crate::apis::access::Caller;
use crate::apis::body::{self, NoFields};
use crate::apis::operation::Operation;
use crate::apis::{Apis, answer};
use crate::audit::Note;
use crate::calls::Serving;
use crate::config::Config;
use crate::duration;
use crate::sessions::{AtDeadline, InUse, NoSession, OpenSession};

/// The largest body of a request.
const MAX_BODY: usize = 1 << 20;

/// The id of all clients, which old SDKs want.
const CLIENT_ID: &str = "isolator";

const LIST: Operation =
    Operation { method: "GET", route: "/v2/sandboxes", name: "e2b.list_sandboxes" };
const CREATE: Operation =
    Operation { method: "POST", route: "/v2/sandboxes", name: "e2b.create_sandbox" };
const CONNECT: Operation =
    Operation { method: "POST", route: "/v2/sandboxes/{id}/connect", name: "e2b.connect_sandbox" };
const RESUME: Operation =
    Operation { method: "POST", route: "/sandboxes/{id}/resume", name: "e2b.resume_sandbox" };
const DESCRIBE: Operation =
    Operation { method: "GET", route: "/sandboxes/{id}", name: "e2b.describe_sandbox" };
const KILL: Operation =
    Operation { method: "DELETE", route: "/sandboxes/{id}", name: "e2b.kill_sandbox" };
const TIMEOUT: Operation =
    Operation { method: "POST", route: "/sandboxes/{id}/timeout", name: "e2b.set_timeout" };
const REFRESH: Operation =
    Operation { method: "POST", route: "/sandboxes/{id}/refreshes", name: "e2b.refresh_sandbox" };
const PAUSE: Operation =
    Operation { method: "POST", route: "/sandboxes/{id}/pause", name: "e2b.pause_sandbox" };
const METRICS: Operation =
    Operation { method: "GET", route: "/sandboxes/{id}/metrics", name: "e2b.metrics" };
const ALL_METRICS: Operation =
    Operation { method: "GET", route: "/sandboxes/metrics", name: "e2b.metrics" };

/// The paths of the control plane.
pub(super) fn route(apis: &Apis, e2b: &E2b) -> Router {
    let state = || e2b.clone();
    let list = |version| {
        let list = move |State(e2b), request| list::list(e2b, request, version);
        LIST.observed(apis, get(list).with_state(state()))
    };
    let create = |default| {
        let create = move |State(e2b), request| create::create(e2b, request, default);
        CREATE.observed(apis, post(create).with_state(state()))
    };
    let describe = DESCRIBE.observed(apis, get(describe).with_state(state()));
    let kill = KILL.observed(apis, delete(lifetime::kill).with_state(state()));
    let connect = CONNECT.observed(apis, post(lifetime::connect).with_state(state()));
    let resume = RESUME.observed(apis, post(lifetime::resume).with_state(state()));
    let timeout = TIMEOUT.observed(apis, post(lifetime::set_timeout).with_state(state()));
    let refresh = REFRESH.observed(apis, post(lifetime::refresh).with_state(state()));
    let pause = PAUSE.observed(apis, post(lifetime::pause).with_state(state()));
    let metrics = METRICS.observed(apis, get(metrics::of_one).with_state(state()));
    let all_metrics = ALL_METRICS.observed(apis, get(metrics::of_many).with_state(state()));
    Router::new()
        .route("/sandboxes", list(list::Version::One).merge(create(Duration::from_secs(15))))
        .route("/v2/sandboxes", list(list::Version::Two).merge(create(DEFAULT_TIMEOUT)))
        .route("/sandboxes/metrics", all_metrics)
        .route("/sandboxes/{id}", describe.merge(kill))
        .route("/sandboxes/{id}/connect", connect.clone())
        .route("/v2/sandboxes/{id}/connect", connect)
        .route("/sandboxes/{id}/resume", resume)
        .route("/sandboxes/{id}/timeout", timeout)
        .route("/sandboxes/{id}/refreshes", refresh)
        .route("/sandboxes/{id}/pause", pause)
        .route("/sandboxes/{id}/metrics", metrics)
}

/// The timeout of a sandbox whose creator gives none.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(5);

/// A request of the owner of a token.
struct Owned {
    now: Serving,
    client: Client,
    caller: Caller,
    body: Bytes,
}

impl E2b {
    /// Lets a request to the control plane in, and receives its body.
    ///
    /// # Errors
    ///
    /// The answer, if its head or body is refused or it has no valid token.
    async fn owned(&self, request: Request) -> Result<Owned, E2bError> {
        let now = self.now();
        let (head, body) = request.into_parts();
        self.check(&head, domain(&now))?;
        let gate = self.apis.gate();
        let client = gate.client(&head, &[]).map_err(E2bError::unauthenticated)?;
        let mut caller = gate.let_in(&head, client.clone());
        let body = caller.receive(&head, body, MAX_BODY).await.map_err(E2bError::refused)?;
        Ok(Owned { now, client, caller, body })
    }
}

impl Owned {
    /// Reads the body; one that is empty has no fields.
    ///
    /// # Errors
    ///
    /// The first field that can't be used.
    fn fields<T: DeserializeOwned>(&self) -> Result<T, E2bError> {
        Ok(body::read_or_empty(&self.body)?)
    }

    /// The session with this id, whether it was opened by E2B's API or not, and paused or not.
    ///
    /// # Errors
    ///
    /// When this client has none: 404, with the reason.
    fn session(&self, id: &str) -> Result<InUse, E2bError> {
        let registry = self.now.calls.sessions().registry();
        registry.take(&self.client, id).map_err(|none| not_found(id, none))
    }

    /// An answer in JSON.
    fn answer(self, status: StatusCode, body: &Value) -> Response {
        self.caller.answer(answer(status, body))
    }
}

/// A request about one sandbox of its owner.
struct Asked<T> {
    owned: Owned,
    session: InUse,
    fields: T,
}

impl<T: DeserializeOwned> Asked<T> {
    /// Lets a request in, reads its fields, and finds the sandbox with this id.
    ///
    /// # Errors
    ///
    /// The answer.
    async fn receive(e2b: &E2b, id: &str, request: Request) -> Result<Self, E2bError> {
        let owned = e2b.owned(request).await?;
        let fields = owned.fields()?;
        let session = owned.session(id)?;
        Ok(Self { owned, session, fields })
    }

    /// Begins the line of the request in the audit log.
    ///
    /// # Errors
    ///
    /// When the log can't be written, and the operator wants nothing to be served then.
    fn begin(&self, operation: &Operation) -> Result<Note, E2bError> {
        let begun = operation.begin(&self.owned.now, &self.owned.client);
        let mut note = begun.map_err(E2bError::of_call)?;
        note.place(&self.session.language.name, Some(&self.session.id));
        Ok(note)
    }

    /// The answer without a body to a request that was served.
    fn done(self, mut note: Note) -> Response {
        note.answered("success");
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        self.owned.caller.answer(response)
    }
}

/// The result of a request that has a line in the audit log, which says if it failed.
fn noted<T>(note: &mut Note, result: Result<T, E2bError>) -> Result<T, E2bError> {
    result.inspect_err(|_| note.answered("error"))
}

/// The error for a sandbox that a client doesn't have.
fn not_found(id: &str, none: NoSession) -> E2bError {
    let why = match none {
        NoSession::Lost(lost) => return E2bError::lost(ErrorKind::NotFound, *lost),
        NoSession::Gone(gone) => gone.why.to_string(),
        NoSession::Unknown => "you have none with this id. When a server is started again, all \
                               sandboxes are gone"
            .to_owned(),
    };
    E2bError::new(ErrorKind::NotFound, error::not_found(Some(id), &why))
}

/// The longest timeout that the operator allows, and the key that says so.
fn longest_timeout(config: &Config) -> (Duration, &'static str) {
    let longest = config.apis.e2b.as_ref().map_or(Duration::ZERO, |e2b| e2b.max_timeout);
    match config.sessions.max_age < longest {
        true => (config.sessions.max_age, "sessions.maxAge"),
        false => (longest, "apis.e2b.maxTimeout"),
    }
}

/// A timeout of a client in seconds, or the usual one.
///
/// # Errors
///
/// When it is longer than the operator allows.
fn timeout(
    field: &str,
    seconds: Option<u64>,
    usual: Duration,
    now: &Serving,
) -> Result<Duration, E2bError> {
    let (most, key) = longest_timeout(&now.setup.config);
    let Some(seconds) = seconds else { return Ok(usual.min(most)) };
    let timeout = Duration::from_secs(seconds);
    if timeout > most {
        let message = format!(
            "{seconds} seconds are more than this server allows, {}; its operator can raise {key}",
            duration::shown(most)
        );
        return Err(E2bError::invalid(field, message));
    }
    Ok(timeout)
}

/// A description of a sandbox with its secrets, as creating and connecting return it.
fn opened(sandbox: &Sandbox, now: &Serving) -> Value {
    json!({
        "templateID": sandbox.description.template,
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": sandbox.access_token(),
        "trafficAccessToken": sandbox.traffic_token(),
        "domain": domain(now),
    })
}

/// A description of a session as the list has it.
fn listed(session: &OpenSession, sandbox: Option<&Sandbox>) -> Value {
    let template = sandbox.map_or(&session.language.name, |it| &it.description.template);
    let limits = session.language.sandbox.limits;
    json!({
        "templateID": template,
        "alias": template,
        "sandboxID": session.id,
        "clientID": CLIENT_ID,
        "startedAt": date(session.opened_at()),
        "endAt": date(session.ends_at()),
        "cpuCount": cores(session),
        "memoryMB": session.resources.memory.as_mib(),
        "diskSizeMB": limits.workspace.as_mib() + limits.tmp.as_mib(),
        "state": if session.is_paused() { "paused" } else { "running" },
        "envdVersion": ENVD_VERSION,
        "metadata": sandbox.map_or_else(|| json!({}), |it| json!(it.description.metadata)),
    })
}

/// The number of cores, rounded up, because clients read a whole number.
fn cores(session: &OpenSession) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few cores")]
    let cores = session.resources.cpu.as_cores().ceil() as u64;
    cores.max(1)
}

fn date(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

async fn describe(
    State(e2b): State<E2b>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, E2bError> {
    let Asked::<NoFields> { owned, session, .. } = Asked::receive(&e2b, &id, request).await?;
    let sandbox = e2b.sandboxes.find(&id);
    let mut body = listed(&session, sandbox.as_deref());
    body["allowInternetAccess"] = json!(false);
    body["domain"] = json!(domain(&owned.now));
    if let Some(sandbox) = sandbox {
        let pauses = sandbox.description.at_timeout == AtDeadline::Pause;
        body["envdAccessToken"] = json!(sandbox.access_token());
        body["lifecycle"] = json!({
            "autoResume": sandbox.description.resumes_itself,
            "onTimeout": if pauses { "pause" } else { "kill" },
        });
    }
    if session.is_paused() {
        body["pauseMode"] = json!("full");
    }
    Ok(owned.answer(StatusCode::OK, &body))
}
