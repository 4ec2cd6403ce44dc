//! Interpreters that are started in advance and wait for their program.
//!
//! A file that the interpreter loads by itself (in `preload/` of this crate) stops it before it runs the
//! program. Later it goes on from there, so that the program runs as in any other start. Whether a program
//! can use such an interpreter is decided here and, for what only the interpreter knows, in that file;
//! otherwise the program gets a new interpreter.

mod kernel;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use isolator_runner::fork::CHANNEL;
use isolator_runner::paths;
use isolator_runner::wire::{Alone, Interpreter, Job, Packages, Preload, Preloaded, Wanted};
use rustix::io::FdFlags;
use rustix::process::{Pid, WaitOptions, waitpid};

pub(crate) use self::kernel::{StartedKernel, start_kernel};
use crate::forks::Forks;
use crate::output::last_line;
use crate::process::{OomScore, Process, would_block};
use crate::processes::{self, Stat};
use crate::{poll, usage};

/// How long an interpreter may take to be ready; less than the server allows the runner.
const READY_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a forked one may take: it has imported its modules before.
const FORK_READY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an interpreter may take to go on: it searches one directory and closes a descriptor.
const GO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an interpreter that has closed its channel may take to end.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);

/// How long unneeded interpreters are kept. Most programs have ended by then.
const SPARE_LIFETIME: Duration = Duration::from_millis(20);

/// Longest arguments, all together, that are given to a waiting interpreter. Longer ones may exceed the kernel's
/// limit, which shows only when a process is started.
const MAX_ARGUMENTS: usize = 128 * 1024;

/// How many processes are named that an interpreter has started.
const MAX_NAMED: usize = 3;

/// The interpreter's answer when it goes on.
const GO_ANSWER: u8 = b'.';

/// The interpreters of one sandbox.
#[derive(Default)]
pub(crate) struct Preloads {
    preload: Option<Preload>,
    /// One that has imported nothing.
    bare: Option<Parked>,
    /// One that has imported the modules.
    loaded: Option<Parked>,
    /// One with modules that a better one has replaced.
    replaced: Option<Parked>,
    complaints: Vec<String>,
    /// Why the last fork was not ready.
    not_ready: Option<String>,
}

/// An interpreter that waits in a read for its program.
pub(crate) struct Parked {
    process: Process,
    channel: UnixStream,
    memory: u64,
    has_modules: bool,
}

/// The interpreters, after a job has taken one or none.
pub(crate) struct Taken {
    /// The interpreter that runs the program, and the CPU time that it had used before.
    pub(crate) program: Option<(Process, Duration)>,
    /// The others.
    pub(crate) spares: Spares,
}

/// Interpreters that are not needed anymore.
///
/// Ending one with its modules keeps a core busy for longer than most programs run. So they are killed a
/// little later.
pub(crate) struct Spares {
    waiting: Vec<Parked>,
    /// Those that were killed. They count as processes until they are reaped.
    dying: Vec<Process>,
    /// Memory of the one that runs the program, until that is reported.
    unreported: Option<u64>,
}

impl Spares {
    /// When to kill them, or to report that there are none. `None` if neither is to be done.
    pub(crate) fn end_at(&self, started: Instant) -> Option<Instant> {
        let is_ending = self.waiting.is_empty() && !self.dying.is_empty();
        if is_ending { None } else { self.unreported.and(started.checked_add(SPARE_LIFETIME)) }
    }

    /// Kills them if it is time. Returns the report once none is left.
    pub(crate) fn end_if_due(&mut self, started: Instant) -> Option<Alone> {
        if self.end_at(started).is_none_or(|time| Instant::now() < time) {
            return None;
        }
        for parked in self.waiting.drain(..) {
            parked.process.kill();
            self.dying.push(parked.process);
        }
        if !self.dying.is_empty() {
            return None;
        }
        self.unreported.take().map(|memory| Alone { memory })
    }

    /// Descriptors that become readable when one that was killed has ended.
    pub(crate) fn dying(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.dying.iter().map(|process| process.pidfd.as_fd())
    }

    /// Forgets a child that was reaped. Returns whether it was one of them.
    pub(crate) fn forget(&mut self, pid: Pid) -> bool {
        let count = |spares: &Self| spares.waiting.len() + spares.dying.len();
        let before = count(self);
        self.waiting.retain(|parked| parked.process.pid != pid);
        self.dying.retain(|process| process.pid != pid);
        count(self) < before
    }
}

