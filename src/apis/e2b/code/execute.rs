//! `/execute`: runs a cell, and streams what it prints and shows.
//!
//! A task runs the cell. If the client goes away, the cell is interrupted; if it does not end then, it is killed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use isolator_pool::lock::lock;
use isolator_pool::pool::session::{CellEnd, CellOutcome, SessionError, ShownWatch};
use isolator_pool::run::outcome::Status;
use isolator_pool::run::output::{Stream, Watch};
use serde::Deserialize;
use tokio::sync::{Notify, oneshot};

use super::lines::{self, Failure, Printed, Shown};
use super::outbox::{End, Outbox};
use super::{E2b, EXECUTE, of_call, receive};
use crate::apis::e2b::error::E2bError;
use crate::apis::keyed::{Keyed, key_of};
use crate::audit::Note;
use crate::calls::idempotency::Claim;
use crate::calls::served::{Ran, RunEnd};
use crate::calls::{Call, CallError, CallOutcome, Calls, Job, Served, Serving};
use crate::request::resolve::{ContextCell, StepJob, context_cell};
use crate::result::cell;
use crate::result::report::Report;
use crate::sessions::InUse;
use crate::sessions::contexts::Context;
use crate::web::set_outcome;

/// How long a cell may take to end when it was interrupted because its client is gone.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);

/// How long the head of the answer waits for an error that could be said by its status.
const HEAD_AFTER: Duration = Duration::from_millis(500);

/// How often a client that gets nothing else gets a sign of life. It also shows whether the client is still there.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);

/// How long the beginning of a line waits for its end.
const LINE_WITHIN: Duration = Duration::from_millis(20);

/// Bytes of a cell's line besides its text.
const OVERHEAD: usize = 1024;

/// The fields of a request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cell {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    env_vars: Option<BTreeMap<String, String>>,
}

/// Runs a cell.
pub(super) async fn execute(
    State(e2b): State<E2b>,
    request: Request,
) -> Result<Response, E2bError> {
    let (head, body) = request.into_parts();
    let (sandbox, mut caller) = e2b.let_in(&head)?;
    let key = key_of(&head.headers).map_err(E2bError::of_argument)?;
    let (cell, body) = receive::<Cell>(&mut caller, &head, body).await?;
    let code = cell.code;
    let context_id = cell.context_id.filter(|id| !id.is_empty());
    let language = cell.language.filter(|name| !name.is_empty());
    if context_id.is_some() && language.is_some() {
        let why = "can't be given together with context_id, which has a language";
        return Err(E2bError::invalid("language", why));
    }
    let mut env = sandbox.env().clone();
    env.extend(cell.env_vars.unwrap_or_default());
    let now = e2b.now();
    // A request that is refused because the audit log can't be written claims no key.
    let mut note = EXECUTE.begin(&now, &caller.client).map_err(E2bError::of_call)?;
    let keyed = key.map(|key| Keyed::new(key, &EXECUTE, &[&sandbox.id], &body));
    let claim = keyed.map(|keyed| keyed.claim(&now, &caller.client, &mut note)).transpose();
    let mut claim = NotBegun(claim.map_err(E2bError::of_key)?);
    // The cell that was sent before with this key may have ended the session.
    let session = sandbox.session().inspect_err(|_| note.answered("session_gone"))?;
    note.place(&session.language.name, Some(&session.id));
    note.code(Some(&code));
    let found = match &context_id {
        Some(id) => now.calls.context(&session, id),
        None => now.calls.default_context(&session, language.as_deref().unwrap_or_default()).await,
    };
    let ready = match found {
        Ok(context) => now.calls.ensure_open(&session, &context).await.map(|()| context),
        Err(error) => Err(error),
    };
    let context = match ready {
        Ok(context) => context,
        Err(error) => {
            note.answered(error.status());
            return Err(of_call(error));
        }
    };

    let outbox = Outbox::new(now.calls.share(&caller.client));
    outbox.prepare(lines::count(session.contexts.count_cell(context.number)));
    let (early, failed) = oneshot::channel();
    let known = Arc::new(OnceLock::new());
    let run = Run {
        now,
        session,
        context,
        cell: Some(ContextCell { code, env, max_output: e2b.max_output() }),
        claim: claim.0.take(),
        bytes: body.len() + OVERHEAD,
        outbox: outbox.clone(),
        known: Arc::clone(&known),
        early: Some(early),
    };
    let gone = caller.departure();
    let pools = run.now.setup.pools.clone();
    let lines = outbox.clone().into_body();
    pools.track(async move { run.run(note, gone).await });
    let outcome = tokio::select! {
        biased;
        Ok(error) = failed => return Err(error),
        () = outbox.begun() => known.get().copied().unwrap_or(CallOutcome::Ran),
        // A line of the stream says it if the cell does not run.
        () = tokio::time::sleep(HEAD_AFTER) => CallOutcome::Unknown,
    };
    let mut response =
        (StatusCode::OK, [(CONTENT_TYPE, "application/json")], lines).into_response();
    set_outcome(&mut response, outcome);
    Ok(caller.answer(response))
}

