//! `POST /api/v2/execute`: a program in a sandbox of its own.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use isolator_pool::lock::lock;
use isolator_pool::run::output::Watch;
use serde::{Deserialize, Serialize};

use super::API;
use super::runtimes::{self, Runtime};
use crate::apis::access::Caller;
use crate::apis::operation::Operation;
use crate::apis::programs::{Ended, MARGIN, Program, Received, add_line};
use crate::apis::unserved::Unserved;
use crate::apis::{Apis, Protocol, answer, keyed};
use crate::calls::Serving;
use crate::hex::unhex;
use crate::request::arguments::{AdditionalFile, Encoding, InvalidArgument};
use crate::result::explain::signal_name;
use crate::result::units::text;

pub(super) const EXECUTE: &Operation =
    &Operation { method: "POST", route: "/api/v2/execute", name: "piston.execute" };

/// The times of a request that gives none, as Piston has them.
const COMPILE: Duration = Duration::from_secs(10);
const RUN: Duration = Duration::from_secs(3);

/// How long a client waits for an answer.
const CLIENT_WAITS: Duration = Duration::from_secs(30);

/// How long a request waits until the version of its language is known.
const FIND_WAITS: Duration = CLIENT_WAITS.saturating_sub(MARGIN);

/// A request can wait for so long if its program may run for as long as the client waits, or longer.
const LEAST_WAIT: Duration = Duration::from_secs(1);

/// A request. A field that is `null` is left out.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Execute {
    language: String,
    version: String,
    files: Vec<SentFile>,
    stdin: Option<String>,
    args: Option<Vec<String>>,
    compile_timeout: Option<f64>,
    run_timeout: Option<f64>,
    compile_cpu_time: Option<f64>,
    run_cpu_time: Option<f64>,
    compile_memory_limit: Option<i64>,
    run_memory_limit: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SentFile {
    name: Option<String>,
    content: String,
    encoding: Option<SentEncoding>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SentEncoding {
    Utf8,
    Base64,
    Hex,
}

#[derive(Debug, Serialize)]
struct Executed<'a> {
    language: &'a str,
    version: &'a str,
    run: Run,
}

/// The end of a program.
#[derive(Debug, Serialize)]
struct Run {
    stdout: String,
    stderr: String,
    /// Both as they came.
    output: String,
    code: Option<i32>,
    signal: Option<String>,
    /// In milliseconds.
    cpu_time: f64,
    wall_time: f64,
    /// In bytes.
    memory: Option<u64>,
}

pub(super) async fn execute(State(apis): State<Apis>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let received = match API.receive::<Execute>(EXECUTE, &apis, &head, body).await {
        Ok(received) => received,
        Err(error) => return API.unread(error),
    };
    let Received { sender, keyed, serving, request, bytes } = received;
    let now = serving.clone();
    keyed::answer(Protocol::Piston, &now, sender, keyed, move |sender| {
        Box::pin(async move {
            let executed = run(&apis, &serving, sender, bytes, request).await;
            executed.unwrap_or_else(|error| API.failed(error))
        })
    })
    .await
}

async fn run(
    apis: &Apis,
    serving: &Serving,
    sender: &Caller,
    bytes: usize,
    request: Execute,
) -> Result<Response, Unserved> {
    let began = Instant::now();
    let found = runtimes::find(apis, serving, &request.language, &request.version);
    let runtime = tokio::select! {
        found = tokio::time::timeout(FIND_WAITS, found) => found.unwrap_or_else(|_| {
            let message = "the version of the language was not found out in time: try again in a moment";
            Err(Unserved::busy(message))
        })?,
        () = sender.gone() => return Err(Unserved::Gone),
    };
    let printed = Arc::new(Mutex::new(Vec::new()));
    let watch = {
        let printed = Arc::clone(&printed);
        Watch::new(move |_, piece| lock(&printed).extend_from_slice(piece))
    };
    let program = program(request, &runtime)?;
    let max_wait = program.max_wait.saturating_sub(began.elapsed()).max(LEAST_WAIT);
    let program = Program { watch: Some(watch), max_wait, ..program };
    let ended = API.run(EXECUTE, serving, sender, bytes, program).await?;
    let served = ended.served.clone();
    let printed = std::mem::take(&mut *lock(&printed));
    let run = Run::of(ended, &printed);
    let Runtime { name: language, version, .. } = &runtime;
    let mut response = answer(StatusCode::OK, &Executed { language, version, run });
    served.add_to(&mut response);
    Ok(response)
}