impl Preloads {
    /// Starts an interpreter, unless it is there already, and waits until it is ready. Failures become
    /// complaints.
    pub(crate) fn start(&mut self, preload: Preload, oom_score: &OomScore, forks: Option<&Forks>) {
        let forks = forks.filter(|_| preload.forked);
        if preload.modules.is_empty() {
            if self.bare.is_none() {
                self.bare = self.park(&preload, oom_score, forks);
            }
        } else if forks.is_some() {
            if let Some(better) = self.park(&preload, oom_score, forks) {
                self.replaced = self.loaded.replace(better);
            }
        } else if self.bare.is_some() && self.loaded.is_none() {
            self.loaded = self.park(&preload, oom_score, None);
        }
        self.preload = Some(preload);
    }

    fn park(
        &mut self,
        preload: &Preload,
        oom_score: &OomScore,
        forks: Option<&Forks>,
    ) -> Option<Parked> {
        let parked = match forks {
            Some(forks) => Parked::accept(forks),
            None => Parked::start(preload, oom_score),
        };
        let parked = parked.and_then(|(parked, missing)| {
            self.check_alone(&parked)?;
            Ok((parked, missing))
        });
        match parked {
            Ok((parked, missing)) => {
                if !missing.is_empty() {
                    self.complaints.push(format!("the image has no module {missing}"));
                }
                Some(parked)
            }
            Err(problem) => {
                let what = preload.argv.first().map_or("", String::as_str);
                let with = if preload.modules.is_empty() { "" } else { " with its modules" };
                self.complaints.push(format!("{what}{with} can't be preloaded: {problem}"));
                self.not_ready = forks.map(|_| problem);
                self.start_over(preload, oom_score);
                None
            }
        }
    }

    /// Fails if the start of an interpreter has left other processes, which could attack the program.
    fn check_alone(&self, parked: &Parked) -> Result<(), String> {
        let waiting = [&self.bare, &self.loaded, &self.replaced].into_iter().flatten();
        let known: Vec<_> = waiting.chain([parked]).map(|it| it.process.pid).collect();
        match strangers(&known) {
            Ok(names) if names.is_empty() => Ok(()),
            Ok(names) => Err(format!("it has started processes: {}", names.join(", "))),
            Err(error) => Err(format!("its processes can't be listed: {error}")),
        }
    }

    /// Cleans up after a failed start: kills every process, because the interpreter may have started others, and restarts the
    /// one without modules if there was one.
    fn start_over(&mut self, preload: &Preload, oom_score: &OomScore) {
        processes::kill_everything();
        // All of them are children of this process now. An error means that none is left.
        while waitpid(None, WaitOptions::empty()).is_ok() {}
        let had_bare = self.bare.take().is_some();
        (self.loaded, self.replaced) = (None, None);
        if had_bare {
            let bare = Preload { modules: Vec::new(), forked: false, ..preload.clone() };
            self.bare = self.park(&bare, oom_score, None);
        }
    }

    /// Memory of the waiting interpreters, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        [&self.bare, &self.loaded].into_iter().flatten().map(|parked| parked.memory).sum()
    }

    /// The report for the server.
    pub(crate) fn report(&mut self) -> Preloaded {
        let not_ready = self.not_ready.take();
        Preloaded { memory: self.memory(), complaints: self.complaints.clone(), not_ready }
    }

    /// Lets an interpreter run the program of `job`, if one can.
    pub(crate) fn take(self, job: &Job, stdin: &[u8]) -> Taken {
        let Self { preload, bare, loaded, replaced, .. } = self;
        let args = preload.as_ref().and_then(|preload| arguments(preload, job));
        let packages = job.packages.as_ref();
        let (suited, others) = match job.interpreter {
            Wanted::New => ([None, None], [bare, loaded]),
            Wanted::Bare => ([bare, None], [loaded, None]),
            Wanted::Loaded | Wanted::Forked => ([loaded, bare], [None, None]),
        };
        let mut program = None;
        let mut memory = 0;
        let mut waiting = Vec::new();
        for mut parked in suited.into_iter().flatten() {
            let cpu = usage::process_cpu(parked.process.pid);
            if let (Some(_), None, Some(cpu_time)) = (args, &program, job.cpu_time) {
                // Before the program can start: a process that it has forked already would have no limit.
                parked.process.limit_cpu_time(cpu_time + cpu);
            }
            match args {
                Some(args) if program.is_none() && parked.go(args, stdin, packages) => {
                    // One without modules takes no more than a new one.
                    memory = if parked.has_modules { parked.memory } else { 0 };
                    program = Some((parked.process, cpu));
                }
                _ => waiting.push(parked),
            }
        }
        waiting.extend(others.into_iter().flatten().chain(replaced));
        if program.is_none() {
            // Next to the start of a new one, their end takes no time. They would count as processes of the program, and
            // it could see them.
            waiting.drain(..).for_each(Parked::end);
        }
        let spares = Spares { waiting, dying: Vec::new(), unreported: Some(memory) };
        Taken { program, spares }
    }
}

