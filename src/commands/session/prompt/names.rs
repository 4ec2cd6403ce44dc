//! Names that the session's kernel gives for the word before the cursor. The prompt's thread asks, and the session's task answers.

use std::time::Duration;

use isolator_pool::pool::session::MAX_COMPLETED_TEXT;
use isolator_pool::quote::escaped;
use tokio::sync::mpsc;

/// How long the thread waits for an answer. The session has a deadline of its own before that, and the rest is for the way to a server.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_millis(700);

/// A question of the thread.
#[derive(Debug)]
pub(in crate::commands::session) struct Question {
    /// The text before the cursor.
    pub(in crate::commands::session) text: String,
    /// Takes the answer, or is dropped if there is none.
    pub(in crate::commands::session) answer: std::sync::mpsc::Sender<Names>,
}

/// An answer of a kernel, which can have chosen everything in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::commands::session) struct Names {
    /// The place in the text where the word begins, in bytes.
    pub(in crate::commands::session) start: usize,
    /// What the word may become.
    pub(in crate::commands::session) names: Vec<String>,
}

/// Asks the task. Returns where the word begins in `before`, and the names that can be shown.
pub(super) fn ask(questions: &mpsc::UnboundedSender<Question>, before: &str) -> Names {
    let skipped = before.ceil_char_boundary(before.len().saturating_sub(MAX_COMPLETED_TEXT));
    let text = &before[skipped..];
    let (answer, answered) = std::sync::mpsc::channel();
    if questions.send(Question { text: text.to_owned(), answer }).is_err() {
        return Names::default();
    }
    let Ok(found) = answered.recv_timeout(ANSWER_TIMEOUT) else { return Names::default() };
    let Names { start, names } = checked(found, text);
    Names { start: skipped + start, names }
}

/// The names that only go on with the word, and do nothing to a terminal. A name that begins otherwise could put a command for this
/// machine where the user has typed code.
fn checked(Names { start, names }: Names, text: &str) -> Names {
    let Some(word) = text.get(start..) else { return Names::default() };
    let is_fine = |name: &String| name.starts_with(word) && escaped(name) == *name;
    let names = match start {
        0 if word.is_empty() => Vec::new(),
        _ => names.into_iter().filter(is_fine).collect(),
    };
    Names { start, names }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_go_on_with_the_word_are_taken() {
        let names = |start, text| {
            let names =
                ["print", "prin\n", "pri\u{1b}[2J", "\u{202e}pri", ":put /etc", "pr", "pri nt"];
            checked(Names { start, names: names.map(str::to_owned).to_vec() }, text)
        };
        assert_eq!(names(2, "x pri").names, ["print", "pri nt"]);
        assert_eq!(names(0, "").names, [""; 0]);
        for (start, text) in [(9, "pri"), (1, "\u{e9}"), (usize::MAX, "")] {
            assert_eq!(names(start, text), Names::default(), "{text:?}");
        }
    }

    #[test]
    fn a_task_that_does_not_answer_gives_no_names() {
        let (questions, mut asked) = mpsc::unbounded_channel();
        let thread = std::thread::spawn(move || ask(&questions, &"\u{e9}".repeat(20_000)));
        let Question { text, answer } = asked.blocking_recv().unwrap();
        assert!(text.len() <= MAX_COMPLETED_TEXT && text.starts_with('\u{e9}'));
        drop(answer);
        assert_eq!(thread.join().unwrap(), Names::default());
        drop(asked);
        let (questions, _) = mpsc::unbounded_channel();
        assert_eq!(ask(&questions, "x"), Names::default());
    }
}
