//! A session: the sandbox serves one cell after the other, until the server closes the stream.
//!
//! Unlike after a job, processes that a cell leaves live on. Everything else is as for a job: what a cell prints and leaves, its end,
//! its time and its memory are the runner's word, not the cell's.

mod background;
mod cell;
mod channel;
mod kernels;
mod listing;
mod running;
mod shown;
mod upload;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use isolator_runner::wire::{
    self, Cell, Failed, FailedCause, Kind, Listed, Opened, Read, ReadEnded, ReadError, Rewind,
    Rewound, WantedFiles, WireError,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Pid;

use self::background::Background;
use self::kernels::Kernels;
use self::listing::{Listing, Nothing};
use crate::frame_writer::FrameWriter;
use crate::packages::{self, Links};
use crate::preload::{Preloads, StartedKernel};
use crate::process::OomScore;
use crate::unpack::TarFrames;
use crate::usage::{self, Reaped};
use crate::{cgroup, changes, program};

/// How often the runner looks after what earlier cells have left, while no cell runs and the sandbox is not frozen.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Read and sent at once, in bytes.
const CHUNK: usize = 64 * 1024;

/// A session that serves cells.
struct Session<'a> {
    workdir: PathBuf,
    kernels: Option<Kernels>,
    /// The set of packages that its programs can import from, if any.
    packages: Option<wire::Packages>,
    background: Background,
    listing: Listing,
    /// Children that have ended while the cell runs.
    reaped: HashMap<Pid, Reaped>,
    /// What was counted when the last cell had ended.
    counted: cgroup::Counters,
    oom_score: &'a OomScore,
    from_server: BufReader<File>,
    to_server: &'a mut FrameWriter<File>,
}

/// Serves a session until the server closes the stream or the session can't go on.
///
/// # Errors
///
/// When the server's end of the stream is gone, or it breaks the protocol.
pub(crate) fn serve(
    session: wire::Session,
    preloads: Preloads,
    oom_score: &OomScore,
    from_server: BufReader<File>,
    to_server: &mut FrameWriter<File>,
) -> io::Result<()> {
    let wire::Session { kernel, workdir, checkpoints } = session;
    let packages = kernel.as_ref().and_then(|kernel| kernel.packages.clone());
    if let Some(packages) = &packages
        && let Err(failed) = packages::make_ready(packages, Path::new(&workdir), Links::OneByOne)
    {
        return to_server.send(Kind::Failed, &failed);
    }
    let mut background = Background::new();
    let mut opened = Opened::default();
    let kernels = match kernel {
        Some(kernel) => {
            let started = preloads.into_kernel(&kernel, &workdir, oom_score);
            let kernels = started.and_then(|started| {
                let StartedKernel { preloaded, .. } = started;
                opened.preloaded = preloaded;
                Kernels::new(kernel.interpreter, started, checkpoints)
            });
            match kernels {
                Ok((kernels, version, [stdout, stderr])) => {
                    background.add(stdout);
                    background.add(stderr);
                    opened.version = Some(version);
                    Some(kernels)
                }
                Err(error) => {
                    let command = kernel.argv.first().map_or("", String::as_str);
                    let message = format!("{command}: {error}");
                    return to_server
                        .send(Kind::Failed, &Failed { cause: FailedCause::Command, message });
                }
            }
        }
        None => {
            preloads.end();
            None
        }
    };
    opened.memory = cgroup::memory();
    to_server.send(Kind::Opened, &opened)?;
    let mut session = Session {
        workdir: workdir.into(),
        kernels,
        packages,
        background,
        listing: Listing::default(),
        reaped: HashMap::new(),
        counted: cgroup::Counters::read(),
        oom_score,
        from_server,
        to_server,
    };
    let served = session.rest().and_then(|()| session.serve());
    program::kill_everything();
    match served {
        // The server does not need the session anymore.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        served => served,
    }
}

