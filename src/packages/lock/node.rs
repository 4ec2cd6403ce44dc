//! Locks of Node.js: `package.json` and `package-lock.json`, as npm writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use isolator_pool::quote::quoted;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{LockError, Locked};
use crate::packages::requirement::{Recipe, is_node_name};

/// Where packages are, before the name of each.
const FOLDER: &str = "node_modules/";

/// Ways in which npm writes hashes.
const HASHES: [&str; 4] = ["sha512-", "sha384-", "sha256-", "sha1-"];

/// A package with its hash.
#[derive(Debug, Clone)]
pub(in crate::packages) struct Pinned {
    /// The package.
    pub package: Locked,
    /// Where it is.
    pub path: String,
    /// Its hash; none if it comes inside of another package, which has one.
    pub(super) integrity: Option<String>,
    os: Words,
    cpu: Words,
    libc: Words,
}

impl Pinned {
    /// As a line of the set's identity.
    pub(in crate::packages) fn line(&self) -> String {
        let integrity = self.integrity.as_deref().unwrap_or("inside");
        format!("{} {} {integrity}", self.path, self.package.version)
    }

    /// Whether it is installed for a target.
    pub(super) fn is_for(&self, target: &str) -> bool {
        // node-22-linux-x64-glibc
        let mut words = target.split('-').skip(2);
        [&self.os, &self.cpu, &self.libc].into_iter().all(|wanted| {
            let word = words.next().unwrap_or_default();
            wanted.allow(word)
        })
    }
}

/// A word or several, some of which may be excluded.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(untagged)]
enum Words {
    #[default]
    None,
    One(String),
    Many(Vec<String>),
}

impl Words {
    fn allow(&self, word: &str) -> bool {
        let words = match self {
            Self::None => return true,
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many.as_slice(),
        };
        let is_excluded = words.iter().any(|it| it.strip_prefix('!') == Some(word));
        let mut included = words.iter().filter(|it| !it.starts_with('!')).peekable();
        !is_excluded && (included.peek().is_none() || included.any(|it| it == word || it == "any"))
    }
}

/// A package of npm's lock. What else is there says nothing about what is installed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    name: Option<String>,
    version: Option<String>,
    resolved: Option<String>,
    integrity: Option<String>,
    #[serde(default)]
    link: bool,
    #[serde(default)]
    in_bundle: bool,
    #[serde(default)]
    dependencies: BTreeMap<String, String>,
    #[serde(default)]
    optional_dependencies: BTreeMap<String, String>,
    #[serde(default)]
    peer_dependencies: BTreeMap<String, String>,
    #[serde(default)]
    os: Words,
    #[serde(default)]
    cpu: Words,
    #[serde(default)]
    libc: Words,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    lockfile_version: u64,
    packages: BTreeMap<String, Entry>,
}

/// What npm is asked to resolve, for a target.
///
/// # Errors
///
/// When two requirements of one package can't both be written.
pub(in crate::packages) fn wanted(recipe: &Recipe, target: &str) -> Result<String, String> {
    let pins = &recipe.pins;
    // Comparisons beside each other all hold; alternatives and names of versions can't be combined.
    let is_simple = |text: &str| {
        !text.contains("||")
            && !text.contains(" - ")
            && text.split(' ').all(|word| word.contains(|c: char| c.is_ascii_digit() || c == '*'))
            && !text.starts_with(|c: char| c.is_ascii_alphabetic() && !matches!(c, 'v' | 'x' | 'X'))
    };
    let mut dependencies: BTreeMap<&str, String> = BTreeMap::new();
    for requirement in &recipe.requirements {
        let name = requirement.name.as_str();
        let versions = requirement.text[name.len()..].trim_start_matches('@');
        // A lock fulfils the requirements of its set.
        let settled = pins.versions.get(name).filter(|_| pins.settled.contains(&requirement.text));
        let versions = settled.map_or(versions, String::as_str);
        let Some(others) = dependencies.get_mut(name) else {
            dependencies.insert(name, versions.to_owned());
            continue;
        };
        if *others == "*" {
            versions.clone_into(others);
        } else if versions == "*" || versions == *others {
        } else if is_simple(others) && is_simple(versions) {
            *others = format!("{others} {versions}");
        } else {
            return Err(format!(
                "{name} is asked for as {} and as {}, which npm can't combine: ask for it once",
                quoted(others),
                quoted(versions)
            ));
        }
    }
    for (name, versions) in &mut dependencies {
        match pins.versions.get(*name) {
            Some(version) if versions == "*" => version.clone_into(versions),
            Some(version) if versions != version && is_simple(versions) => {
                *versions = format!("{versions} {version}");
            }
            _ => {}
        }
    }
    let mut package = json!({
        "name": "isolator-set",
        "private": true,
        "isolator": { "target": target },
        "dependencies": dependencies,
    });
    // What is asked for can't be overridden.
    let others = pins.versions.iter().filter(|(name, _)| !dependencies.contains_key(name.as_str()));
    let mut overrides: Map<String, Value> =
        others.map(|(name, version)| (name.clone(), json!(version))).collect();
    for ((name, version), inside) in &pins.inside {
        if dependencies.get(name.as_str()).is_none_or(|asked| asked == version) {
            overrides.insert(format!("{name}@{version}"), json!(inside));
        }
    }
    if !overrides.is_empty() {
        package["overrides"] = Value::Object(overrides);
    }
    Ok(format!("{package:#}\n"))
}

