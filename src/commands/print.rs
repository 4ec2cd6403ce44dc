//! The output of commands. A write that fails is an error, or else a script would take the part that arrived for all of it. A
//! reader that wants no more, such as `head`, is no error.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use clap::error::{ContextKind, ContextValue};
use isolator_pool::quote::escaped_lines;
use isolator_pool::run::output::Stream;
use rustix::event::{PollFd, PollFlags, poll};

use super::advice::with_options;
use super::program_output::of_command_line;

/// Whether this process was started without these streams, by their numbers.
static IS_CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// Looks before `main`: Rust begins with opening `/dev/null` in the place of a standard stream that is not there.
#[used]
#[unsafe(link_section = ".init_array")]
#[allow(unsafe_code)]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        for (stream, is_closed) in (0..).zip(&IS_CLOSED) {
            // SAFETY: the call has no conditions.
            let flags = unsafe { libc::fcntl(stream, libc::F_GETFD) };
            is_closed.store(flags == -1, Ordering::Relaxed);
        }
    }
    look
};

/// Prints a line to standard output. A part of it may be a foreign text, such as an image's name.
///
/// # Errors
///
/// When it can't be written.
pub fn say(line: &str) -> anyhow::Result<()> {
    print(format!("{}\n", escaped_lines(line)).as_bytes())
}

/// Writes to standard output.
///
/// # Errors
///
/// When it can't be written.
pub fn print(bytes: &[u8]) -> anyhow::Result<()> {
    write(io::stdout().as_fd(), bytes).context("standard output can't be written")
}

/// Writes to standard error. An error is returned, for text that must not be lost: a program's output, or a secret.
///
/// # Errors
///
/// When it can't be written.
pub(crate) fn print_to_stderr(bytes: &[u8]) -> anyhow::Result<()> {
    write(io::stderr().as_fd(), bytes).context("standard error can't be written")
}

/// Writes a line for the operator to standard error. A part of it may be a foreign text, such as an engine's error. A failure
/// can't be reported anywhere, so it is ignored.
pub fn complain(line: &str) {
    let line = &with_options(line);
    let _ = write(io::stderr().as_fd(), format!("{}\n", escaped_lines(line)).as_bytes());
}

/// Prints why the command line can't be read, or what `--help` and `--version` ask for, which comes as an error, too.
///
/// # Errors
///
/// When it can't be written.
pub fn print_usage(error: &clap::Error) -> anyhow::Result<()> {
    let text = error.render();
    let wrong = error.get(ContextKind::InvalidSubcommand);
    let is_bench = matches!(wrong, Some(ContextValue::String(name)) if name == "bench");
    match error.use_stderr() {
        true if is_bench => {
            let tip = "\n  tip: the benchmark is a program of its own: isolator-bench\n";
            let text = of_command_line(&text, Stream::Stderr);
            print_to_stderr(&[&text[..], tip.as_bytes()].concat())
        }
        true => print_to_stderr(&of_command_line(&text, Stream::Stderr)),
        false => print(&of_command_line(&text, Stream::Stdout)),
    }
}

/// Fails if this process has no standard output.
///
/// # Errors
///
/// It has none.
pub(crate) fn require_output() -> anyhow::Result<()> {
    require_open(io::stdout().as_fd()).context("standard output can't be written")
}

fn require_open(stream: BorrowedFd<'_>) -> io::Result<()> {
    let is_closed = usize::try_from(stream.as_raw_fd()).ok().and_then(|it| IS_CLOSED.get(it));
    if is_closed.is_some_and(|it| it.load(Ordering::Relaxed)) {
        return Err(io::Error::other("it is closed; use /dev/null if it is not needed"));
    }
    Ok(())
}

/// Writes to a stream itself: the standard library takes some errors for success.
fn write(stream: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    if !bytes.is_empty() {
        require_open(stream)?;
    }
    let mut file = File::from(stream.try_clone_to_owned()?);
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The process that made the pipe may have made it non-blocking.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let mut streams = [PollFd::new(&file, PollFlags::OUT)];
                match poll(&mut streams, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
