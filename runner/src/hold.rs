//! Process 1 of a sandbox: it waits, and gives the program nothing to work with.

use std::convert::Infallible;
use std::fs::File;
use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Waits for ever. The program runs as the same user, so process 1 shuts its memory and descriptors
/// to it, and keeps no way out of the sandbox open: what is written to the standard streams of a
/// container's process 1 goes to the engine, past every limit on output.
///
/// # Errors
///
/// When the process can't be shut.
pub(crate) fn hold() -> io::Result<Infallible> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    loop {
        rustix::event::pause();
    }
}
