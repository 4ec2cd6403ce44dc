//! Process 1 of a sandbox: it waits, and offers the program nothing to attack.

use std::convert::Infallible;
use std::fs::File;
use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Waits forever. The program runs as the same user, so process 1 makes itself undumpable, which protects its
/// memory and descriptors, and closes its standard streams: what is written to those of a container's
/// process 1 goes to the engine, without any limit on output.
///
/// # Errors
///
/// When the process can't be protected.
pub(crate) fn wait_forever() -> io::Result<Infallible> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    loop {
        rustix::event::pause();
    }
}
