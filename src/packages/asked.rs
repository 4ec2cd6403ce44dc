//! The packages that a request asks for: names of sets, and requirements such as `humanize==4.*` if the operator lets requests
//! bring their own, in any order. Together they become one set.

use std::collections::BTreeMap;
use std::sync::Arc;

use isolator_pool::quote::first_of;

use crate::config::{Config, Language};
use crate::packages::refusal::Refusal;
use crate::requirement::{self, BadRequirement, MOST, Recipe, Requirement};

/// A set that can be built.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Its identity before it is resolved.
    pub key: Key,
    pub recipe: Recipe,
    /// The sets of the configuration that it is made from, by their names. Those that have locks keep to them.
    pub parts: Vec<(String, Recipe)>,
    /// Whether all of it is in sets that the configuration names.
    pub is_named: bool,
}

/// The identity of a set before it is resolved.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub language: String,
    /// The set of the configuration, if it is exactly that one. It may have a lock.
    pub set: Option<String>,
    /// The requirements, sorted.
    pub requirements: Vec<String>,
    /// Versions of packages that it must have, if it has these packages.
    pub keeps: BTreeMap<String, String>,
}

impl Plan {
    /// The same with these versions of packages, if it has them.
    pub(super) fn keeping(mut self, keeps: BTreeMap<String, String>) -> Self {
        // The lock of a set of the configuration rules alone.
        if self.key.set.is_none() {
            self.key.keeps = keeps;
        }
        self
    }
}

impl Key {
    /// The bytes of its texts.
    pub(super) fn bytes(&self) -> usize {
        let keeps = self.keeps.iter().map(|(name, version)| name.len() + version.len());
        keeps.chain(self.requirements.iter().map(String::len)).sum()
    }

    /// The set in messages.
    pub(super) fn called(&self) -> String {
        match &self.set {
            Some(name) => format!("the set of packages {name}"),
            None => {
                const MOST: usize = 5;
                format!("a set of {}", first_of(self.requirements.iter().cloned(), MOST))
            }
        }
    }
}

/// The names of the sets for a language.
pub(super) fn sets_for(config: &Config, language: &str) -> Vec<String> {
    let sets = config.packages.sets.values().filter(|set| set.language == language);
    sets.map(|set| set.name.clone()).collect()
}

/// The plan for a request, whose program is in this language.
///
/// # Errors
///
/// When the request asks for something that does not exist, or that it may not have.
pub(super) fn plan(
    config: &Config,
    language: &Language,
    asked: &[String],
) -> Result<Plan, Refusal> {
    let Some(interpreter) = language.kernel else {
        return Err(Refusal::NoPackages(language.name.clone()));
    };
    let of_language = || (language.name.clone(), sets_for(config, &language.name));
    let mut texts: Vec<&str> = asked.iter().map(|it| it.trim()).collect();
    texts.sort_unstable();
    texts.dedup();
    if texts.is_empty() || texts.len() > MOST {
        return Err(Refusal::TooMany { asked: texts.len(), most: MOST });
    }
    let (mut named, mut own) = (Vec::new(), Vec::new());
    for text in texts {
        match config.packages.sets.get(text) {
            Some(set) if set.language == language.name => named.push(set),
            // Where requests bring their own, it is the name of a package, too.
            Some(set) if config.packages.on_demand().is_none() => {
                let (language, sets) = of_language();
                let theirs = set.language.clone();
                return Err(Refusal::OtherLanguage {
                    asked: text.to_owned(),
                    theirs,
                    language,
                    sets,
                });
            }
            _ => own.push(text),
        }
    }
    let mut requirements = Vec::new();
    let mut parts = Vec::new();
    let recipe_of = |requirements: Vec<Requirement>| {
        Recipe::new(interpreter, requirements).map_err(|error| bad(config, language, &error))
    };
    for set in &named {
        let read = set.requirements.iter().map(|text| read(config, language, text));
        let read = read.collect::<Result<Vec<_>, _>>()?;
        requirements.extend(read.iter().cloned());
        parts.push((set.name.clone(), recipe_of(read)?));
    }
    if let Some(on_demand) = config.packages.on_demand() {
        let mut forbidden = Vec::new();
        for text in &own {
            let requirement = read(config, language, text)?;
            if !on_demand.allows(interpreter, &requirement.name) {
                forbidden.push(requirement.name.clone());
            }
            requirements.push(requirement);
        }
        if !forbidden.is_empty() {
            let (language, sets) = of_language();
            let allow = on_demand.allow.clone();
            return Err(Refusal::NotAllowed { names: forbidden, allow, language, sets });
        }
    } else if let Some(text) = own.first() {
        let (language, sets) = of_language();
        return Err(Refusal::NoSuchSet { asked: (*text).to_owned(), language, sets });
    }
    let set = match (&*named, &*own) {
        ([set], []) => Some(set.name.clone()),
        _ => None,
    };
    let recipe = recipe_of(requirements)?;
    let key = Key {
        language: language.name.clone(),
        set,
        requirements: recipe.texts(),
        keeps: BTreeMap::new(),
    };
    Ok(Plan { key, recipe, parts, is_named: own.is_empty() })
}

/// The plan of a set of the configuration, and its language.
///
/// # Errors
///
/// When there is no such set, or a requirement can't be read.
pub(super) fn plan_of_set(config: &Config, name: &str) -> Result<(Arc<Language>, Plan), Refusal> {
    let set = config.packages.sets.get(name);
    let Some(language) = set.and_then(|set| config.languages.get(&set.language)) else {
        return Err(Refusal::NoSuchSet {
            asked: name.to_owned(),
            language: "any language".to_owned(),
            sets: config.packages.sets.keys().cloned().collect(),
        });
    };
    Ok((Arc::clone(language), plan(config, language, &[name.to_owned()])?))
}

fn read(config: &Config, language: &Language, text: &str) -> Result<Requirement, Refusal> {
    let Some(interpreter) = language.kernel else {
        return Err(Refusal::NoPackages(language.name.clone()));
    };
    requirement::parse(interpreter, text).map_err(|error| bad(config, language, &error))
}

fn bad(config: &Config, language: &Language, error: &BadRequirement) -> Refusal {
    Refusal::Bad {
        message: error.to_string(),
        language: language.name.clone(),
        sets: sets_for(config, &language.name),
    }
}
