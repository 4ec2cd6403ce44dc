//! Markers: for which interpreters and machines a requirement of Python is meant, such as `python_version < '3.11'`.
//!
//! Callers write them, and each call can bring others. So they are read and evaluated here, because the parser of the field
//! remembers every marker that it has read until the process ends.

use std::iter::Peekable;
use std::str::FromStr as _;
use std::vec;

use pep440_rs::{Version, VersionSpecifiers};

/// What markers are compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    /// The version of the interpreter, with three numbers.
    pub python: String,
    /// The processor, as `uname` names it.
    pub processor: String,
}

impl Machine {
    /// The value of a variable. The interpreter is always CPython on Linux. Of its kernel nothing is known, as for uv.
    fn value(&self, variable: &str) -> Option<String> {
        let python_version = || {
            let end = self.python.match_indices('.').nth(1).map_or(self.python.len(), |(at, _)| at);
            self.python[..end].to_owned()
        };
        Some(match variable {
            "python_version" => python_version(),
            "python_full_version" | "implementation_version" => self.python.clone(),
            "platform_machine" | "platform.machine" => self.processor.clone(),
            "os_name" | "os.name" => "posix".to_owned(),
            "sys_platform" | "sys.platform" => "linux".to_owned(),
            "platform_system" => "Linux".to_owned(),
            "implementation_name" => "cpython".to_owned(),
            "platform_python_implementation"
            | "platform.python_implementation"
            | "python_implementation" => "CPython".to_owned(),
            "platform_release" | "platform_version" | "platform.version" | "extra" => String::new(),
            _ => return None,
        })
    }
}

/// Whether a marker holds. `None` if it is none.
pub(super) fn evaluate(marker: &str, machine: &Machine) -> Option<bool> {
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
        // How long it is here, and what it is.
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
    /// Parts of which one has to hold. All are read, also after the first that holds.
    fn any(&mut self) -> Option<bool> {
        let mut holds = self.all()?;
        while self.tokens.next_if_eq(&Token::Word("or")).is_some() {
            holds |= self.all()?;
        }
        Some(holds)
    }

    /// Parts which all have to hold.
    fn all(&mut self) -> Option<bool> {
        let mut holds = self.one()?;
        while self.tokens.next_if_eq(&Token::Word("and")).is_some() {
            holds &= self.one()?;
        }
        Some(holds)
    }

    fn one(&mut self) -> Option<bool> {
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
        compare(&left, comparison, &self.value()?)
    }

    fn value(&mut self) -> Option<String> {
        match self.tokens.next()? {
            Token::Text(text) => Some(text.to_owned()),
            Token::Word(variable) => self.machine.value(variable),
            _ => None,
        }
    }
}

/// Compares versions where both sides are some, and otherwise texts.
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
        let machine = Machine { python: "3.13.7".to_owned(), processor: "x86_64".to_owned() };
        for (marker, expected) in [
            ("python_version < '3.11'", Some(false)),
            ("python_version >= \"3.9\"", Some(true)),
            ("'3.9' <= python_version", Some(true)),
            ("python_version == '3.13.*'", Some(true)),
            ("python_version ~= '3.12'", Some(true)),
            ("python_full_version > '3.13.6'", Some(true)),
            ("python_version in '3.12 3.13'", Some(true)),
            ("python_version not in '3.12 3.13'", Some(false)),
            ("sys_platform == 'win32'", Some(false)),
            ("os.name == 'posix' and platform_system != 'Darwin'", Some(true)),
            ("platform_machine == 'aarch64' or platform_machine == 'x86_64'", Some(true)),
            ("implementation_name == 'cpython'", Some(true)),
            ("extra == 'test'", Some(false)),
            // "and" binds closer than "or".
            ("os_name == 'nt' and os_name == 'nt' or os_name == 'posix'", Some(true)),
            ("os_name == 'nt' and (os_name == 'nt' or os_name == 'posix')", Some(false)),
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
}
