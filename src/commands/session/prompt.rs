//! The prompt: a thread that reads inputs from the terminal, with editing, history and completion.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::quote::escaped;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Editor, Helper};
use tokio::sync::mpsc;

use super::directive::COMMANDS;
use super::input::goes_on;
use crate::commands::{complain, print};

/// Inputs that are remembered.
const HISTORY: usize = 2000;

/// Ends the mode in which a terminal marks text that is pasted.
const END_OF_BRACKETED_PASTE: &[u8] = b"\x1b[?2004l\n";

/// Commands whose arguments are files of this machine.
const WITH_FILES: [&str; 4] = ["get", "put", "run", "save"];

/// The reaction of the user to a prompt.
#[derive(Debug)]
pub(super) enum Reply {
    /// Typed something.
    Input(String),
    /// Pressed Ctrl-C.
    Interrupted,
    /// Pressed Ctrl-D, or closed the terminal.
    End,
    /// The terminal can't be read.
    Failed(String),
}

/// The prompt of a session.
#[derive(Debug)]
pub(super) struct Prompt {
    asked: std::sync::mpsc::Sender<String>,
    answers: mpsc::UnboundedReceiver<Reply>,
    is_reading: Arc<AtomicBool>,
    /// How the terminal was before. The thread can't set it back if the session ends while it reads.
    terminal: Option<Termios>,
}

impl Prompt {
    /// Starts the thread. It ends with the process at the latest.
    ///
    /// # Errors
    ///
    /// When the terminal can't be used.
    pub(super) fn new(
        interpreter: Option<Interpreter>,
        history: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let terminal = tcgetattr(io::stdin().as_fd()).ok();
        let mut editor = editor(interpreter).context("the terminal can't be used")?;
        let history = history.filter(|file| prepare(file, &mut editor));
        let (asked, prompts) = std::sync::mpsc::channel::<String>();
        let (answer, answers) = mpsc::unbounded_channel();
        let is_reading = Arc::new(AtomicBool::new(false));
        let reading = Arc::clone(&is_reading);
        std::thread::spawn(move || {
            for prompt in prompts {
                reading.store(true, Ordering::Relaxed);
                let read = editor.readline(&prompt);
                reading.store(false, Ordering::Relaxed);
                let read = answer_of(read);
                if let Reply::Input(input) = &read {
                    remember(&mut editor, input, history.as_deref());
                }
                if answer.send(read).is_err() {
                    return;
                }
            }
        });
        Ok(Self { asked, answers, is_reading, terminal })
    }

    /// Asks for an input.
    pub(super) async fn ask(&mut self, prompt: String) -> Reply {
        // If the thread is gone, there is no answer either.
        let _ = self.asked.send(prompt);
        let gone = || Reply::Failed("the thread that reads it has ended".to_owned());
        self.answers.recv().await.unwrap_or_else(gone)
    }
}

impl Drop for Prompt {
    fn drop(&mut self) {
        if !self.is_reading.load(Ordering::Relaxed) {
            return;
        }
        if let Some(terminal) = &self.terminal {
            // A terminal that was closed needs nothing.
            let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, terminal);
            let _ = print(END_OF_BRACKETED_PASTE);
        }
    }
}

fn editor(interpreter: Option<Interpreter>) -> rustyline::Result<Editor<Assistant, FileHistory>> {
    let config = rustyline::Config::builder()
        .max_history_size(HISTORY)?
        .history_ignore_space(true)
        .auto_add_history(false)
        .completion_type(rustyline::CompletionType::List)
        .build();
    let mut editor = Editor::with_config(config)?;
    editor.set_helper(Some(Assistant { interpreter, files: FilenameCompleter::new() }));
    Ok(editor)
}

/// Loads the history. Tells whether it can be kept.
fn prepare(file: &Path, editor: &mut Editor<Assistant, FileHistory>) -> bool {
    let folder = file.parent().unwrap_or(Path::new("/"));
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    let loaded = made.map_err(ReadlineError::Io).and_then(|()| editor.load_history(file));
    match loaded {
        Ok(()) => true,
        Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => {
            complain(&format!("isolator: no history is kept: {}: {error}", file.display()));
            false
        }
    }
}

/// Adds an input to the history at once, so that it is kept whatever ends this process.
fn remember(editor: &mut Editor<Assistant, FileHistory>, input: &str, file: Option<&Path>) {
    let added = editor.add_history_entry(input.trim_end()).unwrap_or(false);
    if let Some(file) = file.filter(|_| added)
        && let Err(error) = editor.append_history(file)
    {
        complain(&format!("isolator: {} can't be written: {error}", file.display()));
    }
}

fn answer_of(read: rustyline::Result<String>) -> Reply {
    match read {
        Ok(input) => Reply::Input(input),
        Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => Reply::Interrupted,
        Err(ReadlineError::Eof) => Reply::End,
        // The terminal was closed.
        Err(ReadlineError::Io(error)) if error.raw_os_error() == Some(libc::EIO) => Reply::End,
        Err(ReadlineError::Errno(error)) if error as i32 == libc::EIO => Reply::End,
        Err(error) => Reply::Failed(error.to_string()),
    }
}

/// Completion, and the end of an input.
struct Assistant {
    interpreter: Option<Interpreter>,
    files: FilenameCompleter,
}

impl Helper for Assistant {}
impl Highlighter for Assistant {}

impl Hinter for Assistant {
    type Hint = String;
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
        const INDENT: &str = "    ";
        let before = &line[..at];
        let pair = |text: String| Pair { display: text.clone(), replacement: text };
        if let Some(command) = before.strip_prefix(':') {
            return match command.split_once(' ') {
                Some((name, _)) if WITH_FILES.contains(&name) => {
                    let (start, mut found) = self.files.complete_path(line, at)?;
                    // A program may have named them, and the prompt shows a name as it is.
                    found.retain(|file| escaped(&file.replacement) == file.replacement);
                    Ok((start, found))
                }
                Some(_) => Ok((at, Vec::new())),
                None => {
                    let names = COMMANDS.iter().map(|(name, ..)| *name);
                    let known = names.filter(|name| name.starts_with(command));
                    Ok((0, known.map(|name| pair(format!(":{name} "))).collect()))
                }
            };
        }
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        if before[start..].trim().is_empty() {
            return Ok((at, vec![pair(INDENT.to_owned())]));
        }
        // Names of files are in the quotation marks of code, and are those of the workspace.
        Ok((at, Vec::new()))
    }
}

#[cfg(test)]
mod tests {
    use rustyline::history::DefaultHistory;

    use super::*;

    fn completed(line: &str) -> Vec<String> {
        let assistant = Assistant { interpreter: None, files: FilenameCompleter::new() };
        let history = DefaultHistory::new();
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
    fn the_history_is_kept_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("new/history");
        let mut first = editor(None).unwrap();
        assert!(prepare(&file, &mut first));
        remember(&mut first, "if x:\n    y\n", Some(&file));
        remember(&mut first, " secret", Some(&file));
        remember(&mut first, "z", Some(&file));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let mut second = editor(None).unwrap();
        assert!(prepare(&file, &mut second));
        assert_eq!(second.history().iter().collect::<Vec<_>>(), ["if x:\n    y", "z"]);
    }
}
