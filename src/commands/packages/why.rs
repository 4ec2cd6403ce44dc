//! `isolator packages why`: the chains from what was asked for to a package.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::process::ExitCode;

use anyhow::bail;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::quote::first_of;
use serde::Serialize;

use crate::commands::packages::choice;
use crate::commands::say;
use crate::config::Config;
use crate::packages::lock::{Lock, Locked};

use crate::packages::store::Store;
use crate::requirement;

/// Packages that are named if the wanted one is not there.
const MOST_NAMED: usize = 20;

/// Why a package is in a set.
#[derive(Debug, Serialize)]
struct Reasons {
    package: String,
    versions: Vec<String>,
    /// The shortest chain from each requirement that leads to it: the requirement first, then packages.
    chains: Vec<Vec<String>>,
}

/// Prints the chains.
pub(super) fn why(
    config: &Config,
    store: &Store,
    set: &str,
    package: &str,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let (interpreter, requirements, packages) = contents(config, store, set)?;
    let package = match interpreter {
        Interpreter::Python => requirement::normalised_python(package),
        Interpreter::Node => package.to_owned(),
    };
    let versions: Vec<_> = packages
        .iter()
        .filter(|locked| locked.name == package)
        .map(|locked| locked.version.clone())
        .collect();
    if versions.is_empty() {
        let mut names: Vec<_> = packages.iter().map(|locked| locked.name.as_str()).collect();
        names.dedup();
        let names = first_of(names.into_iter().map(str::to_owned), MOST_NAMED);
        bail!("{package} is not in the set {set}, which has {names}");
    }
    let chains = chains(interpreter, &requirements, &packages, &package);
    if json {
        let reasons = Reasons { package, versions, chains };
        say(&serde_json::to_string_pretty(&reasons)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    say(&format!("{package} {} is in {set}:", versions.join(" and ")))?;
    for chain in chains {
        say(&format!("  {}", chain.join(" -> ")))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The requirements and contents of a set: of the store, or else of its lock.
fn contents(
    config: &Config,
    store: &Store,
    set: &str,
) -> anyhow::Result<(Interpreter, Vec<String>, Vec<Locked>)> {
    let all: Vec<_> = store.all().into_iter().map(|(set, _)| set).collect();
    let found = choice::of_store(config, &all, set);
    if let Ok(found) = &found
        && let Some(newest) = found.iter().max_by_key(|set| set.built)
    {
        let requirements = newest.requirements.clone();
        return Ok((newest.interpreter, requirements, newest.packages.clone()));
    }
    if let Some(set) = config.packages.sets.get(set) {
        let recipe = choice::recipe(config, set)?;
        let folder = config.packages.lock_folder.join(&set.name);
        let lock = Lock::read(recipe.interpreter, &folder)?.filter(|lock| lock.fits(&recipe));
        if let Some(lock) = lock {
            return Ok((recipe.interpreter, recipe.texts(), lock.packages));
        }
    }
    found.map(|_| (Interpreter::Python, Vec::new(), Vec::new()))
}

/// The shortest chain from each requirement to a package.
fn chains(
    interpreter: Interpreter,
    requirements: &[String],
    packages: &[Locked],
    package: &str,
) -> Vec<Vec<String>> {
    let mut wants: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for Locked { name, wanted_by, .. } in packages {
        for by in wanted_by {
            wants.entry(by).or_default().insert(name);
        }
    }
    let describe = |name: &str| {
        let locked = packages.iter().find(|locked| locked.name == name);
        locked.map_or(name.to_owned(), |locked| format!("{name} {}", locked.version))
    };
    let chain = |text: &String| {
        let wanted = requirement::parse(interpreter, text).ok()?;
        let mut before: BTreeMap<&str, Option<&str>> = BTreeMap::from([(&*wanted.name, None)]);
        let mut next = VecDeque::from([&*wanted.name]);
        while let Some(name) = next.pop_front() {
            if name == package {
                let mut chain = vec![describe(name)];
                let mut at = name;
                while let Some(Some(by)) = before.get(at) {
                    chain.push(describe(by));
                    at = by;
                }
                chain.push(text.clone());
                chain.reverse();
                return Some(chain);
            }
            for wanted in wants.get(name).into_iter().flatten() {
                if !before.contains_key(wanted) {
                    before.insert(wanted, Some(name));
                    next.push_back(wanted);
                }
            }
        }
        None
    };
    requirements.iter().filter_map(chain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_chain_of_each_requirement_is_found_even_in_circles() {
        let locked = |(name, wanted_by): (&str, &[&str])| Locked {
            name: name.to_owned(),
            version: "1".to_owned(),
            wanted_by: wanted_by.iter().map(|name| (*name).to_owned()).collect(),
        };
        let packages =
            [("a", &["d"][..]), ("b", &["a"]), ("c", &["b", "a"]), ("d", &["c"]), ("e", &[])]
                .map(locked);
        let requirements = ["a==1".to_owned(), "c".to_owned(), "e".to_owned()];
        let found = chains(Interpreter::Python, &requirements, &packages, "d");
        assert_eq!(found, [vec!["a==1", "a 1", "c 1", "d 1"], vec!["c", "c 1", "d 1"]]);
    }
}
