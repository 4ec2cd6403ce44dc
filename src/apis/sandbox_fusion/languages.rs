//! The languages of a configuration by the names that SandboxFusion has for them.

use std::collections::BTreeSet;
use std::sync::Arc;

use isolator_pool::quote::quoted;

use crate::config::{Config, Language};
use crate::request::arguments::InvalidArgument;

/// Names of SandboxFusion for languages that have another name here, with the file of a program if the usual one would be another
/// language.
const NAMES: [(&str, &str, Option<&str>); 2] =
    [("nodejs", "javascript", None), ("typescript", "javascript", Some("main.ts"))];

/// The language of that name, and the name of a program's file if it is not the usual one.
pub(super) fn language(
    name: &str,
    config: &Config,
) -> Result<(Arc<Language>, Option<String>), InvalidArgument> {
    if let Some(language) = config.languages.get(name) {
        return Ok((Arc::clone(language), None));
    }
    let known = NAMES.iter().find(|(theirs, ..)| *theirs == name);
    let found = known.and_then(|(_, ours, file)| Some((config.languages.get(*ours)?, file)));
    if let Some((language, file)) = found {
        return Ok((Arc::clone(language), file.map(str::to_owned)));
    }
    let own = config.languages.keys().map(String::as_str);
    let theirs = NAMES.iter().filter(|(_, ours, _)| config.languages.contains_key(*ours));
    let all: BTreeSet<_> = own.chain(theirs.map(|(theirs, ..)| *theirs)).collect();
    let all: Vec<_> = all.into_iter().collect();
    let message =
        format!("{} is not offered by this server: use one of {}", quoted(name), all.join(", "));
    Err(InvalidArgument::new("language", message))
}
