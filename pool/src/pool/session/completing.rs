//! Names that complete a word at a prompt.

use std::sync::Arc;
use std::time::Duration;

use isolator_runner::wire::{self, Complete, Completed, Kind, WireError};

use super::usage::OtherMessages;
use super::{Command, MAX_COMPLETED_TEXT, Session, SessionError};
use crate::run::exchange::{Place, Step, exchange, message};
use crate::sandbox::{Armed, Sandbox};

/// Longest time for the runner's answer. It waits for its kernel much shorter.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

impl Session {
    /// The names that the word at the end of a text may become. There are none if another call of the session runs or waits, if the text is
    /// longer than [`MAX_COMPLETED_TEXT`], or if the answer does not come within this time. It is no cell: nothing of the session changes,
    /// and dropping the future leaves everything as it is.
    ///
    /// # Errors
    ///
    /// See [`SessionError`].
    pub async fn complete(&self, text: &str, within: Duration) -> Result<Completed, SessionError> {
        let Ok(turn) = Arc::clone(&self.turn).try_acquire_owned() else {
            return match self.end_reason() {
                Some(reason) => Err(SessionError::Ended(reason)),
                None => Ok(Completed::default()),
            };
        };
        if text.len() > MAX_COMPLETED_TEXT {
            return Ok(Completed::default());
        }
        let command = |answer| Command::Complete { text: text.to_owned(), answer };
        let asked = tokio::time::timeout(within, self.ask_in_turn(turn, command)).await;
        asked.unwrap_or_else(|_| Ok(Completed::default()))
    }
}

/// Asks the runner for names.
pub(super) async fn complete(
    sandbox: &mut Sandbox<Armed>,
    others: &OtherMessages<'_>,
    text: String,
) -> Result<Completed, SessionError> {
    let asked = Complete { text };
    let message = message(Kind::Complete, &asked)?;
    let take = |kind, payload: &[u8]| match kind {
        Kind::Completed => {
            let completed: Completed = wire::parse_message(kind, payload)?;
            match completed.fits(&asked.text) {
                true => Ok(Step::Last(completed)),
                false => Err(WireError::Unexpected(kind)),
            }
        }
        other => Err(WireError::Unexpected(other)),
    };
    Ok(exchange(sandbox, message, ANSWER_TIMEOUT, Place::InSession(others, None), take).await?)
}
