//! What the editor asks while an input is typed: colours, names, whether the input is whole, and the mark of its next line.

use std::borrow::Cow;
use std::fmt::Write as _;

use isolator_pool::engine::preload::Interpreter;
use isolator_pool::quote::escaped;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::{Hint, Hinter};
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};
use tokio::sync::mpsc;

use super::indent::INDENT;
use super::names::{self, Names, Question};
use super::tokens::{Kind, tokens};
use crate::commands::session::directive::COMMANDS;
use crate::commands::session::input::goes_on;

/// Commands whose arguments are files of this machine.
const WITH_FILES: [&str; 4] = ["get", "put", "run", "save"];

/// Longer inputs have no colours: the whole input is shown anew for each key.
const MAX_COLOURED: usize = 64 * 1024;

/// The mark of a line in which an input goes on.
const CONTINUATION: &str = "...";

const PROMPT: &str = "\u{1b}[1;32m";
const DIM: &str = "\u{1b}[90m";
const PLAIN: &str = "\u{1b}[0m";

/// Completion, colours, and the end of an input.
pub(super) struct Assistant {
    interpreter: Option<Interpreter>,
    files: FilenameCompleter,
    questions: mpsc::UnboundedSender<Question>,
    has_colours: bool,
}

impl Assistant {
    pub(super) fn new(
        interpreter: Option<Interpreter>,
        questions: mpsc::UnboundedSender<Question>,
        has_colours: bool,
    ) -> Self {
        Self { interpreter, files: FilenameCompleter::new(), questions, has_colours }
    }

    fn complete_directive(&self, line: &str, at: usize) -> rustyline::Result<(usize, Vec<Pair>)> {
        let command = &line[1..at];
        let Some((name, _)) = command.split_once(' ') else {
            let names = COMMANDS.iter().map(|(name, ..)| *name);
            let known = names.filter(|name| name.starts_with(command));
            return Ok((0, known.map(|name| pair(format!(":{name} "))).collect()));
        };
        if !WITH_FILES.contains(&name) {
            return Ok((at, Vec::new()));
        }
        let (start, mut found) = self.files.complete_path(line, at)?;
        // A program may have named them, and the prompt shows a name as it is.
        found.retain(|file| escaped(&file.replacement) == file.replacement);
        Ok((start, found))
    }
}

fn pair(text: String) -> Pair {
    Pair { display: text.clone(), replacement: text }
}

const fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Keyword => "\u{1b}[1;34m",
        Kind::Builtin => "\u{1b}[36m",
        Kind::Definition => "\u{1b}[1;36m",
        Kind::Number => "\u{1b}[35m",
        Kind::Text => "\u{1b}[33m",
        Kind::Comment => DIM,
        Kind::Mark => "\u{1b}[1;35m",
    }
}

impl Helper for Assistant {}

/// The mark at the cursor in an empty line after the first. It is a hint, which the editor shows after the code, because the editor has
/// no prompts for these lines: it computes the cursor's column from the code alone, and a text before the code would move the code away.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Continuation;

impl Hint for Continuation {
    fn display(&self) -> &str {
        CONTINUATION
    }

    fn completion(&self) -> Option<&str> {
        None
    }
}

impl Hinter for Assistant {
    type Hint = Continuation;

    fn hint(&self, line: &str, at: usize, _: &Context<'_>) -> Option<Continuation> {
        let (_, last) = line.rsplit_once('\n')?;
        (at == line.len() && last.trim().is_empty()).then_some(Continuation)
    }
}

