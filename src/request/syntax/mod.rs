//! Syntax checks: the request for a sandbox, and how its answer is read.
//!
//! The code is only read inside a sandbox, by the language's own tools. Their answer is not trusted: it is parsed
//! strictly, and anything unexpected is no verdict.

use std::sync::Arc;
use std::time::Duration;

use isolator_pool::OutputLimits;
use isolator_pool::quote::quoted;
use isolator_pool::run::RunRequest;
use isolator_pool::run::outcome::{End, Outcome, Status};
use isolator_pool::run::workspace::WorkspaceBuilder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{Checker, Config, Language, SyntaxCheck, Verdicts, command_line};
use crate::request::arguments::InvalidArgument;
use crate::request::pack;

/// Longest check. Compilers read megabytes in less.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A verdict is a few hundred bytes; a message may repeat a part of the code.
const OUTPUT: OutputLimits = OutputLimits { head: 64 * 1024, tail: 0, kill: 1 << 20 };

/// Longest line of the program that is repeated, in characters.
const MAX_CONTEXT: usize = 1000;

/// Lines and offsets beyond this are nonsense.
const MAX_PLACE: u64 = u32::MAX as u64;

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Syntax {
    /// Whether the program is valid.
    pub valid: bool,
    /// The error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The offset in it, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// The line's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Other remarks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Why there is no verdict.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoVerdict {
    /// The checker did not finish.
    #[error("the checker did not finish ({0}); is the program very large or deeply nested?")]
    Ended(String),
    /// The checker's answer is not as expected.
    #[error("the checker's answer can't be read: {0}")]
    Unreadable(String),
}

/// The output of a checker.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckerAnswer {
    valid: bool,
    error: Option<String>,
    line: Option<u64>,
    offset: Option<u64>,
}

/// A check of a program's syntax, to be run in a sandbox of its language.
#[derive(Debug)]
pub(crate) struct SyntaxJob {
    /// The language, which names the pool.
    pub language: Arc<Language>,
    /// The request to the pool.
    pub run: RunRequest,
    code: String,
}

impl SyntaxJob {
    /// The check of this code.
    ///
    /// # Errors
    ///
    /// When the language has no check, or the code is too large.
    pub(crate) fn new(
        language: &Arc<Language>,
        code: String,
        config: &Config,
    ) -> Result<Self, InvalidArgument> {
        let check = check_of(language)?;
        // Standard input is not among the files, which decide what a program gets.
        let (file, stdin) = match check.checker {
            Checker::Shipped(program) => (program.as_bytes().to_vec(), code.as_bytes().to_vec()),
            Checker::Command(_) => (code.as_bytes().to_vec(), Vec::new()),
        };
        let wrong = |message: String| InvalidArgument::new("code", message);
        if code.len() as u64 > config.limits.files().total {
            let message = format!("is longer than {} bytes", config.limits.files().total);
            return Err(wrong(message));
        }
        let mut limits = config.limits.files();
        limits.total = limits.total.max(file.len() as u64);
        let mut workspace = WorkspaceBuilder::new(limits);
        let name = workspace
            .add(&language.default_file, file)
            .map_err(|error| wrong(error.to_string()))?;
        let workspace = workspace.build();
        let resources = language.sandbox.resources;
        pack::refuse_more_than_memory(&workspace, &stdin, resources.memory)
            .map_err(|error| wrong(error.message))?;
        let names = std::slice::from_ref(&name);
        let argv = match &check.checker {
            Checker::Shipped(_) => language.argv(&name, names, resources.memory),
            Checker::Command(parts) => command_line(parts, &name, names, resources.memory),
        };
        let timeout = TIMEOUT.min(config.limits.max_timeout);
        let run = RunRequest {
            env: language.env.clone(),
            stdin,
            ..RunRequest::new(argv, workspace, timeout, resources, OUTPUT)
        };
        Ok(Self { language: Arc::clone(language), run, code })
    }

    /// The verdict of the checker, going by its output.
    ///
    /// # Errors
    ///
    /// When it did not finish, or its answer is not as expected.
    pub(crate) fn verdict(&self, outcome: &Outcome) -> Result<Syntax, NoVerdict> {
        match &self.language.syntax {
            Some(check) => verdict(check, outcome, &self.code),
            None => Err(NoVerdict::Unreadable("the language has no syntax check".to_owned())),
        }
    }
}

