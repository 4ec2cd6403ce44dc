//! The line of one call, from its beginning to its end.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use humantime::format_rfc3339_millis;
use isolator_pool::engine::limits::Resources;
use isolator_pool::pool::Start;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::FoundPool;
use isolator_pool::quote::escaped;
use isolator_pool::run::outcome::Outcome;
use isolator_runner::wire::End;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::Log;
use crate::hex::{hex, short_digest};

/// Longest name of a tool, language or file that is written, in bytes.
const MAX_NAME: usize = 1024;

/// Files of one call that arrive in pieces and are listed.
const MAX_RECEIVED: usize = 1000;

/// Packages that a program asks for and that are listed, and the longest text of one, in bytes. Programs can ask for anything, and often.
const MAX_ASKED: usize = 10;
const MAX_ASKED_TEXT: usize = 300;

/// The name of the input of a process among the files.
const INPUT: &str = "input";

/// The status of a call that ends before it is answered.
const CANCELLED: &str = "cancelled";

/// The note of a call. Its line is written when it is dropped, so a call that is cancelled has one, too. It does nothing if
/// there is no audit log.
#[derive(Debug, Default)]
pub(crate) struct Note(Option<Box<Begun>>);

#[derive(Debug)]
struct Begun {
    log: Arc<Log>,
    began: Instant,
    /// The input of a process so far.
    input: Option<FileDigest>,
    line: Line,
}

/// A line. Facts that are not known are left out.
#[derive(Debug, Default, Serialize)]
struct Line {
    /// When the call came.
    time: String,
    client: String,
    tool: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    language: Option<String>,
    /// The beginning of the digest of the session's handle: it distinguishes sessions, and can't be used as a handle.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snippet: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files: Vec<SentFile>,
    /// Paths in the sandbox that the call reads, makes, moves, removes or watches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    paths: Vec<String>,
    /// The process of the sandbox that the call is for, and the signal for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    packages: Vec<String>,
    /// The number of packages that are not listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    more_packages: Option<usize>,
    /// The hash of the set of all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    package_set: Option<String>,
    /// The number of requests that have this one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<Pool>,
    status: String,
    ms: f64,
    bytes: Bytes,
}

/// The state of the pool when the call came, from which `isolator tune` computes the right size.
#[derive(Debug, Default, Serialize)]
struct Pool {
    /// For each sandbox that it took, how many were being made at that moment.
    depths: Vec<usize>,
    /// How long replacing one typically took: until it began, and from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    making_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct SentFile {
    name: String,
    sha256: String,
    bytes: usize,
}

/// The digest of a file that arrives in pieces.
#[derive(Debug)]
pub(crate) struct FileDigest {
    hash: Option<Sha256>,
    bytes: usize,
}

impl FileDigest {
    /// The next piece.
    pub(crate) fn add(&mut self, piece: &[u8]) {
        self.bytes += piece.len();
        if let Some(hash) = &mut self.hash {
            hash.update(piece);
        }
    }
}

#[derive(Debug, Serialize)]
struct Limits {
    timeout_ms: u64,
    memory_mb: u64,
    cpus: f64,
}

/// Bytes received and returned.
#[derive(Debug, Default, Serialize)]
struct Bytes {
    code: usize,
    files: usize,
    stdout: u64,
    stderr: u64,
    returned: u64,
}

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn digest(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}

/// A text that a caller chooses, without its end if it is too long.
fn name(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_NAME)].to_owned()
}

impl Note {
    pub(super) fn new(log: Option<Arc<Log>>, client: &Client, tool: &str) -> Self {
        let begin = |log| {
            let line = Line {
                time: format_rfc3339_millis(SystemTime::now()).to_string(),
                client: client.to_string(),
                tool: name(tool),
                status: CANCELLED.to_owned(),
                ..Line::default()
            };
            Box::new(Begun { log, began: Instant::now(), input: None, line })
        };
        Self(log.map(begin))
    }

    /// The language of the call, and the handle of its session if it has one.
    pub(crate) fn place(&mut self, language: &str, session: Option<&str>) {
        let Some(begun) = &mut self.0 else { return };
        begun.line.language = Some(name(language));
        begun.line.session = session.map(short_digest);
    }

    /// The code that the call sends, if it sends some.
    pub(crate) fn code(&mut self, code: Option<&str>) {
        let (Some(begun), Some(code)) = (&mut self.0, code) else { return };
        begun.line.bytes.code = code.len();
        begun.line.code_sha256 = Some(digest(code.as_bytes()));
        begun.line.code = begun.log.has_code.then(|| code.to_owned());
    }

    /// The snippet that the call names, if it names one.
    pub(crate) fn snippet(&mut self, snippet: Option<&str>) {
        let Some(begun) = &mut self.0 else { return };
        begun.line.snippet = snippet.map(name);
    }

