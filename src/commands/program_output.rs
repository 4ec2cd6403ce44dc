//! What a program has printed, on its way to a stream of this process. Elsewhere than on a terminal it stays as it is. On a
//! terminal, colours and other looks of text pass, and everything else that a terminal would obey is escaped: titles, the
//! clipboard, questions that it answers, moves of the cursor, marks that turn or hide text. Whatever a program prints has to come
//! through here.

mod errors;

use std::io::IsTerminal as _;

use clap::builder::StyledStr;
use isolator_pool::quote::{escaped_lines, escaped_output};
use isolator_pool::run::output::Stream;

use self::errors::ErrorLooks;

const ESCAPE: u8 = 0x1b;

/// Longest sequence for the looks of text, in bytes. The longest useful ones set two colours and some attributes.
const LONGEST: usize = 64;

const PLAIN: &str = "\u{1b}[0m";

/// One stream.
#[derive(Debug)]
pub(super) struct ProgramOutput {
    is_terminal: bool,
    /// The looks of text without a look of its own, if it is shown as errors.
    errors: Option<ErrorLooks>,
    /// The begin of a character or of a sequence, whose end has not come yet. It is short.
    begun: Vec<u8>,
    /// Whether the program has changed the look of text, and not set it back.
    has_look: bool,
    /// Whether a line is open.
    is_in_line: bool,
}

/// The beginning of some bytes.
enum Piece<'a> {
    Text(&'a [u8]),
    /// A sequence for the looks of text, which ends with `m`.
    Look(&'a [u8]),
    /// An escape character of anything else.
    Other,
    /// Something whose end has not come.
    Begun,
}

impl ProgramOutput {
    /// To a stream of this process.
    pub(super) fn to(stream: Stream) -> Self {
        let is_terminal = match stream {
            Stream::Stdout => std::io::stdout().is_terminal(),
            Stream::Stderr => std::io::stderr().is_terminal(),
        };
        Self::new(is_terminal)
    }

    const fn new(is_terminal: bool) -> Self {
        Self { is_terminal, errors: None, begun: Vec::new(), has_look: false, is_in_line: false }
    }

    /// The same with the colours of errors, if it is a terminal that may show colours.
    pub(super) fn of_errors(mut self) -> Self {
        self.errors = (self.is_terminal && may_color()).then(ErrorLooks::default);
        self
    }

    /// The bytes to write for these.
    pub(super) fn shown(&mut self, bytes: &[u8]) -> Vec<u8> {
        if !self.is_terminal {
            self.is_in_line = bytes.last().map_or(self.is_in_line, |last| *last != b'\n');
            return bytes.to_vec();
        }
        let mut all = std::mem::take(&mut self.begun);
        all.extend_from_slice(bytes);
        let mut shown = Vec::with_capacity(all.len());
        let mut rest = all.as_slice();
        while !rest.is_empty() {
            let length = match piece(rest) {
                Piece::Text(text) => {
                    self.show(&String::from_utf8_lossy(text), &mut shown);
                    text.len()
                }
                Piece::Look(look) => {
                    self.has_look = !is_reset(look);
                    shown.extend_from_slice(look);
                    look.len()
                }
                Piece::Other => {
                    self.show("\u{1b}", &mut shown);
                    1
                }
                Piece::Begun => {
                    self.begun = rest.to_vec();
                    break;
                }
            };
            rest = &rest[length..];
        }
        shown
    }

    fn show(&mut self, text: &str, shown: &mut Vec<u8>) {
        let text = &escaped_output(text);
        match self.errors.as_mut().filter(|_| !self.has_look) {
            Some(looks) => shown.extend_from_slice(looks.shown(text, self.is_in_line).as_bytes()),
            None => shown.extend_from_slice(text.as_bytes()),
        }
        self.is_in_line = !text.ends_with('\n');
    }

    /// The bytes to write before other output: they end what the program left open, and set its looks back.
    pub(super) fn finished(&mut self) -> Vec<u8> {
        let begun = std::mem::take(&mut self.begun);
        let mut shown = Vec::new();
        if !begun.is_empty() {
            self.show(&String::from_utf8_lossy(&begun), &mut shown);
        }
        if std::mem::take(&mut self.has_look) {
            shown.extend_from_slice(PLAIN.as_bytes());
        }
        shown
    }

    /// The same with the end of the line, which only a terminal needs.
    pub(super) fn ended(&mut self) -> Vec<u8> {
        if self.is_terminal { self.line_ended() } else { self.finished() }
    }

    /// The same with the end of the line.
    pub(super) fn line_ended(&mut self) -> Vec<u8> {
        let mut shown = self.finished();
        if std::mem::take(&mut self.is_in_line) {
            shown.push(b'\n');
        }
        shown
    }

    /// All of a program's output at once.
    pub(super) fn whole(mut self, bytes: &[u8]) -> Vec<u8> {
        let mut shown = self.shown(bytes);
        shown.extend(self.ended());
        shown
    }
}

/// Whether the user lets us add colours, and the terminal has some. See no-color.org.
pub(super) fn may_color() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
    !is_dumb && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A text of the library that reads the command line, which repeats what is wrong there, and may have colours.
pub(super) fn of_command_line(text: &StyledStr, to: Stream) -> Vec<u8> {
    let output = ProgramOutput::to(to);
    match output.is_terminal && may_color() {
        true => output.whole(text.ansi().to_string().as_bytes()),
        false => escaped_lines(&text.to_string()).into_owned().into_bytes(),
    }
}

fn piece(bytes: &[u8]) -> Piece<'_> {
    let text = memchr::memchr(ESCAPE, bytes).unwrap_or(bytes.len());
    if text == 0 {
        return sequence(bytes);
    }
    let (text, is_last) = (&bytes[..text], text == bytes.len());
    let open = match text.utf8_chunks().last() {
        Some(last) if is_last && is_begin(last.invalid()) => last.invalid().len(),
        _ => 0,
    };
    match text.len() - open {
        0 => Piece::Begun,
        whole => Piece::Text(&text[..whole]),
    }
}

