//! The sets that the command line names.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::bail;

use crate::config::{Config, SetConfig};
use crate::packages::lock::Lock;
use crate::packages::store::StoredSet;
use crate::requirement::{self, Recipe};

/// Shortest beginning of a hash that is taken for it.
const SHORTEST_HASH: usize = 6;

/// The sets of the configuration with these names, or all of them.
///
/// # Errors
///
/// When there is no such set, or there are none.
pub(super) fn of_configuration<'a>(
    config: &'a Config,
    names: &[String],
) -> anyhow::Result<Vec<&'a SetConfig>> {
    let sets = &config.packages.sets;
    if names.is_empty() && sets.is_empty() {
        bail!(
            "the configuration names no sets of packages; packages.sets in docs/configuration.md shows how it can"
        );
    }
    if names.is_empty() {
        return Ok(sets.values().collect());
    }
    let find = |name: &String| sets.get(name).ok_or_else(|| no_such_set(config, name));
    names.iter().collect::<BTreeSet<_>>().into_iter().map(find).collect()
}

/// The requirements of a set of the configuration.
///
/// # Errors
///
/// When one of its requirements is none.
pub(super) fn recipe(config: &Config, set: &SetConfig) -> anyhow::Result<Recipe> {
    let language = config.languages.get(&set.language);
    let Some(interpreter) = language.and_then(|language| language.kernel) else {
        bail!("the set {}: {} has no interpreter that imports packages", set.name, set.language);
    };
    let parse = |text: &String| requirement::parse(interpreter, text);
    let requirements = set.requirements.iter().map(parse).collect::<Result<_, _>>()?;
    Ok(Recipe::new(interpreter, requirements)?)
}

/// The names that the configuration has for sets in the store, by their hashes. Of several that were built for one name, such as
/// before an update of the image, the name is that of the newest, or of the one with its lock's hash.
pub(super) fn names(config: &Config, all: &[StoredSet]) -> HashMap<String, Vec<String>> {
    // Sets of several languages can look alike here, because a set knows only its interpreter.
    let mut groups: BTreeMap<_, BTreeMap<&str, Vec<&SetConfig>>> = BTreeMap::new();
    for set in config.packages.sets.values() {
        if let Ok(recipe) = recipe(config, set) {
            let group = groups.entry((recipe.interpreter, recipe.texts())).or_default();
            group.entry(&set.language).or_default().push(set);
        }
    }
    let mut names: HashMap<String, Vec<String>> = HashMap::new();
    for ((interpreter, requirements), languages) in groups {
        let mut built: Vec<_> = all
            .iter()
            .filter(|set| set.interpreter == interpreter && set.requirements == requirements)
            .collect();
        let locked = languages.values().flatten().filter_map(|set| {
            let folder = config.packages.lock_folder.join(&set.name);
            Lock::read(interpreter, &folder).ok().flatten()
        });
        let locked: Vec<_> = locked.map(|lock| lock.hash).collect();
        built.sort_by_key(|set| (!locked.contains(&set.hash), Reverse(set.built)));
        for (sets, built) in languages.values().zip(built) {
            let own = names.entry(built.hash.clone()).or_default();
            own.extend(sets.iter().map(|set| set.name.clone()));
        }
    }
    names
}

/// The sets in the store that a name of the configuration, a hash, or the beginning of one stands for.
///
/// # Errors
///
/// When there is none.
pub(super) fn of_store<'a>(
    config: &Config,
    all: &'a [StoredSet],
    text: &str,
) -> anyhow::Result<Vec<&'a StoredSet>> {
    if config.packages.sets.contains_key(text) {
        let names = names(config, all);
        let is_it = |set: &&StoredSet| {
            names.get(&set.hash).is_some_and(|names| names.iter().any(|name| name == text))
        };
        let named: Vec<_> = all.iter().filter(is_it).collect();
        if named.is_empty() {
            bail!("the set {text} is not built; `isolator packages build {text}` does it");
        }
        return Ok(named);
    }
    let is_hash = text.len() >= SHORTEST_HASH && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let found: Vec<_> =
        all.iter().filter(|set| is_hash && set.hash.starts_with(&text.to_lowercase())).collect();
    match found.len() {
        0 if is_hash => bail!("no set has a hash that begins with {text}"),
        0 => Err(no_such_set(config, text)),
        1 => Ok(found),
        several => bail!("the hashes of {several} sets begin with {text}: give more of it"),
    }
}

fn no_such_set(config: &Config, name: &str) -> anyhow::Error {
    let known: Vec<_> = config.packages.sets.keys().map(String::as_str).collect();
    match known.is_empty() {
        true => anyhow::anyhow!("there is no set {name:?}: the configuration names none"),
        false => anyhow::anyhow!("there is no set {name:?}: use some of {}", known.join(", ")),
    }
}
