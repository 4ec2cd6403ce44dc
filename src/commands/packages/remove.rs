//! `isolator packages rm` and `prune`.

use std::collections::HashMap;
use std::process::ExitCode;

use anyhow::bail;

use crate::commands::packages::{choice, size, users};
use crate::commands::{complain, say};
use crate::config::Config;
use crate::packages::store::{Cleared, Store, StoreError, StoredSet, short};

/// Removes the named sets. A server that needs one of them builds it again.
pub(super) fn remove(config: &Config, store: &Store, names: &[String]) -> anyhow::Result<ExitCode> {
    let all: Vec<_> = store.all().into_iter().map(|(set, _)| set).collect();
    // First, so that a typing error removes nothing.
    let found = names.iter().map(|name| choice::of_store(config, &all, name));
    let found: Vec<_> = found.collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect();
    let names = choice::names(config, &all);
    let mut gone: Vec<&str> = Vec::new();
    let mut code = ExitCode::SUCCESS;
    for set in found {
        if gone.contains(&set.hash.as_str()) {
            continue;
        }
        gone.push(&set.hash);
        match store.remove(&set.hash) {
            Ok(true) => say(&format!("removed {}, {}", called(&names, set), size(set.bytes)))?,
            Ok(false) => say(&format!("{} was removed meanwhile", called(&names, set)))?,
            Err(StoreError::InUse(_)) => {
                let by = users::describe(store, &set.hash, &users::of(store, &set.hash));
                bail!(
                    "{} is in use by {by}, and was not removed: try again when its programs have ended",
                    called(&names, set)
                );
            }
            Err(error) => code = failed(&error),
        }
    }
    Ok(code)
}

/// Removes the sets that the configuration does not name and that are not used.
pub(super) fn prune(config: &Config, store: &Store) -> anyhow::Result<ExitCode> {
    let mut code = match store.sweep() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    };
    let (mut sets, mut bytes) = (0, 0);
    let all: Vec<_> = store.all().into_iter().map(|(set, _)| set).collect();
    let names = choice::names(config, &all);
    for set in all {
        if names.contains_key(&set.hash) {
            continue;
        }
        match store.remove(&set.hash) {
            Ok(true) => {
                sets += 1;
                bytes += set.bytes;
            }
            Ok(false) => {}
            Err(StoreError::InUse(_)) => {
                let by = users::describe(store, &set.hash, &users::of(store, &set.hash));
                complain(&format!("isolator: {} is in use and stays: {by}", called(&names, &set)));
            }
            Err(error) => code = failed(&error),
        }
    }
    let cache = match store.clear_cache() {
        Ok(Cleared { bytes, is_all }) => {
            if !is_all {
                complain("isolator: some downloads stay, because a process builds with them now");
            }
            bytes
        }
        Err(error) => {
            code = failed(&error);
            0
        }
    };
    say(&format!(
        "removed {sets} set(s) that the configuration does not name, {}, and {} of downloads",
        size(bytes),
        size(cache)
    ))?;
    Ok(code)
}

/// Tells what was not removed. The rest is removed all the same.
fn failed(error: &StoreError) -> ExitCode {
    complain(&format!("isolator: {error}"));
    ExitCode::FAILURE
}

fn called(names: &HashMap<String, Vec<String>>, set: &StoredSet) -> String {
    match names.get(&set.hash) {
        Some(names) => format!("{} ({})", names.join(", "), short(&set.hash)),
        None => short(&set.hash).to_owned(),
    }
}
