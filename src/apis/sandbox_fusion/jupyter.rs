//! `POST /run_jupyter`: cells that run one after the other in one interpreter, in a session that ends with the request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use isolator_pool::OutputLimits;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::pool::session::{CellRun, FOR_PROGRAMS, FilePart, Occasion, ShownThing};
use isolator_pool::run::outcome::{ChangedFile, Status};
use isolator_runner::wire::session::SHOWN_OVERHEAD;
use serde::{Deserialize, Serialize, Serializer};

use super::{
    API, CLIENT_GRACE, CommandResult, CommandStatus, Fetchable, Files, RunStatus, check_wanted,
    failed, fetched, normalized, seconds, sent,
};
use crate::apis::access::Caller as Sender;
use crate::apis::operation::{HowServed, Operation};
use crate::apis::programs::{CAUSE, MARGIN, Received, add_line};
use crate::apis::unserved::{Unserved, unserved};
use crate::apis::{Apis, Protocol, answer, keyed};
use crate::calls::served::{Opened, Ran, RunEnd};
use crate::calls::{CallError, CallOutcome, Job, Served, Serving};
use crate::config::{Config, Language};
use crate::duration;
use crate::request::arguments::{Arguments, InvalidArgument, OpenSession};
use crate::request::resolve;
use crate::result::context::{ArgumentNames, Caller};
use crate::result::explain;
use crate::result::media::{EXCEPTION, Form, NO_EXCEPTION};
use crate::result::units::text;
use crate::sessions::{InUse, Sessions};

pub(super) const RUN_JUPYTER: &Operation =
    &Operation { method: "POST", route: "/run_jupyter", name: "sandbox_fusion.run_jupyter" };

const NAMES: ArgumentNames = ArgumentNames {
    code: "cells",
    file_name: "cells",
    files: "files",
    files_from: 0,
    output_files: "fetch_files",
    timeout: "cell_timeout",
    memory: None,
};

/// The time of all cells, if a request gives none.
const TOTAL: Duration = Duration::from_secs(45);

/// The only kernel, by its name.
const KERNEL: &str = "python3";

/// Most cells of a request.
const MAX_CELLS: usize = 1000;

/// A request. A field that is `null` is left out.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunJupyter {
    cells: Vec<String>,
    /// In seconds; 0: only the time of all cells bounds it.
    cell_timeout: Option<f64>,
    total_timeout: Option<f64>,
    kernel: Option<String>,
    files: Option<Files>,
    fetch_files: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
struct RunJupyterAnswer {
    status: RunStatus,
    message: String,
    driver: CommandResult,
    cells: Vec<CellResult>,
    executor_pod_name: Option<String>,
    files: BTreeMap<String, String>,
}

/// The end of a cell.
#[derive(Debug, Default, Serialize)]
struct CellResult {
    stdout: String,
    stderr: String,
    /// The things that it has shown, each with its forms.
    display: Vec<BTreeMap<String, Form>>,
    /// The exception that ended it.
    error: Vec<Exception>,
    /// The bytes of the things that it has shown.
    #[serde(skip)]
    shown: u64,
}

/// An exception as notebooks have it.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Exception {
    #[serde(default, rename(deserialize = "name"))]
    ename: Option<String>,
    #[serde(default, rename(deserialize = "value"))]
    evalue: Option<String>,
    #[serde(default, serialize_with = "lines")]
    traceback: String,
}

/// A text as a list of its lines.
fn lines<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(text.lines())
}

/// Bytes that the cells of a request can still print, and show.
#[derive(Debug, Clone, Copy)]
struct Room {
    printed: u64,
    shown: u64,
}

/// The times of a request.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// Of each cell, if it is limited.
    cell: Option<Duration>,
    total: Duration,
}

/// A session that ends when this is dropped.
struct Temporary {
    sessions: Sessions,
    session: InUse,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // An error means that it has ended by itself.
        let _ = self.sessions.close(&self.session.client, &self.session.id);
    }
}

/// Why the cells did not all run.
enum Stopped {
    /// A cell took too long.
    Timeout,
    /// The interpreter is gone, with this exit code.
    Died(i32),
}