    /// The files that the call sends. One with the code itself is left out.
    pub(crate) fn files<'f>(&mut self, files: impl IntoIterator<Item = (&'f str, &'f [u8])>) {
        let Some(begun) = &mut self.0 else { return };
        let line = &mut begun.line;
        for (path, content) in files {
            let sha256 = digest(content);
            if line.code_sha256.as_ref() == Some(&sha256) {
                continue;
            }
            line.bytes.files += content.len();
            line.files.push(SentFile { name: name(path), sha256, bytes: content.len() });
        }
    }

    /// For a file that arrives in pieces. It does nothing if there is no audit log.
    pub(crate) fn digest(&self) -> FileDigest {
        FileDigest { hash: self.0.as_ref().map(|_| Sha256::new()), bytes: 0 }
    }

    /// A file that arrived in pieces. Only some are listed with their names, but the bytes of all are counted.
    pub(crate) fn received(&mut self, path: &str, digest: FileDigest) {
        let Some(begun) = &mut self.0 else { return };
        let FileDigest { hash, bytes } = digest;
        begun.line.bytes.files += bytes;
        if begun.line.files.len() < MAX_RECEIVED
            && let Some(hash) = hash
        {
            let sha256 = hex(&hash.finalize());
            begun.line.files.push(SentFile { name: name(path), sha256, bytes });
        }
    }

    /// A path that the call reads, makes, moves, removes or watches.
    pub(crate) fn path(&mut self, path: &str) {
        let Some(begun) = &mut self.0 else { return };
        begun.line.paths.push(name(path));
    }

    /// The process that the call is for.
    pub(crate) fn process(&mut self, pid: u32) {
        let Some(begun) = &mut self.0 else { return };
        begun.line.process = Some(pid);
    }

    /// The signal that the call sends.
    pub(crate) fn signal(&mut self, signal: i32) {
        let Some(begun) = &mut self.0 else { return };
        begun.line.signal = Some(signal);
    }

    /// The next piece of the input that the call sends to a process.
    pub(crate) fn input(&mut self, piece: &[u8]) {
        let Some(begun) = &mut self.0 else { return };
        let new = || FileDigest { hash: Some(Sha256::new()), bytes: 0 };
        begun.input.get_or_insert_with(new).add(piece);
    }

    /// Bytes of a file that was returned.
    pub(crate) fn returned(&mut self, bytes: u64) {
        let Some(begun) = &mut self.0 else { return };
        begun.line.bytes.returned = bytes;
    }

    /// A process of a session has ended, after it has printed so many bytes on standard output and standard error.
    pub(crate) fn process_ended(&mut self, end: End, printed: [u64; 2]) {
        let status = match end {
            End::Code(0) => "success",
            End::Code(_) => "error",
            End::Signal(_) => "killed",
        };
        self.printed(printed);
        self.answered(status);
    }

    /// The client of a process has left it. The process may go on.
    pub(crate) fn process_detached(&mut self, printed: [u64; 2]) {
        self.printed(printed);
        self.answered("detached");
    }

    fn printed(&mut self, [stdout, stderr]: [u64; 2]) {
        let Some(begun) = &mut self.0 else { return };
        begun.line.bytes.stdout = stdout;
        begun.line.bytes.stderr = stderr;
    }

    /// The packages that the call asked for, and the hash of the set of them.
    pub(crate) fn packages(&mut self, asked: &[String], set: &str) {
        let Some(begun) = &mut self.0 else { return };
        begun.line.packages = asked.iter().map(|package| name(package)).collect();
        begun.line.more_packages = None;
        begun.line.package_set = Some(set.to_owned());
    }

    /// The packages that a program asks for, which it may not get. Only some are listed.
    pub(crate) fn asked_for(&mut self, packages: &[String]) {
        let Some(begun) = &mut self.0 else { return };
        let short = |text: &String| text[..text.floor_char_boundary(MAX_ASKED_TEXT)].to_owned();
        begun.line.packages = packages.iter().take(MAX_ASKED).map(short).collect();
        begun.line.more_packages = packages.len().checked_sub(MAX_ASKED).filter(|more| *more > 0);
    }

    /// The line stands for this many requests, which were refused unread.
    pub(crate) fn requests(&mut self, requests: u64) {
        let Some(begun) = &mut self.0 else { return };
        begun.line.requests = Some(requests);
    }

    /// The limits of the program.
    pub(crate) fn limits(&mut self, timeout: Duration, resources: Resources) {
        let Some(begun) = &mut self.0 else { return };
        begun.line.limits = Some(Limits {
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            memory_mb: resources.memory.as_mib(),
            cpus: resources.cpu.as_cores(),
        });
    }

    /// The call took a sandbox: for a program, a session, or a check of its code.
    pub(crate) fn took(&mut self, start: Start, found: FoundPool) {
        let Some(begun) = &mut self.0 else { return };
        begun.line.start = Some(start.as_str());
        let pool = begun.line.pool.get_or_insert_default();
        pool.depths.push(found.depth);
        pool.delay_ms = found.lead.map(|lead| ms(lead.delay));
        pool.making_ms = found.lead.map(|lead| ms(lead.making));
        pool.sandbox_bytes = found.sandbox_bytes;
    }

    /// A program has run.
    pub(crate) fn ran(&mut self, outcome: &Outcome) {
        let Some(begun) = &mut self.0 else { return };
        let line = &mut begun.line;
        outcome.status.as_str().clone_into(&mut line.status);
        line.bytes.stdout = outcome.stdout.total();
        line.bytes.stderr = outcome.stderr.total();
        let contents = outcome.files.iter().filter_map(|file| file.content.as_ref());
        line.bytes.returned = contents.map(|content| content.len() as u64).sum();
    }

    /// The call was answered. `status` holds if no program has run.
    pub(crate) fn answered(&mut self, status: &str) {
        let Some(begun) = &mut self.0 else { return };
        if begun.line.status == CANCELLED {
            status.clone_into(&mut begun.line.status);
        }
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if let Some(input) = self.0.as_mut().and_then(|begun| begun.input.take()) {
            self.received(INPUT, input);
        }
        let Some(begun) = self.0.take() else { return };
        let Begun { log, began, mut line, .. } = *begun;
        line.ms = ms(began.elapsed());
        match serde_json::to_string(&line) {
            // As in the log, nothing of a caller's does something to a terminal.
            Ok(text) => log.send(format!("{}\n", escaped(&text))),
            Err(error) => {
                log.state.lost.add(1);
                tracing::error!(%error, "a line of the audit log could not be written as JSON");
            }
        }
    }
}
