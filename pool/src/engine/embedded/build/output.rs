//! The output of a build, which is not trusted: limited, and without control characters.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;

use crate::engine::Progress;

/// The longest line that is passed on, in bytes. The rest of it is dropped.
const MAX_LINE: usize = 4096;

/// The stream to the script.
pub(super) fn stream(stream: OwnedFd) -> io::Result<BufReader<UnixStream>> {
    let stream = std::os::unix::net::UnixStream::from(stream);
    stream.set_nonblocking(true)?;
    Ok(BufReader::new(UnixStream::from_std(stream)?))
}

/// Passes on lines except `done`, and returns the last one that is not blank.
pub(super) async fn pass_on(
    mut stream: impl AsyncBufRead + Unpin,
    done: &str,
    progress: Progress<'_>,
) -> io::Result<String> {
    let mut last = String::new();
    while let Some(line) = next_line(&mut stream).await? {
        let line = printable(&line);
        if line != done {
            progress(&line);
        }
        if !line.trim().is_empty() {
            last = line;
        }
    }
    Ok(last)
}

/// The beginning of the next line; `None` at the end.
async fn next_line(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let mut is_there = false;
    loop {
        let piece = stream.fill_buf().await?;
        if piece.is_empty() {
            return Ok(is_there.then_some(line));
        }
        is_there = true;
        let end = piece.iter().position(|&byte| byte == b'\n');
        let length = end.unwrap_or(piece.len());
        line.extend_from_slice(&piece[..length.min(MAX_LINE - line.len())]);
        stream.consume(end.map_or(length, |end| end + 1));
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

/// A line without control characters, which could control a terminal. Tabs stay, and so does text before a carriage return.
fn printable(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line);
    let shown = |letter: char| match letter {
        '\t' => '\t',
        letter if letter.is_control() => char::REPLACEMENT_CHARACTER,
        letter => letter,
    };
    line.trim_end_matches('\r').chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn lines_are_cut_and_can_t_steer_a_terminal() {
        let long = "x".repeat(1 << 20);
        let output = format!("one\r\n{long}\n\x1b]0;title\x07\t\u{9b}2J\n\ndone\n\n");
        let heard = Mutex::new(Vec::new());
        let progress = |line: &str| heard.lock().unwrap().push(line.to_owned());
        let last = pass_on(output.as_bytes(), "done", &progress).await.unwrap();
        let heard = heard.into_inner().unwrap();
        let cut = "x".repeat(MAX_LINE);
        assert_eq!(heard, ["one", &cut, "\u{fffd}]0;title\u{fffd}\t\u{fffd}2J", "", ""]);
        assert_eq!(last, "done");
    }
}