/// The syntax check of a language.
fn check_of(language: &Language) -> Result<&SyntaxCheck, InvalidArgument> {
    language.syntax.as_ref().ok_or_else(|| {
        let name = &language.name;
        let message = format!(
            "{name} has no syntax check: the operator can add one in \
             languageSettings.{name}.syntaxCheck"
        );
        InvalidArgument::new("language", message)
    })
}

/// Reads what a checker printed of `code`.
fn verdict(check: &SyntaxCheck, outcome: &Outcome, code: &str) -> Result<Syntax, NoVerdict> {
    let exit = match (outcome.status, outcome.end) {
        (Status::Success | Status::Error, Some(End::Code(exit))) => exit,
        (status, Some(End::Signal(signal))) => {
            return Err(NoVerdict::Ended(format!("{}, signal {signal}", status.as_str())));
        }
        (status, _) => return Err(NoVerdict::Ended(status.as_str().to_owned())),
    };
    let answer = match &check.verdicts {
        Verdicts::Json => from_json(exit, outcome)?,
        Verdicts::Pattern(pattern) => from_pattern(pattern, exit, outcome)?,
    };
    if answer.valid {
        return Ok(Syntax { valid: true, ..Syntax::default() });
    }
    let line = answer.line.filter(|line| (1..=MAX_PLACE).contains(line));
    Ok(Syntax {
        valid: false,
        error: answer.error,
        line,
        offset: answer.offset.filter(|at| line.is_some() && (1..=MAX_PLACE).contains(at)),
        context: line.and_then(|line| context(code, line)),
        notes: Vec::new(),
    })
}

fn from_json(exit: i32, outcome: &Outcome) -> Result<CheckerAnswer, NoVerdict> {
    let unreadable = |why: &str| {
        let printed = String::from_utf8_lossy(&outcome.stdout.head).into_owned();
        NoVerdict::Unreadable(format!("{why}: {}", quoted(printed.trim())))
    };
    if exit != 0 {
        let printed = String::from_utf8_lossy(&outcome.stderr.head).into_owned();
        let last = printed.lines().last().unwrap_or_default();
        return Err(NoVerdict::Unreadable(format!("exit code {exit}: {}", quoted(last))));
    }
    if outcome.stdout.dropped > 0 {
        return Err(unreadable("it is too long"));
    }
    let answer: CheckerAnswer = serde_json::from_slice(&outcome.stdout.head).map_err(|error| {
        unreadable(&format!("it is not the expected JSON ({})", quoted(&error.to_string())))
    })?;
    let is_whole = match &answer.error {
        Some(error) => !answer.valid && !error.trim().is_empty(),
        None => answer.valid && answer.line.is_none() && answer.offset.is_none(),
    };
    if is_whole { Ok(answer) } else { Err(unreadable("it contradicts itself")) }
}

fn from_pattern(
    pattern: &regex::Regex,
    exit: i32,
    outcome: &Outcome,
) -> Result<CheckerAnswer, NoVerdict> {
    if exit == 0 {
        return Ok(CheckerAnswer { valid: true, error: None, line: None, offset: None });
    }
    for stream in [&outcome.stderr, &outcome.stdout] {
        let printed = String::from_utf8_lossy(&stream.head);
        let Some(found) = pattern.captures(&printed) else { continue };
        let Some(error) = found.name("error").filter(|error| !error.is_empty()) else { continue };
        let number = |name| found.name(name)?.as_str().parse().ok();
        return Ok(CheckerAnswer {
            valid: false,
            error: Some(error.as_str().to_owned()),
            line: number("line"),
            offset: number("offset"),
        });
    }
    let printed = String::from_utf8_lossy(&outcome.stderr.head);
    let message =
        format!("exit code {exit}, and the pattern finds nothing in {}", quoted(&printed));
    Err(NoVerdict::Unreadable(message))
}

