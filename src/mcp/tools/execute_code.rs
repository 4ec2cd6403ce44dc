//! The tool `execute_code`: its schemas, and its description for the model.

use std::collections::BTreeSet;

use rmcp::model::Tool;
use serde_json::{Value, json};

use crate::calls::ToolName;
use crate::config::Config;
use crate::duration;
use crate::request::arguments::Arguments;
use crate::request::snippets::{SnippetSummary, Snippets};
use crate::result::report::Report;

use super::{
    answer_schema, describe_packages, offer_packages, plain_schema, read_only,
    tell_usual_resources, tool,
};

/// The tool's definition. It is built again for each listing, because snippets change.
pub(super) fn execute_code(config: &Config, snippets: &Snippets) -> Tool {
    let schemas = [input_schema(config, snippets), answer_schema::<Report>()];
    tool(ToolName::ExecuteCode, "Execute code", description(config), schemas, read_only())
}

fn description(config: &Config) -> String {
    let mut text = String::from(
        "Runs a program in a new, empty sandbox without network and returns its standard output, \
         standard error and exit status. Print results. Files that it creates in its working directory are \
         listed; pictures come back as images, and files that match output_files come back, too. All \
         else is gone after the call, unless it runs in a session. ",
    );
    let (on_demand, has_sets) = (config.packages.on_demand(), config.packages.is_used());
    text.push_str(match (on_demand, has_sets) {
        (Some(_), _) => {
            "packages brings more to import, and so do pip install and npm install while it runs."
        }
        (None, true) => {
            "packages brings more to import, and pip and npm install what its sets have; nothing else can be installed."
        }
        (None, false) => "Nothing can be installed.",
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

fn input_schema(config: &Config, snippets: &Snippets) -> Value {
    let mut schema = plain_schema::<Arguments>();
    let properties = &mut schema["properties"];
    properties["language"]["enum"] = config.languages.keys().cloned().collect::<Value>();
    // The names are no enum: some interfaces make the model fill in every field, and it has to be able to name none.
    properties["snippet_name"]["description"] = Value::String(describe_snippets(&snippets.list()));
    let files: BTreeSet<_> = config.languages.values().map(|it| &*it.default_file).collect();
    let files = files.into_iter().collect::<Vec<_>>().join(", ");
    properties["entrypoint_filename"]["description"] =
        Value::String(format!("File name of the program, if not {files}."));
    properties["packages"]["description"] = Value::String(describe_packages(config));
    properties["memory_mb"]["maximum"] = json!(config.limits.max_memory.as_mib());
    properties["cpus"]["maximum"] = json!(config.limits.max_cpu.as_cores());
    tell_usual_resources(properties, config.languages.values().map(|it| &**it));
    offer_packages(&mut schema, config, None);
    schema
}

/// The stored programs: each with its arguments and what its first line says, or less if these are many. Every conversation pays for
/// the list of tools; the resource of a snippet has all of it.
fn describe_snippets(all: &[SnippetSummary]) -> String {
    const MOST: usize = 2000;
    let whole = |it: &SnippetSummary| {
        let usage = it.usage.as_deref().unwrap_or(&it.name);
        format!("{usage}: {}", it.description)
    };
    let gists = |it: &SnippetSummary| format!("{}: {}", it.name, gist(&it.description));
    let names = |it: &SnippetSummary| it.name.clone();
    let forms: [&dyn Fn(&SnippetSummary) -> String; 3] = [&whole, &gists, &names];
    let text = |form: &dyn Fn(&SnippetSummary) -> String| {
        let lines = all.iter().map(|it| format!("\n- {}", form(it)));
        let text = "Name of a stored program to run instead of entrypoint_code; pass its arguments in args.";
        text.to_owned() + &lines.collect::<String>()
    };
    let fitting = forms.iter().map(|form| text(form)).find(|text| text.len() <= MOST);
    fitting.unwrap_or_else(|| text(&names))
}

/// The beginning of a description.
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
        let memory = schema["properties"]["memory_mb"]["description"].as_str().unwrap();
        assert!(memory.ends_with("0: 256 for javascript and python, 512 for go."), "{memory}");
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
    fn shipped_snippets_are_described_with_arguments_in_whole_sentences() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let config = Config::parse("{}", None, root).unwrap();
        let all = Snippets::new(&config).list();
        let text = describe_snippets(&all);
        assert!(all.len() > 10 && text.len() < 2000, "{}", text.len());
        for SnippetSummary { name, description, usage, .. } in all {
            let usage = usage.unwrap_or_else(|| panic!("{name} does not say how it is called"));
            assert!(usage.starts_with(&format!("{name} ")), "{usage}");
            assert!(description.ends_with('.'), "{description}");
            assert!(text.contains(&format!("\n- {usage}: {description}")), "{text}");
        }
    }

    #[test]
    fn many_snippets_are_described_in_fewer_words() {
        let listed = |name: String| SnippetSummary {
            language: "python".to_owned(),
            file_name: format!("{name}.py"),
            description: "Does it: slowly, with care and in many words.".to_owned(),
            usage: Some(format!("{name} [FILE]")),
            name,
        };
        let described = |count: usize| {
            describe_snippets(&(0..count).map(|at| listed(format!("s{at}"))).collect::<Vec<_>>())
        };
        assert!(
            described(9).ends_with("\n- s8 [FILE]: Does it: slowly, with care and in many words.")
        );
        assert!(described(100).ends_with("\n- s99: Does it"));
        assert!(described(500).ends_with("\n- s499"));
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
