//! The tool `test_code`, and its answers.

use isolator_pool::engine::limits::LimitKind;
use isolator_pool::run::outcome::Outcome;
use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    admit_invalid_arguments, answer_schema, offer_packages, plain_schema, read_only,
    tell_usual_resources, tool,
};
use crate::calls::ToolName;
use crate::config::{Config, Language};
use crate::policy::{Findings, Violation};
use crate::request::arguments::TestCode;
use crate::request::syntax::Syntax;
use crate::result::explain;
use crate::result::units::text;

/// How far a program came. Callers rely on each form, including which fields it lacks.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Tested {
    /// It is not valid.
    Invalid {
        /// Always false.
        valid: bool,
        /// Always "syntax_check".
        phase: &'static str,
        /// The error.
        error: String,
        /// The line, from 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        line: Option<u64>,
        /// The place in the line, from 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        offset: Option<u64>,
        /// The line's text.
        #[serde(skip_serializing_if = "Option::is_none")]
        context: Option<String>,
        /// Remarks on the call.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        notes: Vec<String>,
    },
    /// A policy forbids it.
    Forbidden {
        /// Always false.
        valid: bool,
        /// Always "security_check".
        phase: &'static str,
        /// The first violations.
        violations: Vec<Violation>,
        /// Remarks on the call.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        notes: Vec<String>,
    },
    /// It ran.
    Executed {
        /// Standard output.
        stdout: String,
        /// Standard error.
        stderr: String,
        /// How it ended, as shells have it.
        exit_code: i32,
        /// Always "execution".
        phase: &'static str,
        /// Remarks on the call, and the limits that the engine could not enforce.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        notes: Vec<String>,
    },
}

/// All forms in one, for the schema: hosts want a plain object.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct AnyTested {
    /// How far the program came.
    phase: Phase,
    /// false if it was not run.
    valid: bool,
    /// The syntax error.
    error: String,
    /// The line of the error, from 1.
    line: u64,
    /// The offset in the line, from 1.
    offset: u64,
    /// The line's text, without the space around it.
    context: String,
    /// The first 20 violations of the operator's rules.
    violations: Vec<Violation>,
    /// Its standard output.
    stdout: String,
    /// Its standard error.
    stderr: String,
    /// Its exit code; 124 after a timeout, 128 plus the number of a signal that ended it.
    exit_code: i32,
    /// Other remarks about the run.
    notes: Vec<String>,
}

/// The names of the phases, for the schema.
#[derive(JsonSchema)]
#[schemars(inline, rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
enum Phase {
    SyntaxCheck,
    SecurityCheck,
    Execution,
}

impl Tested {
    /// The answer to a program that is not valid.
    pub(crate) fn invalid(syntax: Syntax, notes: Vec<String>) -> Self {
        let Syntax { valid, error, line, offset, context, .. } = syntax;
        let error = error.unwrap_or_default();
        Self::Invalid { valid, phase: "syntax_check", error, line, offset, context, notes }
    }

    /// The answer to a program that a policy forbids.
    pub(crate) fn forbidden(found: Findings, notes: Vec<String>) -> Self {
        Self::Forbidden { valid: false, phase: "security_check", violations: found.listed, notes }
    }

    /// The answer to a program that ran.
    pub(crate) fn executed(
        outcome: &Outcome,
        unenforced: &[LimitKind],
        mut notes: Vec<String>,
    ) -> Self {
        notes.extend(explain::without_limits(unenforced));
        Self::Executed {
            stdout: text(&outcome.stdout.to_bytes()),
            stderr: text(&outcome.stderr.to_bytes()),
            exit_code: outcome.shell_code(),
            phase: "execution",
            notes,
        }
    }
}

/// The tool's definition.
pub(super) fn test_code(config: &Config, language: &Language) -> Tool {
    let mut input = plain_schema::<TestCode>();
    let properties = &mut input["properties"];
    let seconds = config.limits.max_timeout.as_secs_f64();
    properties["timeout"]["maximum"] = json!(seconds);
    properties["cpu_limit_sec"]["maximum"] = json!(seconds.ceil() as u64);
    properties["memory_limit_mb"]["maximum"] = json!(config.limits.max_memory.as_mib());
    if let Some(Value::String(text)) = properties["timeout"].get_mut("description") {
        text.push_str(&format!(" 0: {}.", config.limits.default_timeout.as_secs_f64()));
    }
    tell_usual_resources(properties, std::iter::once(language));
    offer_packages(&mut input, config, Some(&language.name));
    input["required"] = json!(["code"]);
    let mut output = answer_schema::<AnyTested>();
    admit_invalid_arguments(&mut output);
    let description = format!(
        "Tests a {} program: checks its syntax, then looks for what the operator forbids, \
         then runs it in a new, empty sandbox without network. phase says how far it came: \
         syntax_check (error, line, offset, context), security_check (violations), or execution \
         (stdout, stderr, exit_code; 124 after a timeout).",
        language.name
    );
    tool(ToolName::TestCode, "Test code", description, [input, output], read_only())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_as_promised_to_the_byte() {
        let syntax = Syntax {
            valid: false,
            error: Some("'(' was never closed".to_owned()),
            line: Some(1),
            offset: Some(6),
            context: Some("print(".to_owned()),
            notes: Vec::new(),
        };
        let json = |tested: Tested| serde_json::to_string(&tested).unwrap();
        assert_eq!(
            json(Tested::invalid(syntax, Vec::new())),
            r#"{"valid":false,"phase":"syntax_check","error":"'(' was never closed","line":1,"offset":6,"context":"print("}"#
        );
        let violation = Violation {
            file: "main.py".to_owned(),
            rule: "r".to_owned(),
            line: 1,
            column: 2,
            message: "m".to_owned(),
        };
        assert_eq!(
            json(Tested::forbidden(Findings { listed: vec![violation], more: 3 }, Vec::new())),
            r#"{"valid":false,"phase":"security_check","violations":[{"file":"main.py","rule":"r","line":1,"column":2,"message":"m"}]}"#
        );
        let executed = Tested::Executed {
            stdout: "o".to_owned(),
            stderr: "e".to_owned(),
            exit_code: 124,
            phase: "execution",
            notes: Vec::new(),
        };
        assert_eq!(
            json(executed),
            r#"{"stdout":"o","stderr":"e","exit_code":124,"phase":"execution"}"#
        );
    }
}
