//! Which lines of a source are within a string or a comment that began on an earlier line.

use crate::config::Language;

/// How sources write strings and comments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// As Python.
    Python,
    /// As JavaScript and Go.
    Braces,
}

impl Style {
    /// That of a language, if it is known.
    pub(super) fn of(language: &Language) -> Option<Self> {
        match language.extensions.first()?.as_str() {
            ".py" => Some(Self::Python),
            ".js" | ".mjs" | ".cjs" | ".ts" | ".mts" | ".go" => Some(Self::Braces),
            _ => None,
        }
    }
}

/// Follows a source, line by line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lines {
    style: Style,
    /// The end of the string or comment that the next line is in.
    until: Option<&'static str>,
}

impl Lines {
    pub(super) const fn new(style: Style) -> Self {
        Self { style, until: None }
    }

    /// Whether the next line begins outside of strings and comments.
    pub(super) const fn is_outside(&self) -> bool {
        self.until.is_none()
    }

    pub(super) fn read(&mut self, line: &str) {
        let mut rest = line;
        loop {
            if let Some(end) = self.until {
                let Some(after) = after(rest, end) else { return };
                (self.until, rest) = (None, after);
            }
            let Some(at) = rest.find(['"', '\'', '`', '#', '/']) else { return };
            rest = &rest[at..];
            let begins = |mark: &str| rest.starts_with(mark);
            let (mark, until) = match self.style {
                Style::Python if begins("#") => return,
                Style::Python if begins("\"\"\"") => (3, Some("\"\"\"")),
                Style::Python if begins("'''") => (3, Some("'''")),
                Style::Braces if begins("//") => return,
                Style::Braces if begins("/*") => (2, Some("*/")),
                _ => (1, None),
            };
            let quote = ["\"", "'", "`"].into_iter().find(|quote| begins(quote));
            rest = &rest[mark..];
            self.until = until;
            if until.is_none()
                && let Some(quote) = quote
            {
                // A string without an end goes to the end of the line. A line that begins with ``` is none of JavaScript or
                // Go, not even in a string of several lines.
                let Some(after) = after(rest, quote) else { return };
                rest = after;
            }
        }
    }
}

/// The text after the end of a string or comment, before which no backslash stands.
fn after<'t>(text: &'t str, end: &str) -> Option<&'t str> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find(end)?;
        let escapes = text[..at].bytes().rev().take_while(|byte| *byte == b'\\').count();
        if escapes % 2 == 0 || end == "*/" {
            return Some(&text[at + end.len()..]);
        }
        from = at + 1;
    }
}
