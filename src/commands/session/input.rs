//! Whether what was typed is a whole input, or goes on in the next line.

use std::iter::Peekable;
use std::str::Chars;

use isolator_pool::engine::preload::Interpreter;

use super::directive::is_leaving;

/// Whether the next line belongs to the same input. Python's blocks end with an empty line, as in its own prompt, and so does
/// everything in a language without an interpreter for cells, in which an input is a whole program.
pub(super) fn goes_on(text: &str, interpreter: Option<Interpreter>) -> bool {
    // Commands have one line.
    if text.starts_with([':', '!']) || text.trim().is_empty() || is_leaving(text) {
        return false;
    }
    let is_last_line_empty = text.rsplit_once('\n').is_some_and(|(_, last)| last.trim().is_empty());
    match interpreter {
        Some(Interpreter::Python) => {
            let Scanned { is_open, has_block, ends_outside } = python(text);
            is_open || (has_block && !ends_outside && !is_last_line_empty)
        }
        Some(Interpreter::Node) => javascript(text),
        None => javascript(text) || !is_last_line_empty,
    }
}

/// The state at the end of a text in Python.
#[derive(Debug, Default)]
struct Scanned {
    /// A bracket, a long string or a continued line is open at its end.
    is_open: bool,
    /// It has a line that only makes sense with others: one that ends with a colon or is indented, a decorator, or a magic of a
    /// whole cell.
    has_block: bool,
    /// Its last line is not indented and opens no block. Lines that are pasted can end so.
    ends_outside: bool,
}

/// Words that begin a block or go on with one.
const OF_BLOCKS: [&str; 14] = [
    "async", "case", "class", "def", "elif", "else", "except", "finally", "for", "if", "match",
    "try", "while", "with",
];