pub(super) async fn run_jupyter(State(apis): State<Apis>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let received = match API.receive::<RunJupyter>(RUN_JUPYTER, &apis, &head, body).await {
        Ok(received) => received,
        Err(error) => return API.unread(error),
    };
    let Received { sender, keyed, serving, mut request, bytes } = received;
    let (files, names) = sent(request.files.take());
    let opening = OpenSession { files, ..OpenSession::default() };
    let now = serving.clone();
    keyed::answer(Protocol::SandboxFusion, &now, sender, keyed, move |sender| {
        Box::pin(async move {
            let run = run(&serving, sender, bytes, request, opening).await;
            run.unwrap_or_else(|error| failed(error, &names))
        })
    })
    .await
}

async fn run(
    serving: &Serving,
    sender: &Sender,
    bytes: usize,
    request: RunJupyter,
    opening: OpenSession,
) -> Result<Response, Unserved> {
    let config = &serving.setup.config;
    let language = python(config)?;
    let times = times(&request)?;
    let longest = times.total.saturating_add(CLIENT_GRACE).saturating_sub(MARGIN);
    let opening = OpenSession { language: Some(language.name.clone()), ..opening };
    let cells = async {
        let (session, served) = open(serving, sender, bytes, opening).await?;
        run_cells(serving, sender, &request, times, &session, served).await
    };
    tokio::select! {
        ran = tokio::time::timeout(longest, cells) => ran.unwrap_or_else(|_| {
            let message = "no sandbox has run the cells in time: try again in a moment";
            Err(Unserved::late(message))
        }),
        () = sender.gone() => Err(Unserved::Gone),
    }
}

/// The language whose cells run in Python.
fn python(config: &Config) -> Result<Arc<Language>, InvalidArgument> {
    let wrong = |message: &str| Err(InvalidArgument::new("kernel", message));
    if config.sessions.max == 0 {
        return wrong("this server has no sessions (sessions.max is 0), in which cells run");
    }
    let is_python = |it: &&Arc<Language>| it.kernel == Some(Interpreter::Python);
    let usual = config.languages.get("python").filter(is_python);
    match usual.or_else(|| config.languages.values().find(is_python)) {
        Some(language) => Ok(Arc::clone(language)),
        None => wrong("no language of this server runs in Python"),
    }
}

fn times(request: &RunJupyter) -> Result<Times, InvalidArgument> {
    if let Some(kernel) = request.kernel.as_ref().filter(|kernel| *kernel != KERNEL) {
        let shown: String = kernel.chars().take(60).collect();
        let message = format!("{shown:?} is not offered by this server: use \"{KERNEL}\"");
        return Err(InvalidArgument::new("kernel", message));
    }
    if request.cells.len() > MAX_CELLS {
        return Err(InvalidArgument::new("cells", format!("are more than {MAX_CELLS}")));
    }
    check_wanted(request.fetch_files.as_deref().unwrap_or_default())?;
    let cell = request.cell_timeout.filter(|seconds| *seconds != 0.0);
    let cell = cell.map(|given| seconds("cell_timeout", Some(given), TOTAL)).transpose()?;
    let total = seconds("total_timeout", request.total_timeout, TOTAL)?;
    Ok(Times { cell, total })
}

async fn open(
    serving: &Serving,
    sender: &Sender,
    bytes: usize,
    opening: OpenSession,
) -> Result<(Temporary, HowServed), Unserved> {
    let served = RUN_JUPYTER.serve(serving, &sender.client, bytes, None, |calls, _| {
        let job = resolve::opening(opening, calls.config())
            .map_err(|error| InvalidArgument::new(error.field, NAMES.advise(&error.message)))?;
        Ok(Job::Open(Box::new(job)))
    });
    match served.await {
        Ok(Served::Opened(opened)) => {
            let Opened { session, receipt, .. } = *opened;
            let served = HowServed {
                status: "success",
                outcome: CallOutcome::Ran,
                receipt: Some(Arc::new(receipt)),
            };
            Ok((Temporary { sessions: serving.calls.sessions(), session }, served))
        }
        // A session is opened, and nothing else.
        Ok(_) => Err(Unserved::busy("no session was opened")),
        Err(error) => Err(unserved(error, &NAMES)),
    }
}

