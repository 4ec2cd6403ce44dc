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

/// Why there is nothing to run.
pub(crate) enum NoRequest {
    /// The server closed the stream without a job: the sandbox is not needed anymore.
    Closed,
    /// The job can't be done, and the server must be told.
    Failed(Failed),
}

/// The first frame of the server.
pub(crate) enum First {
    Preload(Preload),
    Job(Job),
    Session(Session),
}

/// Reads the first frame, or the next one after a [`Preload`].
pub(crate) fn receive_first(stream: &mut impl io::Read) -> Result<First, NoRequest> {
    match wire::read_frame(stream).map_err(protocol)? {
        None => Err(NoRequest::Closed),
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

fn protocol(error: WireError) -> NoRequest {
    NoRequest::Failed(Failed { cause: FailedCause::Protocol, message: error.to_string() })
}

/// Reads what belongs to a job, and unpacks its workspace, until the server says *go*.
pub(crate) fn receive(job: Job, stream: &mut impl io::Read) -> Result<Request, NoRequest> {
    let began = Instant::now();
    let mut frames = unpack::TarFrames::new(stream);
    let given = unpack::unpack(&mut frames, &job.workdir).map_err(NoRequest::Failed)?;
    let unpack = began.elapsed();

    let mut stdin = Vec::new();
    let mut next = frames.finish().map_err(protocol)?;
    loop {
        match next {
            Some((Kind::Stdin, payload)) => stdin.extend_from_slice(&payload),
            Some((Kind::Go, _)) => return Ok(Request { job, stdin, given, unpack }),
            Some((kind, _)) => return Err(protocol(WireError::Unexpected(kind))),
            None => return Err(NoRequest::Closed),
        }
        next = wire::read_frame(stream).map_err(protocol)?;
    }
}
