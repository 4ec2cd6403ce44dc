//! Several sets that become one: the locks of its parts hold for all of it.
//!
//! Whoever has locked a set relies on its versions and files, also if a request names another set beside it. So what the
//! locks have is settled before the rest is resolved, and locks that contradict each other are told by the names of their sets.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use isolator_pool::engine::preload::Interpreter;

use super::{Lock, LockError, PACKAGE_LOCK, REQUIREMENTS, node, python};
use crate::packages::requirement::{Pins, Recipe};

/// A set with a lock, which is a part of another one.
#[derive(Debug, Clone)]
pub(crate) struct LockedPart {
    /// The name of the set.
    pub name: String,
    /// What it is made from.
    pub recipe: Recipe,
    /// Its lock.
    pub lock: Lock,
}

/// A package of a lock with the hashes of its files.
struct Package {
    name: String,
    version: String,
    hashes: BTreeSet<String>,
}

/// What the locks of these sets settle.
///
/// # Errors
///
/// When two of them have different versions of a package of which there can be one, or different files of a version.
pub(crate) fn pins(interpreter: Interpreter, parts: &[LockedPart]) -> Result<Pins, LockError> {
    let mut fixed: BTreeMap<String, (String, &str)> = BTreeMap::new();
    let mut pins = Pins::default();
    for part in parts {
        pins.locks.insert(part.name.clone(), part.lock.hash.clone());
        pins.settled.extend(part.recipe.texts());
        for Package { name, version, hashes } in packages(interpreter, &part.lock)? {
            match pins.hashes.entry((name.clone(), version.clone())) {
                Entry::Vacant(entry) => {
                    entry.insert(hashes);
                }
                Entry::Occupied(mut entry) => {
                    entry.get_mut().retain(|hash| hashes.contains(hash));
                    if entry.get().is_empty() {
                        let others = parts.iter().map(|part| part.name.as_str());
                        return Err(LockError(format!(
                            "the locks of the sets {} have different files of {name} {version}: renew them with `isolator \
                             packages lock`",
                            others.collect::<Vec<_>>().join(" and ")
                        )));
                    }
                }
            }
        }
        for (name, version) in asked_for(interpreter, part)? {
            match fixed.get(&name) {
                Some((other, owner)) if *other != version => {
                    return Err(conflict([owner, &part.name], &name, [other, &version]));
                }
                _ => drop(fixed.insert(name, (version, part.name.as_str()))),
            }
        }
    }
    pins.versions = fixed.into_iter().map(|(name, (version, _))| (name, version)).collect();
    if interpreter == Interpreter::Node {
        inside(parts, &mut pins)?;
    }
    Ok(pins)
}

fn conflict(sets: [&str; 2], name: &str, versions: [&str; 2]) -> LockError {
    let ([one, two], [first, second]) = (sets, versions);
    LockError(format!(
        "the sets {one} and {two} can't be used together: {name} is {first} in the lock of {one}, and {second} in that of {two}; \
         ask for one of them, or let both have the same version and renew their locks (isolator packages lock {one} {two})"
    ))
}

/// All packages of a lock.
fn packages(interpreter: Interpreter, lock: &Lock) -> Result<Vec<Package>, LockError> {
    Ok(match interpreter {
        Interpreter::Python => {
            let (_, pinned) = python::parse(&lock.files[REQUIREMENTS])?;
            let package = |it: python::Pinned| Package {
                name: it.package.name,
                version: it.package.version,
                hashes: it.hashes.into_iter().collect(),
            };
            pinned.into_iter().map(package).collect()
        }
        Interpreter::Node => {
            let pinned = node::parse(&lock.files[PACKAGE_LOCK])?.into_iter();
            let package = |it: node::Pinned| {
                let hashes = it.integrity?.split_whitespace().map(str::to_owned).collect();
                Some(Package { name: it.package.name, version: it.package.version, hashes })
            };
            pinned.filter_map(package).collect()
        }
    })
}

