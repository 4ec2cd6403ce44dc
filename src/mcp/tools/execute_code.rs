//! The tool `execute_code`: its schemas, and its description for the model.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use crate::config::Config;
use crate::duration;
use crate::request::arguments::Arguments;
use crate::request::snippets::{Listed, Snippets};
use crate::result::report::Report;

use super::{answer_schema, describe_packages, object, offer_packages, plain_schema};

/// The tool's name.
pub(crate) const EXECUTE_CODE: &str = "execute_code";

/// The tool's definition. It is made anew for each listing, because snippets change.
pub(super) fn execute_code(config: &Config, snippets: &Snippets) -> Tool {
    Tool::new(EXECUTE_CODE, description(config), input_schema(config, snippets))
        .with_title("Execute code")
        .with_raw_output_schema(object(answer_schema::<Report>()))
        .with_annotations(
            ToolAnnotations::new().read_only(true).destructive(false).open_world(false),
        )
}

fn description(config: &Config) -> String {
    let mut text = String::from(
        "Runs a program in a new, empty sandbox without network and returns its standard output, \
         standard error and exit status. Print results. Files that it creates in its working directory are \
         listed; pictures come back as images, and files that match output_files come back, too. All \
         else is gone after the call, unless it runs in a session. ",
    );
    text.push_str(match config.packages.is_used() {
        true => "Nothing can be installed while it runs, but packages brings more to import.",
        false => "Nothing can be installed.",
    });
    for language in config.languages.values() {
        text.push_str(&format!("\n- {}", language.name));
        if !language.description.is_empty() {
            text.push_str(&format!(": {}", language.description));
        }
    }
    let timeout = duration::shown(config.limits.default_timeout);
    let most = duration::shown(config.limits.max_timeout);
    text.push_str(&format!("\nA program can run for {timeout}, or up to {most} with timeout."));
    let held: Vec<_> = config.languages.keys().filter(|l| config.policies.apply_to(l)).collect();
    if !held.is_empty() {
        let held = held.into_iter().cloned().collect::<Vec<_>>().join(", ");
        text.push_str(&format!(
            "\nThe operator forbids some calls or imports in {held}; a program with one is refused."
        ));
    }
    text
}

fn input_schema(config: &Config, snippets: &Snippets) -> Arc<JsonObject> {
    let mut schema = plain_schema::<Arguments>();
    let properties = &mut schema["properties"];
    properties["language"]["enum"] = config.languages.keys().cloned().collect::<Value>();
    // The names are no enum: some interfaces make the model fill in every field, and it has to be able to name none.
    let mut description = String::from(
        "Name of a stored program to run instead of entrypoint_code; pass its arguments in args.",
    );
    for Listed { name, description: about, .. } in snippets.list() {
        description.push_str(&format!("\n- {name}: {}", gist(&about)));
    }
    properties["snippet_name"]["description"] = Value::String(description);
    properties["packages"]["description"] = Value::String(describe_packages(config));
    properties["memory_mb"]["maximum"] = json!(config.limits.max_memory.as_mib());
    properties["cpus"]["maximum"] = json!(config.limits.max_cpu.as_cores());
    offer_packages(&mut schema, config, None);
    object(schema)
}

/// The beginning of a description. Every conversation pays for the list of tools; the resource of a snippet has all
/// of it.
fn gist(description: &str) -> &str {
    const LONGEST: usize = 60;
    let clause = description.find([':', ',', ';', '.', '(']).unwrap_or(description.len());
    let clause = description[..clause].trim_end();
    let end = clause.floor_char_boundary(LONGEST);
    match clause[..end].rfind(' ') {
        Some(word) if end < clause.len() => &clause[..word],
        _ => &clause[..end],
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_schema_lists_the_configured_languages_and_all_arguments() {
        let config = Config::parse("{}", None, Path::new("")).unwrap();
        let tool = execute_code(&config, &Snippets::new(&config));
        let schema = Value::Object((*tool.input_schema).clone());
        assert_eq!(schema["type"], "object");
        assert_eq!(schema["properties"]["language"]["enum"], json!(["go", "javascript", "python"]));
        assert!(schema.get("required").is_none(), "either source will do: {}", schema["required"]);
        for name in [
            "language",
            "entrypoint_code",
            "entrypoint_filename",
            "additional_files",
            "snippet_name",
            "output_files",
            "args",
            "stdin",
            "env",
            "timeout",
            "memory_mb",
            "cpus",
        ] {
            let argument = &schema["properties"][name];
            assert!(argument["type"].is_string(), "{name} needs one plain type: {argument}");
            assert!(argument["description"].is_string(), "{name} has no description");
        }
    }

    #[test]
    fn the_schema_lists_the_snippets_if_there_are_any() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::parse("{}", None, folder.path()).unwrap();
        let snippet_name = || {
            let schema = input_schema(&config, &Snippets::new(&config));
            schema["properties"]["snippet_name"]["description"].as_str().unwrap().to_owned()
        };
        assert!(!snippet_name().contains('\n'));
        std::fs::create_dir(folder.path().join("prompts")).unwrap();
        for name in ["b.py", "a.js"] {
            std::fs::write(folder.path().join("prompts").join(name), "").unwrap();
        }
        assert!(snippet_name().ends_with("\n- a: \n- b: "));
    }

    #[test]
    fn a_snippet_costs_the_list_of_tools_a_few_words() {
        assert_eq!(gist("Summarise a CSV file: columns, types"), "Summarise a CSV file");
        assert_eq!(gist("Do it (slowly)."), "Do it");
        assert_eq!(gist(&"word ".repeat(100)), "word ".repeat(12).trim_end());
        assert_eq!(gist(&"ü".repeat(100)), "ü".repeat(30));
        assert_eq!(gist(""), "");
    }

    #[test]
    fn descriptions_fit_every_host() {
        let config = Config::parse("{}", None, Path::new("")).unwrap();
        assert!(description(&config).len() < 2000);
    }
}
