//! The block of metadata in a program (PEP 723): what it depends on, in comments that other tools read, too.
//!
//! ```text
//! # /// script
//! # requires-python = ">=3.11"
//! # dependencies = ["humanize>=4"]
//! # [tool.isolator]
//! # packages = ["text"]
//! # ///
//! ```

use toml::{Table, Value};

/// The first line of the block, without its kind.
const OPENING: &str = "# /// ";

/// Its last line.
const CLOSING: &str = "# ///";

/// The kind of block that describes a program.
const KIND: &str = "script";

/// Longest block that is read, in bytes. Usual blocks have a few hundred.
const LONGEST: usize = 64 << 10;

/// The metadata of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Script {
    /// Names of sets, or requirements, that it asks this server for.
    pub packages: Vec<String>,
    /// Requirements that it needs installed.
    pub dependencies: Vec<String>,
    /// The versions of Python with which it works.
    pub requires_python: Option<String>,
}

/// A mistake in a block, as the rest of a sentence that begins with "the block".
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadScript {
    /// Readers would differ in which one they take.
    #[error("is there twice: a program has one {OPENING}{KIND}")]
    Twice,
    #[error("has more than {LONGEST} bytes")]
    TooLong,
    /// It can't be parsed.
    #[error("is not valid TOML: {}", .0.message())]
    Toml(#[from] toml::de::Error),
    /// A key has another type than the standard says.
    #[error("has {key} that is not a {expected}")]
    Type {
        /// The key, with its article if it needs one.
        key: &'static str,
        /// The type.
        expected: &'static str,
    },
}

/// Reads the metadata of a program, if it has such a block.
pub(crate) fn of_program(code: &str) -> Result<Option<Script>, BadScript> {
    let mut blocks = blocks(code);
    let Some(block) = blocks.next() else { return Ok(None) };
    if blocks.next().is_some() {
        return Err(BadScript::Twice);
    }
    if block.len() > LONGEST {
        return Err(BadScript::TooLong);
    }
    let table: Table = block.parse()?;
    let tool = table.get("tool").and_then(|tool| tool.get("isolator"));
    let script = Script {
        packages: texts(tool.and_then(|tool| tool.get("packages")), "tool.isolator.packages")?,
        dependencies: texts(table.get("dependencies"), "dependencies")?,
        requires_python: match table.get("requires-python") {
            None => None,
            Some(Value::String(versions)) => Some(versions.clone()),
            Some(_) => {
                return Err(BadScript::Type { key: "a requires-python", expected: "string" });
            }
        },
    };
    Ok(Some(script))
}

/// A list of strings, or none.
fn texts(value: Option<&Value>, key: &'static str) -> Result<Vec<String>, BadScript> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let text = |item: &Value| item.as_str().map(str::to_owned);
    let texts = value.as_array().and_then(|items| items.iter().map(text).collect());
    texts.ok_or(BadScript::Type { key, expected: "list of strings" })
}

/// The contents of the blocks, without the signs of comments. A block without an end is none.
fn blocks(code: &str) -> impl Iterator<Item = String> {
    let mut lines = code.lines().peekable();
    std::iter::from_fn(move || {
        loop {
            let kind = lines.next()?.strip_prefix(OPENING);
            if !kind.is_some_and(is_kind) {
                continue;
            }
            let kind = kind.unwrap_or_default();
            // Everything up to the last closing line before something else: lines in between may look like one.
            let mut ahead = lines.clone();
            let mut content: Vec<&str> = Vec::new();
            let (mut closed, mut nearly) = (None, None);
            while let Some(line) = ahead.next_if(|line| *line == "#" || line.starts_with("# ")) {
                if line.trim_end() == CLOSING && !content.is_empty() {
                    let end = if line == CLOSING { &mut closed } else { &mut nearly };
                    *end = Some((content.len(), ahead.clone()));
                }
                content.push(line);
            }
            // White space at the end of that line is easily overlooked. The standard has none, so a line without some is preferred.
            let Some((length, after)) = closed.or(nearly) else { continue };
            lines = after;
            if kind == KIND {
                content.truncate(length);
                let plain = |line: &&str| line.strip_prefix("# ").unwrap_or_default().to_owned();
                return Some(content.iter().map(plain).collect::<Vec<_>>().join("\n"));
            }
        }
    })
}

fn is_kind(kind: &str) -> bool {
    !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &str) -> Option<Script> {
        of_program(code).expect(code)
    }

    #[test]
    fn a_program_declares_its_requirements() {
        let code = "#!/usr/bin/env python3\n\n# /// script\n# requires-python = \">=3.11\"\n# dependencies = [\n#   \
                    \"humanize>=4\",\n#\n#   'rapidfuzz',\n# ]\n# [tool.isolator]\n# packages = [\"text\"]\n# ///\nprint()\n";
        let script = Script {
            packages: vec!["text".to_owned()],
            dependencies: vec!["humanize>=4".to_owned(), "rapidfuzz".to_owned()],
            requires_python: Some(">=3.11".to_owned()),
        };
        assert_eq!(of(code), Some(script.clone()));
        assert_eq!(of(&code.replace('\n', "\r\n")), Some(script));
    }

    #[test]
    fn invalid_blocks_are_comments() {
        for code in [
            "",
            "# dependencies = ['a']\n",
            "# /// script\n# dependencies = ['a']\n",
            "# /// script\n# dependencies = ['a']\n\n# ///\n",
            "# /// script\n#dependencies = ['a']\n# ///\n",
            " # /// script\n # dependencies = ['a']\n # ///\n",
            "# /// script\n# ///\n",
            "# /// script \n# dependencies = ['a']\n# ///\n",
            "# /// other\n# dependencies = ['a']\n# ///\n",
            "# ///script\n# dependencies = ['a']\n# ///\n",
        ] {
            assert_eq!(of(code), None, "{code:?}");
        }
    }

    #[test]
    fn the_last_closing_line_ends_a_block() {
        let code =
            "# /// script\n# dependencies = [\"\"\"\n# ///\n# a\"\"\"]\n# ///\n# more\nx = 1\n";
        assert_eq!(of(code).map(|script| script.dependencies), Some(vec!["///\na".to_owned()]));
        let other = "# /// pyproject\n# /// script\n# ///\nx\n# /// script\n# dependencies = ['b']\n# ///\n";
        assert_eq!(of(other).map(|script| script.dependencies), Some(vec!["b".to_owned()]));
    }

    #[test]
    fn white_space_after_the_closing_line_is_overlooked() {
        for end in ["# /// ", "# ///\t \nx = 1\n", "# ///\n# /// \nx = 1\n", "# /// \n# more\n"] {
            let code = format!("# /// script\n# dependencies = ['a']\n{end}");
            assert_eq!(
                of(&code).map(|script| script.dependencies),
                Some(vec!["a".to_owned()]),
                "{end:?}"
            );
        }
    }

    #[test]
    fn mistakes_in_a_block_are_reported() {
        let block = |content: &str| format!("# /// script\n# {content}\n# ///\n");
        for (code, expected) in [
            (block("dependencies = 'a'"), "has dependencies that is not a list of strings"),
            (block("dependencies = [1]"), "has dependencies that is not a list of strings"),
            (block("requires-python = 3.1"), "has a requires-python that is not a string"),
            (
                block("tool.isolator.packages = 'a'"),
                "has tool.isolator.packages that is not a list",
            ),
            (block("dependencies = ["), "is not valid TOML: "),
            (block("a = 1") + "\n" + &block("b = 1"), "is there twice"),
            (block(&format!("a = '{}'", "x".repeat(LONGEST))), "has more than 65536 bytes"),
        ] {
            let error = of_program(&code).expect_err(&code).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
