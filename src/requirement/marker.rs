//! Markers: for which interpreters and machines a requirement of Python is meant, such as `python_version < '3.11'`.
//!
//! Callers write them, and each call can bring others. The usual parser keeps every marker that it has read until the
//! process ends, so they are read and evaluated here.

use std::iter::Peekable;
use std::str::FromStr as _;
use std::vec;

use pep440_rs::{Version, VersionSpecifiers};

/// The interpreter and machine that markers are compared with, as far as they are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    /// The version of the interpreter, with three numbers.
    pub python: Option<String>,
    /// The processor, as `uname` names it.
    pub processor: Option<String>,
}

impl Machine {
    /// The value of a variable. The interpreter is always CPython on Linux. As for uv, its kernel is unknown.
    fn value(&self, variable: &str) -> Option<Value> {
        let minor = |version: &String| {
            let end = version.match_indices('.').nth(1).map_or(version.len(), |(at, _)| at);
            version[..end].to_owned()
        };
        let found = |value: Option<String>| value.map_or(Value::Unknown, Value::Text);
        let text = |value: &str| Value::Text(value.to_owned());
        Some(match variable {
            "python_version" => found(self.python.as_ref().map(minor)),
            "python_full_version" | "implementation_version" => found(self.python.clone()),
            "platform_machine" | "platform.machine" => found(self.processor.clone()),
            "os_name" | "os.name" => text("posix"),
            "sys_platform" | "sys.platform" => text("linux"),
            "platform_system" => text("Linux"),
            "implementation_name" => text("cpython"),
            "platform_python_implementation"
            | "platform.python_implementation"
            | "python_implementation" => text("CPython"),
            "platform_release" | "platform_version" | "platform.version" | "extra" => text(""),
            _ => return None,
        })
    }
}

/// One side of a comparison.
enum Value {
    Text(String),
    /// The value of a variable of the machine that is not known.
    Unknown,
}

/// Whether a marker holds. `or` is the maximum of its parts, and `and` the minimum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Truth {
    /// It does not.
    No,
    /// It depends on a value of the machine that is not known.
    Maybe,
    /// It does.
    Yes,
}

