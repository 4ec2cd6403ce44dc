//! A process with pipes. All programs and interpreters are started here.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, PipeReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use isolator_runner::paths;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, pidfd_open, pidfd_send_signal, prlimit, setrlimit,
};

/// The program's `oom_score_adj`: when memory runs out, the kernel kills it before the runner. If the runner
/// were killed, the server would get no report.
const OOM_SCORE: &str = "500";

/// The runner's own `oom_score_adj`, opened while that is still permitted.
pub(crate) struct OomScore(Option<File>);

impl OomScore {
    /// Must be called before the process stops being dumpable: its `/proc` files are root's then.
    pub(crate) fn open() -> Self {
        Self(File::options().write(true).open("/proc/self/oom_score_adj").ok())
    }

    #[cfg(test)]
    pub(crate) fn of_tests() -> Self {
        Self(None)
    }

    /// Has a child inherit the score of programs.
    pub(crate) fn of_program<T>(&self, spawn: impl FnOnce() -> T) -> T {
        self.set(OOM_SCORE);
        let spawned = spawn();
        self.set("0");
        spawned
    }

    /// Sets the score that the next child inherits. Where the kernel refuses, the choice of the
    /// process to kill is the kernel's alone, and a lost runner is reported by the server.
    fn set(&self, score: &str) {
        if let Some(mut file) = self.0.as_ref() {
            let _ = file.write_all(score.as_bytes());
        }
    }
}

/// A started process that leads a session of processes.
pub(crate) struct Process {
    pub(crate) pid: Pid,
    /// Readable once the process has ended.
    pub(crate) pidfd: OwnedFd,
    pub(crate) stdin: Input,
    /// The pipes do not block. Each is `None` once it is closed.
    pub(crate) stdout: Option<File>,
    pub(crate) stderr: Option<File>,
}

impl Process {
    /// Starts a command, if `cpu_time` is given with that [limit](Self::limit_cpu_time). `input` is in its pipe when it starts, as far
    /// as it fits; an interpreter that waits for its program gets its input later.
    ///
    /// # Errors
    ///
    /// When the command can't be started.
    pub(crate) fn spawn(
        argv: &[String],
        env: &BTreeMap<String, String>,
        workdir: &Path,
        oom_score: &OomScore,
        input: Option<&[u8]>,
        cpu_time: Option<Duration>,
    ) -> io::Result<Spawned> {
        let (name, args) = argv
            .split_first()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the command is empty"))?;
        let (reader, mut stdin) = Input::new()?;
        if let Some(input) = input {
            stdin.feed(input);
        }
        let mut command = Command::new(find_in_image(name));
        let cpu_limit = cpu_time.map(cpu_limit);
        let prepare = move || -> io::Result<()> {
            rustix::process::setsid()?;
            // Later, the command could have lowered it already, or have children without it.
            if let Some(limit) = cpu_limit {
                // An error means that the sandbox has a lower one.
                let _ = setrlimit(Resource::Cpu, limit);
            }
            Ok(())
        };
        // SAFETY: these calls are safe between fork and exec.
        unsafe {
            command.pre_exec(prepare);
        }
        command
            .arg0(name)
            .args(args)
            .envs(env)
            .current_dir(workdir)
            .stdin(reader)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = oom_score.of_program(|| command.spawn())?;
        Ok(Spawned { child, stdin })
    }

    /// A child that was not started here, with the other ends of its streams.
    pub(crate) fn adopt(
        pid: Pid,
        stdin: OwnedFd,
        stdout: OwnedFd,
        stderr: OwnedFd,
    ) -> io::Result<Self> {
        Ok(Self {
            pid,
            pidfd: pidfd_open(pid, PidfdFlags::empty())?,
            stdin: Input { pipe: Some(nonblocking(stdin)?), fed: 0 },
            stdout: Some(nonblocking(stdout)?),
            stderr: Some(nonblocking(stderr)?),
        })
    }

    /// Limits the CPU time of the process, and of each process that it starts from now on, in whole seconds. The
    /// kernel first sends a signal that can be caught, and a second later one that can't.
    pub(crate) fn limit_cpu_time(&self, time: Duration) {
        // An error means that it has ended by itself.
        let _ = prlimit(Some(self.pid), Resource::Cpu, cpu_limit(time));
    }

