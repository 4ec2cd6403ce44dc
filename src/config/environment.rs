//! Environment variables that override the configuration file: `ISOLATOR_POOL__SIZE=4`.
//!
//! A name is `ISOLATOR_` and the path of the key, in capital letters, with `_` between the words of a key and `__`
//! between keys. A name with `__` that leads to no key is an error, and so is one that is almost right. All others are
//! ignored, because orchestrators set such variables too (`ISOLATOR_SERVICE_HOST`).

use std::collections::BTreeMap;
use std::ffi::OsString;

use serde_json::{Value, json};

use super::check::Problem;
use super::shape::{self, Shape};
use super::similar::{SIMILAR, nearest};

/// The beginning of all names.
const PREFIX: &str = "ISOLATOR_";

/// The separator between keys.
const SEPARATOR: &str = "__";

/// Names with another meaning. Tests and build scripts set those that begin with `TEST_`.
const OTHERS: [&str; 4] = ["CONFIG", "BIN", "RUNNER", "PRELOAD"];
const OF_TESTS: &str = "TEST_";

/// How similar a name without `__` must be to one of ours to be taken for a typing error.
const VERY_SIMILAR: f64 = 0.9;

/// A key that the environment sets.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Override {
    pub(super) variable: String,
    /// The keys that lead to the value.
    pub(super) path: Vec<String>,
    pub(super) value: Value,
}

/// The overrides among these variables, of a configuration with this shape. A variable that is empty is not set.
pub(super) fn overrides(
    all: &Shape,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
    languages: &[String],
    problems: &mut Vec<Problem>,
) -> Vec<Override> {
    let mut found = Vec::new();
    // In order of their names, so that errors are always the same.
    let variables: BTreeMap<_, _> = variables.into_iter().collect();
    for (variable, text) in variables {
        let Some(variable) = variable.to_str().filter(|_| !text.is_empty()) else { continue };
        let Some(name) = variable.strip_prefix(PREFIX).filter(|name| is_ours(name)) else {
            continue;
        };
        let words: Vec<&str> = name.split(SEPARATOR).collect();
        let problem = |message| Problem { path: variable.to_owned(), message };
        let Some((path, of_key)) = resolve(all, &words, languages) else {
            problems.extend(misspelt(all, variable, name, languages));
            continue;
        };
        match text.to_str().map(|text| (text, value(of_key, text))) {
            None => problems.push(problem("is not UTF-8 text".to_owned())),
            Some((text, None)) => {
                let json = matches!(of_key, Shape::List(_)).then_some(", written as JSON");
                let (expected, json) = (of_key.expected(), json.unwrap_or_default());
                let shown = shape::shown(&json!(text));
                problems.push(problem(format!("expected {expected}{json}, not {shown}")));
            }
            Some((_, Some(value))) => {
                let before = problems.len();
                of_key.check_part(&value, variable, all, problems);
                if problems.len() == before {
                    found.push(Override { variable: variable.to_owned(), path, value });
                }
            }
        }
    }
    found
}

/// Puts the values into a document, whose shape was checked.
pub(super) fn apply(overrides: &[Override], document: &mut Value) {
    for Override { path, value, .. } in overrides {
        let mut place = &mut *document;
        for key in path {
            place = &mut place[key];
        }
        *place = value.clone();
    }
}

fn is_ours(name: &str) -> bool {
    !OTHERS.contains(&name) && !name.starts_with(OF_TESTS)
}

/// The path and the shape of the key that these words stand for.
fn resolve<'a>(
    shape: &'a Shape,
    words: &[&str],
    languages: &[String],
) -> Option<(Vec<String>, &'a Shape)> {
    let (key, below, rest) = match (shape, words) {
        (Shape::Section { .. } | Shape::Names(_), []) => return None,
        (Shape::Section { keys, .. }, [first, rest @ ..]) => {
            let (key, below) = keys.iter().find(|(key, _)| in_capitals(key) == *first)?;
            (key.clone(), below, rest)
        }
        // Names of variables, which are used as they are.
        (Shape::Names(each), words) if matches!(**each, Shape::Text) => {
            let name = words.join(SEPARATOR);
            return (!name.is_empty()).then(|| (vec![name], &**each));
        }
        (Shape::Names(each), [first, rest @ ..]) if !first.is_empty() => {
            let known = languages.iter().find(|name| in_capitals(name) == *first);
            let name = known.cloned().unwrap_or_else(|| first.to_lowercase());
            (name, &**each, rest)
        }
        (_, []) => return Some((Vec::new(), shape)),
        _ => return None,
    };
    let (mut path, shape) = resolve(below, rest, languages)?;
    path.insert(0, key);
    Some((path, shape))
}

