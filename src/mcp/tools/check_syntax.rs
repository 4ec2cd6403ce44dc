//! The tool `check_syntax`.

use rmcp::model::Tool;
use serde_json::{Value, json};

use super::{
    admit_invalid_arguments, answer_schema, offer_packages, plain_schema, read_only, tool,
};
use crate::calls::ToolName;
use crate::config::Config;
use crate::request::arguments::CheckSyntax;
use crate::request::syntax::Syntax;

const DESCRIPTION: &str = "Says whether a program is valid in its language, without running it, or where its \
    first error is. Names and types are not checked; run the program for those.";

/// The tool's definition.
pub(super) fn check_syntax(config: &Config) -> Tool {
    let mut input = plain_schema::<CheckSyntax>();
    let mut output = answer_schema::<Syntax>();
    admit_invalid_arguments(&mut output);
    let languages = config.languages.values().filter(|language| language.syntax.is_some());
    let names: Value = languages.map(|language| language.name.clone()).collect();
    input["properties"]["language"]["enum"] = names;
    offer_packages(&mut input, config, None);
    input["required"] = json!(["language", "code"]);
    let annotations = read_only().idempotent(true);
    tool(ToolName::CheckSyntax, "Check syntax", DESCRIPTION, [input, output], annotations)
}
