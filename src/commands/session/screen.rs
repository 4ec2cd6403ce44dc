//! What is printed of a session: on a terminal with everything escaped that would do something there, and elsewhere as it is.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use isolator_pool::quote::escaped_lines;
use isolator_pool::run::output::Stream;

use crate::commands::{print, print_to_stderr};

const RED: &str = "\u{1b}[31m";
const PLAIN: &str = "\u{1b}[0m";

/// Both output streams.
#[derive(Debug)]
pub(super) struct Screen {
    stdout: Side,
    stderr: Side,
}

/// One of them.
#[derive(Debug)]
struct Side {
    is_terminal: bool,
    is_red: bool,
    /// The begin of a character whose end has not come yet.
    begun: Vec<u8>,
    /// Whether a line is open.
    is_in_line: bool,
}

impl Screen {
    pub(super) fn new() -> Self {
        // See no-color.org.
        let may_color = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let side = |stream, is_terminal| Side {
            is_terminal,
            is_red: is_terminal && may_color && stream == Stream::Stderr,
            begun: Vec::new(),
            is_in_line: false,
        };
        Self {
            stdout: side(Stream::Stdout, std::io::stdout().is_terminal()),
            stderr: side(Stream::Stderr, std::io::stderr().is_terminal()),
        }
    }

    /// Prints what a program printed.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub(super) async fn pass_on(&mut self, stream: Stream, bytes: &[u8]) -> anyhow::Result<()> {
        let shown = self.side(stream).shown(bytes, false);
        write(stream, shown).await
    }

    /// Prints a text of our own in lines of its own.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub(super) async fn say(&mut self, stream: Stream, text: &str) -> anyhow::Result<()> {
        self.begin_line().await?;
        let mut shown =
            self.side(stream).shown(format!("{}\n", escaped_lines(text)).as_bytes(), true);
        self.side(stream).is_in_line = false;
        shown.extend(self.side(stream).finished());
        write(stream, shown).await
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

    /// Ends what a program left open: a line, or a character.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub(super) async fn begin_line(&mut self) -> anyhow::Result<()> {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let mut shown = self.side(stream).finished();
            let side = self.side(stream);
            if side.is_terminal && std::mem::take(&mut side.is_in_line) {
                shown.push(b'\n');
            }
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
        let mut shown = self.stdout.finished();
        if std::mem::take(&mut self.stdout.is_in_line) {
            shown.push(b'\n');
        }
        write(Stream::Stdout, shown).await
    }

    fn side(&mut self, stream: Stream) -> &mut Side {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

impl Side {
    /// What to write for these bytes. Ours are never coloured.
    fn shown(&mut self, bytes: &[u8], is_ours: bool) -> Vec<u8> {
        if let Some(last) = bytes.last() {
            self.is_in_line = *last != b'\n';
        }
        if !self.is_terminal {
            return bytes.to_vec();
        }
        let all = [std::mem::take(&mut self.begun).as_slice(), bytes].concat();
        let whole = match all.utf8_chunks().last() {
            Some(last) if is_begin(last.invalid()) => all.len() - last.invalid().len(),
            _ => all.len(),
        };
        self.begun = all[whole..].to_vec();
        let text = String::from_utf8_lossy(&all[..whole]);
        self.styled(&on_terminal(&text), is_ours)
    }

    /// What to write at the end.
    fn finished(&mut self) -> Vec<u8> {
        let begun = std::mem::take(&mut self.begun);
        if begun.is_empty() { begun } else { "\u{fffd}".as_bytes().to_vec() }
    }

    fn styled(&self, text: &str, is_ours: bool) -> Vec<u8> {
        if text.is_empty() || !self.is_red || is_ours {
            return text.as_bytes().to_vec();
        }
        format!("{RED}{text}{PLAIN}").into_bytes()
    }
}

/// Whether a character may still be made of these bytes.
fn is_begin(bytes: &[u8]) -> bool {
    match std::str::from_utf8(bytes) {
        Err(error) => error.error_len().is_none(),
        Ok(_) => false,
    }
}

/// Escapes what would do something on a terminal. Progress bars go back to the begin of their line, which is harmless.
fn on_terminal(text: &str) -> String {
    let parts: Vec<_> = text.split('\r').map(escaped_lines).collect();
    parts.join("\r")
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

#[cfg(test)]
mod tests {
    use super::*;

    fn side(is_terminal: bool, is_red: bool) -> Side {
        Side { is_terminal, is_red, begun: Vec::new(), is_in_line: false }
    }

    #[test]
    fn on_a_terminal_nothing_is_obeyed() {
        let mut side = side(true, false);
        let shown = side.shown(b"a\x1b[2J\tb\r50%\x07\n\xff", false);
        assert_eq!(shown, "a\\u001b[2J\tb\r50%\\u0007\n\u{fffd}".as_bytes());
        assert!(side.is_in_line);
    }

    #[test]
    fn characters_that_come_in_parts_are_shown_once_they_are_whole() {
        let mut side = side(true, false);
        assert_eq!(side.shown(b"a\xe2\x82", false), b"a");
        assert_eq!(side.shown(b"\xac\xe2", false), "\u{20ac}".as_bytes());
        assert_eq!(side.finished(), "\u{fffd}".as_bytes());
        assert_eq!(side.finished(), b"");
    }

    #[test]
    fn elsewhere_it_stays_as_it_is() {
        let bytes = b"a\x1b[2J\xff\xe2";
        assert_eq!(side(false, false).shown(bytes, false), bytes);
    }

    #[test]
    fn only_the_program_s_errors_are_red() {
        let mut side = side(true, true);
        assert_eq!(side.shown(b"a", false), b"\x1b[31ma\x1b[0m");
        assert_eq!(side.shown(b"a", true), b"a");
        assert_eq!(side.shown(b"\xe2", false), b"");
    }
}
