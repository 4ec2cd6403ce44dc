//! Keys that do something else than usual in an input with several lines.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use isolator_pool::engine::preload::Interpreter;
use rustyline::{
    Cmd, ConditionalEventHandler, Event, EventContext, KeyCode, KeyEvent, Modifiers, Movement,
    RepeatCount,
};

use super::indent;
use crate::commands::session::input::goes_on;

/// A key that comes sooner after another was not typed, but pasted or sent by a program: its text has its own indentation.
const TYPED_AFTER: Duration = Duration::from_millis(20);

/// Adds indentations and removes them.
pub(super) struct Keys {
    interpreter: Option<Interpreter>,
    /// When the last key came.
    last: Mutex<Option<Instant>>,
}

impl Keys {
    pub(super) const fn new(interpreter: Option<Interpreter>) -> Self {
        Self { interpreter, last: Mutex::new(None) }
    }

    /// The command of a key that was typed; `None` for the usual one.
    fn command(&self, key: KeyEvent, text: &str, at: usize) -> Option<Cmd> {
        let before = &text[..at];
        let line = before.rsplit('\n').next().unwrap_or_default();
        let is_at_end = text[at..].is_empty() || text[at..].starts_with('\n');
        let new_line = || Cmd::Insert(1, format!("\n{}", indent::after(before, self.interpreter)));
        match key {
            KeyEvent(KeyCode::Enter, Modifiers::NONE)
            | KeyEvent(KeyCode::Char('J' | 'M'), Modifiers::CTRL) => {
                goes_on(text, self.interpreter).then(new_line)
            }
            // A line more, also in an input that is whole.
            KeyEvent(KeyCode::Enter, Modifiers::ALT)
            | KeyEvent(KeyCode::Char('J' | 'M'), Modifiers::CTRL_ALT) => Some(new_line()),
            KeyEvent(KeyCode::Backspace, Modifiers::NONE)
            | KeyEvent(KeyCode::Char('H'), Modifiers::CTRL) => {
                indent::is_at_level(line).then_some(Cmd::Dedent(Movement::WholeLine))
            }
            KeyEvent(KeyCode::Char(bracket), Modifiers::NONE) if is_at_end => {
                let replaced = indent::before_closing(line, bracket)?;
                Some(Cmd::Replace(Movement::BeginningOfLine, Some(replaced)))
            }
            _ => None,
        }
    }
}

impl ConditionalEventHandler for Keys {
    fn handle(
        &self,
        event: &Event,
        _: RepeatCount,
        _: bool,
        context: &EventContext<'_>,
    ) -> Option<Cmd> {
        let now = Instant::now();
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace(now);
        if last.is_some_and(|last| now.duration_since(last) < TYPED_AFTER) {
            return None;
        }
        self.command(*event.get(0)?, context.line(), context.pos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(key: KeyEvent, text: &str) -> Option<Cmd> {
        Keys::new(Some(Interpreter::Python)).command(key, text, text.len())
    }

    const ENTER: KeyEvent = KeyEvent(KeyCode::Enter, Modifiers::NONE);

    #[test]
    fn the_next_line_of_a_block_is_indented() {
        let insert = |text: &str| Some(Cmd::Insert(1, text.to_owned()));
        assert_eq!(of(ENTER, "def f():"), insert("\n    "));
        assert_eq!(of(ENTER, "if x:\n    return"), insert("\n"));
        for whole in ["x = 1", "if x:\n    y\n    ", ":files", "exit"] {
            assert_eq!(of(ENTER, whole), None, "{whole:?}");
        }
        assert_eq!(of(KeyEvent(KeyCode::Enter, Modifiers::ALT), "x = 1"), insert("\n"));
        // In the middle, the line before the cursor counts.
        let keys = Keys::new(Some(Interpreter::Python));
        assert_eq!(keys.command(ENTER, "if x:\n    y", 5), insert("\n    "));
    }

    #[test]
    fn an_indentation_goes_back_as_a_whole() {
        let backspace = KeyEvent(KeyCode::Backspace, Modifiers::NONE);
        let dedent = Some(Cmd::Dedent(Movement::WholeLine));
        assert_eq!(of(backspace, "if x:\n    "), dedent);
        assert_eq!(of(backspace, "if x:\n    y"), None);
        let closing = KeyEvent(KeyCode::Char('}'), Modifiers::NONE);
        let closed = Cmd::Replace(Movement::BeginningOfLine, Some("}".to_owned()));
        assert_eq!(of(closing, "x = {\n    "), Some(closed));
        assert_eq!(of(closing, "x = {"), None);
    }
}
