//! Several sets that become one: the locks of its parts hold for all of it.
//!
//! An operator who has locked a set relies on its versions and files, also if a request names another set with it. So the versions and
//! files of the locks are settled before the rest is resolved, and an error names the sets whose locks contradict each other.

use isolator_pool::engine::preload::Interpreter;

use super::{Lock, LockError, node, python};
use crate::requirement::{PinnedFiles, Pins, Recipe};

/// A set with a lock, which is a part of another one.
#[derive(Debug, Clone)]
pub(crate) struct LockedPart {
    /// The name of the set.
    pub name: String,
    pub recipe: Recipe,
    pub lock: Lock,
}

/// The pins of the locks of these sets.
///
/// # Errors
///
/// When two of them have different versions of a package of which there can be one, or different files of a version.
pub(crate) fn pins(interpreter: Interpreter, parts: &[LockedPart]) -> Result<Pins, LockError> {
    // The set whose lock has settled each of `pins.versions`.
    let mut owners: Vec<(String, &str)> = Vec::new();
    let mut pins = Pins::default();
    for part in parts {
        pins.locks.insert(part.name.clone(), part.lock.hash.clone());
        pins.settled.extend(part.recipe.texts());
        for PinnedFiles { name, version, hashes } in packages(interpreter, &part.lock)? {
            match pins.hashes.iter_mut().find(|it| it.name == name && it.version == version) {
                None => pins.hashes.push(PinnedFiles { name, version, hashes }),
                Some(known) => {
                    known.hashes.retain(|hash| hashes.contains(hash));
                    if known.hashes.is_empty() {
                        let others = parts.iter().map(|part| part.name.as_str());
                        return Err(LockError::new(format!(
                            "the locks of the sets {} have different files of {name} {version}: renew them with `isolator \
                             packages lock`",
                            others.collect::<Vec<_>>().join(" and ")
                        )));
                    }
                }
            }
        }
        for (name, version) in asked_for(interpreter, part)? {
            match pins.versions.get(&name) {
                Some(other) if *other != version => {
                    let owner = owners.iter().rfind(|(of, _)| *of == name);
                    let owner = owner.map_or("", |(_, owner)| owner);
                    return Err(conflict([owner, &part.name], &name, [other, &version]));
                }
                _ => {
                    owners.push((name.clone(), part.name.as_str()));
                    pins.versions.insert(name, version);
                }
            }
        }
    }
    if interpreter == Interpreter::Node {
        inside(parts, &mut pins)?;
    }
    Ok(pins)
}

fn conflict(sets: [&str; 2], name: &str, versions: [&str; 2]) -> LockError {
    let ([one, two], [first, second]) = (sets, versions);
    LockError::new(format!(
        "the sets {one} and {two} can't be used together: {name} is {first} in the lock of {one}, and {second} in that of {two}; \
         ask for one of them, or let both have the same version and renew their locks (isolator packages lock {one} {two})"
    ))
}