impl Highlighter for Assistant {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        if !self.has_colours || line.len() > MAX_COLOURED {
            return Cow::Borrowed(line);
        }
        let mut coloured = String::with_capacity(2 * line.len());
        let mut end = 0;
        for (range, kind) in tokens(line, self.interpreter) {
            coloured.push_str(&line[end..range.start]);
            end = range.end;
            // Writing to a string can't fail.
            let _ = write!(coloured, "{}{}{PLAIN}", colour(kind), &line[range]);
        }
        coloured.push_str(&line[end..]);
        Cow::Owned(coloured)
    }

    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> Cow<'b, str> {
        match self.has_colours {
            true => Cow::Owned(format!("{PROMPT}{prompt}{PLAIN}")),
            false => Cow::Borrowed(prompt),
        }
    }

    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        match self.has_colours {
            true => Cow::Owned(format!("{DIM}{hint}{PLAIN}")),
            false => Cow::Borrowed(hint),
        }
    }

    fn highlight_char(&self, line: &str, _: usize, kind: CmdKind) -> bool {
        // The end of a token can change with each character.
        self.has_colours && kind != CmdKind::MoveCursor && line.len() <= MAX_COLOURED
    }
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match goes_on(context.input(), self.interpreter) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &line[..at];
        if before.starts_with(':') {
            return self.complete_directive(line, at);
        }
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        if before[start..].trim().is_empty() {
            return Ok((at, vec![pair(INDENT.to_owned())]));
        }
        if self.interpreter.is_none() {
            return Ok((at, Vec::new()));
        }
        let Names { start, names } = names::ask(&self.questions, before);
        Ok((start, names.into_iter().map(pair).collect()))
    }
}

#[cfg(test)]
mod tests {
    use rustyline::history::DefaultHistory;

    use super::*;

    fn assistant(interpreter: Option<Interpreter>, has_colours: bool) -> Assistant {
        Assistant::new(interpreter, mpsc::unbounded_channel().0, has_colours)
    }

    fn completed(line: &str) -> Vec<String> {
        let history = DefaultHistory::new();
        let assistant = assistant(None, false);
        let (_, found) = assistant.complete(line, line.len(), &Context::new(&history)).unwrap();
        found.into_iter().map(|pair| pair.replacement).collect()
    }

    #[test]
    fn commands_and_files_with_plain_names_are_completed_and_tab_indents_code() {
        assert_eq!(completed(":r"), [":run ", ":rewind "]);
        assert_eq!(completed(":x"), [""; 0]);
        assert_eq!(completed(":rewind "), [""; 0]);
        assert_eq!(completed("if x:\n"), ["    "]);
        assert_eq!(completed("x"), [""; 0]);
        let folder = tempfile::tempdir().unwrap();
        for name in ["data file.csv", "data\u{1b}]0;title\u{7}"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let at = folder.path().display();
        assert_eq!(completed(&format!(":put {at}/da")), [format!("{at}/data\\ file.csv")]);
    }

    #[test]
    fn an_empty_line_in_which_an_input_goes_on_is_marked() {
        let history = DefaultHistory::new();
        let assistant = assistant(Some(Interpreter::Python), false);
        let hint = |text: &str, at| assistant.hint(text, at, &Context::new(&history));
        for text in ["if x:\n    ", "x = [\n", "if x:\n    y\n    "] {
            assert_eq!(hint(text, text.len()), Some(Continuation), "{text:?}");
            assert_eq!(hint(text, 1), None, "{text:?}");
        }
        for text in ["", "    ", "if x:", "if x:\n    y"] {
            assert_eq!(hint(text, text.len()), None, "{text:?}");
        }
        // It never becomes a part of the input.
        assert_eq!((Continuation.display(), Continuation.completion()), ("...", None));
    }

    #[test]
    fn colours_change_nothing_but_the_look_of_an_input() {
        let coloured = assistant(Some(Interpreter::Python), true);
        assert_eq!(coloured.highlight("if x", 0), "\u{1b}[1;34mif\u{1b}[0m x");
        assert_eq!(
            coloured.highlight_prompt("python [1]> ", true),
            "\u{1b}[1;32mpython [1]> \u{1b}[0m"
        );
        assert_eq!(coloured.highlight_hint("..."), "\u{1b}[90m...\u{1b}[0m");
        let plain = assistant(Some(Interpreter::Python), false);
        assert_eq!(plain.highlight("if x", 0), "if x");
        assert_eq!(plain.highlight_prompt("> ", true), "> ");
        assert_eq!(plain.highlight_hint("..."), "...");
        assert!(!plain.highlight_char("if", 2, CmdKind::Other));
    }
}
