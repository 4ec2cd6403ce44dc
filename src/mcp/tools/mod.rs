//! The tools as hosts see them: names, schemas, and descriptions for the model.

mod check_syntax;
mod execute_code;
mod get_result;
mod sessions;
mod test_code;

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool};
use schemars::JsonSchema;
use serde_json::{Value, json};

use crate::config::Config;
use crate::mcp::icon::icons;
use crate::request::snippets::Snippets;

pub(crate) use check_syntax::CHECK_SYNTAX;
pub(crate) use execute_code::EXECUTE_CODE;
pub(crate) use get_result::GET_RESULT;
pub(crate) use sessions::{
    CLOSE_SESSION, INTERRUPT_SESSION, OPEN_SESSION, REWIND_SESSION, RUN_COMMAND,
};
pub(crate) use test_code::{TEST_CODE, Tested};

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
    let mut tools =
        vec![execute_code::execute_code(config, snippets), check_syntax::check_syntax(config)];
    if config.detaches() {
        tools.push(get_result::get_result(config));
    }
    if config.sessions.max > 0 {
        tools.extend(sessions::all(config));
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

/// The schema of answers. Every conversation pays for it, so it only names what is in the objects of lists.
fn answer_schema<T: JsonSchema>() -> Value {
    let mut schema = plain_schema::<T>();
    let properties = schema["properties"].as_object_mut();
    for property in properties.into_iter().flatten().map(|(_, property)| property) {
        if let Some(property) = property.as_object_mut() {
            property.remove("minimum");
        }
        let parts = property.get_mut("items").and_then(|items| items.get_mut("properties"));
        for part in parts.and_then(Value::as_object_mut).into_iter().flatten().map(|(_, part)| part)
        {
            if let Some(part) = part.as_object_mut() {
                part.retain(|keyword, _| ["items", "type"].contains(&keyword.as_str()));
            }
        }
        if let Some(items) = property.get_mut("items").and_then(Value::as_object_mut) {
            items.remove("description");
        }
    }
    schema
}

/// What a schema of answers has besides what `execute_code` describes.
fn like_execute_code(more: Value) -> Value {
    let mut schema = json!({ "type": "object", "properties": {
        "status": { "type": "string", "description": "This and all else as of execute_code." },
        "stdout": { "type": "string", "description": "Standard output." },
        "stderr": { "type": "string", "description": "Standard error." },
    }});
    if let (Some(all), Value::Object(more)) = (schema["properties"].as_object_mut(), more) {
        all.extend(more);
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

/// Admits answers to invalid arguments, which have nothing of what a tool's other answers have: a status, the field and a message.
fn admit_invalid_arguments(schema: &mut Value) {
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
    fn tools_are_there_only_where_they_are_of_use() {
        let names =
            |text: &str| tools(text).iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
        let of_sessions =
            [OPEN_SESSION, RUN_COMMAND, REWIND_SESSION, INTERRUPT_SESSION, CLOSE_SESSION];
        let usual = [&[EXECUTE_CODE, CHECK_SYNTAX, GET_RESULT][..], &of_sessions].concat();
        assert_eq!(names("{}"), usual);
        assert_eq!(names(ALL), [&usual[..], &[TEST_CODE]].concat());
        let never = r#"{"results": {"detachAfter": "1h"}, "sessions": {"max": 0}}"#;
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
