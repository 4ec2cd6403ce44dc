//! Creates sandboxes. Each field is used, or refused with its name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use isolator_pool::pool::admission::Client;
use serde::Deserialize;
use serde_json::Value;

use super::network::{Network, Unused};
use super::{CREATE, Owned, opened, template, timeout};
use crate::apis::body;
use crate::apis::e2b::E2b;
use crate::apis::e2b::error::{E2bError, ErrorKind};
use crate::apis::e2b::registry::Description;
use crate::apis::keyed::{self, Keyed, key_of};
use crate::apis::operation::HowServed;
use crate::apis::{Protocol, answer};
use crate::calls::{CallError, CallOutcome, Job, Served, Serving};
use crate::duration;
use crate::request::arguments::OpenSession;
use crate::request::resolve;
use crate::result::receipt::ReceiptReport;
use crate::sessions::AtDeadline;

/// Bytes of all metadata.
const MAX_METADATA: usize = 16 << 10;

/// The metadata with the names of sets and packages, separated by spaces.
const PACKAGES: &str = "isolator.packages";

/// The fields of a request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NewSandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    timeout: Option<u64>,
    auto_pause: Option<bool>,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    /// Every request to a sandbox needs a secret, whatever this is.
    #[serde(rename = "secure")]
    _secure: Option<bool>,
    /// SDKs up to 2.50 always send it. The description of a sandbox says that there is no network.
    #[serde(rename = "allow_internet_access")]
    _allow_internet_access: Option<bool>,
    network: Option<Network>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    #[serde(default)]
    volume_mounts: Unused,
    #[serde(default)]
    mcp: Unused,
    #[serde(default)]
    iam: Unused,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AutoResume {
    enabled: bool,
}

impl NewSandbox {
    /// Refuses fields that ask for what this server does not have.
    ///
    /// # Errors
    ///
    /// The first of them.
    fn check(&self) -> Result<(), E2bError> {
        let pauses = self.auto_pause == Some(true);
        if self.auto_pause_memory == Some(false) {
            let why = "a pause keeps the memory of a sandbox; one that keeps only its files is not offered";
            return Err(E2bError::invalid("autoPauseMemory", why));
        }
        if self.auto_resume.as_ref().is_some_and(|resume| resume.enabled) && !pauses {
            let why = "has an effect only with autoPause: true";
            return Err(E2bError::invalid("autoResume.enabled", why));
        }
        if let Some(network) = &self.network {
            network.check()?;
        }
        let bytes = self.metadata.iter().flatten().map(|(name, value)| name.len() + value.len());
        if bytes.sum::<usize>() > MAX_METADATA {
            let why = format!("holds more than {MAX_METADATA} bytes");
            return Err(E2bError::invalid("metadata", why));
        }
        let others = [
            (
                "volumeMounts",
                self.volume_mounts,
                "sandboxes have no volumes; write files into them",
            ),
            (
                "mcp",
                self.mcp,
                "sandboxes have no network, so no gateway to MCP servers can run in them",
            ),
            ("iam", self.iam, "sandboxes have no network, so an identity would be of no use"),
        ];
        match others.into_iter().find(|(_, other, _)| other.is_asked()) {
            Some((field, _, why)) => Err(E2bError::invalid(field, why)),
            None => Ok(()),
        }
    }

    /// The packages that its code can import from, in addition to those of the template.
    fn packages(&self) -> impl Iterator<Item = String> {
        let named = self.metadata.as_ref().and_then(|metadata| metadata.get(PACKAGES));
        named.into_iter().flat_map(|names| names.split_whitespace()).map(str::to_owned)
    }
}

/// A request to create a sandbox.
struct Creation {
    e2b: E2b,
    now: Serving,
    client: Client,
    body: Bytes,
    /// The timeout of the sandbox if the request has none.
    default: Duration,
}