/// Whether a marker holds. `None` if it can't be read.
pub(super) fn evaluate(marker: &str, machine: &Machine) -> Option<Truth> {
    let mut reader = Reader { tokens: tokens(marker)?.into_iter().peekable(), machine };
    let holds = reader.any()?;
    reader.tokens.next().is_none().then_some(holds)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'m> {
    Word(&'m str),
    Text(&'m str),
    Comparison(&'m str),
    Open,
    Close,
}

fn tokens(marker: &str) -> Option<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    let mut rest = marker.trim_start();
    while let Some(first) = rest.chars().next() {
        // The length of a token, and the token.
        let run = |is_part: fn(char) -> bool| rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (length, token) = match first {
            '(' => (1, Token::Open),
            ')' => (1, Token::Close),
            '\'' | '"' => {
                let text = &rest[1..][..rest[1..].find(first)?];
                let is_plain = |c: char| c.is_ascii_alphanumeric() || " ._+*!-".contains(c);
                text.chars().all(is_plain).then_some((text.len() + 2, Token::Text(text)))?
            }
            '<' | '>' | '=' | '!' | '~' => {
                let length = run(|c| "<>=!~".contains(c));
                (length, Token::Comparison(&rest[..length]))
            }
            'A'..='Z' | 'a'..='z' => {
                let length = run(|c| c.is_ascii_alphabetic() || "_.".contains(c));
                (length, Token::Word(&rest[..length]))
            }
            _ => return None,
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    Some(tokens)
}

struct Reader<'m> {
    tokens: Peekable<vec::IntoIter<Token<'m>>>,
    machine: &'m Machine,
}

impl Reader<'_> {
    /// Parts with `or` between them. All are read, also after the first that holds.
    fn any(&mut self) -> Option<Truth> {
        let mut holds = self.all()?;
        while self.tokens.next_if_eq(&Token::Word("or")).is_some() {
            holds = holds.max(self.all()?);
        }
        Some(holds)
    }

    /// Parts with `and` between them.
    fn all(&mut self) -> Option<Truth> {
        let mut holds = self.one()?;
        while self.tokens.next_if_eq(&Token::Word("and")).is_some() {
            holds = holds.min(self.one()?);
        }
        Some(holds)
    }

    fn one(&mut self) -> Option<Truth> {
        if self.tokens.next_if_eq(&Token::Open).is_some() {
            let holds = self.any()?;
            return self.tokens.next_if_eq(&Token::Close).map(|_| holds);
        }
        let left = self.value()?;
        let comparison = match self.tokens.next()? {
            Token::Comparison(comparison) => comparison,
            Token::Word("in") => "in",
            Token::Word("not") => self.tokens.next_if_eq(&Token::Word("in")).map(|_| "not in")?,
            _ => return None,
        };
        let (Value::Text(left), Value::Text(right)) = (left, self.value()?) else {
            return Some(Truth::Maybe);
        };
        let holds = compare(&left, comparison, &right)?;
        Some(if holds { Truth::Yes } else { Truth::No })
    }

    fn value(&mut self) -> Option<Value> {
        match self.tokens.next()? {
            Token::Text(text) => Some(Value::Text(text.to_owned())),
            Token::Word(variable) => self.machine.value(variable),
            _ => None,
        }
    }
}

/// Compares versions if both sides are versions, and texts otherwise.
fn compare(left: &str, comparison: &str, right: &str) -> Option<bool> {
    if let (Ok(versions), Ok(version)) =
        (VersionSpecifiers::from_str(&format!("{comparison}{right}")), Version::from_str(left))
    {
        return Some(versions.contains(&version));
    }
    Some(match comparison {
        "in" => right.contains(left),
        "not in" => !right.contains(left),
        "==" | "===" => left == right,
        "!=" => left != right,
        "<" => left < right,
        "<=" => left <= right,
        ">" => left > right,
        ">=" => left >= right,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_evaluated_as_the_standard_says() {
        let machine =
            Machine { python: Some("3.13.7".to_owned()), processor: Some("x86_64".to_owned()) };
        for (marker, expected) in [
            ("python_version < '3.11'", Some(Truth::No)),
            ("python_version >= \"3.9\"", Some(Truth::Yes)),
            ("'3.9' <= python_version", Some(Truth::Yes)),
            ("python_version == '3.13.*'", Some(Truth::Yes)),
            ("python_version ~= '3.12'", Some(Truth::Yes)),
            ("python_full_version > '3.13.6'", Some(Truth::Yes)),
            ("python_version in '3.12 3.13'", Some(Truth::Yes)),
            ("python_version not in '3.12 3.13'", Some(Truth::No)),
            ("sys_platform == 'win32'", Some(Truth::No)),
            ("os.name == 'posix' and platform_system != 'Darwin'", Some(Truth::Yes)),
            ("platform_machine == 'aarch64' or platform_machine == 'x86_64'", Some(Truth::Yes)),
            ("implementation_name == 'cpython'", Some(Truth::Yes)),
            ("extra == 'test'", Some(Truth::No)),
            // "and" binds closer than "or".
            ("os_name == 'nt' and os_name == 'nt' or os_name == 'posix'", Some(Truth::Yes)),
            ("os_name == 'nt' and (os_name == 'nt' or os_name == 'posix')", Some(Truth::No)),
            ("os_name == 'posix' or no_such == 'x'", None),
            ("sys_platform ~= 'linux'", None),
            ("python_version", None),
            ("python_version <", None),
            ("python_version <> '3'", None),
            ("python_version < '3' os_name == 'nt'", None),
            ("(python_version < '3'", None),
            ("python_version not '3'", None),
            ("python_version < '3", None),
            ("python_version < '3;'", None),
            ("", None),
        ] {
            assert_eq!(evaluate(marker, &machine), expected, "{marker}");
        }
    }

    #[test]
    fn unknown_values_of_a_machine_decide_nothing() {
        for (marker, expected) in [
            ("python_version < '3.11'", Truth::Maybe),
            ("'aarch64' == platform_machine", Truth::Maybe),
            ("sys_platform == 'win32'", Truth::No),
            ("sys_platform == 'win32' and python_version < '3.11'", Truth::No),
            ("sys_platform == 'linux' and python_version < '3.11'", Truth::Maybe),
            ("python_version < '3.11' or os_name == 'posix'", Truth::Yes),
            ("python_version < '3.11' or os_name == 'nt'", Truth::Maybe),
        ] {
            assert_eq!(evaluate(marker, &Machine::default()), Some(expected), "{marker}");
        }
    }
}