/// What `package.json` asks for.
pub(super) fn dependencies(text: &str) -> Result<BTreeMap<String, String>, LockError> {
    #[derive(Deserialize)]
    struct Package {
        dependencies: BTreeMap<String, String>,
    }
    let package: Package = serde_json::from_str(text)
        .map_err(|error| LockError(format!("package.json can't be read: {error}")))?;
    Ok(package.dependencies)
}

/// For what a lock was made.
pub(super) fn target(text: &str) -> Result<String, LockError> {
    let package: Value = serde_json::from_str(text)
        .map_err(|error| LockError(format!("package.json can't be read: {error}")))?;
    let target = package.pointer("/isolator/target").and_then(Value::as_str);
    let target =
        target.ok_or_else(|| LockError::new("package.json does not say for what it was made"))?;
    Ok(target.to_owned())
}

/// The packages of a lock with their hashes.
pub(in crate::packages) fn parse(text: &str) -> Result<Vec<Pinned>, LockError> {
    let file: File = serde_json::from_str(text)
        .map_err(|error| LockError(format!("package-lock.json can't be read: {error}")))?;
    if !(2..=3).contains(&file.lockfile_version) {
        return Err(LockError(format!(
            "package-lock.json has version {}, and npm 9 or later is needed, which writes version 3",
            file.lockfile_version
        )));
    }
    let mut wanted_by: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut pinned = Vec::new();
    for (path, entry) in &file.packages {
        if path.is_empty() {
            continue;
        }
        let name = name_of(path)
            .ok_or_else(|| LockError(format!("{} is not the place of a package", quoted(path))))?;
        for wanted in [&entry.dependencies, &entry.optional_dependencies, &entry.peer_dependencies]
            .into_iter()
            .flat_map(BTreeMap::keys)
        {
            if let Some(found) = resolve(&file.packages, path, wanted) {
                wanted_by.entry(found).or_default().insert(name);
            }
        }
        check(name, path, entry)?;
    }
    for (path, entry) in &file.packages {
        let Some(name) = name_of(path) else { continue };
        let wanted_by = wanted_by.get(path.as_str()).into_iter().flatten();
        let package = Locked {
            name: name.to_owned(),
            version: entry.version.clone().unwrap_or_default(),
            wanted_by: wanted_by.map(|name| (*name).to_owned()).collect(),
        };
        pinned.push(Pinned {
            package,
            path: path.clone(),
            integrity: entry.integrity.clone(),
            os: entry.os.clone(),
            cpu: entry.cpu.clone(),
            libc: entry.libc.clone(),
        });
    }
    Ok(pinned)
}

/// A package and what it gets of a name that it depends on, each with its version.
pub(super) struct Edge {
    pub from: (String, String),
    pub to: (String, String),
}

/// What each package of a lock gets of those that it depends on, where that comes from the index.
pub(super) fn edges(text: &str) -> Result<Vec<Edge>, LockError> {
    parse(text)?;
    let file: File = serde_json::from_str(text).map_err(|error| LockError(error.to_string()))?;
    let package = |path: &str| {
        let entry = file.packages.get(path).filter(|entry| entry.integrity.is_some())?;
        Some((name_of(path)?.to_owned(), entry.version.clone()?))
    };
    let mut edges = Vec::new();
    for (path, entry) in &file.packages {
        let Some(from) = package(path) else { continue };
        for wanted in entry.dependencies.keys().chain(entry.optional_dependencies.keys()) {
            let to = resolve(&file.packages, path, wanted).and_then(package);
            edges.extend(to.map(|to| Edge { from: from.clone(), to }));
        }
    }
    Ok(edges)
}

/// The packages of a lock that are there below a folder, in the order of their names.
pub(in crate::packages) fn installed(text: &str, files: &Path) -> Result<Vec<Locked>, LockError> {
    let pinned = parse(text)?;
    let there: BTreeSet<String> = pinned
        .iter()
        .filter(|it| files.join(&it.path).is_dir())
        .map(|it| it.package.name.clone())
        .collect();
    let mut packages: Vec<Locked> = pinned
        .into_iter()
        .filter(|it| files.join(&it.path).is_dir())
        .map(|it| it.package)
        .collect();
    for package in &mut packages {
        package.wanted_by.retain(|name| there.contains(name));
    }
    sort(&mut packages);
    Ok(packages)
}

/// Sorts packages by name and version.
pub(super) fn sort(packages: &mut [Locked]) {
    packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
}

/// The name of the package at a place, if it is one.
fn name_of(path: &str) -> Option<&str> {
    let mut last = None;
    let rest = path.strip_prefix(FOLDER)?;
    for name in rest.split(&format!("/{FOLDER}")) {
        last = Some(name).filter(|name| is_node_name(name));
        last?;
    }
    last
}

