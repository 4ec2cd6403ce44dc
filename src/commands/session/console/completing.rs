//! Names for the prompt.

use super::Console;
use crate::calls::command::{CommandAnswer, CommandCall};
use crate::commands::session::prompt::Names;
use crate::request::arguments::CompleteText;

impl Console<'_> {
    /// The names that the word at the end of a text may become. There are none if the session does not say them, whatever the reason: a
    /// server of another version, or one that is gone, which the next cell will report.
    pub(in crate::commands::session) async fn complete(&self, text: String) -> Names {
        let call = CommandCall::Complete(CompleteText { session: self.session(), text });
        match self.backend.call(call, None).await {
            Ok(CommandAnswer::Completed { start, names }) => {
                Names { start: usize::try_from(start).unwrap_or(usize::MAX), names }
            }
            _ => Names::default(),
        }
    }
}
