//! Processes and files of a session along with its cells, for clients that use it like a machine.
//!
//! Policies are rules for the code of programs and cells. As with `run_command`, they are not for commands and for files that come in
//! other ways: the sandbox holds all of these.

use bytes::Bytes;
use isolator_pool::pool::session::SessionError;
use isolator_pool::pool::session::agent::{
    AgentError, Attached, Entry, FileReader, FileWriter, StartProcess,
};

use super::{CallError, Calls};
use crate::audit::{FileDigest, Note};
use crate::sessions::gone::{Why, gone_of};
use crate::sessions::{InUse, OpenSession};

/// A file that a client sends. It is there when all of it has come; dropped before that, it leaves nothing.
pub(crate) struct SentFile {
    writer: FileWriter,
    name: String,
    digest: FileDigest,
    /// The session is in use as long as the file comes.
    _session: InUse,
}

impl Calls {
    /// Starts a process, which lives until it or its session ends.
    ///
    /// # Errors
    ///
    /// When it was not started.
    pub(crate) async fn start_process(
        &self,
        session: &InUse,
        start: StartProcess,
        note: &mut Note,
    ) -> Result<Attached, CallError> {
        note.place(&session.language.name, Some(&session.id));
        note.code(Some(&command_of(&start.argv)));
        // As for cells, those of the request come last.
        let mut env = session.language.env.clone();
        env.extend(start.env);
        let start = StartProcess { env, ..start };
        match session.session.start_process(start).await {
            Ok(attached) => {
                note.process(attached.pid());
                Ok(attached)
            }
            Err(error) => Err(noted(CallError::of_agent(error, session), note)),
        }
    }

    /// Opens a file to read it.
    ///
    /// # Errors
    ///
    /// When it can't be read.
    pub(crate) async fn read_file(
        &self,
        session: &InUse,
        path: &str,
        note: &mut Note,
    ) -> Result<FileReader, CallError> {
        note.place(&session.language.name, Some(&session.id));
        note.path(path);
        let opened = session.session.read_file(path).await;
        opened.map_err(|error| noted(CallError::of_agent(error, session), note))
    }

    /// Begins to write a file.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub(crate) async fn write_file(
        &self,
        session: InUse,
        path: &str,
        note: &mut Note,
    ) -> Result<SentFile, CallError> {
        note.place(&session.language.name, Some(&session.id));
        let digest = note.digest();
        match session.session.write_file(path).await {
            Ok(writer) => Ok(SentFile { writer, name: path.to_owned(), digest, _session: session }),
            Err(error) => Err(noted(CallError::of_agent(error, &session), note)),
        }
    }
}

impl SentFile {
    /// Writes the next piece. Returns when there is room for another one.
    ///
    /// # Errors
    ///
    /// When it can't be written. Nothing more can be after that.
    pub(crate) async fn write(&mut self, piece: Bytes) -> Result<(), AgentError> {
        self.digest.add(&piece);
        self.writer.write(piece).await
    }

    /// Gives the file its name, and notes it.
    ///
    /// # Errors
    ///
    /// When it can't be done.
    pub(crate) async fn finish(self, note: &mut Note) -> Result<Entry, AgentError> {
        let Self { writer, name, digest, _session } = self;
        let entry = writer.finish().await?;
        note.received(&name, digest);
        Ok(entry)
    }
}

impl CallError {
    /// The error of a call to a session's agent.
    pub(crate) fn of_agent(error: AgentError, session: &OpenSession) -> Self {
        match error {
            AgentError::Session(SessionError::Ended(reason)) => {
                Self::SessionEnded(Box::new(gone_of(session, Why::Ended(reason))))
            }
            AgentError::Session(error) => Self::Session(error),
            error => Self::Agent(error),
        }
    }
}

fn noted(error: CallError, note: &mut Note) -> CallError {
    note.answered(error.status());
    error
}

/// The command line of a process for the audit log. What a shell is given to run is the code.
fn command_of(argv: &[String]) -> String {
    match argv {
        [_, .., flag, command] if flag == "-c" => command.clone(),
        _ => argv.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_a_process_is_what_its_shell_runs() {
        let of =
            |argv: &[&str]| command_of(&argv.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(of(&["/bin/bash", "-l", "-c", "echo a | cat"]), "echo a | cat");
        assert_eq!(of(&["/bin/bash", "-i", "-l"]), "/bin/bash -i -l");
        assert_eq!(of(&["-c"]), "-c");
    }
}