/// All packages of a lock.
fn packages(interpreter: Interpreter, lock: &Lock) -> Result<Vec<PinnedFiles>, LockError> {
    Ok(match interpreter {
        Interpreter::Python => {
            let (_, pinned) = python::parse(lock.locked())?;
            let package = |it: python::Pinned| PinnedFiles {
                name: it.package.name,
                version: it.package.version,
                hashes: it.hashes.into_iter().collect(),
            };
            pinned.into_iter().map(package).collect()
        }
        Interpreter::Node => {
            let pinned = node::parse(lock.locked())?.into_iter();
            let package = |it: node::Pinned| {
                let hashes = it.integrity?.split_whitespace().map(str::to_owned).collect();
                Some(PinnedFiles { name: it.package.name, version: it.package.version, hashes })
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
            let pinned = node::parse(part.lock.locked())?;
            let named = |it: &node::Pinned| {
                let is_topmost = it.path.matches("node_modules/").count() == 1;
                is_topmost && part.recipe.requirements.iter().any(|own| own.name == it.package.name)
            };
            let named = pinned.into_iter().filter(named).map(|it| it.package);
            named.map(|package| (package.name, package.version)).collect()
        }
    })
}

/// Pins the dependencies of packages of npm: one version for all of them where the locks have just one.
fn inside(parts: &[LockedPart], pins: &mut Pins) -> Result<(), LockError> {
    // The packages of which all locks together have one version.
    let is_single = |pins: &Pins, name: &str| {
        let mut versions = pins.hashes.iter().filter(|it| it.name == name).map(|it| &it.version);
        versions.next().is_some_and(|first| versions.all(|version| version == first))
    };
    let mut owners: Vec<(String, String, &str)> = Vec::new();
    for part in parts {
        for node::Edge { from, to: (name, version) } in node::edges(part.lock.locked())? {
            if is_single(pins, &name) {
                continue;
            }
            let from = format!("{}@{}", from.0, from.1);
            let known = pins.inside.entry(from.clone()).or_default();
            let Some(other) = known.get(&name) else {
                owners.push((from, name.clone(), part.name.as_str()));
                known.insert(name, version);
                continue;
            };
            let owner = owners.iter().find(|(of, to, _)| *of == from && *to == name);
            let owner = owner.map_or("", |(_, _, owner)| owner);
            // Within one lock, a package can be there twice with different surroundings; the first one is as good.
            if *other != version && owner != part.name {
                return Err(conflict([owner, &part.name], &name, [other, &version]));
            }
        }
    }
    for PinnedFiles { name, version, .. } in &pins.hashes {
        if is_single(pins, name) && !pins.versions.contains_key(name) {
            pins.versions.insert(name.clone(), version.clone());
        }
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
) -> Result<Lock, LockError> {
    let changed = |name: &str, version: &str| {
        let sets = pins.sets();
        LockError::new(format!(
            "{name} {version} has other files in the index than in the lock of {sets}"
        ))
    };
    match interpreter {
        Interpreter::Node => {
            for PinnedFiles { name, version, hashes } in packages(interpreter, &lock)? {
                let known = pins.hashes_of(&name, &version);
                if known.is_some_and(|known| !hashes.iter().any(|it| known.contains(it))) {
                    return Err(changed(&name, &version));
                }
            }
            Ok(lock)
        }
        Interpreter::Python => {
            let (target, mut pinned) = python::parse(lock.locked())?;
            for python::Pinned { package, hashes } in &mut pinned {
                let Some(known) = pins.hashes_of(&package.name, &package.version) else { continue };
                hashes.retain(|hash| known.contains(hash));
                if hashes.is_empty() {
                    return Err(changed(&package.name, &package.version));
                }
            }
            let text = python::with_target(&target, &python::locked(&pinned));
            let [(_, wanted), _] = lock.files;
            Lock::of(interpreter, [wanted, text])
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::requirement::parse;

    fn part(interpreter: Interpreter, name: &str, wanted: &[&str], locked: &str) -> LockedPart {
        let wanted = wanted.iter().map(|text| parse(interpreter, text).unwrap()).collect();
        let recipe = Recipe::new(interpreter, wanted).unwrap();
        let files = match interpreter {
            Interpreter::Python => [python::wanted(&recipe), python::with_target("t", locked)],
            Interpreter::Node => [
                node::wanted(&recipe, "node-22-linux-x64-glibc").unwrap(),
                format!(r#"{{"lockfileVersion":3,"packages":{{{locked}}}}}"#),
            ],
        };
        let lock = Lock::of(interpreter, files).unwrap();
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
        let (_, kept) = python::parse(kept.locked()).unwrap();
        assert_eq!((kept[0].hashes.clone(), kept[1].hashes.len()), (vec!["2".repeat(64)], 1));
        let resolved = python("", &[pinned("b", "2", &['5'])]);
        let error = keep_files(resolved.lock, Interpreter::Python, &found).unwrap_err().to_string();
        assert!(error.contains("b 2 has other files"), "{error}");
        for (other, expected) in [
            (pinned("b", "3", &['3']), "b is 2 in the lock of one, and 3 in that of other"),
            (pinned("b", "2", &['4']), "different files of b 2"),
        ] {
            let error = pins(Interpreter::Python, &[one.clone(), python("other", &[other])]);
            let error = error.unwrap_err().to_string();
            assert!(
                error.contains(expected) && error.contains("one") && error.contains("other"),
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
    fn locks_of_node_determine_the_dependencies_of_each_package() {
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