fn program(request: Execute, runtime: &Runtime) -> Result<Program, InvalidArgument> {
    let language = Arc::clone(&runtime.language);
    // A language without an interpreter is compiled by the command that runs.
    let is_compiled = language.kernel.is_none();
    let of_both = |compile: Duration, run: Duration| {
        if is_compiled { compile.saturating_add(run) } else { run }
    };
    let compile = millis("compile_timeout", request.compile_timeout)?.unwrap_or(COMPILE);
    let run = millis("run_timeout", request.run_timeout)?.unwrap_or(RUN);
    let timeout = of_both(compile, run);
    let cpu = [
        millis("compile_cpu_time", request.compile_cpu_time)?,
        millis("run_cpu_time", request.run_cpu_time)?,
    ];
    let cpu_time = match cpu {
        [Some(_), None] if is_compiled => {
            let message =
                "can't be given without run_cpu_time: one command compiles and runs the program";
            return Err(InvalidArgument::new("compile_cpu_time", message));
        }
        [_, None] => None,
        [compile, Some(run)] => Some(of_both(compile.unwrap_or_default(), run)),
    };
    let memory = [
        mib("compile_memory_limit", request.compile_memory_limit)?.filter(|_| is_compiled),
        mib("run_memory_limit", request.run_memory_limit)?,
    ];
    let mut files = request.files.into_iter().enumerate();
    let Some((_, main)) = files.next() else {
        let message = "is empty: the first file is the program";
        return Err(InvalidArgument::new("files", message));
    };
    let code = main.text()?;
    let files = files.map(|(at, file)| file.additional(at)).collect::<Result<_, _>>()?;
    Ok(Program {
        language,
        code,
        file_name: main.name.or_else(|| runtime.file.map(str::to_owned)),
        files,
        args: request.args.unwrap_or_default(),
        stdin: request.stdin,
        timeout,
        cpu_time,
        memory_mb: memory.into_iter().flatten().max(),
        fetch: Vec::new(),
        max_wait: CLIENT_WAITS.saturating_sub(timeout.saturating_add(MARGIN)).max(LEAST_WAIT),
        watch: None,
    })
}

impl SentFile {
    /// The content of the program.
    fn text(&self) -> Result<String, InvalidArgument> {
        const FIELD: &str = "files[0].content";
        let bytes = match self.encoding {
            None | Some(SentEncoding::Utf8) => return Ok(self.content.clone()),
            Some(SentEncoding::Base64) => BASE64.decode(self.content.trim()).map_err(|error| {
                InvalidArgument::new(FIELD, format!("this is not base64: {error}"))
            })?,
            Some(SentEncoding::Hex) => hex_bytes(FIELD, &self.content)?,
        };
        String::from_utf8(bytes)
            .map_err(|_| InvalidArgument::new(FIELD, "the program must be text in UTF-8"))
    }

    /// A file besides the program; `at` is its place.
    fn additional(self, at: usize) -> Result<AdditionalFile, InvalidArgument> {
        let filename = self.name.unwrap_or_else(|| format!("file{at}.code"));
        let (content, encoding) = match self.encoding {
            None | Some(SentEncoding::Utf8) => (self.content, Encoding::Utf8),
            Some(SentEncoding::Base64) => (self.content, Encoding::Base64),
            Some(SentEncoding::Hex) => {
                let bytes = hex_bytes(&format!("files[{at}].content"), &self.content)?;
                (BASE64.encode(bytes), Encoding::Base64)
            }
        };
        Ok(AdditionalFile { filename, content, encoding, append: false })
    }
}

fn hex_bytes(field: &str, text: &str) -> Result<Vec<u8>, InvalidArgument> {
    let wrong = || InvalidArgument::new(field, "this is not hexadecimal");
    unhex(text.trim()).ok_or_else(wrong)
}

/// A time in milliseconds.
fn millis(field: &str, millis: Option<f64>) -> Result<Option<Duration>, InvalidArgument> {
    let Some(millis) = millis else { return Ok(None) };
    match Duration::try_from_secs_f64(millis / 1e3) {
        Ok(time) if !time.is_zero() => Ok(Some(time)),
        _ => {
            let message =
                format!("{millis} is not allowed: use a number of milliseconds above zero");
            Err(InvalidArgument::new(field, message))
        }
    }
}

/// A size in bytes, in MiB rounded up.
fn mib(field: &str, bytes: Option<i64>) -> Result<Option<u64>, InvalidArgument> {
    match bytes {
        None | Some(-1) => Ok(None),
        Some(bytes) => match u64::try_from(bytes) {
            Ok(bytes) => Ok(Some(bytes.div_ceil(1 << 20))),
            Err(_) => {
                let message = format!(
                    "{bytes} is not allowed: use -1 for the usual limit, or a number of bytes"
                );
                Err(InvalidArgument::new(field, message))
            }
        },
    }
}

impl Run {
    /// The end of a program, which has printed this.
    fn of(ended: Ended, printed: &[u8]) -> Self {
        let mut output = text(printed);
        if let Some(cause) = &ended.cause {
            add_line(&mut output, cause);
        }
        let signal = if ended.is_timeout { Some(libc::SIGKILL) } else { ended.signal };
        Self {
            stdout: ended.stdout,
            stderr: ended.stderr,
            output,
            code: signal.is_none().then_some(ended.code),
            signal: signal.map(|signal| {
                signal_name(signal).map_or_else(|| signal.to_string(), str::to_owned)
            }),
            cpu_time: ended.cpu.as_secs_f64() * 1e3,
            wall_time: ended.wall.as_secs_f64() * 1e3,
            memory: ended.memory,
        }
    }
}
