//! How a language's programs are checked for syntax errors without running them.

use isolator_pool::engine::preload::Interpreter;
use regex::Regex;

use super::CommandPart;
use super::settings::SyntaxCheckSettings;
use crate::config::check::Check;

/// Checkers that come with Isolator. They read the code from standard input.
const PYTHON: &str = include_str!("../../request/syntax/check.py");
const NODE: &str = include_str!("../../request/syntax/check.cjs");

/// How a program is checked for syntax errors.
#[derive(Debug)]
pub struct SyntaxCheck {
    /// The program that checks it.
    pub checker: Checker,
    /// The form of its verdict.
    pub verdicts: Verdicts,
}

/// A program that checks another one.
#[derive(Debug)]
pub enum Checker {
    /// A program in the language that comes with Isolator. The language's command runs it as any other.
    Shipped(&'static str),
    /// A command of the image.
    Command(Vec<CommandPart>),
}

/// The form in which a checker reports errors.
#[derive(Debug)]
pub enum Verdicts {
    /// As JSON on standard output.
    Json,
    /// By its exit code; the pattern finds the error in what it prints.
    Pattern(Regex),
}

pub(super) fn check(
    settings: &SyntaxCheckSettings,
    at: &impl Fn(&str) -> String,
    check: &mut Check<'_>,
) -> Option<SyntaxCheck> {
    let SyntaxCheckSettings { checker, command: words, pattern } = settings;
    let checker = match (checker, words) {
        (Some(Interpreter::Python), None) => Checker::Shipped(PYTHON),
        (Some(Interpreter::Node), None) => Checker::Shipped(NODE),
        (None, Some(words)) => Checker::Command(CommandPart::parse(words)),
        _ => {
            check.problem(
                at("syntaxCheck"),
                "needs either a checker (\"python\" or \"node\") or a command with \"{file}\" for \
                 the code, such as [\"bash\", \"-n\", \"{file}\"]",
            );
            return None;
        }
    };
    let verdicts = match (&checker, pattern) {
        (Checker::Shipped(_), Some(_)) => {
            check.problem(
                at("syntaxCheck.pattern"),
                "is only for a command; a checker needs no pattern",
            );
            return None;
        }
        (Checker::Command(parts), _) if !parts.contains(&CommandPart::File) => {
            let message = "needs \"{file}\" for the file with the code";
            check.problem(at("syntaxCheck.command"), message);
            return None;
        }
        (_, None) => Verdicts::Json,
        (_, Some(pattern)) => match Regex::new(pattern) {
            Ok(pattern) if pattern.capture_names().flatten().any(|name| name == "error") => {
                Verdicts::Pattern(pattern)
            }
            Ok(_) => {
                let message = "needs a group for the message, written (?<error>…)";
                check.problem(at("syntaxCheck.pattern"), message);
                return None;
            }
            Err(error) => {
                check.pattern(at("syntaxCheck.pattern"), &error);
                return None;
            }
        },
    };
    Some(SyntaxCheck { checker, verdicts })
}