/// The packages of which there can be only one, with their versions: for Python all, for Node.js those that the requirements name.
fn asked_for(
    interpreter: Interpreter,
    part: &LockedPart,
) -> Result<Vec<(String, String)>, LockError> {
    Ok(match interpreter {
        Interpreter::Python => packages(interpreter, &part.lock)?
            .into_iter()
            .map(|package| (package.name, package.version))
            .collect(),
        Interpreter::Node => {
            let pinned = node::parse(&part.lock.files[PACKAGE_LOCK])?;
            let named = |it: &node::Pinned| {
                let is_topmost = it.path.matches("node_modules/").count() == 1;
                is_topmost && part.recipe.requirements.iter().any(|own| own.name == it.package.name)
            };
            let named = pinned.into_iter().filter(named).map(|it| it.package);
            named.map(|package| (package.name, package.version)).collect()
        }
    })
}

/// What packages of npm get that depend on others: one version for all of them where the locks have just one.
fn inside(parts: &[LockedPart], pins: &mut Pins) -> Result<(), LockError> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, version) in pins.hashes.keys() {
        versions.entry(name).or_default().insert(version);
    }
    let mut single = BTreeMap::new();
    for (name, versions) in &versions {
        if let (1, Some(version)) = (versions.len(), versions.first()) {
            single.insert((*name).to_owned(), (*version).to_owned());
        }
    }
    let mut owners = BTreeMap::new();
    for part in parts {
        for node::Edge { from, to } in node::edges(&part.lock.files[PACKAGE_LOCK])? {
            if single.contains_key(&to.0) {
                continue;
            }
            let owner = owners.entry((from.clone(), to.0.clone())).or_insert(part.name.as_str());
            let known = pins.inside.entry(from).or_default();
            match known.get(&to.0) {
                // Within one lock, a package can be there twice with different surroundings; the first one is as good.
                Some(other) if *other != to.1 && *owner != part.name => {
                    return Err(conflict([owner, &part.name], &to.0, [other, &to.1]));
                }
                Some(_) => {}
                None => drop(known.insert(to.0, to.1)),
            }
        }
    }
    for (name, version) in single {
        pins.versions.entry(name).or_insert(version);
    }
    Ok(())
}

