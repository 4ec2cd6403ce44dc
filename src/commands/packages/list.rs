//! `isolator packages ls`: the sets and their users.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::commands::packages::users::{self, User};
use crate::commands::packages::{choice, size};
use crate::commands::say;
use crate::config::Config;
use crate::packages::lock::Locked;
use crate::packages::store::{Store, StoredSet, short};
use crate::packages::target::usual_language;

/// A set as it is listed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    /// Its name in the configuration, if it has one.
    name: Option<String>,
    /// Its language, or its interpreter if it has no name.
    language: String,
    /// Its requirements.
    requirements: Vec<String>,
    /// Whether it is in the store.
    is_built: bool,
    /// The set in the store.
    #[serde(flatten)]
    built: Option<Built>,
}

/// A set in the store.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Built {
    hash: String,
    target: String,
    packages: Vec<Locked>,
    modules: Vec<String>,
    bytes: u64,
    built_at: String,
    used_at: String,
    #[serde(skip)]
    used: SystemTime,
    used_by: Vec<User>,
}

impl Row {
    /// A set in the store.
    pub(super) fn of(
        config: &Config,
        store: &Store,
        name: Option<String>,
        set: StoredSet,
        used: SystemTime,
    ) -> Self {
        let named = name.as_ref().and_then(|name| config.packages.sets.get(name));
        let language = named.map(|set| set.language.clone());
        let date = |time| humantime::format_rfc3339_seconds(time).to_string();
        let built = Built {
            used_by: users::of(store, &set.hash),
            hash: set.hash,
            target: set.target,
            packages: set.packages,
            modules: set.modules,
            bytes: set.bytes,
            built_at: date(set.built),
            used_at: date(used),
            used,
        };
        Self {
            name,
            language: language.unwrap_or_else(|| usual_language(set.interpreter).to_owned()),
            requirements: set.requirements,
            is_built: true,
            built: Some(built),
        }
    }
}

/// Prints all sets: those of the configuration first.
pub(super) fn list(config: &Config, store: &Store, json: bool) -> anyhow::Result<ExitCode> {
    let all = store.all();
    let sets: Vec<_> = all.iter().map(|(set, _)| set.clone()).collect();
    let names = choice::names(config, &sets);
    let mut rows = Vec::new();
    for (set, used) in all {
        let own = names.get(&set.hash).cloned().unwrap_or_default();
        if own.is_empty() {
            rows.push(Row::of(config, store, None, set.clone(), used));
        }
        for name in own {
            rows.push(Row::of(config, store, Some(name), set.clone(), used));
        }
    }
    for set in config.packages.sets.values() {
        if !rows.iter().any(|row| row.name.as_ref() == Some(&set.name)) {
            rows.push(Row {
                name: Some(set.name.clone()),
                language: set.language.clone(),
                requirements: set.requirements.clone(),
                is_built: false,
                built: None,
            });
        }
    }
    let age = |row: &Row| row.built.as_ref().and_then(|built| built.used.elapsed().ok());
    rows.sort_by_key(|row| (row.name.is_none(), row.name.clone(), age(row)));
    if json {
        say(&serde_json::to_string_pretty(&rows)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    say(&line(["SET", "LANGUAGE", "PACKAGES", "SIZE", "HASH", "USED", "BY"]))?;
    for row in rows {
        let name = row.name.as_deref().unwrap_or("-");
        let Some(built) = &row.built else {
            say(&line([name, &row.language, "-", "-", "not built", "-", "-"]))?;
            continue;
        };
        let used = ago(built.used);
        let by = users::describe(store, &built.hash, &built.used_by);
        let by = if by.is_empty() { "-".to_owned() } else { by };
        let packages = built.packages.len().to_string();
        let size = size(built.bytes);
        say(&line([name, &row.language, &packages, &size, short(&built.hash), &used, &by]))?;
        if row.name.is_none() {
            say(&format!("  {}", row.requirements.join(", ")))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn line([name, language, packages, size, hash, used, by]: [&str; 7]) -> String {
    format!("{name:<20}{language:<12}{packages:<10}{size:<10}{hash:<14}{used:<12}{by}")
}

/// How long ago something was, to its largest unit.
fn ago(time: SystemTime) -> String {
    let seconds = time.elapsed().unwrap_or_default().as_secs();
    let unit = |seconds: u64| Duration::from_secs(seconds);
    let rounded = match seconds {
        0..60 => unit(seconds),
        60..3600 => unit(seconds / 60 * 60),
        3600..86_400 => unit(seconds / 3600 * 3600),
        _ => unit(seconds / 86_400 * 86_400),
    };
    let described = humantime::format_duration(rounded).to_string();
    match described.split(' ').next() {
        Some("0s") | None => "now".to_owned(),
        Some(first) => format!("{first} ago"),
    }
}