/// A line of the code without the space around it. Lines end as they do for most languages.
fn context(code: &str, line: u64) -> Option<String> {
    let index = usize::try_from(line - 1).ok()?;
    let text =
        code.replace("\r\n", "\n").replace('\r', "\n").split('\n').nth(index)?.trim().to_owned();
    Some(match text.char_indices().nth(MAX_CONTEXT) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use isolator_pool::run::outcome::Captured;
    use serde_json::{Value, json};

    use super::*;

    fn outcome(exit: i32, stdout: &str, stderr: &str) -> Outcome {
        let captured = |text: &str| Captured { head: text.into(), ..Captured::default() };
        Outcome {
            end: Some(End::Code(exit)),
            stdout: captured(stdout),
            stderr: captured(stderr),
            ..Outcome::of(if exit == 0 { Status::Success } else { Status::Error })
        }
    }

    fn check(language: &str, outcome: &Outcome, code: &str) -> Result<Value, NoVerdict> {
        let config = Config::parse("{}", None, Path::new("")).unwrap();
        let check = config.languages[language].syntax.as_ref().unwrap();
        verdict(check, outcome, code).map(|syntax| serde_json::to_value(syntax).unwrap())
    }

    fn python(stdout: &str) -> Result<Value, NoVerdict> {
        check("python", &outcome(0, stdout, "ignored"), "a\r\n \tb (\rc")
    }

    #[test]
    fn a_valid_program_has_nothing_else() {
        assert_eq!(python(r#"{"valid":true}"#), Ok(json!({"valid": true})));
        assert_eq!(check("go", &outcome(0, "main.go\n", ""), ""), Ok(json!({"valid": true})));
    }

    #[test]
    fn the_context_is_the_stripped_line() {
        let places = [(1, json!("a")), (2, json!("b (")), (3, json!("c")), (4, Value::Null)];
        for (line, context) in places {
            let said = format!(r#"{{"valid":false,"error":"wrong","line":{line},"offset":4}}"#);
            let mut expected = json!({"valid": false, "error": "wrong", "line": line, "offset": 4});
            if !context.is_null() {
                expected["context"] = context;
            }
            assert_eq!(python(&said), Ok(expected));
        }
    }

    #[test]
    fn a_place_that_is_none_is_left_out() {
        for place in [r#""line":0,"offset":1"#, r#""offset":3"#, r#""line":99999999999"#] {
            let said = format!(r#"{{"valid":false,"error":"x",{place}}}"#);
            assert_eq!(python(&said), Ok(json!({"valid": false, "error": "x"})), "{said}");
        }
    }

    #[test]
    fn an_answer_that_is_not_as_agreed_is_no_verdict() {
        for said in [
            "",
            "valid",
            "[]",
            "{}",
            r#"{"valid":true}{"valid":true}"#,
            r#"{"valid":true} and more"#,
            r#"{"valid":true,"line":1}"#,
            r#"{"valid":true,"error":"x"}"#,
            r#"{"valid":false}"#,
            r#"{"valid":false,"error":" "}"#,
            r#"{"valid":false,"error":5}"#,
            r#"{"valid":false,"error":"x","line":-1}"#,
            r#"{"valid":false,"error":"x","line":1.5}"#,
            r#"{"valid":false,"error":"x","context":"forged"}"#,
            r#"{"valid":"true"}"#,
            "{\"valid\":false,\"error\":\"\\ud800\"}",
        ] {
            assert!(matches!(python(said), Err(NoVerdict::Unreadable(_))), "{said}");
        }
        let mut long = outcome(0, r#"{"valid":true}"#, "");
        long.stdout.dropped = 1;
        assert!(matches!(check("python", &long, ""), Err(NoVerdict::Unreadable(_))));
        let failed = outcome(1, r#"{"valid":true}"#, "MemoryError\n");
        let error = check("python", &failed, "").unwrap_err();
        assert!(error.to_string().contains("MemoryError"), "{error}");
    }

    #[test]
    fn a_checker_that_was_ended_has_no_verdict() {
        for status in [Status::Timeout, Status::OutOfMemory, Status::Killed, Status::OutputLimit] {
            let ended = Outcome { status, end: None, ..outcome(0, r#"{"valid":true}"#, "") };
            assert_eq!(
                check("python", &ended, ""),
                Err(NoVerdict::Ended(status.as_str().to_owned()))
            );
        }
        let signal = Outcome { end: Some(End::Signal(11)), ..outcome(1, r#"{"valid":true}"#, "") };
        assert!(matches!(check("python", &signal, ""), Err(NoVerdict::Ended(_))));
    }

    #[test]
    fn a_pattern_finds_the_first_error_on_either_stream() {
        let said = "main.go:3:7: expected ')', found newline\nmain.go:4:1: expected operand\n";
        let expected = json!({
            "valid": false, "error": "expected ')', found newline", "line": 3, "offset": 7,
            "context": "c"
        });
        assert_eq!(check("go", &outcome(2, "", said), "a\nb\n  c\n"), Ok(expected.clone()));
        assert_eq!(check("go", &outcome(2, said, "noise"), "a\nb\n  c\n"), Ok(expected));
        let lost = check("go", &outcome(2, "", "gofmt: not found"), "").unwrap_err();
        assert!(lost.to_string().contains("gofmt: not found"), "{lost}");
    }
}
