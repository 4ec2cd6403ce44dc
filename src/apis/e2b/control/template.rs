//! Templates: names for a language and packages. Those of the configuration come first, which also has the names that E2B's
//! clients use when they give none; then sets of packages, and languages.

use std::collections::BTreeSet;

use isolator_pool::quote::quoted;

use crate::apis::e2b::error::{E2bError, ErrorKind};
use crate::config::Config;

/// A template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template {
    /// The name of its language.
    pub language: String,
    /// Sets of packages, and packages, that its code can import from.
    pub packages: Vec<String>,
}

/// The template with this name.
///
/// # Errors
///
/// When there is none: 404, with all names.
pub(super) fn named(name: &str, config: &Config) -> Result<Template, E2bError> {
    let of = |language: &str| Template { language: language.to_owned(), packages: Vec::new() };
    let configured = config.apis.e2b.as_ref().and_then(|e2b| e2b.templates.get(name));
    if let Some(template) = configured {
        let packages = template.packages.clone();
        return Ok(Template { packages, ..of(&template.language) });
    }
    if let Some(set) = config.packages.sets.get(name) {
        return Ok(Template { packages: vec![name.to_owned()], ..of(&set.language) });
    }
    if config.languages.contains_key(name) {
        return Ok(of(name));
    }
    let message = format!(
        "templateID: there is no template {}; use one of {}. An operator adds others in apis.e2b.templates",
        quoted(name),
        names(config).into_iter().collect::<Vec<_>>().join(", ")
    );
    Err(E2bError::new(ErrorKind::NotFound, message))
}

/// The names of all templates.
fn names(config: &Config) -> BTreeSet<&str> {
    let configured = config.apis.e2b.iter().flat_map(|e2b| e2b.templates.keys());
    let sets = config.packages.sets.keys();
    let languages = config.languages.keys();
    configured.chain(sets).chain(languages).map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, None, Path::new("")).map_err(drop).unwrap()
    }

    #[test]
    fn a_template_is_a_language_with_packages() {
        let config = config(
            r#"{"apis": {"e2b": {"templates": {"base": {"language": "javascript"},
                "science": {"language": "python", "packages": ["numpy"]}}}},
                "packages": {"onDemand": {"enabled": true, "allow": ["numpy"]}}}"#,
        );
        let language = |name| named(name, &config).unwrap().language;
        assert_eq!(language("base"), "javascript");
        assert_eq!(language("code-interpreter-v1"), "python");
        assert_eq!(language("go"), "go");
        assert_eq!(named("science", &config).unwrap().packages, ["numpy"]);
    }

    #[test]
    fn a_template_that_is_missing_is_answered_with_those_that_are_there() {
        let error = named("mcp-gateway", &config(r#"{"apis": {"e2b": {}}}"#)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        for name in ["mcp-gateway", "base", "python", "apis.e2b.templates"] {
            assert!(error.message().contains(name), "{}", error.message());
        }
    }
}