/// A channel. Its other end, a descriptor with a high number, is inherited by the next process that is started.
fn inherited_channel() -> io::Result<(UnixStream, OwnedFd)> {
    let (channel, their_end) = UnixStream::pair()?;
    // Above the numbers of the interpreter's own descriptors.
    let their_end = rustix::io::fcntl_dupfd_cloexec(&their_end, CHANNEL)?;
    // The process finds its end by the number. No other process is started meanwhile that could inherit it.
    rustix::io::fcntl_setfd(&their_end, FdFlags::empty())?;
    Ok((channel, their_end))
}

/// The program's own arguments, if a waiting interpreter can serve the job at all.
fn arguments<'a>(preload: &Preload, job: &'a Job) -> Option<&'a [String]> {
    let args = job.argv.strip_prefix(preload.argv.as_slice())?;
    let length: usize = args.iter().map(|arg| arg.len() + 1).sum();
    (job.env == preload.env && job.workdir == preload.workdir && length < MAX_ARGUMENTS)
        .then_some(args)
}

/// The variable that makes the interpreter load our file. The image's or the language's value of that variable
/// follows.
fn preload_variable(preload: &Preload) -> (&'static str, String) {
    let (name, value, separator) = match preload.interpreter {
        Interpreter::Python => ("PYTHONPATH", paths::PYTHON_PRELOAD.to_owned(), ":"),
        Interpreter::Node => ("NODE_OPTIONS", format!("--require={}", paths::NODE_PRELOAD), " "),
    };
    let theirs = preload.env.get(name).cloned().or_else(|| std::env::var(name).ok());
    match theirs {
        Some(theirs) if !theirs.is_empty() => (name, value + separator + &theirs),
        _ => (name, value),
    }
}

impl Parked {
    /// Starts an interpreter and waits until it is ready. Also returns its missing modules.
    fn start(preload: &Preload, oom_score: &OomScore) -> Result<(Self, String), String> {
        let mut parked = Self::spawn(preload, oom_score).map_err(|error| error.to_string())?;
        let missing = parked.wait_until_ready(READY_TIMEOUT)?;
        // Without modules it takes no more memory than any other.
        parked.check(if preload.modules.is_empty() { u64::MAX } else { preload.memory })?;
        Ok((parked, missing))
    }

    fn spawn(preload: &Preload, oom_score: &OomScore) -> io::Result<Self> {
        let (channel, their_end) = inherited_channel()?;
        let mut env = preload.env.clone();
        let (name, value) = preload_variable(preload);
        env.insert(name.to_owned(), value);
        let setting = format!("{}:{}", their_end.as_raw_fd(), preload.modules.join(","));
        env.insert("ISOLATOR_PRELOAD".to_owned(), setting);
        let workdir = Path::new(&preload.workdir);
        let process =
            Process::spawn(&preload.argv, &env, workdir, oom_score, None, None)?.supervised()?;
        Ok(Self { process, channel, memory: 0, has_modules: !preload.modules.is_empty() })
    }

    /// Takes one that the engine has forked into the sandbox, whose template was checked. It takes no more of the
    /// sandbox's memory than the program would.
    fn accept(forks: &Forks) -> Result<(Self, String), String> {
        let (process, channel) = forks.accept().map_err(|error| error.to_string())?;
        let mut parked = Self { process, channel, memory: 0, has_modules: false };
        let missing = parked.wait_until_ready(FORK_READY_TIMEOUT)?;
        Ok((parked, missing))
    }