/// `DEFAULT_MEMORY_MB` for `defaultMemoryMB`.
fn in_capitals(key: &str) -> String {
    let mut name = String::new();
    let mut was_small = false;
    for character in key.chars() {
        if character.is_ascii_uppercase() && was_small {
            name.push('_');
        }
        was_small = character.is_ascii_lowercase() || character.is_ascii_digit();
        name.push(if character.is_ascii_alphanumeric() {
            character.to_ascii_uppercase()
        } else {
            '_'
        });
    }
    name
}

/// The value that a text stands for, if it can be one.
fn value(shape: &Shape, text: &str) -> Option<Value> {
    match shape {
        Shape::Text | Shape::Duration { .. } | Shape::Address | Shape::Choice(_) => {
            Some(json!(text))
        }
        _ => serde_json::from_str(text.trim()).ok(),
    }
}

/// The problem of a name that is similar to one of ours.
fn misspelt(all: &Shape, variable: &str, name: &str, languages: &[String]) -> Option<Problem> {
    let mut known = Vec::new();
    all_names(all, "", languages, &mut known);
    let section = known.iter().find(|it| it.starts_with(&format!("{name}{SEPARATOR}")));
    let near = match name.contains(SEPARATOR) {
        true => section.or_else(|| nearest(name, known.iter(), SIMILAR)),
        false => Some(section.or_else(|| nearest(name, known.iter(), VERY_SIMILAR))?),
    };
    let message = match near {
        Some(near) => format!("sets no key of the configuration; did you mean {PREFIX}{near}?"),
        None => "sets no key of the configuration; `isolator config check --show` lists all keys"
            .to_owned(),
    };
    Some(Problem { path: variable.to_owned(), message })
}