fn python(text: &str) -> Scanned {
    let is_magic = text.starts_with("%%");
    let mut scanned = Scanned { has_block: is_magic, ..Scanned::default() };
    let mut depth = 0_usize;
    let mut chars = text.chars().peekable();
    let mut is_line_start = true;
    let mut last = '\n';
    while let Some(character) = chars.next() {
        if std::mem::take(&mut is_line_start) && !character.is_ascii_whitespace() {
            scanned.has_block |= character == '@';
            let word: String = [character]
                .into_iter()
                .chain(chars.clone())
                .take_while(|it| it.is_alphanumeric() || *it == '_')
                .collect();
            // A comment belongs to what is before it.
            if character != '#' {
                scanned.ends_outside =
                    !is_magic && character != '@' && !OF_BLOCKS.contains(&word.as_str());
            }
        } else if last == '\n' && matches!(character, ' ' | '\t') {
            let is_blank = rest_of_line_is_blank(&chars);
            scanned.has_block |= depth == 0 && !is_blank;
            scanned.ends_outside &= depth > 0 || is_blank;
        }
        match character {
            '#' => {
                while chars.next_if(|next| *next != '\n').is_some() {}
                continue;
            }
            '\'' | '"' => {
                let is_long = skip_two(&mut chars, character);
                match python_string(&mut chars, character, is_long) {
                    Closed::Yes => {}
                    Closed::OpenAtEnd => return Scanned { is_open: true, ..scanned },
                    // That is an error, and more lines don't help.
                    Closed::Never => return Scanned { is_open: false, ..scanned },
                }
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '\\' if chars.next_if_eq(&'\n').is_some() => {
                if chars.peek().is_none() {
                    return Scanned { is_open: true, ..scanned };
                }
                last = '\\';
                continue;
            }
            // As it is typed, the end of the line is not there yet.
            '\\' if chars.peek().is_none() => return Scanned { is_open: true, ..scanned },
            '\n' => {
                scanned.has_block |= depth == 0 && last == ':';
                is_line_start = depth == 0;
                last = '\n';
                continue;
            }
            _ => {}
        }
        if !character.is_whitespace() || last == '\n' {
            last = character;
        }
    }
    let opens_block = depth == 0 && last == ':';
    scanned.has_block |= opens_block;
    scanned.ends_outside &= !opens_block;
    scanned.is_open = depth > 0;
    scanned
}

fn rest_of_line_is_blank(chars: &Peekable<Chars<'_>>) -> bool {
    let next = chars.clone().find(|next| !matches!(next, ' ' | '\t' | '\r'));
    matches!(next, None | Some('\n' | '#'))
}

/// How a string ends.
#[derive(Debug, PartialEq, Eq)]
enum Closed {
    Yes,
    /// The text ends within it, and can go on.
    OpenAtEnd,
    /// Its line ends before it does.
    Never,
}

/// Takes the second and third quote of a long string. Two quotes are an empty one, whose second is left to be its end.
fn skip_two(chars: &mut Peekable<Chars<'_>>, quote: char) -> bool {
    let mut ahead = chars.clone();
    let is_long = ahead.next() == Some(quote) && ahead.next() == Some(quote);
    if is_long {
        *chars = ahead;
    }
    is_long
}

fn python_string(chars: &mut Peekable<Chars<'_>>, quote: char, is_long: bool) -> Closed {
    while let Some(character) = chars.next() {
        match character {
            '\\' => {
                let escaped = chars.next();
                if escaped.is_none() {
                    return Closed::OpenAtEnd;
                }
            }
            '\n' if !is_long => return Closed::Never,
            character if character == quote && (!is_long || skip_two(chars, quote)) => {
                return Closed::Yes;
            }
            _ => {}
        }
    }
    if is_long { Closed::OpenAtEnd } else { Closed::Never }
}

/// Words after which a slash begins a regular expression.
const BEFORE_EXPRESSION: [&str; 12] = [
    "await",
    "case",
    "delete",
    "do",
    "else",
    "in",
    "instanceof",
    "new",
    "return",
    "typeof",
    "void",
    "yield",
];

/// Whether a text in JavaScript, or in a language with the same brackets, strings and comments, is open at its end.
fn javascript(text: &str) -> bool {
    // What is open: closing brackets, and `$` for a template around them.
    let mut open = Vec::new();
    let mut chars = text.chars().peekable();
    let mut word = String::new();
    let mut last = ';';
    while let Some(character) = chars.next() {
        if character.is_alphanumeric() || matches!(character, '_' | '$') {
            if last.is_whitespace() || !is_word(last) {
                word.clear();
            }
            word.push(character);
            last = character;
            continue;
        }
        match character {
            '/' if chars.next_if_eq(&'/').is_some() => {
                while chars.next_if(|next| *next != '\n').is_some() {}
                continue;
            }
            '/' if chars.next_if_eq(&'*').is_some() => {
                if !skip_comment(&mut chars) {
                    return true;
                }
                continue;
            }
            '/' if begins_expression(last, &word) => {
                let is_closed = skip_expression(&mut chars);
                if !is_closed {
                    return false;
                }
            }
            '\'' | '"' => match python_string(&mut chars, character, false) {
                Closed::Yes => {}
                Closed::OpenAtEnd => return true,
                Closed::Never => return false,
            },
            '`' => match template(&mut chars) {
                Template::Ended => {}
                Template::Expression => open.push('$'),
                Template::Open => return true,
            },
            '(' => open.push(')'),
            '[' => open.push(']'),
            '{' => open.push('}'),
            '}' if open.last() == Some(&'$') => match template(&mut chars) {
                Template::Ended => {
                    open.pop();
                }
                Template::Expression => {}
                Template::Open => return true,
            },
            ')' | ']' | '}' => {
                // One that does not fit is an error, and more lines don't help.
                let fits = open.pop() == Some(character);
                if !fits {
                    return false;
                }
            }
            character if character.is_whitespace() => {
                // A word ends here, and what was before still tells what a slash means.
                if is_word(last) {
                    last = ' ';
                }
                continue;
            }
            _ => {}
        }
        word.clear();
        last = character;
    }
    !open.is_empty()
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '$')
}

/// Whether a slash begins a regular expression after this character and this word, and does not divide.
fn begins_expression(last: char, word: &str) -> bool {
    if word.is_empty() {
        !matches!(last, ')' | ']' | '}' | '\'' | '"' | '`')
    } else {
        BEFORE_EXPRESSION.contains(&word)
    }
}

/// Skips a comment to its end. Tells whether that is there.
fn skip_comment(chars: &mut Peekable<Chars<'_>>) -> bool {
    while let Some(character) = chars.next() {
        if character == '*' && chars.next_if_eq(&'/').is_some() {
            return true;
        }
    }
    false
}

