//! The tokens of code that is typed, for their colours. It need not be whole, or right.

use std::ops::Range;

use isolator_pool::engine::preload::Interpreter;

/// A kind of token that has a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Keyword,
    /// A name that the language has.
    Builtin,
    /// The name that is defined after `def`, `class` or `function`.
    Definition,
    Number,
    Text,
    Comment,
    /// A decorator, a magic, or a command of the prompt.
    Mark,
}

const PYTHON_KEYWORDS: &str = " and as assert async await break case class continue def del elif else except finally for from global \
     if import in is lambda match nonlocal not or pass raise return try while with yield False None True ";
const PYTHON_BUILTINS: &str = " abs all any bool bytes callable chr dict dir display enumerate eval exec filter float format frozenset getattr \
     hasattr hash help hex id input int isinstance issubclass iter len list map max min next object open ord pow print property \
     range repr reversed round self set setattr slice sorted str sum super tuple type vars zip ";
const SCRIPT_KEYWORDS: &str = " async await break case catch class const continue debugger default delete do else enum export extends false \
     finally for func function go if import in instanceof interface let new null of package return static super switch this \
     throw true try type typeof undefined var void while yield ";
const SCRIPT_BUILTINS: &str = " Array Boolean Buffer Date Error JSON Map Math Number Object Promise RegExp Set String Symbol console \
     display fetch globalThis process require ";
const DEFINING: &str = " def class function func ";

/// The tokens of a text that have a colour, in order.
pub(super) fn tokens(text: &str, interpreter: Option<Interpreter>) -> Vec<(Range<usize>, Kind)> {
    if text.starts_with(':') {
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        return vec![(0..end, Kind::Mark)];
    }
    let is_python = interpreter == Some(Interpreter::Python);
    let mut lexer = Lexer { text, at: 0, is_python, found: Vec::new(), is_defining: false };
    while lexer.at < text.len() {
        lexer.next();
    }
    lexer.found
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    is_python: bool,
    found: Vec<(Range<usize>, Kind)>,
    /// Whether the word before says that a name is defined.
    is_defining: bool,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn next(&mut self) {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return };
        let begins_line =
            self.text[..self.at].rsplit('\n').next().is_none_or(|it| it.trim().is_empty());
        let (length, kind) = match first {
            '#' if self.is_python => (line_length(rest), Some(Kind::Comment)),
            '/' if !self.is_python && rest.starts_with("//") => {
                (line_length(rest), Some(Kind::Comment))
            }
            '/' if !self.is_python && rest.starts_with("/*") => {
                (length_through(rest, 2, "*/"), Some(Kind::Comment))
            }
            '@' | '%' | '!' if self.is_python && begins_line => {
                let word =
                    rest.find(|it: char| it.is_whitespace() || it == '(').unwrap_or(rest.len());
                (word.max(1), Some(Kind::Mark))
            }
            '\'' | '"' => (self.string_length(first), Some(Kind::Text)),
            '`' if !self.is_python => (string_length(rest, "`", true), Some(Kind::Text)),
            _ if first.is_ascii_digit() => {
                let is_of_number = |it: char| it.is_ascii_alphanumeric() || matches!(it, '.' | '_');
                (rest.find(|it| !is_of_number(it)).unwrap_or(rest.len()), Some(Kind::Number))
            }
            _ if is_of_word(first) => return self.word(),
            _ if first.is_whitespace() => {
                self.at += first.len_utf8();
                return;
            }
            _ => (first.len_utf8(), None),
        };
        self.take(length, kind);
    }

    fn word(&mut self) {
        let rest = self.rest();
        let length = rest.find(|it| !is_of_word(it)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(length);
        let is_prefix =
            self.is_python && length <= 2 && word.chars().all(|it| "rRbBfFuUtT".contains(it));
        if is_prefix && after.starts_with(['\'', '"']) {
            return self.take(length, Some(Kind::Text));
        }
        let (keywords, builtins) = match self.is_python {
            true => (PYTHON_KEYWORDS, PYTHON_BUILTINS),
            false => (SCRIPT_KEYWORDS, SCRIPT_BUILTINS),
        };
        let is_attribute = self.text[..self.at].ends_with('.');
        let is_defining = has(DEFINING, word);
        let kind = match () {
            () if self.is_defining => Some(Kind::Definition),
            () if is_attribute => None,
            () if has(keywords, word) => Some(Kind::Keyword),
            () if has(builtins, word) => Some(Kind::Builtin),
            () => None,
        };
        self.take(length, kind);
        self.is_defining = is_defining && !is_attribute;
    }

    fn string_length(&self, quote: char) -> usize {
        let rest = self.rest();
        let long = quote.to_string().repeat(3);
        match self.is_python && rest.starts_with(&long) {
            true => string_length(rest, &long, true),
            false => string_length(rest, &long[..1], false),
        }
    }

    fn take(&mut self, length: usize, kind: Option<Kind>) {
        self.is_defining = false;
        if let Some(kind) = kind {
            self.found.push((self.at..self.at + length, kind));
        }
        self.at += length;
    }
}

