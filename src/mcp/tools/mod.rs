//! The tools as hosts see them: names, schemas, and descriptions for the model.

mod check_syntax;
mod execute_code;
mod get_result;
mod sessions;
mod test_code;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use isolator_pool::quote::first_of;
use rmcp::model::{Tool, ToolAnnotations, object};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::calls::ToolName;
use crate::config::{Config, Language};
use crate::mcp::icon::icons;
use crate::node::HANDLE_ARGUMENTS;
use crate::request::snippets::Snippets;

pub(crate) use test_code::Tested;

/// Instructions for the model, sent once. Hosts cut them at 2 KB.
pub(crate) fn instructions(config: &Config) -> String {
    let kept = if config.sessions.max > 0 {
        "for work in several steps, open_session gives you one in which files, and in most languages variables, live on. \
         Without it nothing is kept between calls, so"
    } else {
        "nothing is kept between calls, so"
    };
    format!(
        "Runs programs in {} and returns what they print. Use it to compute, to analyse data and \
         to try code instead of guessing. Every call runs in a new sandbox without network; \
         {kept} send everything that a program needs with the call, \
         and print everything that you want to know. Pictures come back as images.",
        config.languages.keys().cloned().collect::<Vec<_>>().join(", ")
    )
}

/// The tools of a configuration, always in the same order. Each listing builds them again, because snippets change.
pub(crate) fn all(config: &Config, snippets: &Snippets) -> Vec<Tool> {
    let listed = ToolName::ALL.into_iter().filter(|tool| tool.is_listed(config));
    let tools = listed.filter_map(|tool| match (tool, &config.test_code) {
        (ToolName::ExecuteCode, _) => Some(execute_code::execute_code(config, snippets)),
        (ToolName::CheckSyntax, _) => Some(check_syntax::check_syntax(config)),
        (ToolName::GetResult, _) => Some(get_result::get_result(config)),
        (ToolName::OpenSession, _) => Some(sessions::open_session(config)),
        (ToolName::RunCommand, _) => Some(sessions::run_command()),
        (ToolName::RewindSession, _) => Some(sessions::rewind_session()),
        (ToolName::InterruptSession, _) => Some(sessions::interrupt_session()),
        (ToolName::CloseSession, _) => Some(sessions::close_session()),
        (ToolName::TestCode, Some(language)) => Some(test_code::test_code(config, language)),
        (ToolName::TestCode, None) => None,
    });
    let is_node = config.node.node().name().is_some();
    tools
        .map(|mut tool| {
            if is_node {
                repeat_handles_in_headers(&mut tool);
            }
            tool.with_icons(icons())
        })
        .collect()
}

/// Marks the arguments that are handles: clients repeat them in headers, by which a balancer finds the node. A server that is alone
/// does without, because its clients must have listed the tools before they call one with such an argument.
fn repeat_handles_in_headers(tool: &mut Tool) {
    let schema = Arc::make_mut(&mut tool.input_schema);
    let Some(arguments) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for (name, header) in HANDLE_ARGUMENTS {
        if let Some(argument) = arguments.get_mut(name) {
            argument["x-mcp-header"] = json!(header);
        }
    }
}

/// Fills in the argument `packages`, or takes it away where there are none: every conversation pays for the schemas. The
/// names are an enum where nothing else can be asked for. `only` is the one language of the tool's programs, if there is one.
fn offer_packages(schema: &mut Value, config: &Config, only: Option<&str>) {
    let Some(properties) = schema["properties"].as_object_mut() else { return };
    let sets = config.packages.sets.values();
    let sets: Vec<_> = sets.filter(|set| only.is_none_or(|only| set.language == only)).collect();
    let on_demand = config.packages.on_demand().is_some();
    if sets.is_empty() && !on_demand {
        properties.remove("packages");
    } else if let Some(packages) = properties.get_mut("packages")
        && !on_demand
    {
        let names: Value = sets.iter().map(|set| set.name.clone()).collect();
        packages["items"]["enum"] = names;
    }
}

