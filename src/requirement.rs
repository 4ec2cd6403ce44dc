//! Requirements: the name of a package, and which versions of it.
//!
//! Requirements come from callers, from programs and from the configuration, and become the input of tools that also
//! understand addresses, paths, options and other names. So only names and versions are accepted, and the tools get a text that is
//! written from the parsed requirement.

mod marker;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr as _;
use std::sync::LazyLock;

use isolator_pool::engine::preload::Interpreter;
use isolator_pool::quote::{first_of, quoted};
use pep440_rs::VersionSpecifiers;
use regex::Regex;

pub(crate) use marker::Machine;

use crate::pattern::pattern;

/// Longest requirement, in bytes.
pub(crate) const LONGEST: usize = 300;

/// Most requirements of one set, also of one that several sets make up.
pub(crate) const MOST: usize = 500;

/// Most requirements of a program that a note repeats.
pub(crate) const MOST_SHOWN: usize = 10;

/// A package that is asked for, and its versions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Requirement {
    /// The package's name, normalised: all spellings of one name are the same here.
    pub name: String,
    /// The requirement as the tool gets it, in one spelling for all that mean the same.
    pub text: String,
}

impl Requirement {
    /// Whether an interpreter of Python needs it, as its marker says, or could need it if not all of the machine is known.
    pub(crate) fn is_needed(&self, machine: &Machine) -> bool {
        let marker = self.text.split_once(MARKER).map(|(_, marker)| marker);
        let holds = marker.and_then(|marker| marker::evaluate(marker, machine));
        holds != Some(marker::Truth::No)
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The requirements of one set.
#[derive(Debug, Clone)]
pub(crate) struct Recipe {
    /// The interpreter that imports the packages.
    pub interpreter: Interpreter,
    /// The requirements, sorted, each once.
    pub requirements: Vec<Requirement>,
    /// The versions and files that are settled already, because a set that is a part of it has a lock.
    pub pins: Pins,
}

/// The versions and files that the locks of several sets settle for the set that they become together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pins {
    /// The sets with locks, by their names, and the hash of each lock.
    pub locks: BTreeMap<String, String>,
    /// The requirements of these sets.
    pub settled: Vec<String>,
    /// The version of each package, by its name. For npm, those with only one version, and those that are asked for.
    pub versions: BTreeMap<String, String>,
    /// For npm, the versions of the dependencies of a package, as `name@version`, if there are several.
    pub inside: BTreeMap<String, BTreeMap<String, String>>,
    /// The packages of the locks with the hashes of their files.
    pub hashes: Vec<PinnedFiles>,
}

/// A package with the hashes of its files.
#[derive(Debug, Clone)]
pub(crate) struct PinnedFiles {
    pub name: String,
    pub version: String,
    pub hashes: Vec<String>,
}

impl Pins {
    /// The hashes of the files of a package, if a lock has it.
    pub(crate) fn hashes_of(&self, name: &str, version: &str) -> Option<&[String]> {
        let pinned = self.hashes.iter().find(|it| it.name == name && it.version == version)?;
        Some(&pinned.hashes)
    }