/// The claim of a key by a cell that has not begun. Dropping it, also because the client has gone away, says so: the same cell can
/// be sent again.
struct NotBegun(Option<Claim>);

impl Drop for NotBegun {
    fn drop(&mut self) {
        if let Some(claim) = self.0.take() {
            claim.not_run();
        }
    }
}

/// A cell that runs.
struct Run {
    now: Serving,
    session: InUse,
    context: Context,
    cell: Option<ContextCell>,
    /// Its idempotency key, if it has one.
    claim: Option<Claim>,
    /// Size of the request.
    bytes: usize,
    outbox: Outbox,
    /// Whether it has run, once that is known.
    known: Arc<OnceLock<CallOutcome>>,
    /// Tells the head of the answer of an error before it.
    early: Option<oneshot::Sender<E2bError>>,
}

/// What a cell has printed and shown so far.
#[derive(Default)]
struct SoFar {
    printed: Mutex<Printed>,
    /// Notified when the beginning of a line is held back.
    held: Notify,
    /// Whether an exception was shown.
    failed: AtomicBool,
}

impl SoFar {
    /// The beginning of a line that has waited for its end long enough.
    async fn held(&self) -> Option<Bytes> {
        self.held.notified().await;
        tokio::time::sleep(LINE_WITHIN).await;
        lock(&self.printed).flush()
    }
}

impl Run {
    async fn run(mut self, mut note: Note, gone: impl Future<Output = ()>) {
        let (so_far, interrupt) = (Arc::new(SoFar::default()), Arc::new(Notify::new()));
        let call = Call {
            client: self.session.client.clone(),
            watch: Some(self.watch(&so_far)),
            steps: None,
            queue_deadline: None,
        };
        let (calls, session, context) =
            (self.now.calls.clone(), self.session.another(), self.context.clone());
        let Some(cell) = self.cell.take() else { return };
        let (shown, interrupted) = (self.shown_watch(&so_far), Arc::clone(&interrupt));
        let make = move |calls: &Calls, _: &mut Note| {
            let mut job = job(calls, cell, &context, &session)?;
            job.run.shown_watch = Some(shown);
            job.run.interrupt = Some(interrupted);
            Ok(Job::Step { session, job: Box::new(job), notes: Vec::new() })
        };
        let served = {
            let mut served = std::pin::pin!(calls.serve_made(self.bytes, make, &call, &mut note));
            let mut left = std::pin::pin!(async {
                tokio::select! {
                    () = self.outbox.abandoned() => {}
                    () = gone => {}
                }
            });
            let mut keepalive = tokio::time::interval(KEEPALIVE_EVERY);
            keepalive.tick().await;
            let mut held = std::pin::pin!(so_far.held());
            loop {
                tokio::select! {
                    biased;
                    served = &mut served => break Some(served),
                    () = &mut left => {
                        interrupt.notify_one();
                        break tokio::time::timeout(INTERRUPT_GRACE, &mut served).await.ok();
                    }
                    message = &mut held => {
                        message.into_iter().for_each(|it| self.outbox.push(it));
                        held.set(so_far.held());
                    }
                    _ = keepalive.tick() => self.outbox.push(lines::keepalive()),
                }
            }
        };
        self.finish(served, &so_far);
    }

    /// Says how the cell has ended. `None` if it was killed because no one reads its lines.
    fn finish(&mut self, served: Option<Result<Served, CallError>>, so_far: &SoFar) {
        let mut last = lock(&so_far.printed).finish();
        let has_failed = so_far.failed.load(Ordering::Relaxed);
        let mut end = End::Complete;
        let outcome = served.as_ref().map_or(CallOutcome::Unknown, CallOutcome::of);
        // The head of the answer is not on its way until the first line is, or for a moment.
        let _ = self.known.set(outcome);
        match (self.claim.take(), outcome) {
            (Some(claim), CallOutcome::NotRun(_)) => claim.not_run(),
            (Some(claim), CallOutcome::Ran) => claim.ran(),
            // It may have waited for its turn, so dropping its claim says that it was ended.
            (_, _) => {}
        }
        match served {
            Some(Ok(Served::Ran(ran))) => {
                let failure = self.failure(&ran, &mut last);
                last.extend(failure.filter(|_| !has_failed).map(|it| lines::error(&it)));
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                if matches!(error, CallError::SessionGone(_) | CallError::SessionEnded(_)) {
                    end = End::Broken;
                }
                if matches!(error, CallError::Session(SessionError::NoKernel)) {
                    self.session.contexts.set_open(self.context.number, false);
                }
                let error = of_call(error);
                last.push(lines::error(&Failure {
                    name: "NotRun".to_owned(),
                    value: error.message().to_owned(),
                    traceback: String::new(),
                }));
                // If the head is on its way, the line says it.
                if let Some(early) = self.early.take() {
                    let _ = early.send(error);
                }
            }
            None => {}
        }
        if self.outbox.is_too_much() {
            last.push(lines::error(&Failure {
                name: "TooSlow".to_owned(),
                value: "the cell was ended because its output was read too slowly: what was not read yet filled the memory \
                        that the server has for this client (requests.maxInFlightMB)"
                    .to_owned(),
                traceback: String::new(),
            }));
        }
        if end == End::Complete {
            last.push(lines::end());
        } else {
            last.clear();
        }
        self.outbox.finish(last, end);
    }

