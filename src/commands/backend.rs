//! The way on which a command's calls are served: by calls in its own process, or by a server. Both serve the same calls.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::session::FilePart;
use isolator_pool::quote::escaped;
use isolator_pool::run::outcome::ChangedFile;
use isolator_pool::run::output::Watch;
use serde::Deserialize;

use super::own_calls::OwnCalls;
use super::server::{MAY_HAVE_RUN, OnPiece, RequestError, Server};
use crate::audit::Note;
use crate::calls::Call;
use crate::calls::command::{CommandAnswer, CommandCall, CommandError, Piece};
use crate::result::kept::encoded;
use crate::sessions::{InUse, NoSession};

/// The way on which calls are served.
#[derive(Clone, Copy)]
pub(super) enum Backend<'a> {
    /// By this process.
    Own(&'a OwnCalls),
    /// By a server.
    Server(&'a Server),
}

/// Why a call was not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallFailure {
    /// The call was understood, and can't be served.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The server did not serve it.
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl CallFailure {
    /// The error of a call that a server has served: it says which, and that the program may have run.
    pub(super) fn at(self, server: &Server) -> Self {
        match self {
            Self::Command(CommandError::Failed { message, has_not_run }) => {
                let message = escaped(&message).into_owned();
                let message = match has_not_run {
                    true => format!("{}: {message}", server.name()),
                    false => format!("{}: {message}; {MAY_HAVE_RUN}", server.name()),
                };
                CommandError::Failed { message, has_not_run }.into()
            }
            error => error,
        }
    }

    /// Whether another backend can serve the call: it is certain that nothing has run, and the arguments are not to blame.
    pub(super) const fn is_before_run(&self) -> bool {
        match self {
            Self::Command(CommandError::Failed { has_not_run, .. }) => *has_not_run,
            Self::Command(_) => false,
            Self::Request(error) => error.is_before_run(),
        }
    }
}

/// A list of files, as the resource of a session has it.
#[derive(Deserialize)]
struct Listed {
    files: Vec<ListedFile>,
    more: bool,
}

#[derive(Deserialize)]
struct ListedFile {
    path: String,
    size: u64,
}

impl Backend<'_> {
    /// Serves a call. Dropping the future cancels it. `on_piece` receives what comes before the answer.
    ///
    /// # Errors
    ///
    /// See [`CallFailure`].
    pub(super) async fn call(
        self,
        command: CommandCall,
        on_piece: Option<Arc<OnPiece>>,
    ) -> Result<CommandAnswer, CallFailure> {
        match self {
            Self::Own(own) => {
                let watch = on_piece.clone().map(|on_piece| {
                    Watch::new(move |stream, bytes| on_piece(Piece::output(stream, bytes)))
                });
                let steps = on_piece.map(|on_piece| -> crate::calls::Steps {
                    Arc::new(move |step: &str| on_piece(Piece::Step(step.to_owned())))
                });
                let call = Call { client: Client::Host, watch, steps, queue_deadline: None };
                let mut note = Note::default();
                let served = own.calls.serve_command(command, &call, &mut note).await;
                Ok(served.map_err(CommandError::from)?.answer)
            }
            Self::Server(server) => Ok(server.call(&command, on_piece.as_deref()).await??),
        }
    }

    /// Lists the files of a session. Returns whether those are all.
    ///
    /// # Errors
    ///
    /// When the session is gone, or the server does not answer.
    pub(super) async fn list(self, session: &str) -> anyhow::Result<(Vec<ChangedFile>, bool)> {
        match self {
            Self::Own(own) => Ok(own_session(own, session)?.session.list().await?),
            Self::Server(server) => {
                let FilePart { content, .. } =
                    server.read(&format!("isolator://sessions/{session}/files")).await?;
                let Listed { files, more } = serde_json::from_slice(&content)
                    .with_context(|| format!("{} sent an unknown list", server.name()))?;
                let file = |ListedFile { path, size }| ChangedFile { path, size, content: None };
                Ok((files.into_iter().map(file).collect(), !more))
            }
        }
    }

    /// Reads up to `length` bytes of a file of a session.
    ///
    /// # Errors
    ///
    /// When there is no such file, the session is gone, or the server does not answer.
    pub(super) async fn read(
        self,
        session: &str,
        path: &str,
        offset: u64,
        length: u64,
    ) -> anyhow::Result<FilePart> {
        match self {
            Self::Own(own) => {
                Ok(own_session(own, session)?.session.read(path, offset, length).await?)
            }
            Self::Server(server) => {
                let path = encoded(path);
                let range = format!("offset={offset}&length={length}");
                server.read(&format!("isolator://sessions/{session}/files/{path}?{range}")).await
            }
        }
    }
}

fn own_session(own: &OwnCalls, session: &str) -> anyhow::Result<InUse> {
    match own.calls.sessions().take(&Client::Host, session) {
        Ok(session) => Ok(session),
        Err(NoSession::Gone(gone)) => bail!("the session is gone: {}", gone.why),
        Err(NoSession::Lost(lost)) => bail!("the session is gone: {lost}"),
        Err(NoSession::Unknown) => bail!("there is no such session"),
    }
}