async fn run_cells(
    serving: &Serving,
    sender: &Sender,
    request: &RunJupyter,
    times: Times,
    temporary: &Temporary,
    served: HowServed,
) -> Result<Response, Unserved> {
    let config = &*serving.setup.config;
    let (session, began) = (&temporary.session, Instant::now());
    let (mut cells, mut stopped) = (Vec::new(), None);
    let mut room =
        Room { printed: API.most_output(config), shown: config.results.files.as_bytes() };
    for code in &request.cells {
        let left = times.total.saturating_sub(began.elapsed());
        if left.is_zero() {
            stopped = Some(Stopped::Timeout);
            break;
        }
        let timeout = match times.cell {
            Some(cell) if cell <= left => cell,
            _ => left.min(config.limits.max_timeout),
        };
        let ran = run_cell(serving, sender, code, timeout, room, session).await;
        let (cell, end) =
            ran.map_err(|error| if cells.is_empty() { error } else { error.after_a_part() })?;
        room.printed = room.printed.saturating_sub((cell.stdout.len() + cell.stderr.len()) as u64);
        room.shown = room.shown.saturating_sub(cell.shown);
        cells.push(cell);
        stopped = end;
        if stopped.is_some() {
            break;
        }
    }
    let wanted = request.fetch_files.as_deref().unwrap_or_default();
    let workdir = &session.language.sandbox.workdir;
    let most_files = config.results.files.as_bytes();
    let files = fetch(session, wanted, workdir, most_files).await;
    let source = Fetchable { workdir, only_changed: false };
    let (files, missing) = fetched(wanted, &files, source, most_files);
    // An interpreter that a cell has ended with code 0 has not run the cells after it.
    let have_all_run = stopped.is_none();
    let (status, return_code) = match stopped {
        None => (CommandStatus::Finished, Some(0)),
        Some(Stopped::Died(code)) => (CommandStatus::Finished, Some(code)),
        Some(Stopped::Timeout) => (CommandStatus::TimeLimitExceeded, None),
    };
    let driver = CommandResult {
        status,
        execution_time: began.elapsed().as_secs_f64(),
        return_code,
        stdout: String::new(),
        stderr: String::new(),
    };
    let status = if have_all_run { RunStatus::Success } else { RunStatus::Failed };
    let body = RunJupyterAnswer {
        status,
        message: missing.unwrap_or_default(),
        driver,
        cells,
        executor_pod_name: None,
        files,
    };
    let mut response = answer(StatusCode::OK, &body);
    served.add_to(&mut response);
    Ok(response)
}

/// Runs a cell, which can print and show as much as there is room for.
async fn run_cell(
    serving: &Serving,
    sender: &Sender,
    code: &str,
    timeout: Duration,
    room: Room,
    session: &InUse,
) -> Result<(CellResult, Option<Stopped>), Unserved> {
    let served = RUN_JUPYTER.serve(serving, &sender.client, 0, None, |calls, note| {
        note.code(Some(code));
        let arguments = Arguments {
            entrypoint_code: Some(code.to_owned()),
            timeout: Some(duration::shown(timeout)),
            ..Arguments::default()
        };
        let (config, language) = (calls.config(), &session.language);
        let policies = session.policies(config);
        let mut job = resolve::cell(arguments, language, session.resources, policies, config)?;
        if let CellRun::Code { for_program, .. } = &mut job.run.run {
            *for_program = true;
        }
        let most = usize::try_from(room.printed).unwrap_or(usize::MAX);
        job.run.output = OutputLimits { head: most, tail: 0, kill: room.printed };
        job.run.shown = room.shown;
        job.run.files = None;
        // The session can't be repeated.
        job.is_noted = false;
        Ok(Job::Step { session: session.another(), job: Box::new(job), notes: Vec::new() })
    });
    match served.await {
        Ok(Served::Ran(ran)) => Ok(ended(*ran, &serving.setup.config, room.printed)),
        Ok(_) => Err(Unserved::busy("the cell was not run")),
        Err(CallError::Forbidden { found, .. }) => {
            let evalue = format!(
                "the operator of this server forbids something in the cell, so it was not run:\n{found}"
            );
            let error = Exception {
                ename: Some("Refused".to_owned()),
                evalue: Some(evalue),
                ..Exception::default()
            };
            Ok((CellResult { error: vec![error], ..CellResult::default() }, None))
        }
        Err(CallError::SessionGone(gone) | CallError::SessionEnded(gone)) => {
            let stderr = format!("{CAUSE}{}\n", gone.why);
            Ok((CellResult { stderr, ..CellResult::default() }, Some(Stopped::Died(KILLED))))
        }
        Err(error) => Err(unserved(error, &NAMES)),
    }
}

