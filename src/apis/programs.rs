//! Programs of the APIs for computing rewards: each request is a job with a sandbox of its own, and its client compares all that
//! the program prints, so nothing of that is cut.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use isolator_pool::pool::admission::Client;
use isolator_pool::run::outcome::{ChangedFile, Status};
use isolator_pool::run::output::Watch;
use isolator_pool::{OutputLimits, WantedFiles};
use serde::de::DeserializeOwned;

use super::access::Caller as Sender;
use super::keyed::{Keyed, key_of};
use super::operation::{HowServed, Operation};
use super::unserved::{Unread, Unserved, gone, unserved};
use super::{Apis, Protocol, body};
use crate::calls::served::Ran;
use crate::calls::{Again, CallError, CallOutcome, Job, Served, Serving};
use crate::config::{Config, Language, ProgramsApiConfig};
use crate::duration;
use crate::request::arguments::{AdditionalFile, Arguments, InvalidArgument};
use crate::request::resolve;
use crate::request::snippets::Snippets;
use crate::result::context::{ArgumentNames, Caller};
use crate::result::explain;
use crate::result::units::text;
use crate::web::{Refused, asks_for_status, set_outcome};

/// Most bytes of a request.
pub(super) const MAX_BODY: usize = 32 << 20;

/// How much sooner than its client gives up a request is answered.
pub(super) const MARGIN: Duration = Duration::from_secs(1);

/// How the last line of standard error begins that says why a program ended.
pub(super) const CAUSE: &str = "[isolator] ";

/// The exit code of a program that was not run, as shells have it.
const NOT_RUN: i32 = 126;

/// A program of a request.
pub(super) struct Program {
    pub language: Arc<Language>,
    pub code: String,
    /// The name of its file, if not the usual one of the language.
    pub file_name: Option<String>,
    pub files: Vec<AdditionalFile>,
    pub args: Vec<String>,
    pub stdin: Option<String>,
    pub timeout: Duration,
    /// CPU time of each of its processes, if not only its timeout bounds that.
    pub cpu_time: Option<Duration>,
    /// Memory in MiB, if not that of the language.
    pub memory_mb: Option<u64>,
    /// Files that should come back.
    pub fetch: Vec<String>,
    /// How long the request can take until its program begins.
    pub max_wait: Duration,
    /// Receives its output, if that is followed.
    pub watch: Option<Watch>,
}

impl Program {
    /// A program of one file, with the usual limits.
    pub(super) fn new(language: Arc<Language>, code: String, timeout: Duration) -> Self {
        Self {
            language,
            code,
            file_name: None,
            files: Vec::new(),
            args: Vec::new(),
            stdin: None,
            timeout,
            cpu_time: None,
            memory_mb: None,
            fetch: Vec::new(),
            max_wait: timeout,
            watch: None,
        }
    }
}

/// The end of a program.
pub(super) struct Ended {
    pub stdout: String,
    /// Its last line is the cause if something else than the program ended it.
    pub stderr: String,
    /// As shells report it.
    pub code: i32,
    pub signal: Option<i32>,
    pub is_timeout: bool,
    /// Why it ended, as the last line of standard error says it.
    pub cause: Option<String>,
    pub wall: Duration,
    pub cpu: Duration,
    /// Highest memory use in bytes, where it is known.
    pub memory: Option<u64>,
    /// The files that it created or changed, and that were asked for.
    pub files: Vec<ChangedFile>,
    /// Remarks for the client.
    pub notes: Vec<String>,
    pub served: HowServed,
}

/// An API of this kind.
pub(super) struct ProgramsApi {
    pub protocol: Protocol,
    /// Its names for the arguments of a call.
    pub names: &'static ArgumentNames,
    /// Its section of the configuration.
    pub settings: fn(&Config) -> Option<&ProgramsApiConfig>,
    /// Its answer to a field that can't be used.
    pub invalid: fn(&InvalidArgument) -> Response,
    /// Its answer when the sandbox failed, for this reason.
    pub broken: fn(&str) -> Response,
}

/// A request that was let in and read.
pub(super) struct Received<T> {
    pub sender: Sender,
    /// Its key, if it has one.
    pub keyed: Option<Keyed>,
    pub serving: Serving,
    pub request: T,
    /// Its bytes.
    pub bytes: usize,
}

impl ProgramsApi {
    /// Lets a request in. The API is on, or it would have been answered before.
    pub(super) fn let_in(&self, apis: &Apis, head: &Parts) -> Result<(Sender, Serving), Refused> {
        let gate = apis.gate();
        gate.check(head)?;
        let serving = apis.now();
        let networks = (self.settings)(&serving.setup.config).map(|api| api.networks.as_slice());
        let client = gate.client(head, networks.unwrap_or_default())?;
        Ok((gate.let_in(head, client), serving))
    }

