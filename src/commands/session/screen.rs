//! The output of a session: that of its programs, and lines of our own.

use std::time::Duration;

use anyhow::Context as _;
use isolator_pool::quote::escaped_lines;
use isolator_pool::run::output::Stream;
use rustix::termios::tcgetwinsize;

use crate::commands::program_output::ProgramOutput;
use crate::commands::{print, print_to_stderr};

/// How long the terminal may take for the last of a session.
const PATIENCE: Duration = Duration::from_millis(100);

/// Both output streams.
#[derive(Debug)]
pub(super) struct Screen {
    stdout: ProgramOutput,
    stderr: ProgramOutput,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self {
            stdout: ProgramOutput::to(Stream::Stdout),
            stderr: ProgramOutput::to(Stream::Stderr).of_errors(),
        }
    }

    /// Prints what a program printed.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub(super) async fn pass_on(&mut self, stream: Stream, bytes: &[u8]) -> anyhow::Result<()> {
        let shown = self.side(stream).shown(bytes);
        write(stream, shown).await
    }

    /// Prints the text of a value, which is the program's, in lines of its own.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub(super) async fn show(&mut self, text: &[u8]) -> anyhow::Result<()> {
        self.begin_line().await?;
        self.end_line().await?;
        self.pass_on(Stream::Stdout, text).await?;
        self.pass_on(Stream::Stdout, b"\n").await?;
        self.end_line().await
    }

    /// Prints a text of our own in lines of its own.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub(super) async fn say(&mut self, stream: Stream, text: &str) -> anyhow::Result<()> {
        self.begin_line().await?;
        write(stream, format!("{}\n", escaped_lines(text)).into_bytes()).await
    }

    /// Prints a line for a program that reads it.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub(super) async fn line(&mut self, line: &str) -> anyhow::Result<()> {
        write(Stream::Stdout, format!("{}\n", escaped_lines(line)).into_bytes()).await
    }

    /// Prints a remark on standard error.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub(super) async fn remark(&mut self, text: &str) -> anyhow::Result<()> {
        self.say(Stream::Stderr, &format!("isolator: {text}")).await
    }

    /// Ends what a program left open on a terminal: a line, a character, or the look of its text.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub(super) async fn begin_line(&mut self) -> anyhow::Result<()> {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let shown = self.side(stream).ended();
            write(stream, shown).await?;
        }
        Ok(())
    }

    /// Ends the line of standard output, so that what follows is not taken for a part of what the program printed.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub(super) async fn end_line(&mut self) -> anyhow::Result<()> {
        write(Stream::Stdout, self.stdout.line_ended()).await
    }

    fn side(&mut self, stream: Stream) -> &mut ProgramOutput {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

impl Drop for Screen {
    /// However the session ends, the terminal gets back the look that it had. One that shows nothing at the moment must not keep
    /// the session from its end, and one that was closed needs nothing.
    fn drop(&mut self) {
        let (stdout, stderr) = (self.stdout.ended(), self.stderr.ended());
        if stdout.is_empty() && stderr.is_empty() {
            return;
        }
        let (done, written) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let _ = print(&stdout);
            let _ = print_to_stderr(&stderr);
            let _ = done.send(());
        });
        let _ = written.recv_timeout(PATIENCE);
    }
}

/// How wide the terminal is. If it does not tell, it is taken for a usual one.
pub(super) fn columns() -> u16 {
    const USUAL: u16 = 80;
    let size = tcgetwinsize(std::io::stdout());
    size.ok().map(|size| size.ws_col).filter(|columns| *columns > 0).unwrap_or(USUAL)
}

/// Writes in a thread of its own, so that a reader that does not read does not keep the session from being ended.
async fn write(stream: Stream, bytes: Vec<u8>) -> anyhow::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let written = tokio::task::spawn_blocking(move || match stream {
        Stream::Stdout => print(&bytes),
        Stream::Stderr => print_to_stderr(&bytes),
    });
    written.await.context("the output can't be written")?
}
