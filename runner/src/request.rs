//! Receives what the server sends before *go*: interpreters to preload, then a job with its files and input.

use std::io;
use std::time::{Duration, Instant};

use isolator_runner::wire::{self, Failed, FailedCause, Job, Kind, Preload, Session, WireError};

use crate::unpack::{self, Given};

/// A job with its files and its input.
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
    /// It was not started. The server gets the reason.
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
    let frame = wire::read_frame(stream)?;
    let (kind, payload) = frame.ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?;
    Ok(match kind {
        Kind::Preload => First::Preload(wire::parse_message(kind, &payload)?),
        Kind::Job => First::Job(wire::parse_message(kind, &payload)?),
        Kind::Session => First::Session(wire::parse_message(kind, &payload)?),
        _ => return Err(WireError::Unexpected(kind).into()),
    })
}

impl From<WireError> for NotRun {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Io(error) => Self::Over(error),
            other => {
                let message = other.to_string();
                Self::Failed(Failed { cause: FailedCause::Protocol, message })
            }
        }
    }
}

/// Reads the files and the input of a job, and unpacks its workspace.
pub(crate) fn receive(job: Job, stream: &mut impl io::Read) -> Result<Request, NotRun> {
    let began = Instant::now();
    let mut frames = unpack::TarFrames::new(stream);
    let given = unpack::unpack(&mut frames, &job.workdir)?;
    let unpack = began.elapsed();
    let next = frames.finish()?;
    Ok(Request { job, stdin: receive_input(next, stream)?, given, unpack })
}

/// Reads input until the server says *go*. `next` is the first frame of it.
pub(crate) fn receive_input(
    mut next: Option<(Kind, Vec<u8>)>,
    stream: &mut impl io::Read,
) -> Result<Vec<u8>, WireError> {
    let mut input = Vec::new();
    loop {
        match next {
            Some((Kind::Stdin, payload)) => input.extend_from_slice(&payload),
            Some((Kind::Go, _)) => return Ok(input),
            Some((kind, _)) => return Err(WireError::Unexpected(kind)),
            None => return Err(WireError::Io(io::ErrorKind::UnexpectedEof.into())),
        }
        next = wire::read_frame(stream)?;
    }
}