/// Describes the argument `packages` for the model.
fn describe_packages(config: &Config) -> String {
    let mut of_languages: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for set in config.packages.sets.values() {
        of_languages.entry(&set.language).or_default().push(&set.name);
    }
    let mut text = match config.packages.on_demand() {
        None => "Sets of packages that the program can import from.".to_owned(),
        Some(_) => "Packages that the program can import from in addition to the image's, such as \"humanize==4.*\" or \
                    \"lodash@4\"; also names of sets."
            .to_owned(),
    };
    if let Some(on_demand) = config.packages.on_demand() {
        let patterns: Vec<_> = on_demand.allow.iter().map(String::as_str).collect();
        if !patterns.contains(&"*") {
            text.push_str(&format!(" Only: {}.", list(&patterns)));
        }
    }
    for (language, sets) in of_languages {
        text.push_str(&format!("\n- {language}: {}", list(&sets)));
    }
    text
}

/// The first of these names. Every conversation pays for the list of tools; `isolator://languages` has all.
fn list(names: &[&str]) -> String {
    const MOST: usize = 20;
    first_of(names.iter().map(|&name| name.to_owned()), MOST)
}

/// Says what 0 stands for in the arguments for memory and cores: the language's own.
fn tell_usual_resources<'l>(
    properties: &mut Value,
    languages: impl Iterator<Item = &'l Language> + Clone,
) {
    let usual = |of: &dyn Fn(&Language) -> String| {
        let mut by_value: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for language in languages.clone() {
            by_value.entry(of(language)).or_default().push(&language.name);
        }
        match by_value.len() {
            1 => by_value.into_keys().collect(),
            _ => {
                let each = by_value
                    .into_iter()
                    .map(|(value, names)| format!("{value} for {}", names.join(" and ")));
                each.collect::<Vec<_>>().join(", ")
            }
        }
    };
    let memory = usual(&|language| language.sandbox.resources.memory.as_mib().to_string());
    let cores = usual(&|language| language.sandbox.resources.cpu.as_cores().to_string());
    for (names, value) in [(&["memory_mb", "memory_limit_mb"][..], memory), (&["cpus"], cores)] {
        for name in names {
            if let Some(Value::String(text)) =
                properties.get_mut(name).map(|it| &mut it["description"])
            {
                text.push_str(&format!(" 0: {value}."));
            }
        }
    }
}

/// Keywords of schemas. Hosts and the interfaces of models refuse or warn of much of the rest.
const KEYWORDS: [&str; 8] =
    ["description", "enum", "items", "maximum", "minimum", "properties", "required", "type"];

/// The schema of a type, in the words that every host and every model takes. Its own name and description are for
/// readers of the code.
///
/// Every conversation pays for it, so it only names what is in the objects of lists: the description of a list says what a model has
/// to know of them.
fn plain_schema<T: JsonSchema>() -> Value {
    schema_of::<T>(SchemaSettings::draft2020_12())
}

fn schema_of<T: JsonSchema>(settings: SchemaSettings) -> Value {
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema);
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("description");
    }
    for items in properties(&mut schema).filter_map(|(_, property)| property.get_mut("items")) {
        properties(items).for_each(|(_, part)| retain(part, &["enum", "items", "type"]));
        retain(items, &["properties", "required", "type"]);
    }
    schema
}

/// Fields of answers whose names say it all.
const PLAIN: [&str; 13] = [
    "cell",
    "cpu_ms",
    "error",
    "exit_code",
    "line",
    "message",
    "notes",
    "peak_memory_bytes",
    "stderr",
    "stderr_missing_bytes",
    "stdout",
    "stdout_missing_bytes",
    "valid",
];