/// Creates a sandbox. `default` is its timeout if the request has none.
pub(super) async fn create(
    e2b: E2b,
    request: Request,
    default: Duration,
) -> Result<Response, E2bError> {
    let key = key_of(request.headers());
    let Owned { now, client, caller, body } = e2b.owned(request).await?;
    let key = key.map_err(E2bError::of_argument)?;
    // The default is that of the path.
    let names = [&*duration::shown(default)];
    let keyed = key.map(|key| Keyed::new(key, &CREATE, &names, &body));
    let creation = Creation { e2b, now: now.clone(), client, body, default };
    let created = keyed::answer(Protocol::E2b, &now, caller, keyed, move |_| {
        Box::pin(async move { created(creation).await.into_response() })
    });
    Ok(created.await)
}

async fn created(creation: Creation) -> Result<Response, E2bError> {
    let new: NewSandbox = body::read_or_empty(&creation.body)?;
    new.check()?;
    let (sandbox, receipt) = open(&creation, new).await?;
    let mut response = answer(StatusCode::CREATED, &sandbox);
    let served = HowServed { status: "success", outcome: CallOutcome::Ran, receipt: Some(receipt) };
    served.add_to(&mut response);
    Ok(response)
}

async fn open(
    creation: &Creation,
    new: NewSandbox,
) -> Result<(Value, Arc<ReceiptReport>), E2bError> {
    let Creation { e2b, now, client, body, default } = creation;
    let config = &now.setup.config;
    if config.sessions.max == 0 {
        return Err(E2bError::not_offered(
            "this server has no sessions: its operator sets sessions.max",
        ));
    }
    let template = template::named(&new.template_id, config)?;
    let timeout = match new.timeout {
        Some(0) => return Err(E2bError::invalid("timeout", "must be at least one second")),
        given => timeout("timeout", given, *default, now)?,
    };
    let at_timeout = if new.auto_pause == Some(true) { AtDeadline::Pause } else { AtDeadline::End };
    let own: Vec<_> = new.packages().collect();
    let packages = template.packages.iter().chain(&own).cloned().collect();
    let description = Description {
        template: new.template_id,
        metadata: new.metadata.unwrap_or_default(),
        env: new.env_vars.unwrap_or_default(),
        at_timeout,
        resumes_itself: new.auto_resume.is_some_and(|resume| resume.enabled),
    };
    let arguments =
        OpenSession { language: Some(template.language), packages, ..OpenSession::default() };
    let make = |_: &_, _: &mut _| {
        let mut job = resolve::opening(arguments, config)?;
        resolve::check_variables(&description.env, &job.wish.language)?;
        job.wish.env.clone_from(&description.env);
        job.wish.deadline = Some((timeout, at_timeout));
        Ok(Job::Open(Box::new(job)))
    };
    let served = CREATE.serve(now, client, body.len(), None, make).await;
    match served.map_err(|error| of_opening(error, !own.is_empty()))? {
        Served::Opened(opened_session) => {
            let session = &opened_session.session;
            let sandbox = e2b.sandboxes.add(session, description).inspect_err(|_| {
                // An error means that it has ended by itself.
                let _ = now.calls.sessions().close(client, &session.id);
            });
            let sandbox = sandbox.map_err(E2bError::no_random)?;
            Ok((opened(&sandbox, now), Arc::new(opened_session.receipt)))
        }
        _ => unreachable!("a session is opened"),
    }
}

/// The error of an opening, with the names that E2B's fields have.
fn of_opening(error: CallError, has_packages: bool) -> E2bError {
    if let CallError::Invalid(invalid) = &error {
        let field = match &*invalid.field {
            "packages" if has_packages => format!("metadata.{PACKAGES}"),
            // Those of the template.
            "language" | "packages" => "templateID".to_owned(),
            "env" => "envVars".to_owned(),
            field => match field.strip_prefix("env.") {
                Some(name) => format!("envVars.{name}"),
                None => field.to_owned(),
            },
        };
        return E2bError::invalid(&field, &invalid.message).caused_by(error);
    }
    let error = E2bError::of_call(error);
    let outcome = error.outcome();
    match error.kind() {
        ErrorKind::Exhausted => {
            let hint = "kill sandboxes that you don't need; the operator of this server can raise \
                        sessions.maxPerClient and sessions.max";
            let message = format!("{}: {hint}", error.message());
            E2bError::new(ErrorKind::Exhausted, message).with_outcome(outcome).caused_by(error)
        }
        _ => error,
    }
}
