//! The tools as hosts see them: names, schemas, and descriptions for the model.

mod check_syntax;
mod execute_code;
mod get_result;
mod test_code;

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool};
use schemars::JsonSchema;
use serde_json::{Value, json};

use crate::config::Config;
use crate::mcp::icon::icons;
use crate::request::snippets::Snippets;
use crate::result::report::ReportStatus;

pub(crate) use check_syntax::CHECK_SYNTAX;
pub(crate) use execute_code::EXECUTE_CODE;
pub(crate) use get_result::GET_RESULT;
pub(crate) use test_code::{TEST_CODE, Tested};

/// Instructions for the model, sent once. Hosts cut them at 2 KB.
pub(crate) fn instructions(config: &Config) -> String {
    format!(
        "Runs programs in {} and returns what they print. Use it to compute, to analyse data and \
         to try code instead of guessing. Every call runs in a new sandbox without network; \
         nothing is kept between calls, so send everything that a program needs with the call, \
         and print everything that you want to know. Pictures come back as images.",
        config.languages.keys().cloned().collect::<Vec<_>>().join(", ")
    )
}

/// The tools of a configuration, always in the same order. Each listing builds them again, because snippets change.
pub(crate) fn all(config: &Config, snippets: &Snippets) -> Vec<Tool> {
    let mut tools =
        vec![execute_code::execute_code(config, snippets), check_syntax::check_syntax(config)];
    if config.detaches() {
        tools.push(get_result::get_result(config));
    }
    if let Some(language) = &config.test_code {
        tools.push(test_code::test_code(config, language));
    }
    tools.into_iter().map(|tool| tool.with_icons(icons())).collect()
}

/// What a schema is made of. Hosts and the interfaces of models refuse or warn of much of the rest.
const KEYWORDS: [&str; 8] =
    ["description", "enum", "items", "maximum", "minimum", "properties", "required", "type"];

/// The schema of a type, in the words that every host and every model takes. Its own name and description are for
/// readers of the code.
fn plain_schema<T: JsonSchema>() -> Value {
    let mut schema = schemars::schema_for!(T).to_value();
    simplify(&mut schema);
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("description");
    }
    schema
}

fn simplify(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    schema.retain(|keyword, _| KEYWORDS.contains(&keyword.as_str()));
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flatten().for_each(|(_, property)| simplify(property));
    schema.get_mut("items").into_iter().for_each(simplify);
}

/// Adds what an answer to invalid arguments has to the schema of a tool's answers. It has nothing else of them.
fn admit_invalid_arguments(schema: &mut Value) {
    let text = |description: &str| json!({ "type": "string", "description": description });
    let mut status = text("Only there if an argument can't be used.");
    status["enum"] = json!([ReportStatus::InvalidArguments]);
    schema["properties"]["status"] = status;
    schema["properties"]["field"] = text("The argument that can't be used.");
    schema["properties"]["message"] = text("What is wrong with it, and what would be right.");
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("required");
    }
}

fn object(schema: Value) -> Arc<JsonObject> {
    match schema {
        Value::Object(object) => Arc::new(object),
        _ => Arc::default(),
    }
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
    fn test_code_is_there_only_where_it_was_asked_for() {
        let names =
            |text: &str| tools(text).iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
        assert_eq!(names("{}"), [EXECUTE_CODE, CHECK_SYNTAX, GET_RESULT]);
        assert_eq!(names(ALL), [EXECUTE_CODE, CHECK_SYNTAX, GET_RESULT, TEST_CODE]);
        let never = r#"{"results": {"detachAfter": "1h"}}"#;
        assert_eq!(names(never), [EXECUTE_CODE, CHECK_SYNTAX]);
    }

    #[test]
    fn every_tool_is_described_in_schemas_that_every_host_takes() {
        for tool in tools(ALL) {
            let description = tool.description.as_deref().unwrap_or_default();
            assert!((1..2000).contains(&description.len()), "{}", tool.name);
            let schemas = [Some(&tool.input_schema), tool.output_schema.as_ref()];
            for schema in schemas.map(|schema| Value::Object((**schema.unwrap()).clone())) {
                assert_eq!(schema["type"], "object", "{}", tool.name);
                for (name, field) in schema["properties"].as_object().unwrap() {
                    let name = format!("{}: {name}", tool.name);
                    assert!(field["type"].is_string(), "{name} needs one plain type: {field}");
                    assert!(field["description"].is_string(), "{name} has no description");
                }
            }
        }
    }
}