    /// Kills the process. It is reaped later, with the others.
    pub(crate) fn kill(&self) {
        // An error means that it has ended by itself.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}

fn cpu_limit(time: Duration) -> Rlimit {
    let seconds = (time.as_secs_f64().round() as u64).max(1);
    Rlimit { current: Some(seconds), maximum: Some(seconds + 1) }
}

/// A command that runs. It can already have lowered the limits of the runner.
pub(crate) struct Spawned {
    child: Child,
    stdin: Input,
}

impl Spawned {
    /// Opens what the runner needs to supervise it.
    ///
    /// # Errors
    ///
    /// When the runner can't have it.
    pub(crate) fn supervised(self) -> io::Result<Process> {
        let Self { mut child, stdin } = self;
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let piped = || io::Error::other("a pipe to the program is missing");
        Ok(Process {
            pid,
            pidfd,
            stdin,
            stdout: Some(nonblocking(child.stdout.take().ok_or_else(piped)?.into())?),
            stderr: Some(nonblocking(child.stderr.take().ok_or_else(piped)?.into())?),
        })
    }
}

/// The pipe to a process's standard input. It does not block, and is closed once everything was written.
pub(crate) struct Input {
    pipe: Option<File>,
    fed: usize,
}

impl Input {
    fn new() -> io::Result<(PipeReader, Self)> {
        let (reader, writer) = io::pipe()?;
        Ok((reader, Self { pipe: Some(nonblocking(writer.into())?), fed: 0 }))
    }

    /// Writes as much of the input as the pipe takes. It is the same in every call.
    pub(crate) fn feed(&mut self, input: &[u8]) {
        let Some(pipe) = &mut self.pipe else { return };
        match pipe.write(&input[self.fed..]) {
            Ok(count) => self.fed += count,
            Err(error) if would_block(&error) => return,
            Err(_) => self.fed = input.len(),
        }
        if self.fed == input.len() {
            self.close();
        }
    }

    /// Gives up what was not written yet.
    pub(crate) fn close(&mut self) {
        self.pipe = None;
    }

    /// The pipe to be polled, while there is something left to be written.
    pub(crate) fn pipe(&self) -> Option<&File> {
        self.pipe.as_ref()
    }
}

/// Finds the command in the image's `PATH`, not in the one that a request may set for its program: the
/// operator chooses the command, and means one of the image.
fn find_in_image(name: &str) -> PathBuf {
    find_where(name, |file| !file.starts_with(paths::COMMANDS))
}

/// Finds the command in the `PATH` of the sandbox.
pub(crate) fn find(name: &str) -> PathBuf {
    find_where(name, |_| true)
}

fn find_where(name: &str, is_wanted: fn(&Path) -> bool) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_found = |file: &PathBuf| file.is_file() && is_wanted(file);
    let found = |folder: PathBuf| Some(folder.join(name)).filter(is_found);
    let file = if name.contains('/') { None } else { std::env::split_paths(&path).find_map(found) };
    file.unwrap_or_else(|| name.into())
}

pub(crate) fn nonblocking(pipe: OwnedFd) -> io::Result<File> {
    rustix::io::ioctl_fionbio(&pipe, true)?;
    Ok(File::from(pipe))
}

/// Whether a pipe has nothing at the moment.
pub(crate) fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_program_finds_its_input_when_it_begins() {
        let argv = ["dd", "iflag=nonblock", "status=none"].map(str::to_owned);
        let (env, here) = (BTreeMap::new(), Path::new("/"));
        // It is not fed while it runs: a read would fail because there is nothing yet.
        let score = OomScore(None);
        let spawned = Process::spawn(&argv, &env, here, &score, Some(b"hello\n"), None).unwrap();
        let process = spawned.supervised().unwrap();
        let mut printed = String::new();
        let stdout = process.stdout.unwrap();
        rustix::io::ioctl_fionbio(&stdout, false).unwrap();
        (&stdout).read_to_string(&mut printed).unwrap();
        assert_eq!(printed, "hello\n");
    }

    #[test]
    fn a_program_begins_with_its_limit_of_cpu_time() {
        let argv = ["sh", "-c", "ulimit -S -t; ulimit -H -t"].map(str::to_owned);
        let (env, here) = (BTreeMap::new(), Path::new("/"));
        let time = Some(Duration::from_millis(2600));
        let spawned = Process::spawn(&argv, &env, here, &OomScore(None), None, time).unwrap();
        let mut printed = String::new();
        spawned.child.stdout.unwrap().read_to_string(&mut printed).unwrap();
        assert_eq!(printed, "3\n4\n");
    }
}