    /// The sets with locks, for people.
    pub(crate) fn sets(&self) -> String {
        self.locks.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

impl Recipe {
    /// The recipe of all these requirements together.
    ///
    /// # Errors
    ///
    /// When there are none, or more than [`MOST`].
    pub(crate) fn new(
        interpreter: Interpreter,
        mut requirements: Vec<Requirement>,
    ) -> Result<Self, BadRequirement> {
        requirements.sort_unstable();
        requirements.dedup();
        match requirements.len() {
            0 => Err(BadRequirement::new("there are no requirements: name a package")),
            count if count > MOST => {
                let message = format!("there are {count} requirements, and at most {MOST} can be");
                Err(BadRequirement(message))
            }
            _ => Ok(Self { interpreter, requirements, pins: Pins::default() }),
        }
    }

    /// The requirements as texts.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.requirements.iter().map(|requirement| requirement.text.clone()).collect()
    }
}

/// A requirement that can't be used, with a sentence for its author.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadRequirement(String);

impl BadRequirement {
    fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// Reads a requirement.
///
/// # Errors
///
/// When it can't be read, or asks for something else than versions of a package from the index.
pub(crate) fn parse(interpreter: Interpreter, text: &str) -> Result<Requirement, BadRequirement> {
    let example = example(interpreter);
    if text.len() > LONGEST {
        return Err(BadRequirement(format!(
            "a requirement has {} bytes, and at most {LONGEST} can be: name a package and its versions, such as {example}",
            text.len()
        )));
    }
    if text.chars().any(|c| c.is_control() && c != '\t') {
        return Err(BadRequirement(format!("{} contains control characters", quoted(text))));
    }
    let text = text.trim();
    if text.is_empty() {
        return Err(BadRequirement(format!(
            "a requirement is empty: name a package, such as {example}"
        )));
    }
    if let Some(reason) = elsewhere(interpreter, text) {
        return Err(BadRequirement(format!(
            "{} {reason}; only packages from the index can be asked for, by name and versions, such as {example}",
            quoted(text)
        )));
    }
    let parsed = match interpreter {
        Interpreter::Python => python(text),
        Interpreter::Node => node(text),
    };
    parsed.map_err(|BadRequirement(reason)| {
        BadRequirement(format!("{} is not a requirement: {reason}; write {example}", quoted(text)))
    })
}

/// Reads several requirements.
pub(crate) fn parse_all(
    interpreter: Interpreter,
    texts: &[String],
) -> Result<Vec<Requirement>, BadRequirement> {
    texts.iter().map(|text| parse(interpreter, text)).collect()
}

const fn example(interpreter: Interpreter) -> &'static str {
    match interpreter {
        Interpreter::Python => "\"humanize==4.*\" or \"rapidfuzz>=3,<4\"",
        Interpreter::Node => "\"lodash@4\" or \"@scope/name@^1.2\"",
    }
}

/// The reason why a requirement asks for something else than a package of the index, if it does.
fn elsewhere(interpreter: Interpreter, text: &str) -> Option<&'static str> {
    let lower = text.to_ascii_lowercase();
    // `npm:`, `git+ssh:`, `github:`; no version and no name of a package has a colon.
    if text.starts_with('-') {
        return Some("is an option");
    }
    if lower.contains("npm:") {
        return Some("gives a package another name");
    }
    if lower.contains("git+") || lower.contains("git:") || lower.contains("github:") {
        return Some("is the address of a repository");
    }
    if text.contains("://") || lower.contains("file:") || lower.contains("link:") {
        return Some("has an address");
    }
    let begins_like_path = text.starts_with(['/', '.', '~', '\\']);
    let has_slash = match interpreter {
        Interpreter::Python => text.split(';').next().unwrap_or_default().contains(['/', '\\']),
        Interpreter::Node => {
            text.contains('\\')
                || text.trim_start_matches('@').matches('/').count() > 1
                || (!text.starts_with('@') && text.contains('/'))
        }
    };
    if begins_like_path || has_slash {
        return Some("is a path");
    }
    let is_file = [".whl", ".tar.gz", ".tgz", ".zip"].iter().any(|end| lower.ends_with(end));
    if is_file {
        return Some("is a file");
    }
    (interpreter == Interpreter::Python && text.contains('@')).then_some("says where a package is")
}

/// The normalised name of a package of Python: the same for all spellings.
pub(crate) fn normalised_python(name: &str) -> String {
    let mut normalised = String::with_capacity(name.len());
    for c in name.chars() {
        if matches!(c, '-' | '_' | '.') {
            if !normalised.ends_with('-') {
                normalised.push('-');
            }
        } else {
            normalised.push(c.to_ascii_lowercase());
        }
    }
    normalised
}

/// Name, extras, versions and marker. Whether the versions are right is checked later, by a library.
static PYTHON: LazyLock<Regex> = pattern!(
    r"(?x) ^ (?<name> [A-Za-z0-9] (?: [A-Za-z0-9._-]* [A-Za-z0-9] )? ) \s*
    (?: \[ (?<extras> [A-Za-z0-9._,\s-]* ) \] )? \s*
    (?<versions> [^;]*? ) \s*
    (?: ; \s* (?<marker> .* ) )? $"
);

/// The separator between a requirement of Python and its marker.
const MARKER: &str = " ; ";

fn python(text: &str) -> Result<Requirement, BadRequirement> {
    let no_name = || BadRequirement::new("it does not begin with the name of a package");
    let found = PYTHON.captures(text).ok_or_else(no_name)?;
    let part = |name| found.name(name).map_or("", |part| part.as_str().trim());
    let name = normalised_python(part("name"));
    let mut extras = Vec::new();
    if !part("extras").is_empty() {
        for extra in part("extras").split(',') {
            let extra = extra.trim();
            let is_name = extra.starts_with(|c: char| c.is_ascii_alphanumeric())
                && extra.ends_with(|c: char| c.is_ascii_alphanumeric())
                && !extra.contains(char::is_whitespace);
            if !is_name {
                let message = format!("{} is not the name of an extra", quoted(extra));
                return Err(BadRequirement(message));
            }
            extras.push(normalised_python(extra));
        }
    }
    extras.sort_unstable();
    extras.dedup();
    let versions = part("versions");
    // The older form with parentheses.
    let inner = versions.strip_prefix('(').and_then(|versions| versions.strip_suffix(')'));
    let versions =
        VersionSpecifiers::from_str(inner.unwrap_or(versions).trim()).map_err(|error| {
            BadRequirement::new(error.to_string().lines().next().unwrap_or_default())
        })?;
    let marker = part("marker");
    // Any machine will do, to see whether it is a marker.
    let any = Machine { python: Some("3.13.0".to_owned()), processor: Some(String::new()) };
    if found.name("marker").is_some() && marker::evaluate(marker, &any).is_none() {
        return Err(BadRequirement::new("its marker, after the semicolon, can't be read"));
    }
    let mut text = name.clone();
    if !extras.is_empty() {
        text.push_str(&format!("[{}]", extras.join(",")));
    }
    let mut versions: Vec<String> = versions.iter().map(ToString::to_string).collect();
    versions.sort_unstable();
    text.push_str(&versions.join(","));
    if !marker.is_empty() {
        text.push_str(MARKER);
        text.push_str(marker);
    }
    Ok(Requirement { name, text })
}

/// The scope and name that npm lets new packages have, and those with capitals that some old ones have.
static NODE_NAME: LazyLock<Regex> =
    pattern!(r"^(?:@[a-z0-9~-][a-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*$");

/// Versions: comparisons, one after the other, and alternatives of them.
static NODE_RANGE: LazyLock<Regex> = pattern!({
    let version = r"v?(?:\d{1,16}|[xX*])(?:\.(?:\d{1,16}|[xX*])){0,2}(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?";
    let comparison = format!(r"(?:(?:[<>]=?|=|\^|~>?)\s*)?{version}");
    let range = format!(r"(?:{version}\s+-\s+{version}|{comparison}(?:\s+{comparison})*)");
    format!(r"^{range}(?:\s*\|\|\s*{range})*$")
});

/// The name of a version, such as `latest`.
static NODE_TAG: LazyLock<Regex> = pattern!(r"^[A-Za-z][A-Za-z0-9._-]*$");

/// Longest name that npm allows.
const LONGEST_NODE_NAME: usize = 214;

fn node(text: &str) -> Result<Requirement, BadRequirement> {
    // The first character may be the one of a scope.
    let at = text.char_indices().skip(1).find(|(_, c)| *c == '@').map(|(at, _)| at);
    let (name, versions) = match at {
        Some(at) => (text[..at].trim(), text[at + 1..].trim()),
        None => (text, "*"),
    };
    if !is_node_name(name) {
        return Err(BadRequirement(format!("{} is not the name of a package", quoted(name))));
    }
    let versions = versions.split_whitespace().collect::<Vec<_>>().join(" ");
    if !NODE_RANGE.is_match(&versions) && !NODE_TAG.is_match(&versions) {
        let message = format!("{} is neither versions nor the name of one", quoted(&versions));
        return Err(BadRequirement(message));
    }
    Ok(Requirement { name: name.to_owned(), text: format!("{name}@{versions}") })
}

/// Whether a package of npm can have this name, which is then also a safe path below a folder of packages.
pub(crate) fn is_node_name(name: &str) -> bool {
    name.len() <= LONGEST_NODE_NAME
        && NODE_NAME.is_match(name)
        && !name.split('/').any(|part| matches!(part, "node_modules" | "favicon.ico"))
}

/// Requirements of a program, for people.
pub(crate) fn shown(texts: &[String]) -> String {
    let shown = first_of(texts.iter().cloned(), MOST_SHOWN);
    shown.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(interpreter: Interpreter, text: &str) -> Result<String, String> {
        parse(interpreter, text).map(|it| it.text).map_err(|error| error.to_string())
    }

    #[test]
    fn equal_requirements_have_one_spelling() {
        for (given, expected) in [
            ("humanize", "humanize"),
            ("  Humanize == 4.* ", "humanize==4.*"),
            ("Ruamel_Yaml>=0.18, <0.19", "ruamel-yaml<0.19,>=0.18"),
            ("a.-_b", "a-b"),
            ("uvicorn[Standard,standard] ~=0.30", "uvicorn[standard]~=0.30"),
            ("numpy (>=2)", "numpy>=2"),
            ("tomli; python_version < '3.11'", "tomli ; python_version < '3.11'"),
            ("x!=1.0.*,==1!2.0rc1", "x!=1.0.*,==1!2.0rc1"),
        ] {
            assert_eq!(text(Interpreter::Python, given).as_deref(), Ok(expected), "{given}");
        }
        for (given, expected) in [
            ("lodash", "lodash@*"),
            ("lodash@4", "lodash@4"),
            ("@scope/name@^1.2.3-rc.1", "@scope/name@^1.2.3-rc.1"),
            ("@scope/name", "@scope/name@*"),
            ("react@ >=18   <20", "react@>=18 <20"),
            ("a@1.2.3 - 2 || ~3.x", "a@1.2.3 - 2 || ~3.x"),
            ("typescript@latest", "typescript@latest"),
        ] {
            assert_eq!(text(Interpreter::Node, given).as_deref(), Ok(expected), "{given}");
        }
    }

    #[test]
    fn requirements_from_elsewhere_are_refused_with_the_reason() {
        for (given, reason) in [
            ("", "is empty"),
            ("-e .", "is an option"),
            ("--index-url=https://evil.example", "is an option"),
            ("https://evil.example/x.whl", "has an address"),
            ("git+https://evil.example/x", "is the address of a repository"),
            ("name @ file:///etc", "has an address"),
            ("name@https://evil.example/x.whl", "has an address"),
            ("name @ ../x", "is a path"),
            ("./x", "is a path"),
            ("/etc/passwd", "is a path"),
            ("x.whl", "is a file"),
            ("name @ other", "says where"),
            ("a b", "is not a requirement"),
            ("a==", "is not a requirement"),
            ("a=1", "is not a requirement"),
            ("a>=1 --hash=sha256:0", "is not a requirement"),
            ("a # b", "is not a requirement"),
            ("a[x y]", "is not a requirement"),
            ("a ; exec(`x`)", "is not a requirement"),
            ("a\n--index-url https://evil.example", "control characters"),
            ("name==1 ; python_version > '3' \\", "is not a requirement"),
        ] {
            let error = text(Interpreter::Python, given).expect_err(given);
            assert!(error.contains(reason), "{given}: {error}");
            assert!(error.contains("humanize") || reason == "control characters", "{error}");
        }
        for (given, reason) in [
            ("a@npm:b@1", "another name"),
            ("a@git+ssh://evil.example/x", "repository"),
            ("github:a/b", "repository"),
            ("a/b", "is a path"),
            ("a@file:../b", "has an address"),
            ("a@http://evil.example/x.tgz", "has an address"),
            ("../a", "is a path"),
            ("@a", "is not a requirement"),
            ("node_modules", "is not a requirement"),
            ("a@1;2", "is not a requirement"),
            ("a@workspace:*", "is not a requirement"),
            (".a", "is a path"),
        ] {
            let error = text(Interpreter::Node, given).expect_err(given);
            assert!(error.contains(reason), "{given}: {error}");
        }
        let long = "a".repeat(LONGEST + 1);
        assert!(text(Interpreter::Python, &long).unwrap_err().len() < LONGEST);
    }

    #[test]
    fn a_set_has_each_requirement_once() {
        let parse = |text: &str| parse(Interpreter::Python, text).unwrap();
        let recipe = |texts: Vec<Requirement>| Recipe::new(Interpreter::Python, texts);
        let both = recipe(vec![parse("b>1"), parse("A"), parse("B >1")]).unwrap();
        assert_eq!(both.texts(), ["a", "b>1"]);
        assert!(recipe(Vec::new()).is_err());
        assert!(recipe((0..=MOST).map(|n| parse(&format!("a{n}"))).collect()).is_err());
    }

    proptest! {
        #[test]
        fn accepted_requirements_are_one_harmless_line(given in "[ -~\\n]{0,40}") {
            for interpreter in [Interpreter::Python, Interpreter::Node] {
                if let Ok(found) = parse(interpreter, &given) {
                    prop_assert!(!found.text.starts_with('-') && !found.text.contains(['\n', '#', '\\', '$']));
                    prop_assert!(!found.text.contains("://"));
                    // It is read as the same requirement again.
                    let again = parse(interpreter, &found.text);
                    prop_assert_eq!(again, Ok(found));
                }
            }
        }
    }
}
