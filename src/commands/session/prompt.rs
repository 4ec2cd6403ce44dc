//! The prompt: a thread that reads inputs from the terminal, with editing, colours, history and completion.

mod assistant;
mod indent;
mod keys;
mod names;
mod tokens;

use std::fs::DirBuilder;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use isolator_pool::engine::preload::Interpreter;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::config::BellStyle;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Editor, Event, EventHandler};
use tokio::sync::mpsc;

use self::assistant::Assistant;
use self::keys::Keys;
pub(super) use self::names::{Names, Question};
use crate::commands::program_output::may_color;
use crate::commands::{complain, print};

/// Inputs that are remembered.
const HISTORY: usize = 2000;

/// Ends the mode in which a terminal marks text that is pasted.
const END_OF_BRACKETED_PASTE: &[u8] = b"\x1b[?2004l\n";

/// Names that are listed without a question: as many as a kernel may give.
const LISTED: usize = 200;

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
    questions: mpsc::UnboundedReceiver<Question>,
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
        let (ask, questions) = mpsc::unbounded_channel();
        let assistant = Assistant::new(interpreter, ask, may_color());
        let mut editor = editor(assistant, interpreter).context("the terminal can't be used")?;
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
        Ok(Self { asked, answers, questions, is_reading, terminal })
    }

    /// Asks for an input. `complete` finds the names for a text before the cursor.
    pub(super) async fn ask(
        &mut self,
        prompt: String,
        complete: impl AsyncFn(String) -> Names,
    ) -> Reply {
        // If the thread is gone, there is no answer either.
        let _ = self.asked.send(prompt);
        let gone = || Reply::Failed("the thread that reads it has ended".to_owned());
        loop {
            let Question { text, answer } = tokio::select! {
                biased;
                reply = self.answers.recv() => return reply.unwrap_or_else(gone),
                Some(question) = self.questions.recv() => question,
            };
            let names = tokio::select! {
                biased;
                // The user goes on without the names, which a slow server may still owe.
                reply = self.answers.recv() => return reply.unwrap_or_else(gone),
                names = tokio::time::timeout(names::ANSWER_TIMEOUT, complete(text)) => names,
            };
            // The thread waits no longer than that.
            let _ = answer.send(names.unwrap_or_default());
        }
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

fn editor(
    assistant: Assistant,
    interpreter: Option<Interpreter>,
) -> rustyline::Result<Editor<Assistant, FileHistory>> {
    let config = rustyline::Config::builder()
        .max_history_size(HISTORY)?
        .history_ignore_space(true)
        .auto_add_history(false)
        .completion_type(rustyline::CompletionType::List)
        .completion_show_all_if_ambiguous(true)
        .completion_prompt_limit(LISTED)
        .indent_size(indent::INDENT.len() as u8)
        .bell_style(BellStyle::None)
        .build();
    let mut editor = Editor::with_config(config)?;
    editor.set_helper(Some(assistant));
    let keys = Box::new(Keys::new(interpreter));
    editor.bind_sequence(Event::Any, EventHandler::Conditional(keys));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_is_kept_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("new/history");
        let editor = || {
            let (questions, _) = mpsc::unbounded_channel();
            editor(Assistant::new(None, questions, false), None).unwrap()
        };
        let mut first = editor();
        assert!(prepare(&file, &mut first));
        remember(&mut first, "if x:\n    y\n", Some(&file));
        remember(&mut first, " secret", Some(&file));
        remember(&mut first, "z", Some(&file));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let mut second = editor();
        assert!(prepare(&file, &mut second));
        assert_eq!(second.history().iter().collect::<Vec<_>>(), ["if x:\n    y", "z"]);
    }
}