/// The schema of answers, without what no host has to know: which numbers there can be, and what is not always in the objects of
/// lists.
fn answer_schema<T: JsonSchema>() -> Value {
    let mut schema = schema_of::<T>(SchemaSettings::draft2020_12().for_serialize());
    for (name, property) in properties(&mut schema) {
        let is_plain = PLAIN.contains(&name.as_str());
        retain(
            property,
            if is_plain { &["items", "type"] } else { &["description", "enum", "items", "type"] },
        );
        let Some(items) = property.get_mut("items").and_then(Value::as_object_mut) else {
            continue;
        };
        let always = items.remove("required").unwrap_or_default();
        let always: Vec<_> =
            always.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if let Some(parts) = items.get_mut("properties").and_then(Value::as_object_mut) {
            parts.retain(|part, _| always.contains(&part.as_str()));
        }
    }
    schema
}

fn properties(schema: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten()
}

fn retain(schema: &mut Value, keywords: &[&str]) {
    if let Some(schema) = schema.as_object_mut() {
        schema.retain(|keyword, _| keywords.contains(&keyword.as_str()));
    }
}

/// The schema of answers with these fields besides those that `execute_code` describes.
fn like_execute_code(more: Value) -> Value {
    let mut schema = json!({ "type": "object", "properties": {
        "status": { "type": "string", "description": "This and all else as of execute_code." },
    }});
    if let (Some(all), Value::Object(more)) = (schema["properties"].as_object_mut(), more) {
        all.extend(more);
    }
    schema
}

fn simplify(schema: &mut Value) {
    retain(schema, &KEYWORDS);
    if let Some(schema) = schema.as_object_mut() {
        // A smaller number is refused with a message.
        schema.retain(|keyword, value| keyword != "minimum" || value.as_f64() != Some(0.0));
    }
    // Optional fields are left out, and never null.
    if let Some(kind) = schema.get_mut("type")
        && let Some(kinds) = kind.as_array_mut()
    {
        kinds.retain(|kind| kind != "null");
        *kind = kinds.pop().unwrap_or_default();
    }
    properties(schema).for_each(|(_, property)| simplify(property));
    schema.get_mut("items").into_iter().for_each(simplify);
}

/// Admits answers to invalid arguments, which have nothing of what a tool's other answers have: a status, the field and a message.
fn admit_invalid_arguments(schema: &mut Value) {
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("required");
    }
}

/// A tool without its icons.
fn tool(
    name: ToolName,
    title: &'static str,
    description: impl Into<Cow<'static, str>>,
    [input, output]: [Value; 2],
    annotations: ToolAnnotations,
) -> Tool {
    Tool::new(name.as_str(), description, object(input))
        .with_title(title)
        .with_raw_output_schema(Arc::new(object(output)))
        .with_annotations(annotations)
}