/// The names of all variables that can be set, without the prefix.
fn all_names(shape: &Shape, path: &str, languages: &[String], found: &mut Vec<String>) {
    let below = |name: &str| {
        if path.is_empty() { name.to_owned() } else { format!("{path}{SEPARATOR}{name}") }
    };
    match shape {
        Shape::Section { keys, .. } => {
            for (key, shape) in keys {
                all_names(shape, &below(&in_capitals(key)), languages, found);
            }
        }
        Shape::Names(each) if matches!(**each, Shape::Text) => found.push(below("NAME")),
        Shape::Names(each) => {
            for name in languages {
                all_names(each, &below(&in_capitals(name)), languages, found);
            }
        }
        _ => found.push(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::root;

    fn of(variables: &[(&str, &str)]) -> Result<Vec<(String, Value)>, Vec<String>> {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        let mut problems = Vec::new();
        let languages = ["python".to_owned(), "c-lang".to_owned()];
        let found = overrides(root::shape(), variables, &languages, &mut problems);
        if problems.is_empty() {
            return Ok(found.into_iter().map(|it| (it.path.join("."), it.value)).collect());
        }
        Err(problems.iter().map(|it| format!("{}: {}", it.path, it.message)).collect())
    }

    #[test]
    fn a_variable_sets_the_key_that_its_name_spells_with_a_value_of_its_type() {
        for (variable, text, key, expected) in [
            ("ISOLATOR_POOL__SIZE", "4", "pool.size", json!(4)),
            (
                "ISOLATOR_POOL__SIZE",
                r#"{"min": 1, "max": 8}"#,
                "pool.size",
                json!({ "min": 1, "max": 8 }),
            ),
            ("ISOLATOR_DEFAULT_MEMORY_MB", "300", "defaultMemoryMB", json!(300)),
            ("ISOLATOR_DEFAULT_CPUS", "1.5", "defaultCpus", json!(1.5)),
            ("ISOLATOR_DEFAULT_READ_ONLY_ROOTFS", "false", "defaultReadOnlyRootfs", json!(false)),
            ("ISOLATOR_LIMITS__MAX_TIMEOUT", "2m", "limits.maxTimeout", json!("2m")),
            ("ISOLATOR_LIMITS__MAX_FILES_KB", "7", "limits.maxFilesKB", json!(7)),
            ("ISOLATOR_ENGINE__KIND", "docker", "engine.kind", json!("docker")),
            ("ISOLATOR_HTTP__TLS__KEY", "/k.pem", "http.tls.key", json!("/k.pem")),
            (
                "ISOLATOR_HTTP__ALLOWED_HOSTS",
                r#"["a", "b"]"#,
                "http.allowedHosts",
                json!(["a", "b"]),
            ),
            (
                "ISOLATOR_LANGUAGE_SETTINGS__PYTHON__POOL__SIZE",
                "6",
                "languageSettings.python.pool.size",
                json!(6),
            ),
            (
                "ISOLATOR_LANGUAGE_SETTINGS__C_LANG__IMAGE",
                "gcc",
                "languageSettings.c-lang.image",
                json!("gcc"),
            ),
            (
                "ISOLATOR_LANGUAGE_SETTINGS__RUBY__IMAGE",
                "ruby:3",
                "languageSettings.ruby.image",
                json!("ruby:3"),
            ),
            (
                "ISOLATOR_LANGUAGE_SETTINGS__PYTHON__ENV__OMP__Threads",
                "2",
                "languageSettings.python.env.OMP__Threads",
                json!("2"),
            ),
            (
                "ISOLATOR_POLICIES__APPLY__PYTHON",
                r#"["strict"]"#,
                "policies.apply.python",
                json!(["strict"]),
            ),
        ] {
            assert_eq!(of(&[(variable, text)]), Ok(vec![(key.to_owned(), expected)]), "{variable}");
        }
    }

    #[test]
    fn other_and_empty_variables_are_ignored() {
        for name in [
            "PATH",
            "ISOLATOR_CONFIG",
            "ISOLATOR_BIN",
            "ISOLATOR_TEST_ENGINE",
            // Kubernetes sets these for services with the names isolator, isolator-http and isolator-engine.
            "ISOLATOR_PORT",
            "ISOLATOR_SERVICE_HOST",
            "ISOLATOR_SERVICE_PORT_HTTP",
            "ISOLATOR_PORT_8000_TCP_ADDR",
            "ISOLATOR_HTTP_SERVICE_HOST",
            "ISOLATOR_HTTP_PORT_80_TCP_PROTO",
            "ISOLATOR_ENGINE_SERVICE_HOST",
            "ISOLATOR_ENGINE_PORT",
        ] {
            assert_eq!(of(&[(name, "tcp://10.0.0.1:80")]), Ok(vec![]), "{name}");
        }
        assert_eq!(of(&[("ISOLATOR_POOL__SIZE", "")]), Ok(vec![]));
    }

    #[test]
    fn a_wrong_variable_is_reported_with_a_correction() {
        for (variable, text, message) in [
            (
                "ISOLATOR_POOL__SIZE",
                "many",
                "expected a whole number from 0 to 1000, or {\"max\": …, \"min\": …}, not \"many\"",
            ),
            ("ISOLATOR_POOL__SIZE", "-1", "expected a whole number from 0 to 1000, not -1"),
            ("ISOLATOR_DEFAULT_READ_ONLY_ROOTFS", "yes", "expected true or false, not \"yes\""),
            (
                "ISOLATOR_LIMITS__MAX_TIMEOUT",
                "5",
                "expected a duration such as \"5s\" or \"2m\", not \"5\"",
            ),
            (
                "ISOLATOR_HTTP__ALLOWED_HOSTS",
                "a,b",
                "expected a list of texts, such as [\"a\", \"b\"], written as JSON, not \"a,b\"",
            ),
            (
                "ISOLATOR_ENGINE__KIND",
                "dcoker",
                "expected \"auto\", \"docker\" or \"embedded\", not \"dcoker\"; did you mean \"docker\"?",
            ),
            (
                "ISOLATOR_POOL__SIZ",
                "4",
                "sets no key of the configuration; did you mean ISOLATOR_POOL__SIZE?",
            ),
            (
                "ISOLATOR_POOL_SIZE",
                "4",
                "sets no key of the configuration; did you mean ISOLATOR_POOL__SIZE?",
            ),
            (
                "ISOLATOR_DEFAULT_CPU",
                "4",
                "sets no key of the configuration; did you mean ISOLATOR_DEFAULT_CPUS?",
            ),
            (
                "ISOLATOR_TOOLS__TEST_CODE",
                "true",
                "sets no key of the configuration; did you mean ISOLATOR_TOOLS__TEST_CODE__ENABLED?",
            ),
            (
                "ISOLATOR_X__Y",
                "4",
                "sets no key of the configuration; `isolator config check --show` lists all keys",
            ),
        ] {
            assert_eq!(of(&[(variable, text)]), Err(vec![format!("{variable}: {message}")]));
        }
    }
}
