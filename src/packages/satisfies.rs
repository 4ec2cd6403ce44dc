//! The modules of a set, and the requirements that its packages satisfy.

use std::collections::BTreeMap;
use std::str::FromStr as _;

use isolator_pool::engine::preload::Interpreter;
use nodejs_semver as npm;
use pep440_rs::{Version, VersionSpecifiers};

use crate::packages::store::StoredSet;
use crate::requirement::{self, Requirement};

/// Whether a set has a module, as programs name it: `yaml`, `google.protobuf`, `lodash/fp`, `@scope/name/file`.
pub(super) fn has_module(set: &StoredSet, module: &str) -> bool {
    let topmost = match set.interpreter {
        Interpreter::Python => module.split('.').next().unwrap_or_default(),
        Interpreter::Node => {
            let parts = if module.starts_with('@') { 2 } else { 1 };
            let end = module.match_indices('/').nth(parts - 1).map_or(module.len(), |(at, _)| at);
            &module[..end]
        }
    };
    !topmost.is_empty() && set.modules.iter().any(|module| module == topmost)
}

/// Whether a set has a package in one of the wanted versions. For Python, with all of its extras; markers are ignored. For Node.js, a
/// package of which programs can't know the version has only those that the set was asked for.
pub(super) fn satisfies(set: &StoredSet, wanted: &Requirement) -> bool {
    if set.interpreter == Interpreter::Node {
        return set.requirements.contains(&wanted.text)
            || set.modules.contains(&wanted.name) && has_module_in_version(set, wanted);
    }
    let Wanted { extras, versions } = Wanted::of(&wanted.text);
    let Ok(versions) = VersionSpecifiers::from_str(versions) else { return false };
    let Some(locked) = set.packages.iter().find(|locked| locked.name == wanted.name) else {
        return false;
    };
    let Ok(version) = Version::from_str(&locked.version) else { return false };
    // The packages of an extra are there if the set was built with it.
    let has = |extra: &&str| {
        set.requirements.iter().any(|text| {
            requirement::parse(set.interpreter, text).is_ok_and(|own| {
                own.name == wanted.name && Wanted::of(&own.text).extras.contains(extra)
            })
        })
    };
    versions.contains(&version) && extras.iter().all(has)
}

/// Whether the module of a package is wanted in the version that a set for Node.js has.
fn has_module_in_version(set: &StoredSet, wanted: &Requirement) -> bool {
    let range = wanted.text.strip_prefix(&wanted.name).and_then(|rest| rest.strip_prefix('@'));
    if range == Some("*") {
        return true;
    }
    let mut locked = set.packages.iter().filter(|locked| locked.name == wanted.name);
    // If packages of the set have others of the same name, the lock does not say which one a program gets.
    let (Some(only), None) = (locked.next(), locked.next()) else { return false };
    // What is no range is a tag, such as "latest", which only the index knows.
    let range = range.and_then(|range| npm::Range::parse(range).ok());
    let version = npm::Version::parse(&only.version).ok();
    range.zip(version).is_some_and(|(range, version)| range.satisfies(&version))
}

/// Whether one of these packages, with their versions, is wanted. A requirement with extras is not satisfied, because theirs are not
/// known.
pub(super) fn has_version(there: &BTreeMap<String, String>, wanted: &Requirement) -> bool {
    let Wanted { extras, versions } = Wanted::of(&wanted.text);
    let (Ok(versions), true) = (VersionSpecifiers::from_str(versions), extras.is_empty()) else {
        return false;
    };
    let version = there.get(&wanted.name).and_then(|version| Version::from_str(version).ok());
    version.is_some_and(|version| versions.contains(&version))
}

/// The parts of a requirement of Python, as [`requirement::parse`] writes it.
struct Wanted<'a> {
    extras: Vec<&'a str>,
    versions: &'a str,
}