/// Lets a lock that was just resolved have only the files that the locks of its parts have.
///
/// # Errors
///
/// When a version has other files now.
pub(crate) fn keep_files(
    lock: Lock,
    interpreter: Interpreter,
    pins: &Pins,
) -> Result<Lock, String> {
    let changed = |name: &str, version: &str| {
        format!("{name} {version} has other files in the index than in the lock of {}", pins.sets())
    };
    match interpreter {
        Interpreter::Node => {
            for Package { name, version, hashes } in
                packages(interpreter, &lock).map_err(|error| error.to_string())?
            {
                let known = pins.hashes.get(&(name.clone(), version.clone()));
                if known.is_some_and(|known| known.is_disjoint(&hashes)) {
                    return Err(changed(&name, &version));
                }
            }
            Ok(lock)
        }
        Interpreter::Python => {
            let mut files = lock.files;
            let (target, mut pinned) =
                python::parse(&files[REQUIREMENTS]).map_err(|error| error.to_string())?;
            for python::Pinned { package, hashes } in &mut pinned {
                let key = (package.name.clone(), package.version.clone());
                let Some(known) = pins.hashes.get(&key) else { continue };
                hashes.retain(|hash| known.contains(hash));
                if hashes.is_empty() {
                    return Err(changed(&package.name, &package.version));
                }
            }
            let text = python::with_target(&target, &python::locked(&pinned));
            files.insert(REQUIREMENTS, text);
            Lock::of(interpreter, files).map_err(|error| error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages::lock::{PACKAGE, WANTED};
    use crate::packages::requirement::parse;

    fn part(interpreter: Interpreter, name: &str, wanted: &[&str], locked: &str) -> LockedPart {
        let wanted = wanted.iter().map(|text| parse(interpreter, text).unwrap()).collect();
        let recipe = Recipe::new(interpreter, wanted).unwrap();
        let files = match interpreter {
            Interpreter::Python => [
                (WANTED, python::wanted(&recipe)),
                (REQUIREMENTS, python::with_target("t", locked)),
            ],
            Interpreter::Node => [
                (PACKAGE, node::wanted(&recipe, "node-22-linux-x64-glibc").unwrap()),
                (PACKAGE_LOCK, format!(r#"{{"lockfileVersion":3,"packages":{{{locked}}}}}"#)),
            ],
        };
        let lock = Lock::of(interpreter, BTreeMap::from(files)).unwrap();
        LockedPart { name: name.to_owned(), recipe, lock }
    }

    fn pinned(name: &str, version: &str, hashes: &[char]) -> String {
        let hash = |c: &char| format!(" \\\n    --hash=sha256:{}", c.to_string().repeat(64));
        format!("{name}=={version}{}\n", hashes.iter().map(hash).collect::<String>())
    }

    fn python(name: &str, locked: &[String]) -> LockedPart {
        part(Interpreter::Python, name, &["a"], &locked.concat())
    }

    #[test]
    fn locks_of_python_settle_versions_and_files() {
        let one = python("one", &[pinned("a", "1", &['1', '2']), pinned("b", "2", &['3'])]);
        let two = python("two", &[pinned("a", "1", &['2', '4'])]);
        let found = pins(Interpreter::Python, &[one.clone(), two]).unwrap();
        let versions = [("a", "1"), ("b", "2")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(found.versions, BTreeMap::from(versions));
        assert_eq!(found.sets(), "one, two");
        let resolved = python("", &[pinned("a", "1", &['1', '2', '5']), pinned("c", "3", &['6'])]);
        let kept = keep_files(resolved.lock, Interpreter::Python, &found).unwrap();
        let (_, kept) = python::parse(&kept.files[REQUIREMENTS]).unwrap();
        assert_eq!((kept[0].hashes.clone(), kept[1].hashes.len()), (vec!["2".repeat(64)], 1));
        let resolved = python("", &[pinned("b", "2", &['5'])]);
        let error = keep_files(resolved.lock, Interpreter::Python, &found).unwrap_err();
        assert!(error.contains("b 2 has other files"), "{error}");
        for (other, told) in [
            (pinned("b", "3", &['3']), "b is 2 in the lock of one, and 3 in that of other"),
            (pinned("b", "2", &['4']), "different files of b 2"),
        ] {
            let error = pins(Interpreter::Python, &[one.clone(), python("other", &[other])]);
            let error = error.unwrap_err().to_string();
            assert!(
                error.contains(told) && error.contains("one") && error.contains("other"),
                "{error}"
            );
        }
    }

    fn node(name: &str, wanted: &[&str], packages: &[(&str, &str, &str)]) -> LockedPart {
        let entry = |(path, version, dependencies): &(&str, &str, &str)| {
            format!(
                r#""node_modules/{path}":{{"version":"{version}","integrity":"sha512-{}{version}==","dependencies":{{{dependencies}}}}}"#,
                path.replace('/', "")
            )
        };
        let locked = packages.iter().map(entry).collect::<Vec<_>>().join(",");
        part(Interpreter::Node, name, wanted, &locked)
    }

    #[test]
    fn locks_of_node_settle_what_each_package_gets() {
        let one = node(
            "one",
            &["a@1"],
            &[("a", "1.0.0", r#""m":"2""#), ("m", "2.0.0", ""), ("s", "1.0.0", "")],
        );
        let two = node("two", &["b@1"], &[("b", "1.0.0", r#""m":"3""#), ("m", "3.0.0", "")]);
        let found = pins(Interpreter::Node, &[one.clone(), two.clone()]).unwrap();
        let mut recipe = one.recipe.clone();
        recipe.requirements.extend(two.recipe.requirements);
        recipe.pins = found;
        let text = node::wanted(&recipe, "t").unwrap();
        let written: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(written["dependencies"], serde_json::json!({ "a": "1.0.0", "b": "1.0.0" }));
        let overrides = serde_json::json!({ "a@1.0.0": { "m": "2.0.0" }, "b@1.0.0": { "m": "3.0.0" }, "s": "1.0.0" });
        assert_eq!(written["overrides"], overrides);
        let other = node("other", &["a"], &[("a", "1.1.0", "")]);
        let error = pins(Interpreter::Node, &[one, other]).unwrap_err().to_string();
        assert!(
            error.contains("a is 1.0.0 in the lock of one, and 1.1.0 in that of other"),
            "{error}"
        );
    }
}