    /// Lets a request in, and reads its body.
    ///
    /// # Errors
    ///
    /// The answer of one that goes no further.
    pub(super) async fn receive<T: DeserializeOwned>(
        &self,
        operation: &'static Operation,
        apis: &Apis,
        head: &Parts,
        body: Body,
    ) -> Result<Received<T>, Unread> {
        let (mut sender, serving) = self.let_in(apis, head)?;
        let key = key_of(&head.headers)?;
        let body = sender.receive(head, body, MAX_BODY).await?;
        let request = body::read(&body)?;
        let keyed = key.map(|key| Keyed::new(key, operation, &[], &body));
        Ok(Received { sender, keyed, serving, request, bytes: body.len() })
    }

    /// Runs a program.
    pub(super) async fn run(
        &self,
        operation: &Operation,
        serving: &Serving,
        sender: &Sender,
        bytes: usize,
        program: Program,
    ) -> Result<Ended, Unserved> {
        let config = &*serving.setup.config;
        let most_output = self.most_output(config);
        let names = self.names;
        let longest = program.max_wait.saturating_add(program.timeout);
        let watch = program.watch.clone();
        let served = operation.serve(serving, &sender.client, bytes, watch, |calls, note| {
            note.code(Some(&program.code));
            job(program, most_output, calls.config(), calls.snippets())
        });
        let served = tokio::select! {
            served = tokio::time::timeout(longest, served) => served,
            () = sender.gone() => return Err(Unserved::Gone),
        };
        let Ok(served) = served else {
            let message = "no sandbox has run the program in time: try again in a moment";
            return Err(Unserved::late(message));
        };
        match served {
            Ok(Served::Ran(ran)) => Ok(Ended::new(*ran, config, names, most_output)),
            // A program is run, and nothing else.
            Ok(_) => Err(not_run()),
            Err(CallError::Forbidden { found, notes }) => {
                let cause = format!(
                    "{CAUSE}refused: the operator of this server forbids something in the program, so it was not run:\n{found}"
                );
                Ok(Ended::not_run(cause, notes))
            }
            Err(error) => Err(unserved(error, names)),
        }
    }

    /// The answer to a request that has no result. One that another server may serve has 503, which [`busy_status`] completes.
    pub(super) fn failed(&self, error: Unserved) -> Response {
        let outcome = error.outcome();
        let mut response = match error {
            Unserved::Invalid(error) => (self.invalid)(&error),
            Unserved::Failed(message, _) => (self.broken)(&message),
            Unserved::Busy(message, seconds, _) => {
                let mut response = self.protocol.error(StatusCode::SERVICE_UNAVAILABLE, &message);
                response.headers_mut().insert(RETRY_AFTER, seconds.into());
                response
            }
            Unserved::Late(message) => {
                let mut response = self.protocol.error(StatusCode::GATEWAY_TIMEOUT, &message);
                response.headers_mut().insert(RETRY_AFTER, 1.into());
                response
            }
            Unserved::Gone => gone(self.protocol),
        };
        set_outcome(&mut response, outcome);
        response
    }

    /// The answer to a request that was not read.
    pub(super) fn unread(&self, error: Unread) -> Response {
        match error {
            Unread::Invalid(error) => self.failed(error.into()),
            Unread::Refused(refused) if refused.is_busy() => {
                self.failed(Unserved::busy(refused.to_string()))
            }
            Unread::Refused(refused) => self.protocol.refusal(&refused),
        }
    }

    /// How much a program can print.
    pub(super) fn most_output(&self, config: &Config) -> u64 {
        let most = (self.settings)(config).map_or(0, |api| api.max_output.as_bytes());
        most.min(config.limits.kill_output.as_bytes())
    }
}

/// Gives an answer of these APIs the status that its sender understands. Clients try again only after 504. A load balancer that asks for
/// a status gets 503, so it can tell a busy server from a program that took too long, which would take as long on another one.
pub(super) async fn busy_status(request: Request, next: Next) -> Response {
    let asks_for_status = asks_for_status(request.headers());
    let mut response = next.run(request).await;
    if !asks_for_status && response.status() == StatusCode::SERVICE_UNAVAILABLE {
        *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
    }
    response
}