impl<'a> Wanted<'a> {
    fn of(text: &'a str) -> Self {
        let text = text.split(';').next().unwrap_or_default().trim();
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let rest = text.trim_start_matches(is_of_name);
        let (extras, versions) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']'))
        {
            Some((extras, versions)) => (extras.split(',').collect(), versions),
            None => (Vec::new(), rest),
        };
        Self { extras, versions }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::packages::lock::Locked;

    fn locked((name, version): (&str, &str)) -> Locked {
        Locked { name: name.to_owned(), version: version.to_owned(), wanted_by: Vec::new() }
    }

    fn set(interpreter: Interpreter, modules: &[&str]) -> StoredSet {
        StoredSet {
            hash: "0".repeat(64),
            interpreter,
            target: String::new(),
            index: String::new(),
            requirements: vec!["httpx[http2]>=0.27".to_owned(), "typing-extensions".to_owned()],
            locks: BTreeMap::new(),
            packages: [("httpx", "0.28.1"), ("h2", "4.2.0"), ("typing-extensions", "4.13.0")]
                .map(locked)
                .into(),
            modules: modules.iter().map(|module| (*module).to_owned()).collect(),
            bytes: 1,
            built: SystemTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn requirements_are_compared_as_the_standard_says() {
        let set = set(Interpreter::Python, &[]);
        for (wanted, expected) in [
            ("httpx", true),
            ("HTTPX>=0.28,<1", true),
            ("httpx==0.28.*", true),
            ("httpx~=0.27.0", false),
            ("httpx!=0.28.1", false),
            ("httpx[http2]", true),
            ("httpx[http2,socks]", false),
            ("h2", true),
            ("Typing.Extensions>=4", true),
            ("httpx; python_version >= '3.8'", true),
            ("requests", false),
        ] {
            let wanted = requirement::parse(Interpreter::Python, wanted).unwrap();
            assert_eq!(satisfies(&set, &wanted), expected, "{wanted:?}");
        }
    }

    #[test]
    fn versions_of_a_set_for_node_are_compared_as_npm_does() {
        let requirements = ["lodash@4", "@scope/name@^1.2"].map(str::to_owned).into();
        let set = set(Interpreter::Node, &["lodash", "@scope/name", "tslib", "twice"]);
        let mut set = StoredSet { requirements, ..set };
        for (name, version) in [
            ("lodash", "4.17.21"),
            ("@scope/name", "1.3.0"),
            ("twice", "1.0.0"),
            ("twice", "2.0.0"),
        ] {
            set.packages.push(locked((name, version)));
        }
        set.packages.push(locked(("inner", "1.0.0")));
        for (wanted, expected) in [
            ("lodash", true),
            ("lodash@4", true),
            ("lodash@*", true),
            ("lodash@3", false),
            ("@scope/name", true),
            ("@scope/name@^1.2", true),
            ("lodash@^4.17", true),
            ("lodash@4.17.21", true),
            ("lodash@4.17.20", false),
            ("lodash@>=4 <4.17.21", false),
            ("lodash@3 || 4.17", true),
            ("lodash@latest", false),
            ("@scope/name@~1.3.0", true),
            ("@scope/name@2", false),
            ("twice", true),
            ("twice@1", false),
            ("inner@1", false),
            ("tslib", true),
            ("tslib@2", false),
            ("httpx", false),
        ] {
            let wanted = requirement::parse(Interpreter::Node, wanted).unwrap();
            assert_eq!(satisfies(&set, &wanted), expected, "{wanted:?}");
        }
    }

    #[test]
    fn a_module_belongs_to_the_set_with_its_topmost_one() {
        let python = set(Interpreter::Python, &["yaml", "google"]);
        let node = set(Interpreter::Node, &["lodash", "@scope/name"]);
        for (set, module, expected) in [
            (&python, "yaml", true),
            (&python, "google.protobuf", true),
            (&python, "goog", false),
            (&python, "", false),
            (&node, "lodash", true),
            (&node, "lodash/fp", true),
            (&node, "@scope/name/file.js", true),
            (&node, "@scope", false),
            (&node, "name", false),
        ] {
            assert_eq!(has_module(set, module), expected, "{module}");
        }
    }
}
