//! Locks of Node.js: `package.json` and `package-lock.json`, as npm writes them.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use isolator_pool::quote::quoted;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::file::{LockError, Locked, PACKAGE, PACKAGE_LOCK};
use crate::requirement::{Recipe, is_node_name};

/// Where packages are, before the name of each.
const FOLDER: &str = "node_modules/";

/// Ways in which npm writes hashes.
const HASHES: [&str; 4] = ["sha512-", "sha384-", "sha256-", "sha1-"];

/// A package with its hash.
#[derive(Debug, Clone)]
pub(in crate::packages) struct Pinned {
    pub package: Locked,
    /// Where it is.
    pub path: String,
    /// Its hash; none if it comes inside of another package, which has one.
    pub(super) integrity: Option<String>,
    os: Vec<String>,
    cpu: Vec<String>,
    libc: Vec<String>,
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
        [&self.os, &self.cpu, &self.libc]
            .into_iter()
            .all(|wanted| allow(wanted, words.next().unwrap_or_default()))
    }
}

/// Whether names of systems, some of which may be excluded, allow a system.
fn allow(names: &[String], system: &str) -> bool {
    let is_excluded = names.iter().any(|it| it.strip_prefix('!') == Some(system));
    let mut included = names.iter().filter(|it| !it.starts_with('!')).peekable();
    !is_excluded && (included.peek().is_none() || included.any(|it| it == system || it == "any"))
}

/// Reads names of systems: one or several.
fn systems<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let wrong = || D::Error::custom("expected the name of a system, or several");
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(Vec::new()),
        Value::String(one) => Ok(vec![one]),
        Value::Array(many) => {
            let names = many.into_iter().map(|name| name.as_str().map(str::to_owned));
            names.collect::<Option<_>>().ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}

/// A package of npm's lock. Its other fields don't change what is installed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LockedEntry {
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
    #[serde(default, deserialize_with = "systems")]
    os: Vec<String>,
    #[serde(default, deserialize_with = "systems")]
    cpu: Vec<String>,
    #[serde(default, deserialize_with = "systems")]
    libc: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PackageLock {
    lockfile_version: u64,
    packages: BTreeMap<String, LockedEntry>,
}

/// The `package.json` that npm has to resolve for a target.
///
/// # Errors
///
/// When two requirements of one package can't both be written.
pub(in crate::packages) fn wanted(recipe: &Recipe, target: &str) -> Result<String, LockError> {
    let pins = &recipe.pins;
    // Comparisons next to each other all hold; alternatives and names of versions can't be combined.
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
            return Err(LockError::new(format!(
                "{name} is asked for as {} and as {}, which npm can't combine: ask for it once",
                quoted(others),
                quoted(versions)
            )));
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
    // npm does not let requirements be overridden.
    let others = pins.versions.iter().filter(|(name, _)| !dependencies.contains_key(name.as_str()));
    let mut overrides: Map<String, Value> =
        others.map(|(name, version)| (name.clone(), json!(version))).collect();
    for (package, inside) in &pins.inside {
        let (name, version) = package.rsplit_once('@').unwrap_or((package, ""));
        if dependencies.get(name).is_none_or(|asked| asked == version) {
            overrides.insert(package.clone(), json!(inside));
        }
    }
    if !overrides.is_empty() {
        package["overrides"] = Value::Object(overrides);
    }
    Ok(format!("{package:#}\n"))
}

/// The dependencies of a `package.json`.
pub(super) fn dependencies(text: &str) -> Result<BTreeMap<String, String>, LockError> {
    #[derive(Deserialize)]
    struct Package {
        dependencies: BTreeMap<String, String>,
    }
    let package: Package =
        serde_json::from_str(text).map_err(|error| LockError::Json { file: PACKAGE, error })?;
    Ok(package.dependencies)
}

/// The target that a lock was made for.
pub(super) fn target(text: &str) -> Result<String, LockError> {
    let package: Value =
        serde_json::from_str(text).map_err(|error| LockError::Json { file: PACKAGE, error })?;
    let target = package.pointer("/isolator/target").and_then(Value::as_str);
    let target =
        target.ok_or_else(|| LockError::new("package.json does not say for what it was made"))?;
    Ok(target.to_owned())
}

/// The packages of a lock with their hashes.
pub(in crate::packages) fn parse(text: &str) -> Result<Vec<Pinned>, LockError> {
    packages(&read(text)?)
}

fn read(text: &str) -> Result<PackageLock, LockError> {
    serde_json::from_str(text).map_err(|error| LockError::Json { file: PACKAGE_LOCK, error })
}

fn packages(file: &PackageLock) -> Result<Vec<Pinned>, LockError> {
    if !(2..=3).contains(&file.lockfile_version) {
        return Err(LockError::new(format!(
            "package-lock.json has version {}, and npm 9 or later is needed, which writes version 3",
            file.lockfile_version
        )));
    }
    // The path of each package that another one wants, and the name of that.
    let mut wanted_by: Vec<(&str, &str)> = Vec::new();
    let mut pinned = Vec::new();
    for (path, entry) in &file.packages {
        if path.is_empty() {
            continue;
        }
        let name = name_of(path).ok_or_else(|| {
            LockError::new(format!("{} is not the place of a package", quoted(path)))
        })?;
        for wanted in [&entry.dependencies, &entry.optional_dependencies, &entry.peer_dependencies]
            .into_iter()
            .flat_map(BTreeMap::keys)
        {
            let found = resolve(&file.packages, path, wanted);
            wanted_by.extend(found.map(|found| (found, name)));
        }
        check(name, path, entry)?;
    }
    wanted_by.sort_unstable();
    wanted_by.dedup();
    for (path, entry) in &file.packages {
        let Some(name) = name_of(path) else { continue };
        let first = wanted_by.partition_point(|(of, _)| *of < path.as_str());
        let wanted_by = wanted_by[first..].iter().take_while(|(of, _)| of == path);
        let package = Locked {
            name: name.to_owned(),
            version: entry.version.clone().unwrap_or_default(),
            wanted_by: wanted_by.map(|(_, name)| (*name).to_owned()).collect(),
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

/// A package and one that it depends on, each with its name and version.
pub(super) struct Edge {
    pub from: (String, String),
    pub to: (String, String),
}

/// The packages that each package of a lock gets for its dependencies, as far as both come from the index.
pub(super) fn edges(text: &str) -> Result<Vec<Edge>, LockError> {
    let file = read(text)?;
    packages(&file)?;
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
    let there: HashSet<String> = pinned
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
    packages.sort_unstable_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
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
fn resolve<'p>(
    packages: &'p BTreeMap<String, LockedEntry>,
    from: &str,
    name: &str,
) -> Option<&'p str> {
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
fn check(name: &str, path: &str, entry: &LockedEntry) -> Result<(), LockError> {
    let refused =
        |why: &str| Err(LockError::new(format!("{} (in {}) {why}", quoted(name), quoted(path))));
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
    use crate::requirement::parse as requirement;

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
    fn systems_can_be_excluded() {
        let allow = |text: &str, system: &str| {
            super::allow(&systems(&mut serde_json::Deserializer::from_str(text)).unwrap(), system)
        };
        assert!(allow(r#"["!win32"]"#, "linux"));
        assert!(!allow(r#"["!linux"]"#, "linux"));
        assert!(allow(r#""linux""#, "linux"));
        assert!(!allow(r#"["darwin","win32"]"#, "linux"));
        assert!(allow("null", "linux"));
    }
}
