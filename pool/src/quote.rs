//! Foreign text in messages, logs and on terminals: quoted, or with its special characters escaped.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// Longest quoted text, in characters.
const MAX_CHARS: usize = 60;

/// The text in quotes, with special characters escaped, and cut if it is too long.
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        Some((cut, _)) => format!("{:?}…", &text[..cut]),
        None => format!("{text:?}"),
    }
}

/// The first of these names and the number of the others, as `a, b, 3 more`.
pub fn first_of(names: impl ExactSizeIterator<Item = String>, most: usize) -> String {
    let others = names.len().saturating_sub(most);
    let more = (others > 0).then(|| format!("{others} more"));
    names.take(most).chain(more).collect::<Vec<_>>().join(", ")
}

/// Words of a runner, a kernel or an interpreter, in quotes: in one line, and no more than their beginning and their end. They may be
/// as long as a frame, and a program can have chosen each character. They go into answers and logs, and are kept for as long as a
/// session is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said(String);

/// Quotes words of a runner, a kernel or an interpreter.
pub fn said(text: &str) -> Said {
    Said(format!("{:?}", ends(text)))
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The same without quotes, for a message of its own.
pub fn in_one_line(text: &str) -> String {
    escaped(&ends(text)).into_owned()
}

/// The beginning and the end of a text, or all of it if it is short.
fn ends(text: &str) -> Cow<'_, str> {
    const HALF: usize = 150;
    let length = text.chars().count();
    if length <= 2 * HALF {
        return Cow::Borrowed(text);
    }
    let start: String = text.chars().take(HALF).collect();
    let end: String = text.chars().skip(length - HALF).collect();
    Cow::Owned(format!("{start}…{end}"))
}

/// Whether a text that a program can have chosen may be repeated as the name of a module or a file: it is no sentence, and nothing
/// else than that name.
pub fn is_name(text: &str) -> bool {
    const LONGEST: usize = 100;
    let is_fine = |character: char| !character.is_whitespace() && !is_special(character);
    (1..=LONGEST).contains(&text.len()) && text.chars().all(is_fine)
}

/// Whether a character does something else in a log or on a terminal than to be seen: control characters, the ends of
/// lines among them, marks that turn the direction of text, and characters without a width.
fn is_special(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// The text in one line without special characters. They are escaped as in JSON, so text that is JSON keeps its meaning.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escaped_unless(text, |_| false)
}

/// The same of a text that may have several lines.
pub fn escaped_lines(text: &str) -> Cow<'_, str> {
    escaped_unless(text, |character| matches!(character, '\n' | '\t'))
}

/// The same of what a program has printed: it can go back to the begin of its line, as progress bars do, and join characters, as
/// emoji and some scripts need it.
pub fn escaped_output(text: &str) -> Cow<'_, str> {
    escaped_unless(text, |it| matches!(it, '\n' | '\t' | '\r' | '\u{200c}' | '\u{200d}'))
}

fn escaped_unless(text: &str, is_fine: impl Fn(char) -> bool + Copy) -> Cow<'_, str> {
    let must_go = |character: char| is_special(character) && !is_fine(character);
    if !text.contains(must_go) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if must_go(character) {
            // Writing to a string can't fail.
            let _ = write_escape(&mut escaped, character);
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

fn write_escape(to: &mut impl Write, character: char) -> fmt::Result {
    match character {
        '\n' => to.write_str("\\n"),
        '\r' => to.write_str("\\r"),
        '\t' => to.write_str("\\t"),
        other => {
            other.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(to, "\\u{unit:04x}"))
        }
    }
}

/// Writes text through [`escaped`].
pub struct Escaping<W>(pub W);

impl<W: Write> Write for Escaping<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write_str(&escaped(text))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        escaped, escaped_lines, escaped_output, first_of, in_one_line, is_name, quoted, said,
    };

    #[test]
    fn invisible_characters_are_escaped_and_visible_ones_are_not() {
        for fine in ["", "plain \u{fc} \u{4e2d}\u{6587} \u{5d9} \u{1f600} \\n \"x\""] {
            assert_eq!(escaped(fine), fine);
        }
        let forged =
            "a\r\nERROR \u{1b}[2J\u{9b}31m\u{7f}\u{202e}\u{200b}\u{2066}\u{2028}\u{feff}\u{e0041}";
        let shown =
            r"a\r\nERROR \u001b[2J\u009b31m\u007f\u202e\u200b\u2066\u2028\ufeff\udb40\udc41";
        assert_eq!(escaped(forged), shown);
        assert_eq!(escaped_lines("a\n\tb\u{1b}\r\u{200d}"), "a\n\tb\\u001b\\r\\u200d");
        assert_eq!(escaped_output("a\n\r\u{200d}\u{8}\u{200e}"), "a\n\r\u{200d}\\u0008\\u200e");
    }

    #[test]
    fn words_of_a_program_stay_in_their_quotes_and_are_short() {
        assert_eq!(said("a\"\n\u{202e}b").to_string(), r#""a\"\n\u{202e}b""#);
        let long = "\n".repeat(1000);
        assert_eq!(said(&long).to_string().len(), 2 * 300 + "\"…\"".len());
        assert_eq!(in_one_line("a\nb"), r"a\nb");
        assert!(is_name("@scope/name.js") && is_name("google.protobuf") && is_name("ü"));
        for wrong in ["", "a b", "a\nb", "a\u{2028}b", "\u{1b}", &"a".repeat(101)] {
            assert!(!is_name(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn a_long_list_ends_with_the_number_of_its_other_names() {
        let names = || ["a", "b", "c"].into_iter().map(str::to_owned);
        assert_eq!(first_of(names(), 3), "a, b, c");
        assert_eq!(first_of(names(), 2), "a, b, 1 more");
        assert_eq!(first_of(names().take(0), 2), "");
    }

    #[test]
    fn a_long_text_is_cut_and_a_short_one_is_not() {
        assert_eq!(quoted("a\nb"), r#""a\nb""#);
        assert_eq!(quoted(&"ü".repeat(60)), format!("\"{}\"", "ü".repeat(60)));
        assert_eq!(quoted(&"ü".repeat(61)), format!("\"{}\"…", "ü".repeat(60)));
    }
}