/// Where Node.js finds a package from another one.
fn resolve<'p>(packages: &'p BTreeMap<String, Entry>, from: &str, name: &str) -> Option<&'p str> {
    let mut from = from;
    loop {
        let path = if from.is_empty() {
            format!("{FOLDER}{name}")
        } else {
            format!("{from}/{FOLDER}{name}")
        };
        if let Some((path, _)) = packages.get_key_value(&path) {
            return Some(path);
        }
        if from.is_empty() {
            return None;
        }
        from = from.rfind(FOLDER).map_or("", |at| from[..at].trim_end_matches('/'));
    }
}

/// Whether it is a package of the index, with a hash.
fn check(name: &str, path: &str, entry: &Entry) -> Result<(), LockError> {
    let refused =
        |why: &str| Err(LockError(format!("{} (in {}) {why}", quoted(name), quoted(path))));
    if entry.link || entry.resolved.is_some() {
        let from =
            entry.resolved.as_deref().map(|from| from.split(['?', '#']).next().unwrap_or_default());
        let from = from.and_then(|from| from.rsplit_once('@').map(|(_, host)| host).or(Some(from)));
        return refused(&format!(
            "does not come from the index but from {}; only packages of the index are installed",
            quoted(from.unwrap_or("a folder"))
        ));
    }
    if entry.name.as_ref().is_some_and(|other| other != name) {
        return refused(
            "is another package under this name; only packages under their own names are installed",
        );
    }
    let is_version = |version: &String| {
        !version.is_empty()
            && version.len() < 256
            && version.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".+-".contains(&byte))
    };
    if !entry.version.as_ref().is_some_and(is_version) {
        return refused("has no version");
    }
    match &entry.integrity {
        Some(integrity)
            if HASHES.iter().any(|begin| integrity.starts_with(begin))
                && integrity.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') =>
        {
            Ok(())
        }
        None if entry.in_bundle => Ok(()),
        _ => refused("has no hash"),
    }
}

#[cfg(test)]
mod tests {
    use isolator_pool::engine::preload::Interpreter;

    use super::*;
    use crate::packages::requirement::parse as requirement;

    fn recipe(texts: &[&str]) -> Recipe {
        let parse = |text: &&str| requirement(Interpreter::Node, text).unwrap();
        Recipe::new(Interpreter::Node, texts.iter().map(parse).collect()).unwrap()
    }

    #[test]
    fn requirements_of_one_package_all_hold() {
        for (texts, expected) in [
            (&["lodash@4"][..], Some("4")),
            (&["lodash"][..], Some("*")),
            (&["lodash@4", "lodash"][..], Some("4")),
            (&["lodash@^4.1", "lodash@<5"][..], Some("<5 ^4.1")),
            (&["lodash@latest", "lodash@4"][..], None),
            (&["lodash@3 || 4", "lodash@4"][..], None),
        ] {
            let wanted = wanted(&recipe(texts), "t").ok();
            let found = wanted.map(|text| dependencies(&text).unwrap()["lodash"].clone());
            assert_eq!(found.as_deref(), expected, "{texts:?}");
        }
    }

    fn lock(entry: &str) -> Result<Vec<Pinned>, LockError> {
        parse(&format!(
            r#"{{"lockfileVersion":3,"packages":{{"":{{"dependencies":{{"a":"1"}}}},
            "node_modules/a":{{"version":"1.0.0","integrity":"sha512-AA==","dependencies":{{"b":"1"}}}},
            "node_modules/b":{{"version":"1.2.0-rc.1",{entry}}}}}}}"#
        ))
    }

    #[test]
    fn only_packages_of_the_index_with_hashes_are_read() {
        let good = lock(r#""integrity":"sha512-BB==","os":["darwin"]"#).unwrap();
        assert_eq!(good[1].package.wanted_by, ["a"]);
        assert!(good[0].is_for("node-22-linux-x64-glibc"));
        assert!(!good[1].is_for("node-22-linux-x64-glibc"));
        for bad in [
            r#""license":"MIT""#,
            r#""integrity":"sha512-BB==","resolved":"git+ssh://git@host/x.git#1""#,
            r#""integrity":"sha512-BB==","resolved":"https://me:secret@host/x.tgz""#,
            r#""resolved":"../x","link":true"#,
            r#""integrity":"sha512-BB==","name":"other""#,
            r#""integrity":"md5-BB==""#,
        ] {
            let error = lock(bad).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        for place in ["../x", "node_modules/../x", "node_modules/a/b", "x", "/node_modules/x"] {
            let text = format!(
                r#"{{"lockfileVersion":3,"packages":{{"{place}":{{"version":"1.0.0","integrity":"sha512-AA=="}}}}}}"#
            );
            assert!(parse(&text).is_err(), "{place}");
        }
    }

    #[test]
    fn words_may_exclude() {
        let words = |text: &str| serde_json::from_str::<Words>(text).unwrap();
        assert!(words(r#"["!win32"]"#).allow("linux"));
        assert!(!words(r#"["!linux"]"#).allow("linux"));
        assert!(words(r#""linux""#).allow("linux"));
        assert!(!words(r#"["darwin","win32"]"#).allow("linux"));
    }
}