    /// Why a cell has failed, if it has.
    fn failure(&self, ran: &Ran, last: &mut Vec<Bytes>) -> Option<Failure> {
        let RunEnd::Step { cell: outcome, .. } = &ran.end else { return None };
        if outcome.is_kernel_gone {
            self.session.contexts.set_open(self.context.number, false);
        }
        if !outcome.background.is_empty() {
            let text = String::from_utf8_lossy(&outcome.background);
            last.push(lines::printed(Stream::Stdout, &text));
        }
        if outcome.shown_dropped > 0 {
            let text = format!(
                "{} results are missing, in one form or in all: a cell can show 500 things, and together as much as results.maxFilesKB allows\n",
                outcome.shown_dropped
            );
            last.push(lines::printed(Stream::Stderr, &text));
        }
        let name = name_of(outcome)?;
        let (config, packages) = (self.now.calls.config(), self.now.calls.packages());
        let context = ran.context(config, ran.caller(), Some(packages));
        let mut report = Report::new(&outcome.outcome, &ran.unenforced, &context);
        cell::complete(&mut report, outcome, Vec::new());
        let mut value = report.message.unwrap_or_default();
        if outcome.is_kernel_gone {
            value.push_str(
                "; the interpreter has ended with it, so the variables of its context are gone; the next cell starts a new one",
            );
        }
        Some(Failure { name: name.to_owned(), value, traceback: String::new() })
    }

    fn watch(&self, so_far: &Arc<SoFar>) -> Watch {
        let (outbox, so_far) = (self.outbox.clone(), Arc::clone(so_far));
        Watch::new(move |stream, bytes| {
            let (messages, is_held) = lock(&so_far.printed).take(stream, bytes);
            messages.into_iter().for_each(|it| outbox.push(it));
            if is_held {
                so_far.held.notify_one();
            }
        })
    }

    fn shown_watch(&self, so_far: &Arc<SoFar>) -> ShownWatch {
        let (outbox, so_far) = (self.outbox.clone(), Arc::clone(so_far));
        ShownWatch::new(move |thing| {
            // What was printed before it comes before it.
            let held = lock(&so_far.printed).flush();
            held.into_iter().for_each(|it| outbox.push(it));
            match lines::shown(thing) {
                Shown::Result(line) => outbox.push(line),
                Shown::Error(failure) => {
                    let before = so_far.failed.swap(true, Ordering::Relaxed);
                    if !before {
                        outbox.push(lines::error(&failure));
                    }
                }
            }
        })
    }
}

fn job(
    calls: &Calls,
    cell: ContextCell,
    context: &Context,
    session: &InUse,
) -> Result<StepJob, CallError> {
    let (config, resources) = (calls.config(), session.resources);
    let policies = session.policies(config);
    Ok(context_cell(cell, context, &session.language, resources, policies, config)?)
}

/// The name of the error of a cell that has failed without an exception.
fn name_of(cell: &CellOutcome) -> Option<&'static str> {
    Some(match (cell.outcome.status, cell.end) {
        // Its exit code may be 0.
        (Status::Success | Status::Error, Some(CellEnd::Died | CellEnd::NotBegun)) => {
            "InterpreterEnded"
        }
        (Status::Success, _) => return None,
        (Status::Timeout, _) => "Timeout",
        (Status::OutOfMemory, _) => "OutOfMemory",
        (Status::OutputLimit, _) => "OutputLimit",
        (Status::Killed, _) => "Killed",
        (Status::Error, Some(CellEnd::Interrupted)) => "Interrupted",
        (Status::Error, Some(CellEnd::Exited)) | (Status::Error, None) => "Exit",
        (Status::Error, Some(CellEnd::Ended | CellEnd::Raised)) => "Error",
    })
}
