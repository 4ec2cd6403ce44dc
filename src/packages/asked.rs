//! What a request asks for: names of sets, and requirements if the operator lets requests bring their own.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{Config, Language};
use crate::packages::refusal::Refusal;
use crate::packages::requirement::{self, BadRequirement, MOST, Recipe, Requirement};

/// What a request asks for. All of it becomes one set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Names of sets, and requirements such as `humanize==4.*`, in any order.
    pub names_or_requirements: Vec<String>,
}

/// A set that can be built: what is in it, and where it comes from.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// What tells it from others.
    pub key: Key,
    /// What is in it.
    pub recipe: Recipe,
    /// The sets of the configuration that it is made from, by their names. Those that have locks keep to them.
    pub parts: BTreeMap<String, Recipe>,
    /// Whether all of it is in sets that the configuration names.
    pub is_named: bool,
}

/// What tells one set from another before it is resolved.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// The language's name.
    pub language: String,
    /// The set of the configuration, if it is exactly that one. It may have a lock.
    pub set: Option<String>,
    /// The requirements, sorted.
    pub requirements: Vec<String>,
}

impl Key {
    /// What the set is called in messages.
    pub(super) fn called(&self) -> String {
        match &self.set {
            Some(name) => format!("the set of packages {name}"),
            None => {
                const MOST: usize = 5;
                let mut shown: Vec<_> = self.requirements.iter().take(MOST).cloned().collect();
                if self.requirements.len() > MOST {
                    shown.push(format!("{} more", self.requirements.len() - MOST));
                }
                format!("a set of {}", shown.join(", "))
            }
        }
    }
}

/// The names of the sets for a language.
pub(super) fn sets_for(config: &Config, language: &str) -> Vec<String> {
    let sets = config.packages.sets.values().filter(|set| set.language == language);
    sets.map(|set| set.name.clone()).collect()
}

/// What has to be there for a request. The language is that of its program.
///
/// # Errors
///
/// When the request asks for what there is not, or what it may not have.
pub(super) fn plan(config: &Config, language: &Language, asked: &Asked) -> Result<Plan, Refusal> {
    let Some(interpreter) = language.kernel else {
        return Err(Refusal::NoPackages(language.name.clone()));
    };
    let of_language = || (language.name.clone(), sets_for(config, &language.name));
    let texts: BTreeSet<&str> =
        asked.names_or_requirements.iter().map(|text| text.trim()).collect();
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
    let mut parts = BTreeMap::new();
    let recipe_of = |requirements: Vec<Requirement>| {
        Recipe::new(interpreter, requirements).map_err(|error| bad(config, language, &error))
    };
    for set in &named {
        let read = set.requirements.iter().map(|text| read(config, language, text));
        let read = read.collect::<Result<Vec<_>, _>>()?;
        requirements.extend(read.iter().cloned());
        parts.insert(set.name.clone(), recipe_of(read)?);
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
    let key = Key { language: language.name.clone(), set, requirements: recipe.texts() };
    Ok(Plan { key, recipe, parts, is_named: own.is_empty() })
}

/// What has to be there for a set of the configuration.
///
/// # Errors
///
/// When a requirement can't be read.
pub(super) fn plan_of_set(
    config: &Config,
    language: &Language,
    name: &str,
) -> Result<Plan, Refusal> {
    plan(config, language, &Asked { names_or_requirements: vec![name.to_owned()] })
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