impl Session<'_> {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.wait()?;
            let frame = wire::read_frame(&mut self.from_server).map_err(io::Error::other)?;
            let Some((kind, payload)) = frame else { return Ok(()) };
            let is_alive = match kind {
                Kind::Cell => self.cell(&parse(kind, &payload)?)?,
                Kind::Rewind => self.rewind(parse(kind, &payload)?)?,
                Kind::List => self.list()?,
                Kind::Read => self.read(&parse(kind, &payload)?)?,
                // The cell that it was meant for has just ended.
                Kind::Interrupt | Kind::Cancel => continue,
                kind => return Err(io::Error::other(WireError::Unexpected(kind))),
            };
            if !is_alive {
                return Ok(());
            }
            self.rest()?;
        }
    }

    /// Prepares what can be for the next cell, and tells when that is done. If the sandbox were frozen meanwhile, the time would be
    /// over when it is thawed.
    fn rest(&mut self) -> io::Result<()> {
        if let Some(kernels) = &mut self.kernels {
            kernels.prepare();
        }
        self.to_server.send_empty(Kind::Resting)
    }

    /// Waits until the server says something.
    fn wait(&mut self) -> io::Result<()> {
        while !is_readable(&self.from_server)? {
            let background = self.background.fds();
            let mut fds: Vec<_> =
                background.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            fds.push(PollFd::new(self.from_server.get_ref(), PollFlags::IN));
            match poll(&mut fds, LOOK_EVERY.try_into().ok().as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.background.read();
            self.reap();
            self.reaped.clear();
        }
        Ok(())
    }

    /// Receives what belongs to a cell, and runs it. Tells whether the session goes on.
    fn cell(&mut self, cell: &Cell) -> io::Result<bool> {
        self.reaped.clear();
        let began = Instant::now();
        let mut frames = TarFrames::new(&mut self.from_server);
        let listing = &mut self.listing;
        let uploaded = upload::upload(&mut frames, &self.workdir, &cell.appended, |path, file| {
            listing.sent(path, file);
        });
        let mut next = frames.finish().map_err(io::Error::other)?;
        let unpack = began.elapsed();
        let mut input = Vec::new();
        loop {
            match next {
                Some((Kind::Stdin, payload)) => input.extend_from_slice(&payload),
                Some((Kind::Go, _)) => break,
                Some((kind, _)) => return Err(io::Error::other(WireError::Unexpected(kind))),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
            next = wire::read_frame(&mut self.from_server).map_err(io::Error::other)?;
        }
        let ran = match uploaded {
            Ok(()) => self.run(cell, &input, unpack)?,
            Err(failed) => Err(failed),
        };
        match ran {
            Ok(ended) => {
                self.to_server.send(Kind::CellEnded, &ended)?;
                Ok(ended.is_alive)
            }
            Err(failed) => {
                self.to_server.send(Kind::Failed, &failed)?;
                Ok(true)
            }
        }
    }

    fn rewind(&mut self, Rewind { cells }: Rewind) -> io::Result<bool> {
        let rewound = self.kernels.as_mut().map_or(Ok(0), |kernels| kernels.rewind(cells));
        let checkpoints = self.kernels.as_ref().map_or(0, Kernels::checkpoints);
        let (cells, is_alive) = (rewound.unwrap_or(0), rewound.is_ok());
        self.to_server.send(Kind::Rewound, &Rewound { cells, checkpoints, is_alive })?;
        Ok(is_alive)
    }

    fn list(&mut self) -> io::Result<bool> {
        let wanted = WantedFiles::default();
        let complete = changes::send(&self.workdir, &mut Nothing, &wanted, self.to_server)?;
        self.to_server.send(Kind::Listed, &Listed { more: !complete })?;
        Ok(true)
    }

    fn read(&mut self, Read { path, offset, length }: &Read) -> io::Result<bool> {
        let opened = changes::open(&self.workdir, path).and_then(|mut file| {
            let size = file.metadata()?.len();
            file.seek(SeekFrom::Start(*offset))?;
            Ok((size, file.take(*length)))
        });
        let ended = match opened {
            Ok((size, mut file)) => {
                let mut buffer = vec![0; CHUNK];
                let error = loop {
                    match file.read(&mut buffer) {
                        Ok(0) => break None,
                        Ok(count) => self.to_server.queue(Kind::Content, &buffer[..count])?,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => break Some(unreadable(&error)),
                    }
                };
                ReadEnded { size: Some(size), error }
            }
            Err(error) => ReadEnded { size: None, error: Some(unreadable(&error)) },
        };
        self.to_server.send(Kind::ReadEnded, &ended)?;
        Ok(true)
    }

    /// Notes which children have ended: those of cells, and what they have left.
    fn reap(&mut self) {
        while let Some(child) = usage::reap() {
            self.reaped.insert(child.pid, child);
        }
    }
}

/// Why a file can't be read.
fn unreadable(error: &io::Error) -> ReadError {
    use rustix::io::Errno;
    let no_file = [Errno::NOENT, Errno::LOOP, Errno::NOTDIR, Errno::NXIO];
    match Errno::from_io_error(error) {
        Some(errno) if !no_file.contains(&errno) => ReadError::System(errno.raw_os_error()),
        // What is no error of the system says that it is no file.
        _ => ReadError::NoSuchFile,
    }
}

/// Whether there is something to read, or the end.
fn is_readable(from_server: &BufReader<File>) -> io::Result<bool> {
    if !from_server.buffer().is_empty() {
        return Ok(true);
    }
    let mut fds = [PollFd::new(from_server.get_ref(), PollFlags::IN)];
    match poll(&mut fds, Some(&rustix::event::Timespec::default())) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn parse<T: serde::de::DeserializeOwned>(kind: Kind, payload: &[u8]) -> io::Result<T> {
    wire::parse_message(kind, payload).map_err(io::Error::other)
}
