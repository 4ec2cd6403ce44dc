//! `POST /run_code`: a program in a sandbox of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::languages::language;
use super::{
    API, CLIENT_GRACE, CommandResult, CommandStatus, Fetchable, Files, RunStatus, check_wanted,
    failed, fetched, seconds, sent,
};
use crate::apis::access::Caller;
use crate::apis::operation::Operation;
use crate::apis::programs::{Ended, MARGIN, Program, Received};
use crate::apis::unserved::Unserved;
use crate::apis::{Apis, Protocol, answer, keyed};
use crate::calls::Serving;
use crate::config::Config;
use crate::request::arguments::InvalidArgument;

pub(super) const RUN_CODE: &Operation =
    &Operation { method: "POST", route: "/run_code", name: "sandbox_fusion.run_code" };

/// The times of a request that gives none.
const USUAL: Duration = Duration::from_secs(10);

/// A request. A field that is `null` is left out.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCode {
    code: String,
    language: String,
    compile_timeout: Option<f64>,
    run_timeout: Option<f64>,
    #[serde(rename = "memory_limit_MB")]
    memory_limit_mb: Option<i64>,
    stdin: Option<String>,
    files: Option<Files>,
    fetch_files: Option<Vec<String>>,
    args: Option<Vec<String>>,
}

#[derive(Debug, Serialize)]
struct RunCodeAnswer {
    status: RunStatus,
    message: String,
    /// Languages that compile do so in the command that runs.
    compile_result: Option<CommandResult>,
    run_result: CommandResult,
    executor_pod_name: Option<String>,
    files: BTreeMap<String, String>,
}

pub(super) async fn run_code(State(apis): State<Apis>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let received = match API.receive::<RunCode>(RUN_CODE, &apis, &head, body).await {
        Ok(received) => received,
        Err(error) => return API.unread(error),
    };
    let Received { sender, keyed, serving, request, bytes } = received;
    let now = serving.clone();
    keyed::answer(Protocol::SandboxFusion, &now, sender, keyed, move |sender| {
        Box::pin(serve(serving, sender, request, bytes))
    })
    .await
}

async fn serve(serving: Serving, sender: &Caller, mut request: RunCode, bytes: usize) -> Response {
    let config = &serving.setup.config;
    let (wanted, files) = (request.fetch_files.take().unwrap_or_default(), request.files.take());
    let (files, names) = sent(files);
    let program = check_wanted(&wanted).and_then(|()| program(request, config));
    let program = program.map(|program| Program { files, fetch: wanted.clone(), ..program });
    let ended = match program {
        Ok(program) => {
            let workdir = program.language.sandbox.workdir.clone();
            let ended = API.run(RUN_CODE, &serving, sender, bytes, program).await;
            ended.map(|ended| (ended, workdir))
        }
        Err(error) => Err(Unserved::Invalid(error)),
    };
    match ended {
        Ok((ended, workdir)) => answered(ended, &wanted, &workdir, config.results.files.as_bytes()),
        Err(error) => failed(error, &names),
    }
}

/// The program of a request, without its files.
fn program(request: RunCode, config: &Config) -> Result<Program, InvalidArgument> {
    let (language, file_name) = language(&request.language, config)?;
    let compile = seconds("compile_timeout", request.compile_timeout, USUAL)?;
    let run = seconds("run_timeout", request.run_timeout, USUAL)?;
    // One that has no interpreter is compiled by the same command.
    let timeout = if language.kernel.is_some() { run } else { compile.saturating_add(run) };
    let client_waits = compile.saturating_add(run).saturating_add(CLIENT_GRACE);
    let memory_mb = match request.memory_limit_mb {
        None | Some(-1) => None,
        Some(mb) => Some(u64::try_from(mb).map_err(|_| {
            let message =
                format!("{mb} is not allowed: use -1 for the usual limit, or a number of MiB");
            InvalidArgument::new("memory_limit_MB", message)
        })?),
    };
    Ok(Program {
        language,
        code: request.code,
        file_name,
        files: Vec::new(),
        args: request.args.unwrap_or_default(),
        stdin: request.stdin,
        timeout,
        cpu_time: None,
        memory_mb,
        fetch: Vec::new(),
        max_wait: client_waits.saturating_sub(timeout.saturating_add(MARGIN)),
        watch: None,
    })
}

fn answered(ended: Ended, wanted: &[String], workdir: &str, most_files: u64) -> Response {
    let source = Fetchable { workdir, only_changed: true };
    let (files, missing) = fetched(wanted, &ended.files, source, most_files);
    let status = if ended.is_success() { RunStatus::Success } else { RunStatus::Failed };
    let message = ended.notes.iter().cloned().chain(missing).collect::<Vec<_>>().join("\n");
    let served = ended.served.clone();
    let body = RunCodeAnswer {
        status,
        message,
        compile_result: None,
        run_result: CommandResult::of(ended),
        executor_pod_name: None,
        files,
    };
    let mut response = answer(StatusCode::OK, &body);
    served.add_to(&mut response);
    response
}

impl CommandResult {
    fn of(ended: Ended) -> Self {
        let (status, return_code) = match ended.is_timeout {
            true => (CommandStatus::TimeLimitExceeded, None),
            false => (CommandStatus::Finished, Some(ended.code)),
        };
        let execution_time = ended.wall.as_secs_f64();
        Self { status, execution_time, return_code, stdout: ended.stdout, stderr: ended.stderr }
    }
}