/// The sequence that an escape character begins.
fn sequence(bytes: &[u8]) -> Piece<'_> {
    let is_parameter = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b';' | b':');
    let after = match bytes.get(1) {
        None => return Piece::Begun,
        Some(b'[') => &bytes[2..bytes.len().min(LONGEST)],
        Some(_) => return Piece::Other,
    };
    let parameters = after.iter().take_while(|byte| is_parameter(byte)).count();
    match after.get(parameters) {
        Some(b'm') => Piece::Look(&bytes[..parameters + 3]),
        None if bytes.len() < LONGEST => Piece::Begun,
        _ => Piece::Other,
    }
}

/// Whether a sequence sets all looks back. Later parameters may set some again.
fn is_reset(look: &[u8]) -> bool {
    look[2..look.len() - 1].iter().all(|byte| *byte == b'0')
}

/// Whether a character may still be made of these bytes.
fn is_begin(bytes: &[u8]) -> bool {
    match std::str::from_utf8(bytes) {
        Err(error) => error.error_len().is_none(),
        Ok(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_terminal(is_red: bool) -> ProgramOutput {
        ProgramOutput { errors: is_red.then(ErrorLooks::default), ..ProgramOutput::new(true) }
    }

    /// The text that is shown of bytes that come in parts of each size.
    fn shown(bytes: &[u8]) -> String {
        let in_parts = |size: usize| {
            let mut output = on_terminal(false);
            let mut shown: Vec<u8> = bytes.chunks(size).flat_map(|it| output.shown(it)).collect();
            assert!(output.begun.len() < LONGEST);
            shown.extend(output.finished());
            String::from_utf8(shown).unwrap()
        };
        let whole = in_parts(bytes.len());
        for size in 1..bytes.len() {
            assert_eq!(in_parts(size), whole, "{size}");
        }
        whole
    }

    #[test]
    fn colours_pass_and_nothing_else_that_a_terminal_obeys() {
        for fine in [
            "\u{1b}[31mred\u{1b}[0m",
            "\u{1b}[1;38;2;1;2;3;48:5:17mrich\u{1b}[m",
            "50%\r\tdone\n",
            "\u{fc} \u{20ac} \u{1f469}\u{200d}\u{1f680}",
        ] {
            assert_eq!(shown(fine.as_bytes()), fine);
        }
        for (printed, expected) in [
            (&b"\x1b]0;title\x07"[..], "\\u001b]0;title\\u0007"),
            (b"\x1b]52;c;aGk=\x1b\\", "\\u001b]52;c;aGk=\\u001b\\"),
            (b"\x1b[2J\x1b[H\x1bc", "\\u001b[2J\\u001b[H\\u001bc"),
            (b"\x1b[>4;2m\x1b[?1m\x1b[1 m", "\\u001b[>4;2m\\u001b[?1m\\u001b[1 m"),
            (b"\x1b[3\x1b[31mx\x1b[0m", "\\u001b[3\u{1b}[31mx\u{1b}[0m"),
            (b"\x1bP1$qm\x1b\\", "\\u001bP1$qm\\u001b\\"),
            // In one byte, in two, and as a part of another character.
            (b"\x9b2J \xc2\x9b2J \xdb\x9b", "\u{fffd}2J \\u009b2J \u{6db}"),
            (
                "\u{202e}\u{2066}\u{200b}\u{8}\u{e}".as_bytes(),
                "\\u202e\\u2066\\u200b\\u0008\\u000e",
            ),
            (b"\x1b[31", "\\u001b[31"),
            (b"\xe2\x82", "\u{fffd}"),
        ] {
            assert_eq!(shown(printed), expected, "{printed:?}");
        }
        let long = format!("\u{1b}[{}m", "1;".repeat(LONGEST));
        assert_eq!(shown(long.as_bytes()), long.replace('\u{1b}', "\\u001b"));
    }

    #[test]
    fn no_mixture_of_parts_makes_a_sequence_of_another_kind() {
        let parts: [&[u8]; 9] =
            [b"\x1b", b"[", b"]0;", b"31", b";", b"m", b"\xc2", b"\x9b", b"\xe2\x80\xae"];
        for mixture in 0..9_usize.pow(5) {
            let mixed: Vec<_> =
                (0..5).flat_map(|at| parts[mixture / 9_usize.pow(at) % 9]).copied().collect();
            let mut output = on_terminal(false);
            let mut shown: Vec<u8> = mixed.chunks(2).flat_map(|it| output.shown(it)).collect();
            shown.extend(output.finished());
            let shown = String::from_utf8(shown).unwrap();
            let is_look = |after: &str| {
                let look = after.strip_prefix('[').and_then(|it| it.split_once('m'));
                look.is_some_and(|(it, _)| it.bytes().all(|it| it.is_ascii_digit() || it == b';'))
            };
            assert!(shown.split('\u{1b}').skip(1).all(is_look), "{mixed:?}: {shown:?}");
            assert!(!shown.contains(['\u{9b}', '\u{202e}']), "{mixed:?}: {shown:?}");
        }
    }

    #[test]
    fn the_look_of_text_is_set_back_at_the_end() {
        assert_eq!(shown(b"\x1b[8;31ma"), "\u{1b}[8;31ma\u{1b}[0m");
        assert_eq!(shown(b"\x1b[0;31ma"), "\u{1b}[0;31ma\u{1b}[0m");
        assert_eq!(on_terminal(false).whole(b"a\x1b[31mb"), b"a\x1b[31mb\x1b[0m\n");
    }

    #[test]
    fn elsewhere_it_stays_as_it_is() {
        let bytes = b"a\x1b[2J\x1b[31m\xff\xe2";
        assert_eq!(ProgramOutput::new(false).whole(bytes), bytes);
    }

    #[test]
    fn text_is_red_unless_the_program_has_given_it_a_look() {
        let shown = on_terminal(true).shown(b"a\x1b[32mb\x1b[0mc");
        assert_eq!(shown, b"\x1b[31ma\x1b[0m\x1b[32mb\x1b[0m\x1b[31mc\x1b[0m");
    }
}