/// Runs a program of the server itself, and returns what it printed.
pub(super) async fn run_for_server(
    operation: &Operation,
    serving: &Serving,
    client: &Client,
    program: Program,
) -> Result<String, Unserved> {
    const NAMES: &ArgumentNames = &ArgumentNames {
        code: "code",
        file_name: "language",
        files: "files",
        files_from: 0,
        output_files: "files",
        timeout: "timeout",
        memory: None,
    };
    const MOST_OUTPUT: u64 = 64 << 10;
    let served = operation.serve(serving, client, program.code.len(), None, |calls, note| {
        note.code(Some(&program.code));
        job(program, MOST_OUTPUT, calls.config(), calls.snippets())
    });
    match served.await {
        Ok(Served::Ran(mut ran)) => {
            let outcome = ran.outcome_mut();
            match outcome.status {
                Status::Success => Ok(text(&std::mem::take(&mut outcome.stdout).into_bytes())),
                status => {
                    let status = status.as_str();
                    let message = format!(
                        "the program that asks a language for its version failed: {status}"
                    );
                    // It is not the client's.
                    Err(Unserved::Failed(message, CallOutcome::NotRun(Again::Later(1))))
                }
            }
        }
        Ok(_) => Err(not_run()),
        Err(error) => Err(unserved(error, NAMES)),
    }
}

/// The failure of a program that was not run, although nothing is known against it.
fn not_run() -> Unserved {
    let outcome = CallOutcome::NotRun(Again::Never);
    Unserved::Failed("the program was not run".to_owned(), outcome)
}

/// The job of a program.
fn job(
    program: Program,
    most_output: u64,
    config: &Config,
    snippets: &Snippets,
) -> Result<Job, CallError> {
    let Program {
        language,
        code,
        file_name,
        files,
        args,
        stdin,
        timeout,
        cpu_time,
        memory_mb,
        fetch,
        max_wait,
        watch: _,
    } = program;
    let arguments = Arguments {
        language: Some(language.name.clone()),
        entrypoint_code: Some(code),
        entrypoint_filename: file_name,
        additional_files: files,
        output_files: fetch,
        args,
        stdin,
        timeout: Some(duration::shown(timeout)),
        memory_mb,
        ..Arguments::default()
    };
    let mut job = resolve::program(arguments, config, snippets)?;
    let most = usize::try_from(most_output).unwrap_or(usize::MAX);
    job.run.output = OutputLimits { head: most, tail: 0, kill: most_output };
    // Pictures come back only if they are asked for.
    let globs = job.run.files.take().map(|wanted| wanted.globs).unwrap_or_default();
    job.run.files = (!globs.is_empty()).then(|| WantedFiles {
        globs,
        pictures: false,
        most: config.results.files.as_bytes(),
    });
    job.run.cpu_time = cpu_time;
    job.run.max_queue = Some(max_wait);
    job.max_wait = Some(max_wait);
    Ok(Job::Program(Box::new(job)))
}

impl Ended {
    fn new(mut ran: Ran, config: &Config, names: &'static ArgumentNames, most_output: u64) -> Self {
        let context = ran.context(config, Caller::Api(names), None);
        let outcome = ran.outcome();
        let death = explain::death(outcome, &context, most_output);
        let (code, signal) = (outcome.shell_code(), outcome.signal());
        let is_timeout = outcome.status == Status::Timeout;
        let status = outcome.status.as_str();
        let (wall, cpu, memory) = (outcome.wall, outcome.cpu, outcome.peak_memory);
        let notes = explain::notes(outcome, &ran.unenforced, &context);
        let notes = ran.notes.drain(..).chain(notes).collect();
        let outcome = ran.outcome_mut();
        let mut stderr = text(&std::mem::take(&mut outcome.stderr).into_bytes());
        let cause = death.map(|death| format!("{CAUSE}{death}"));
        if let Some(cause) = &cause {
            add_line(&mut stderr, cause);
        }
        Self {
            stdout: text(&std::mem::take(&mut outcome.stdout).into_bytes()),
            stderr,
            code,
            signal,
            is_timeout,
            cause,
            wall,
            cpu,
            memory,
            files: std::mem::take(&mut outcome.files),
            notes,
            served: HowServed {
                status,
                outcome: CallOutcome::Ran,
                receipt: Some(Arc::new(ran.receipt)),
            },
        }
    }

    fn not_run(cause: String, notes: Vec<String>) -> Self {
        Self {
            stdout: String::new(),
            stderr: format!("{cause}\n"),
            code: NOT_RUN,
            signal: None,
            is_timeout: false,
            cause: Some(cause),
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            memory: None,
            files: Vec::new(),
            notes,
            served: HowServed {
                status: "refused",
                outcome: CallOutcome::NotRun(Again::Never),
                receipt: None,
            },
        }
    }

    /// Whether it exited with 0.
    pub(super) fn is_success(&self) -> bool {
        self.code == 0 && !self.is_timeout
    }
}

/// Adds a line to what a program has printed, perhaps without an end of its last line.
pub(super) fn add_line(printed: &mut String, line: &str) {
    if !printed.is_empty() && !printed.ends_with('\n') {
        printed.push('\n');
    }
    printed.push_str(line);
    printed.push('\n');
}
