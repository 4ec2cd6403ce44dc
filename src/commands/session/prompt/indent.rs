//! The indentation of the next line of an input.

use isolator_pool::engine::preload::Interpreter;

/// One level.
pub(super) const INDENT: &str = "    ";

/// Statements of Python after which nothing follows in their block.
const LEAVING: [&str; 5] = ["return", "pass", "break", "continue", "raise"];

/// The indentation of the line after a text: that of its last line, one level more after something that opens a block or a bracket, and
/// one less after a statement that leaves its block.
pub(super) fn after(text: &str, interpreter: Option<Interpreter>) -> String {
    let line = text.rsplit('\n').next().unwrap_or_default();
    let code = without_comment(line, interpreter).trim_end();
    let begins = statement_of_last_line(text);
    let own = &begins[..begins.len() - begins.trim_start().len()];
    let is_python = interpreter == Some(Interpreter::Python);
    let opens = code.ends_with(['(', '[', '{']) || (is_python && code.ends_with(':'));
    if opens {
        return format!("{own}{INDENT}");
    }
    let first = code.split_whitespace().next().unwrap_or_default();
    if is_python && LEAVING.contains(&first) && !has_open_bracket(code) {
        return own.strip_suffix(INDENT).unwrap_or(own).to_owned();
    }
    own.to_owned()
}

/// The line before the cursor with one level less, if it is only an indentation and a closing bracket comes next.
pub(super) fn before_closing(line: &str, bracket: char) -> Option<String> {
    let is_indent = !line.is_empty() && line.chars().all(|it| it == ' ');
    let less = line.strip_suffix(INDENT).filter(|_| is_indent)?;
    matches!(bracket, ')' | ']' | '}').then(|| format!("{less}{bracket}"))
}

/// Whether going back from here removes a level.
pub(super) fn is_at_level(line: &str) -> bool {
    !line.is_empty() && line.chars().all(|it| it == ' ') && line.len().is_multiple_of(INDENT.len())
}

fn without_comment(line: &str, interpreter: Option<Interpreter>) -> &str {
    let mark = if interpreter == Some(Interpreter::Python) { "#" } else { "//" };
    match line.find(mark) {
        // Within a string it is no comment.
        Some(at) if !line[..at].contains(['\'', '"', '`']) => &line[..at],
        _ => line,
    }
}

fn has_open_bracket(code: &str) -> bool {
    opened(code) > 0
}

/// Number of brackets that a line opens and does not close.
fn opened(code: &str) -> i64 {
    let count = |brackets: [char; 3]| code.matches(brackets).count() as i64;
    count(['(', '[', '{']) - count([')', ']', '}'])
}

/// The line in which the brackets were opened that the last line closes; the last line if there are none.
fn statement_of_last_line(text: &str) -> &str {
    let mut open = 0;
    let mut lines = text.rsplit('\n');
    let last = lines.next().unwrap_or_default();
    for line in std::iter::once(last).chain(lines) {
        open += opened(line);
        if open >= 0 {
            return line;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_python_have_the_indentation_of_their_block() {
        for (text, expected) in [
            ("def f():", "    "),
            ("def f():  # a", "    "),
            ("if x:\n    if y:", "        "),
            ("if x:\n    y", "    "),
            ("x = [", "    "),
            ("x = '#[", "    "),
            ("if x:\n    return y", ""),
            ("if x:\n    return f(y,", "    "),
            ("if x:\n    returned", "    "),
            ("if x:\n    f(\n        y,\n        z)", "    "),
            ("x = 1)", ""),
            ("", ""),
        ] {
            assert_eq!(after(text, Some(Interpreter::Python)), expected, "{text:?}");
        }
    }

    #[test]
    fn lines_of_javascript_have_the_indentation_of_their_brackets() {
        for (text, expected) in [
            ("function f() {", "    "),
            ("f(\n  a,", "  "),
            ("case 1:", ""),
            ("g([ // all", "    "),
        ] {
            assert_eq!(after(text, Some(Interpreter::Node)), expected, "{text:?}");
        }
    }

    #[test]
    fn a_closing_bracket_goes_back_a_level() {
        assert_eq!(before_closing("        ", '}').as_deref(), Some("    }"));
        assert_eq!(before_closing("    ", ')').as_deref(), Some(")"));
        for (line, next) in [("", '}'), ("  ", '}'), ("    x", ')'), ("    ", 'x')] {
            assert_eq!(before_closing(line, next), None, "{line:?}");
        }
        assert!(
            is_at_level("    ") && !is_at_level("   ") && !is_at_level("") && !is_at_level("   x")
        );
    }
}
