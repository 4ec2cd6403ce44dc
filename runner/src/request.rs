//! Receives what the server sends before *go*: interpreters to preload, then a job with its files and input.

use std::io;
use std::time::{Duration, Instant};

use isolator_runner::wire::{self, Failed, FailedCause, Job, Kind, Preload, Session, WireError};

use crate::unpack::{self, Given};

/// A job with everything that belongs to it.
pub(crate) struct Request {
    pub(crate) job: Job,
    pub(crate) stdin: Vec<u8>,
    pub(crate) given: Given,
    pub(crate) unpack: Duration,
}

/// Why a job or a cell has no report.
pub(crate) enum NotRun {
    /// The runner can't go on, because the stream to the server is gone or the system refuses what it needs. It ends, and
    /// with it the sandbox.
    Over(io::Error),
    /// It was not started, and the server is told why.
    Failed(Failed),
}

impl From<io::Error> for NotRun {
    fn from(error: io::Error) -> Self {
        Self::Over(error)
    }
}

impl From<Failed> for NotRun {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

/// The first frame of the server.
pub(crate) enum First {
    Preload(Preload),
    Job(Job),
    Session(Session),
}

/// Reads the first frame, or the next one after a [`Preload`].
pub(crate) fn receive_first(stream: &mut impl io::Read) -> Result<First, NotRun> {
    match wire::read_frame(stream).map_err(protocol)? {
        None => Err(closed()),
        Some((kind @ Kind::Preload, payload)) => {
            wire::parse_message(kind, &payload).map(First::Preload).map_err(protocol)
        }
        Some((kind @ Kind::Job, payload)) => {
            wire::parse_message(kind, &payload).map(First::Job).map_err(protocol)
        }
        Some((kind @ Kind::Session, payload)) => {
            wire::parse_message(kind, &payload).map(First::Session).map_err(protocol)
        }
        Some((kind, _)) => Err(protocol(WireError::Unexpected(kind))),
    }
}

/// The error of a stream that the server has closed: it does not need the sandbox anymore.
fn closed() -> NotRun {
    NotRun::Over(io::ErrorKind::UnexpectedEof.into())
}

fn protocol(error: WireError) -> NotRun {
    NotRun::Failed(Failed { cause: FailedCause::Protocol, message: error.to_string() })
}

/// Reads what belongs to a job, and unpacks its workspace, until the server says *go*.
pub(crate) fn receive(job: Job, stream: &mut impl io::Read) -> Result<Request, NotRun> {
    let began = Instant::now();
    let mut frames = unpack::TarFrames::new(stream);
    let given = unpack::unpack(&mut frames, &job.workdir)?;
    let unpack = began.elapsed();

    let mut stdin = Vec::new();
    let mut next = frames.finish().map_err(protocol)?;
    loop {
        match next {
            Some((Kind::Stdin, payload)) => stdin.extend_from_slice(&payload),
            Some((Kind::Go, _)) => return Ok(Request { job, stdin, given, unpack }),
            Some((kind, _)) => return Err(protocol(WireError::Unexpected(kind))),
            None => return Err(closed()),
        }
        next = wire::read_frame(stream).map_err(protocol)?;
    }
}
