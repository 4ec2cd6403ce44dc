//! The runner's words, as the server takes them: failures, and the versions of interpreters.

use isolator_runner::wire::{Failed, FailedCause, Interpreter};

use super::{EndReason, SessionError};
use crate::quote::said;
use crate::run::ExchangeError;

/// Why a step has no outcome.
pub(super) fn from_failed(failed: &Failed) -> SessionError {
    let message = said(&failed.message);
    match failed.cause {
        FailedCause::WorkspaceFull | FailedCause::Workspace => SessionError::Files(message),
        FailedCause::Folder => SessionError::NoFolder(message),
        FailedCause::Kernel => SessionError::NoKernel,
        FailedCause::Command | FailedCause::Packages | FailedCause::Protocol => {
            SessionError::Command(message)
        }
    }
}

/// An interpreter with the version that its kernel says.
pub(super) fn interpreter_of(interpreter: Interpreter, version: Option<String>) -> String {
    let name = interpreter.name();
    match version.filter(|version| is_version(version)) {
        Some(version) => format!("{name} {version}"),
        None => name.to_owned(),
    }
}

/// Whether it looks like a version. A package of the program can have the kernel say anything.
fn is_version(text: &str) -> bool {
    const LONGEST: usize = 40;
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".+-".contains(&byte);
    text.len() <= LONGEST
        && text.starts_with(|first: char| first.is_ascii_digit())
        && text.bytes().all(is_part)
}

impl From<ExchangeError> for SessionError {
    /// A session whose runner does not answer has ended.
    fn from(error: ExchangeError) -> Self {
        Self::Ended(EndReason::lost(error))
    }
}
