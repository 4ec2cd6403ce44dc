//! The standard error of a runner, which goes to the server's log.
//!
//! A runner writes there only when it fails. But a program may have got hold of that stream, so the output is
//! limited, so that it can't fill the log. The log itself escapes it.

use std::mem;

use crate::engine::SandboxName;

/// Maximum logged for one runner, in bytes.
const MAX_LOGGED: usize = 4096;

/// The log of one runner. An unfinished line is logged when this is dropped.
pub(crate) struct RunnerLog {
    sandbox: SandboxName,
    line: Vec<u8>,
    left: usize,
}

impl RunnerLog {
    pub(crate) fn new(sandbox: SandboxName) -> Self {
        Self { sandbox, line: Vec::new(), left: MAX_LOGGED }
    }

    /// Logs the complete lines. Returns whether the limit is not reached.
    pub(crate) fn pass_on(&mut self, piece: &[u8]) -> bool {
        for line in self.lines(piece) {
            self.log(&line);
        }
        self.left > 0
    }

    /// The lines that a piece completes, as far as they are logged.
    fn lines(&mut self, piece: &[u8]) -> Vec<String> {
        let piece = &piece[..piece.len().min(self.left)];
        self.left -= piece.len();
        self.line.extend_from_slice(piece);
        let Some(end) = self.line.iter().rposition(|&byte| byte == b'\n') else {
            return Vec::new();
        };
        let rest = self.line.split_off(end + 1);
        let whole = mem::replace(&mut self.line, rest);
        whole.trim_ascii_end().split(|&byte| byte == b'\n').map(text).collect()
    }

    fn log(&self, line: &str) {
        tracing::warn!(sandbox = %self.sandbox, "the runner said: {line}");
    }
}

impl Drop for RunnerLog {
    fn drop(&mut self) {
        if !self.line.is_empty() {
            self.log(&text(&self.line));
        }
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_logged_whole() {
        let mut log = RunnerLog::new(SandboxName::new("sandbox"));
        assert!(log.lines(b"memory allocation of ").is_empty());
        assert_eq!(log.lines(b"5 bytes can't\nnote"), ["memory allocation of 5 bytes can't"]);
        assert_eq!(log.lines(b"\nmore\n\xff"), ["note", "more"]);
        assert_eq!(text(&log.line), "\u{fffd}");
    }

    #[test]
    fn the_log_is_limited() {
        let mut log = RunnerLog::new(SandboxName::new("sandbox"));
        assert!(log.pass_on(&[b'x'; MAX_LOGGED - 1]));
        assert_eq!(log.lines(b"\nmore\n"), ["x".repeat(MAX_LOGGED - 1)]);
        assert!(!log.pass_on(b"more\n") && log.line.is_empty());
    }
}