    /// Waits until it is ready. Returns its missing modules, separated by spaces.
    fn wait_until_ready(&mut self, timeout: Duration) -> Result<String, String> {
        self.channel.set_read_timeout(Some(timeout)).map_err(|error| error.to_string())?;
        let mut line = String::new();
        match BufReader::new(&self.channel).read_line(&mut line) {
            Ok(0) => Err(self.exit_message()),
            Ok(_) => match line.trim_end().strip_prefix("ready") {
                Some(missing) => Ok(missing.trim_start().to_owned()),
                None => Err(format!("it said {line:?}")),
            },
            Err(error) if would_block(&error) => {
                Err(format!("it was not ready within {timeout:?}"))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Fails if the program could notice a difference, or if it takes too much memory.
    fn check(&mut self, memory: u64) -> Result<(), String> {
        let mut printed = [0; 200];
        let Process { stdout, stderr, .. } = &mut self.process;
        for pipe in [stdout, stderr].into_iter().flatten() {
            if let Ok(count @ 1..) = pipe.read(&mut printed) {
                return Err(format!("it printed {:?}", String::from_utf8_lossy(&printed[..count])));
            }
        }
        self.memory = own_memory(&self.process);
        if self.memory > memory {
            return Err(format!(
                "it takes {} MiB more than preload.memoryMB allows",
                (self.memory - memory).div_ceil(1 << 20)
            ));
        }
        Ok(())
    }

    /// Sends the arguments. Returns whether the interpreter went on to the program.
    fn go(&mut self, args: &[String], stdin: &[u8], packages: Option<&Packages>) -> bool {
        // The program may start at once and check for input.
        self.process.stdin.feed(stdin);
        let mut message = packages_message(packages);
        message.extend_from_slice(b"go\0");
        for arg in args {
            message.extend_from_slice(arg.as_bytes());
            message.push(0);
        }
        let sent =
            self.channel.write_all(&message).and_then(|()| self.channel.shutdown(Shutdown::Write));
        sent.is_ok() && self.answers().unwrap_or(false)
    }

    /// Has the interpreter run a kernel instead of a program. Returns whether it does.
    ///
    /// # Errors
    ///
    /// When it does not answer in time.
    fn becomes_kernel(&mut self, program: &str, packages: Option<&Packages>) -> io::Result<bool> {
        self.process.stdin.close();
        let mut message = packages_message(packages);
        message.extend_from_slice(format!("session\0{program}\0").as_bytes());
        if self.channel.write_all(&message).is_err() {
            return Ok(false);
        }
        self.answers()
    }

    /// Whether it answers that it goes on. One that can't ends.
    ///
    /// # Errors
    ///
    /// When it does not answer in time.
    fn answers(&mut self) -> io::Result<bool> {
        let mut answer = [0; 1];
        self.channel.set_read_timeout(Some(GO_TIMEOUT))?;
        match self.channel.read_exact(&mut answer) {
            Err(error) if would_block(&error) => Err(io::ErrorKind::TimedOut.into()),
            read => Ok(read.is_ok() && answer == [GO_ANSWER]),
        }
    }

    /// Kills the interpreter and waits until it is gone.
    pub(crate) fn end(self) {
        self.process.kill();
        // An error means that there is no such process.
        let _ = waitpid(Some(self.process.pid), WaitOptions::empty());
    }

    /// The error for an interpreter that ended, with the last line that it printed.
    fn exit_message(&mut self) -> String {
        let mut fds = [poll::readable(self.process.pidfd.as_fd())];
        // Its output is read in any case.
        let _ = poll::wait(&mut fds, EXIT_TIMEOUT);
        let last = last_line(self.process.stderr.as_mut());
        format!("it ended: {}", last.as_deref().unwrap_or("it printed no error"))
    }
}

/// The first part of a message to an interpreter: the set of packages of its program, if it has one.
fn packages_message(packages: Option<&Packages>) -> Vec<u8> {
    let words = |set: &Packages| format!("packages\0{}\0", set.folder).into_bytes();
    packages.map_or_else(Vec::new, words)
}

/// The names of some running processes, each in quotes, without this one, process 1 and those in `known`.
fn strangers(known: &[Pid]) -> io::Result<Vec<String>> {
    let others = processes::all()?.into_iter().filter(|pid| !known.contains(pid));
    let running = others.filter(|pid| Stat::of(*pid).is_some_and(|stat| !stat.has_ended));
    let name = |pid: Pid| {
        let name = fs::read(format!("/proc/{}/comm", pid.as_raw_pid())).unwrap_or_default();
        format!("{:?}", String::from_utf8_lossy(name.trim_ascii_end()))
    };
    Ok(running.take(MAX_NAMED).map(name).collect())
}

/// Anonymous memory of the process, in bytes; zero if the kernel does not tell.
fn own_memory(process: &Process) -> u64 {
    let path = format!("/proc/{}/status", process.pid.as_raw_pid());
    let status = fs::read_to_string(path).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