fn is_of_word(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '$')
}

fn has(words: &str, word: &str) -> bool {
    words.contains(&format!(" {word} "))
}

fn line_length(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

/// Bytes through the first `end` behind the beginning.
fn length_through(text: &str, beginning: usize, end: &str) -> usize {
    text[beginning..].find(end).map_or(text.len(), |at| beginning + at + end.len())
}

/// Bytes of a string with its quotes. One that is not closed ends with its line, or with the text if it can have several lines.
fn string_length(text: &str, quote: &str, has_lines: bool) -> usize {
    let mut at = quote.len();
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with(quote) {
            return at + quote.len();
        }
        let mut characters = rest.chars();
        match characters.next() {
            Some('\n') if !has_lines => return at,
            Some('\\') => at += 1 + characters.next().map_or(0, char::len_utf8),
            Some(character) => at += character.len_utf8(),
            None => break,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, interpreter: Interpreter) -> Vec<(&str, Kind)> {
        let found = tokens(text, Some(interpreter));
        found.into_iter().map(|(range, kind)| (&text[range], kind)).collect()
    }

    #[test]
    fn python_has_its_colours() {
        use Kind::{Builtin, Comment, Definition, Keyword, Mark, Number, Text};
        for (text, expected) in [
            ("def f(x): # def", vec![("def", Keyword), ("f", Definition), ("# def", Comment)]),
            ("x.def_ = a.print", vec![]),
            ("print(1_0.5e3)", vec![("print", Builtin), ("1_0.5e3", Number)]),
            ("rb'\\'#' 'a", vec![("rb", Text), ("'\\'#'", Text), ("'a", Text)]),
            ("'a\nif", vec![("'a", Text), ("if", Keyword)]),
            ("\"\"\"a\n'if\"\"\" in", vec![("\"\"\"a\n'if\"\"\"", Text), ("in", Keyword)]),
            ("'''a\nif", vec![("'''a\nif", Text)]),
            ("@cache\nclass A", vec![("@cache", Mark), ("class", Keyword), ("A", Definition)]),
            ("%timeit 1", vec![("%timeit", Mark), ("1", Number)]),
            ("a % b @ c", vec![]),
            ("\u{fc}if = '\u{e9}'", vec![("'\u{e9}'", Text)]),
            ("''", vec![("''", Text)]),
            ("'\\", vec![("'\\", Text)]),
        ] {
            assert_eq!(found(text, Interpreter::Python), expected, "{text:?}");
        }
    }

    #[test]
    fn javascript_has_its_colours() {
        use Kind::{Builtin, Comment, Definition, Keyword, Mark, Number, Text};
        for (text, expected) in [
            (
                "function f() { /* a\n*/ return `b\n${1}`",
                vec![
                    ("function", Keyword),
                    ("f", Definition),
                    ("/* a\n*/", Comment),
                    ("return", Keyword),
                    ("`b\n${1}`", Text),
                ],
            ),
            ("x / 2 // two", vec![("2", Number), ("// two", Comment)]),
            ("console.log($if)", vec![("console", Builtin)]),
            ("/* open", vec![("/* open", Comment)]),
            (":files if", vec![(":files", Mark)]),
        ] {
            assert_eq!(found(text, Interpreter::Node), expected, "{text:?}");
        }
    }
}
