//! A session: the sandbox serves one cell after the other, until the server closes the stream.
//!
//! Output, files, end, time and memory of a cell are the runner's word, not the cell's. Processes that a cell leaves live on. A [job]
//! is a session with one program, which ends with it.

mod agent;
mod background;
mod cell;
mod channel;
mod contexts;
mod installing;
mod job;
mod kernels;
mod listing;
mod running;
mod shown;
mod supervise;
mod upload;
mod versions;

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use isolator_runner::wire::{
    self, Cell, CellRun, Complete, Failed, FailedCause, Interpreter, KernelFork, Kind, Listed,
    Opened, Read, ReadEnded, ReadError, Rewind, Rewound, Wanted, WantedFiles, WireError,
};

use self::agent::Agents;
use self::background::Background;
use self::contexts::Contexts;
pub(crate) use self::job::run_job;
use self::kernels::{Follows, Kernels};
use self::listing::{Listing, Nothing};
use self::versions::Versions;
use crate::forks::Forks;
use crate::frame_writer::FrameWriter;
use crate::install::Installs;
use crate::output::CHUNK;
use crate::packages::{self, Links};
use crate::poll::{self, readable};
use crate::preload::{Parked, Preloads};
use crate::process::OomScore;
use crate::request::{NotRun, receive_input};
use crate::unpack::TarFrames;
use crate::{cgroup, changes, measure, processes, usage};

/// How often the runner reaps processes of earlier cells, while no cell runs and the sandbox is not frozen.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A session that serves cells.
struct Session<'a> {
    workdir: PathBuf,
    /// The current kernel. Those of the other contexts wait.
    kernels: Option<Kernels>,
    contexts: Contexts,
    /// Maximum number of checkpoints of each kernel.
    checkpoints: u32,
    /// The set of packages that its programs can import from, if any.
    packages: Option<wire::Packages>,
    background: Background,
    agents: Agents,
    installs: Installs,
    listing: Listing,
    /// The files before earlier cells.
    versions: Versions,
    /// Whether the server has closed the stream while a program runs.
    is_abandoned: bool,
    /// The kernel's counters when the last cell had ended.
    counted: cgroup::Counters,
    oom_score: &'a OomScore,
    from_server: BufReader<File>,
    to_server: &'a mut FrameWriter<File>,
}

/// Serves a session until the server closes the stream or the session can't go on.
///
/// # Errors
///
/// When it can't be opened, the server's end of the stream is gone, or it breaks the protocol.
pub(crate) fn serve(
    session: wire::Session,
    preloads: Preloads,
    mut forks: Option<Forks>,
    installs: Installs,
    oom_score: &OomScore,
    from_server: BufReader<File>,
    to_server: &mut FrameWriter<File>,
) -> Result<(), NotRun> {
    let wire::Session { mut kernel, workdir, checkpoints } = session;
    let workdir = PathBuf::from(workdir);
    if let Some(packages) = kernel.as_mut().and_then(|kernel| kernel.packages.as_mut()) {
        packages::make_ready(packages, &workdir, Links::OneByOne)?;
    }
    let packages = kernel.as_ref().and_then(|kernel| kernel.packages.clone());
    let counted = cgroup::Counters::default();
    let mut session =
        Session::new(workdir, packages, installs, counted, oom_score, from_server, to_server);
    session.checkpoints = checkpoints;
    let is_python = kernel.as_ref().is_some_and(|it| it.interpreter == Interpreter::Python);
    let versions = if is_python { checkpoints } else { 0 };
    session.versions = Versions::new(session.workdir.clone(), versions, cgroup::memory_limit());
    if let Some(kernel) = kernel.as_mut().filter(|kernel| kernel.wanted == Wanted::Forked) {
        // A fork takes longer than all the rest.
        let opened = Opened { preloaded: true, memory: cgroup::memory(), ..Opened::default() };
        session.to_server.send(Kind::Opened, &opened)?;
        let Some((kind, payload)) = wire::read_frame(&mut session.from_server)? else {
            return Ok(());
        };
        let KernelFork { comes } = wire::parse_message(kind, &payload)?;
        if !comes {
            kernel.wanted = Wanted::Loaded;
            forks = None;
            preloads.kill_others();
        }
    }
    let (opened, spares) = session.open(kernel, preloads, forks)?;
    session.to_server.send(Kind::Opened, &opened)?;
    session.counted = cgroup::Counters::read();
    let served = session.rest().and_then(|()| {
        // They were killed. To take their memory apart takes longer than a checkpoint, which was made meanwhile.
        spares.into_iter().for_each(Parked::end);
        session.serve()
    });
    processes::kill_everything();
    Ok(served?)
}