/// The exit code of an interpreter that was killed.
const KILLED: i32 = 137;

/// The result of a cell, and what it means for those after it.
fn ended(mut ran: Ran, config: &Config, room: u64) -> (CellResult, Option<Stopped>) {
    let context = ran.context(config, Caller::Api(&NAMES), None);
    let outcome = ran.outcome();
    let death = explain::death(outcome, &context, room);
    let (status, code) = (outcome.status, outcome.shell_code());
    let RunEnd::Step { cell, .. } = &mut ran.end else {
        return (CellResult::default(), Some(Stopped::Died(code)));
    };
    let stopped = match status {
        Status::Timeout => Some(Stopped::Timeout),
        // A cell that was undone, because its interpreter died, would have ended a notebook.
        _ if !cell.is_alive || cell.undone > 0 => Some(Stopped::Died(code)),
        _ => None,
    };
    let outcome = &mut cell.outcome;
    let mut result = CellResult {
        stdout: text(&std::mem::take(&mut outcome.stdout).into_bytes()),
        stderr: text(&std::mem::take(&mut outcome.stderr).into_bytes()),
        ..CellResult::default()
    };
    let ended = || format!("error: the interpreter has ended, with exit code {code}");
    if let Some(cause) = death.or_else(|| matches!(stopped, Some(Stopped::Died(_))).then(ended)) {
        add_line(&mut result.stderr, &format!("{CAUSE}{cause}"));
    }
    for ShownThing { occasion, forms } in std::mem::take(&mut cell.shown) {
        result.shown += forms.iter().map(|(_, content)| size(content)).sum::<u64>();
        if occasion == Occasion::Background {
            continue;
        }
        let mut display = BTreeMap::new();
        for (kind, content) in forms {
            if kind == EXCEPTION {
                result.error.extend(serde_json::from_slice::<Exception>(&content));
            } else if !kind.starts_with(FOR_PROGRAMS) {
                // Clients of this API know the forms of notebooks.
                let content = Form::of(&kind, &content);
                display.insert(kind, content);
            }
        }
        if !display.is_empty() {
            result.display.push(display);
        }
    }
    if status == Status::Error && cell.end.is_some() && result.error.is_empty() {
        result.error.push(Exception {
            ename: Some("Error".to_owned()),
            evalue: Some(NO_EXCEPTION.to_owned()),
            ..Exception::default()
        });
    }
    (result, stopped)
}

/// The bytes for which a form counts.
const fn size(content: &[u8]) -> u64 {
    content.len() as u64 + SHOWN_OVERHEAD
}

/// Reads the files that were asked for, as many as fit into `most` bytes together.
async fn fetch(session: &InUse, wanted: &[String], workdir: &str, most: u64) -> Vec<ChangedFile> {
    let (mut files, mut left) = (Vec::<ChangedFile>::new(), most);
    for path in wanted.iter().map(|name| normalized(name, workdir)) {
        if files.iter().any(|file| file.path == path) {
            continue;
        }
        // An error means that there is no such file, or no session anymore.
        let Ok(FilePart { content, size }) = session.session.read(path, 0, left).await else {
            continue;
        };
        let is_whole = content.len() as u64 == size;
        left -= if is_whole { size } else { 0 };
        files.push(ChangedFile {
            path: path.to_owned(),
            size,
            content: is_whole.then_some(content),
        });
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_has_the_names_of_notebooks() {
        let error = br#"{"name": "E", "traceback": "a\nb", "more": [0]}"#;
        let error: Exception = serde_json::from_slice(error).unwrap();
        let error = serde_json::to_string(&error).unwrap();
        assert_eq!(error, r#"{"ename":"E","evalue":null,"traceback":["a","b"]}"#);
    }
}
