//! Sets of packages: `isolator://packages/{name}`, and what `isolator://languages` has of them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::packages::{Packages, SetState, SetSummary};

/// The beginning of their addresses.
pub(super) const PREFIX: &str = "isolator://packages/";

/// The template of their addresses.
pub(super) const TEMPLATE: &str = "isolator://packages/{name}";

/// Most packages and modules of a set in the list of languages. Its own resource has all.
const MOST: usize = 50;

/// The address of a set. Its name has no character that would have to be escaped there.
pub(crate) fn address(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// A set that the configuration names.
#[derive(Serialize)]
pub(super) struct OneSet {
    name: String,
    language: String,
    /// ready, building, waiting or failed.
    state: &'static str,
    /// The step of the build, or why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    requirements: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Names with their versions.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    packages: BTreeMap<String, String>,
    /// The modules that programs import.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    modules: Vec<String>,
    /// Where all of it can be read, if this is only a part.
    #[serde(skip_serializing_if = "Option::is_none")]
    all: Option<String>,
}

impl OneSet {
    fn new(listed: SetSummary) -> Self {
        let SetSummary { name, language, requirements, state, set } = listed;
        let (state, detail) = match state {
            SetState::Ready => ("ready", None),
            SetState::Building(step) => ("building", Some(step)),
            SetState::Waiting => ("waiting", None),
            SetState::Failed(why) => ("failed", Some(why)),
        };
        let (mut packages, mut modules) = (BTreeMap::new(), Vec::new());
        let (mut hash, mut bytes) = (None, None);
        if let Some(set) = set {
            packages = set.packages.into_iter().map(|it| (it.name, it.version)).collect();
            modules = set.modules;
            (hash, bytes) = (Some(set.hash), Some(set.bytes));
        }
        Self {
            name,
            language,
            state,
            detail,
            requirements,
            hash,
            bytes,
            packages,
            modules,
            all: None,
        }
    }

    fn shortened(mut self) -> Self {
        let lists = [self.requirements.len(), self.packages.len(), self.modules.len()];
        if lists.into_iter().any(|length| length > MOST) {
            self.all = Some(address(&self.name));
            self.requirements.truncate(MOST);
            self.modules.truncate(MOST);
            self.packages = std::mem::take(&mut self.packages).into_iter().take(MOST).collect();
        }
        self
    }
}

/// The sets of each language, with as much of them as a list should have.
pub(super) fn of_languages(packages: &Packages) -> BTreeMap<String, Vec<OneSet>> {
    let mut sets: BTreeMap<String, Vec<OneSet>> = BTreeMap::new();
    for listed in packages.listed() {
        let of_language = sets.entry(listed.language.clone()).or_default();
        of_language.push(OneSet::new(listed).shortened());
    }
    sets
}

/// All of one set.
pub(super) fn one(packages: &Packages, name: &str) -> Option<OneSet> {
    packages.listed().into_iter().find(|set| set.name == name).map(OneSet::new)
}