impl<'a> Session<'a> {
    /// A session without a kernel.
    fn new(
        workdir: PathBuf,
        packages: Option<wire::Packages>,
        installs: Installs,
        counted: cgroup::Counters,
        oom_score: &'a OomScore,
        from_server: BufReader<File>,
        to_server: &'a mut FrameWriter<File>,
    ) -> Self {
        Self {
            workdir,
            kernels: None,
            contexts: Contexts::default(),
            checkpoints: 0,
            packages,
            background: Background::new(),
            agents: Agents::default(),
            installs,
            listing: Listing::default(),
            versions: Versions::default(),
            is_abandoned: false,
            counted,
            oom_score,
            from_server,
            to_server,
        }
    }
}

impl Session<'_> {
    /// Starts the kernel, if there is one. Also returns the interpreters that it does not need, which were killed.
    fn open(
        &mut self,
        kernel: Option<wire::Kernel>,
        preloads: Preloads,
        forks: Option<Forks>,
    ) -> Result<(Opened, Vec<Parked>), Failed> {
        let mut opened = Opened::default();
        let mut spares = Vec::new();
        if let Some(kernel) = kernel {
            let started = preloads.into_kernel(&kernel, &self.workdir, self.oom_score, forks);
            let mut is_forked = false;
            let kernels = started.and_then(|(started, others)| {
                spares = others;
                is_forked = started.is_forked;
                opened.preloaded = started.preloaded;
                opened.not_ready.clone_from(&started.not_ready);
                Kernels::new(kernel.interpreter, started, self.checkpoints)
            });
            let (mut kernels, version, pipes) = kernels.map_err(|error| {
                let command = kernel.argv.first().map_or("", String::as_str);
                Failed { cause: FailedCause::Command, message: format!("{command}: {error}") }
            })?;
            self.background.add(pipes);
            // A fork of a template has all that cells need.
            if is_forked {
                kernels.has_loaded();
            }
            opened.version = Some(version);
            self.kernels = Some(kernels);
        } else {
            preloads.end();
        }
        opened.memory = cgroup::memory();
        Ok((opened, spares))
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            self.wait()?;
            let frame = wire::read_frame(&mut self.from_server)?;
            let Some((kind, payload)) = frame else { return Ok(()) };
            let is_alive = match kind {
                Kind::Cell => self.cell(&wire::parse_message(kind, &payload)?)?,
                Kind::Rewind => self.rewind(wire::parse_message(kind, &payload)?)?,
                Kind::OpenContext => self.open_context(wire::parse_message(kind, &payload)?)?,
                Kind::CloseContext => self.close_context(wire::parse_message(kind, &payload)?)?,
                Kind::List => {
                    self.list()?;
                    self.say_that_it_rests()?;
                    continue;
                }
                Kind::Read => {
                    self.read(&wire::parse_message(kind, &payload)?)?;
                    self.say_that_it_rests()?;
                    continue;
                }
                // The cell that it was meant for has just ended.
                Kind::Interrupt | Kind::Cancel => continue,
                Kind::Agent | Kind::EndAgent => {
                    self.versions.note_written();
                    self.agent(kind, &payload)?;
                    continue;
                }
                Kind::Installed | Kind::InstallProgress => {
                    self.installed(kind, &payload)?;
                    continue;
                }
                Kind::Measure => {
                    self.measure()?;
                    continue;
                }
                Kind::Complete => {
                    self.complete(&wire::parse_message(kind, &payload)?)?;
                    continue;
                }
                kind => return Err(WireError::Unexpected(kind).into()),
            };
            if !is_alive {
                return Ok(());
            }
            self.rest()?;
        }
    }

    /// Prepares for the next cell, and says when that is done. In a sandbox that is frozen meanwhile, the timeouts of this would have passed
    /// when it is thawed.
    fn rest(&mut self) -> io::Result<()> {
        if self.agents.relay(self.to_server)? {
            self.versions.note_shared();
        }
        if let Some(kernels) = &mut self.kernels {
            kernels.prepare(Follows::Pause);
        }
        self.versions.rest(self.room());
        self.say_that_it_rests()
    }

    /// Says that all is prepared for the next cell, unless the kernel still loads: it is when that is done.
    fn say_that_it_rests(&mut self) -> io::Result<()> {
        if self.kernels.as_ref().is_some_and(Kernels::is_loading) {
            return Ok(());
        }
        self.to_server.send_empty(Kind::Resting)
    }

    /// Waits until the server says something.
    fn wait(&mut self) -> io::Result<()> {
        while !is_readable(&self.from_server)? {
            let mut fds: Vec<_> = self.background.fds().map(readable).collect();
            fds.push(readable(self.from_server.get_ref().as_fd()));
            fds.extend(self.agents.fds());
            fds.extend(self.kernels.as_ref().and_then(Kernels::loading_fd).map(readable));
            fds.extend(self.installs.fds());
            poll::wait(&mut fds, LOOK_EVERY)?;
            let is_asked = self.installs.is_asked(fds.last());
            self.background.read();
            if self.agents.relay(self.to_server)? {
                self.versions.note_written();
            }
            self.installs.relay(is_asked, self.to_server)?;
            reap();
            if self.kernels.as_mut().is_some_and(Kernels::ends_loading) {
                self.rest()?;
            }
        }
        Ok(())
    }

    /// Receives the files and the input of a cell, and runs it. Returns whether the session goes on.
    fn cell(&mut self, cell: &Cell) -> io::Result<bool> {
        let began = Instant::now();
        match cell.run {
            CellRun::Code { .. } => {
                self.switch_to(cell.context);
                if let Some(kernels) = &self.kernels {
                    self.versions.begin(cell.context, kernels.current.depth);
                }
            }
            CellRun::Files => self.versions.note_written(),
            CellRun::Program { .. } => {}
        }
        let mut frames = TarFrames::new(&mut self.from_server);
        let listing = &mut self.listing;
        let uploaded = upload::upload(&mut frames, &self.workdir, &cell.appended, |path, file| {
            listing.sent(path, file);
        });
        let next = frames.finish()?;
        let unpack = began.elapsed();
        let input = receive_input(next, &mut self.from_server)?;
        let ran = match uploaded {
            Ok(()) => self.run(cell, &input, unpack),
            Err(failed) => Err(failed.into()),
        };
        match ran {
            Ok(ended) => {
                self.to_server.send(Kind::CellEnded, &ended)?;
                Ok(ended.is_alive)
            }
            Err(NotRun::Failed(failed)) => {
                self.to_server.send(Kind::Failed, &failed)?;
                Ok(true)
            }
            Err(NotRun::Over(error)) => Err(error),
        }
    }

    /// Takes a message for the agent.
    fn agent(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        let Self { agents, workdir, to_server, .. } = self;
        match kind {
            Kind::EndAgent => agents.kill(payload),
            _ => agents.take(payload, workdir, to_server),
        }
    }

    /// Says how much of its limits the sandbox uses.
    fn measure(&mut self) -> io::Result<()> {
        self.to_server.send(Kind::Measured, &measure::usage(&self.workdir))
    }

    fn rewind(&mut self, Rewind { cells }: Rewind) -> io::Result<bool> {
        self.switch_to(0);
        let rewound = self.kernels.as_mut().map_or(Some(0), |kernels| kernels.rewind(cells));
        self.listen_to_resumed();
        let checkpoints = self.kernels.as_ref().map_or(0, Kernels::checkpoints);
        let (cells, is_alive) = (rewound.unwrap_or(0), rewound.is_some());
        let files = if cells > 0 { self.undo_files(0)? } else { None };
        self.to_server.send(Kind::Rewound, &Rewound { cells, files, checkpoints, is_alive })?;
        Ok(is_alive)
    }

    /// Asks the kernel for names. That changes no file. If the kernel says meanwhile that it has loaded what cells need, its first
    /// checkpoint is made.
    fn complete(&mut self, Complete { text }: &Complete) -> io::Result<()> {
        self.switch_to(0);
        let completed = self.kernels.as_mut().map(|kernels| kernels.complete(text));
        self.to_server.send(Kind::Completed, &completed.unwrap_or_default())?;
        if let Some(kernels) = &mut self.kernels {
            kernels.prepare(Follows::Pause);
        }
        self.say_that_it_rests()
    }

    fn list(&mut self) -> io::Result<()> {
        let wanted = WantedFiles::default();
        let complete = changes::send(&self.workdir, &mut Nothing, &wanted, self.to_server)?;
        self.to_server.send(Kind::Listed, &Listed { more: !complete })
    }

    fn read(&mut self, Read { path, offset, length }: &Read) -> io::Result<()> {
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
        self.to_server.send(Kind::ReadEnded, &ended)
    }
}

/// Reaps all children that have ended: processes of cells, and what those have left.
fn reap() {
    while usage::reap().is_some() {}
}

/// Why a file can't be read.
fn unreadable(error: &io::Error) -> ReadError {
    use rustix::io::Errno;
    let no_file = [Errno::NOENT, Errno::LOOP, Errno::NOTDIR, Errno::NXIO];
    match Errno::from_io_error(error) {
        Some(errno) if !no_file.contains(&errno) => ReadError::System(errno.raw_os_error()),
        // Other errors mean that it is not a regular file.
        _ => ReadError::NoSuchFile,
    }
}

/// Whether there is something to read, or the end.
fn is_readable(from_server: &BufReader<File>) -> io::Result<bool> {
    if !from_server.buffer().is_empty() {
        return Ok(true);
    }
    poll::wait(&mut [readable(from_server.get_ref().as_fd())], Duration::ZERO)
}
