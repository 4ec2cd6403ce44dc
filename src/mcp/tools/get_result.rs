//! The tool `get_result`.

use rmcp::model::Tool;
use serde_json::json;

use super::{like_execute_code, plain_schema, read_only, tool};
use crate::calls::ToolName;
use crate::config::Config;
use crate::duration;
use crate::request::arguments::GetResult;

/// The tool's definition.
pub(super) fn get_result(config: &Config) -> Tool {
    let wait = duration::shown(config.results.detach_after);
    let keep = duration::shown(config.results.keep_for);
    let description = format!(
        "Returns the result of a program that ran longer than {wait}, by the handle that execute_code or run_command \
         returned. Waits for up to {wait}; if it is still running, call again. A handle is valid for at least {keep} after \
         the program's end."
    );
    let mut input = plain_schema::<GetResult>();
    input["required"] = json!(["handle"]);
    let schemas = [input, like_execute_code(json!({}))];
    let annotations = read_only().idempotent(true);
    tool(ToolName::GetResult, "Get the result of a long run", description, schemas, annotations)
}