/// The hints of a tool that changes nothing that lives on: a program leaves its sandbox alone with what it has done.
fn read_only() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).destructive(false).open_world(false)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn tools(text: &str) -> Vec<Tool> {
        let config = Config::parse(text, None, Path::new("")).unwrap();
        assert!(instructions(&config).len() < 2000);
        all(&config, &Snippets::new(&config))
    }

    const ALL: &str = r#"{"tools": {"testCode": {"enabled": true}},
        "policies": {"apply": {"python": ["strict"]}}}"#;

    #[test]
    fn tools_are_there_only_where_they_are_of_use() {
        let names = |text: &str| {
            tools(text).iter().filter_map(|tool| ToolName::named(&tool.name)).collect::<Vec<_>>()
        };
        let of_sessions = [
            ToolName::OpenSession,
            ToolName::RunCommand,
            ToolName::RewindSession,
            ToolName::InterruptSession,
            ToolName::CloseSession,
        ];
        let usual = [
            &[ToolName::ExecuteCode, ToolName::CheckSyntax, ToolName::GetResult][..],
            &of_sessions,
        ]
        .concat();
        assert_eq!(names("{}"), usual);
        assert_eq!(names(ALL), [&usual[..], &[ToolName::TestCode]].concat());
        let never = r#"{"results": {"detachAfter": "1h"}, "sessions": {"max": 0}}"#;
        assert_eq!(names(never), [ToolName::ExecuteCode, ToolName::CheckSyntax]);
    }

    #[test]
    fn the_definitions_of_all_tools_take_little_of_a_conversation() {
        // A token of a model is about four bytes of them.
        const MOST: usize = 13_000;
        let mut usual = tools("{}");
        // They are for people.
        usual.iter_mut().for_each(|tool| tool.icons = None);
        let all = serde_json::to_string(&usual).unwrap();
        assert!(all.len() < MOST, "{} bytes", all.len());
    }

    #[test]
    fn a_node_has_handles_repeated_in_headers_and_a_server_alone_does_not() {
        let marked = |text: &str| {
            let mut found = Vec::new();
            for tool in tools(text) {
                let schema = Value::Object((*tool.input_schema).clone());
                for (name, argument) in schema["properties"].as_object().unwrap() {
                    let header = argument.get("x-mcp-header").and_then(Value::as_str);
                    found.extend(header.map(|header| format!("{} {name} {header}", tool.name)));
                }
            }
            found
        };
        assert_eq!(marked("{}"), [""; 0]);
        let expected = [
            "execute_code session Session",
            "get_result handle Handle",
            "open_session replay Session",
            "run_command session Session",
            "rewind_session session Session",
            "interrupt_session session Session",
            "close_session session Session",
        ];
        assert_eq!(marked(r#"{"node": {"name": "n1"}}"#), expected);
    }

    #[test]
    fn packages_are_offered_only_where_there_are_some() {
        let packages = |text: &str, tool: ToolName| {
            let tool = tools(text).into_iter().find(|it| it.name == tool.as_str()).unwrap();
            let schema = Value::Object((*tool.input_schema).clone());
            schema["properties"].get("packages").cloned()
        };
        const SETS: &str = r#"{"tools": {"testCode": {"enabled": true}}, "packages": {"sets": {
            "text": {"language": "python", "requirements": ["a"]},
            "dates": {"language": "javascript", "requirements": ["b"]}}}}"#;
        for tool in [
            ToolName::ExecuteCode,
            ToolName::CheckSyntax,
            ToolName::OpenSession,
            ToolName::TestCode,
        ] {
            assert_eq!(packages(ALL, tool), None, "{tool:?}");
            let names = packages(SETS, tool).unwrap()["items"]["enum"].clone();
            let only = [&["text"][..], &["dates", "text"]][usize::from(tool != ToolName::TestCode)];
            assert_eq!(names, json!(only), "{tool:?}");
        }
        let on_demand = r#"{"packages": {"onDemand": {"enabled": true, "allow": ["a", "b-*"]}, "sets": {
            "text": {"language": "python", "requirements": ["a"]}}}}"#;
        let offered = packages(on_demand, ToolName::ExecuteCode).unwrap();
        assert!(offered["items"].get("enum").is_none(), "{offered}");
        let description = offered["description"].as_str().unwrap();
        assert!(
            description.contains("Only: a, b-*.") && description.contains("python: text"),
            "{description}"
        );
    }

    #[test]
    fn every_tool_is_described_in_schemas_that_every_host_takes() {
        for tool in tools(ALL) {
            let description = tool.description.as_deref().unwrap_or_default();
            assert!((1..2000).contains(&description.len()), "{}", tool.name);
            let schemas = [Some(&tool.input_schema), tool.output_schema.as_ref()];
            for (schema, is_input) in schemas.into_iter().zip([true, false]) {
                let schema = Value::Object((**schema.unwrap()).clone());
                assert_eq!(schema["type"], "object", "{}", tool.name);
                for (name, field) in schema["properties"].as_object().unwrap() {
                    let is_plain = !is_input && PLAIN.contains(&name.as_str());
                    let name = format!("{}: {name}", tool.name);
                    assert!(field["type"].is_string(), "{name} needs one plain type: {field}");
                    let has_description = field["description"].is_string();
                    assert_eq!(has_description, !is_plain, "the description of {name}");
                }
            }
        }
    }
}