/// Skips a regular expression to its end. Tells whether that is in the same line.
fn skip_expression(chars: &mut Peekable<Chars<'_>>) -> bool {
    let mut is_in_class = false;
    while let Some(character) = chars.next_if(|next| *next != '\n') {
        match character {
            '\\' => {
                chars.next_if(|next| *next != '\n');
            }
            '[' => is_in_class = true,
            ']' => is_in_class = false,
            '/' if !is_in_class => return true,
            _ => {}
        }
    }
    false
}

/// Where reading a template has stopped.
enum Template {
    Ended,
    /// At an expression in it.
    Expression,
    /// At the end of the text.
    Open,
}

fn template(chars: &mut Peekable<Chars<'_>>) -> Template {
    while let Some(character) = chars.next() {
        match character {
            '\\' => {
                chars.next();
            }
            '`' => return Template::Ended,
            '$' if chars.next_if_eq(&'{').is_some() => return Template::Expression,
            _ => {}
        }
    }
    Template::Open
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_goes_on_while_something_is_open() {
        for text in [
            "f(1,",
            "x = [",
            "x = {1: '}'",
            "'''a\nb",
            "x = \"\"\"",
            "f'''{x}",
            "x = 1 + \\",
            "x = 'a\\",
            "if x:",
            "def f(a,\n      b):",
            "def f():\n    return 1",
            "for x in y: # all",
            "@decorator",
            "@decorator\ndef f(): pass",
            "if x:\n    y\n\n    z",
            "if x:\n    f(\n\n",
            "%%bash\nls",
            "class A:\n    '''text\n\n",
            "if x:\n    y\nelse:",
            "if x:\n    f(\n)",
            "if x:\n    y\n# a",
            "%%bash\nif\nls",
        ] {
            assert!(goes_on(text, Some(Interpreter::Python)), "{text:?}");
        }
    }

    #[test]
    fn python_ends_where_its_own_prompt_ends() {
        for text in [
            "",
            "x",
            "x = {'a': 1}",
            "d[1:]",
            "f(1,\n  2)",
            "x = 'it''s' # (",
            "x = '('",
            "''",
            "''''''",
            "'''a\n  b'''",
            "x = '\\'('",
            "if x:\n    y\n",
            "def f():\n    '''a'''\n    return {\n  1}\n",
            "x = 1 + \\\n  2",
            // What is wrong stays wrong.
            "x = 'a",
            "x = )",
            "a\n  # a comment\nb",
            "def f():\n    return 1\n\nf()",
            "if x:\n    y\nz = [\n    1]",
            ":run a(",
            "!echo (",
            "%%bash\nls\n",
            "a\nb",
        ] {
            assert!(!goes_on(text, Some(Interpreter::Python)), "{text:?}");
        }
    }

    #[test]
    fn javascript_goes_on_while_something_is_open() {
        for text in [
            "f(1,",
            "{",
            "`a",
            "`${`",
            "`${x} {",
            "`${{a: `}`}",
            "/* a",
            "x = { a: '}'",
            "a.replace(/[/)]/g,",
            "function f() { return /}/",
            "'a\\",
            "a / b / (",
        ] {
            assert!(goes_on(text, Some(Interpreter::Node)), "{text:?}");
        }
    }

    #[test]
    fn javascript_ends_where_all_is_closed() {
        for text in [
            "x",
            "f(1)",
            "`a\nb`",
            "`${x}{`",
            "`${`${a}(`}(`",
            "// (",
            "/* ( */ x",
            "x = /[(/]/",
            "return /(/",
            "a / b; c / d",
            "(a) / (b) / 2",
            "a[0] / 2 // '",
            "x = a\n/ 2",
            "'('",
            "\"it's (\"",
            "function f() {\n  return 1\n}",
            // What is wrong stays wrong.
            "'a",
            ")",
            "(]",
            "x = /(",
        ] {
            assert!(!goes_on(text, Some(Interpreter::Node)), "{text:?}");
        }
    }

    #[test]
    fn a_program_of_another_language_ends_with_an_empty_line() {
        for text in ["package main", "func main() {\n", "func main() {\n\n"] {
            assert!(goes_on(text, None), "{text:?}");
        }
        assert!(!goes_on("func main() {\n}\n", None));
    }
}
