//! Process 1 of a sandbox with an engine that can end a container only by killing process 1.
//!
//! It starts the runner, waits until that has ended, and gives the program nothing to attack. The runner can't be
//! process 1 there: a program can make it wait in the kernel for a pipe that the program has locked, where no signal
//! reaches it. The kernel kills the program only after process 1.

use std::fs::File;
use std::io;
use std::process::Command;

use isolator_runner::paths;
use rustix::process::{DumpableBehavior, Pid, set_dumpable_behavior};

/// Starts the runner on this process's streams, and returns when it has ended. The program runs as the same user, so
/// process 1 makes itself undumpable, which protects its memory and descriptors, and closes its standard streams: they
/// belong to the runner, and end with it.
///
/// # Errors
///
/// When this is not process 1, the runner can't be started, or the process can't be protected.
pub(crate) fn hold() -> io::Result<()> {
    if rustix::process::getpid() != Pid::INIT {
        return Err(io::Error::other("this is not a sandbox: there it would be process 1"));
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let path = paths::search_path(&path, paths::SET_LINK);
    let mut runner = Command::new(paths::RUNNER).arg("park").env("PATH", path).spawn()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    runner.wait().map(drop)
}
