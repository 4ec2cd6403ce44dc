//! The contexts of a session: several kernels over the same files.

use std::time::Duration;

use isolator_runner::wire::{
    self, CloseContext, ContextClosed, Kernel, Kind, OpenContext, Opened, Wanted, WireError,
};

use super::usage::OtherMessages;
use super::words::{from_failed, interpreter_of};
use super::{Command, KernelCommand, Session, SessionError};
use crate::run::exchange::{Place, RunnerReport, Step, exchange, message};
use crate::sandbox::{Armed, Sandbox};

/// Longest time for a kernel to get ready: longer than the runner allows it.
const OPEN_TIMEOUT: Duration = Duration::from_secs(25);

/// Longest time for ending a kernel.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

impl Session {
    /// Starts the kernel of a context in a folder of the sandbox, which is below the workspace or absolute. One that the context has
    /// ends first. The session's own kernel is that of context 0. Returns the interpreter and its version. Cells of all contexts come
    /// one after the other.
    ///
    /// # Errors
    ///
    /// See [`SessionError`]. If the interpreter does not start, the context has none.
    pub async fn open_context(
        &self,
        context: u32,
        kernel: &KernelCommand,
        cwd: &str,
    ) -> Result<String, SessionError> {
        let KernelCommand { interpreter, argv, waiting, env } = kernel.clone();
        // The runner knows the session's own set.
        let (wanted, packages) = (Wanted::New, None);
        let kernel = Kernel { interpreter, argv, waiting, env, wanted, packages };
        let open = Box::new(OpenContext { context, kernel, cwd: cwd.to_owned() });
        let opened = self.ask(|answer| Command::OpenContext { open, answer }).await?;
        Ok(interpreter_of(interpreter, opened.version))
    }

    /// Ends the kernel of a context. What its cells have started lives on. Returns whether it had one.
    ///
    /// # Errors
    ///
    /// See [`SessionError`].
    pub async fn close_context(&self, context: u32) -> Result<bool, SessionError> {
        let closed = self.ask(|answer| Command::CloseContext { context, answer }).await?;
        Ok(closed.was_open)
    }
}

/// Starts the kernel of a context.
pub(super) async fn open(
    sandbox: &mut Sandbox<Armed>,
    others: &OtherMessages<'_>,
    open: &OpenContext,
) -> Result<Opened, SessionError> {
    let message = message(Kind::OpenContext, open)?;
    let take = |kind, payload: &[u8]| {
        let report = RunnerReport::<Opened>::read(Kind::Opened, kind, payload)?;
        report.map(Step::Last).ok_or(WireError::Unexpected(kind))
    };
    match exchange(sandbox, message, OPEN_TIMEOUT, Place::InSession(others, None), take).await? {
        RunnerReport::Done(opened) => Ok(opened),
        RunnerReport::Failed(failed) => Err(from_failed(&failed)),
    }
}

/// Ends the kernel of a context.
pub(super) async fn close(
    sandbox: &mut Sandbox<Armed>,
    others: &OtherMessages<'_>,
    context: u32,
) -> Result<ContextClosed, SessionError> {
    let message = message(Kind::CloseContext, &CloseContext { context })?;
    let take = |kind, payload: &[u8]| match kind {
        Kind::ContextClosed => Ok(Step::Last(wire::parse_message(kind, payload)?)),
        other => Err(WireError::Unexpected(other)),
    };
    Ok(exchange(sandbox, message, CLOSE_TIMEOUT, Place::InSession(others, None), take).await?)
}
