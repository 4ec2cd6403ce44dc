//! What can go wrong while starts are measured, and what to do about it.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use isolator_pool::engine::EngineError;

/// Why something was not measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine refused a call of the plain API.
    #[error(
        "the container engine could not {doing}: {source}; isolator doctor looks for the cause"
    )]
    Docker {
        /// What was asked.
        doing: &'static str,
        /// Its answer.
        source: bollard::errors::Error,
    },
    /// A sample took too long.
    #[error("{what} did not end within {deadline:?}; isolator doctor looks for the cause")]
    Deadline {
        /// The program and the scenario.
        what: String,
        /// How long it had.
        deadline: Duration,
    },
    /// A server's configuration can't be written.
    #[error("{}: {source}", .directory.display())]
    Settings {
        /// Where it should be.
        directory: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A server can't be started.
    #[error("a server can't be started: {0}")]
    Spawn(io::Error),
    /// A call has no answer.
    #[error("a server did not answer a call: {0}")]
    Call(io::Error),
    /// A program did not succeed in a sandbox.
    #[error("{program}: {answer}")]
    Failed {
        /// The program.
        program: String,
        /// What the server says.
        answer: String,
    },
    /// A program did something else than it should.
    #[error(
        "{program}: it printed {printed:?} and not {expected:?}: is that what the language's command \
         and image should make of it? isolator run tries it"
    )]
    Output {
        /// The program.
        program: String,
        /// What it printed, and its exit code if that is not 0.
        printed: String,
        /// What it should have printed.
        expected: &'static str,
    },
    /// A server's pools did not become full.
    #[error(
        "a server's pools were not full after {waited:?} ({found}): its messages and isolator doctor \
         say why"
    )]
    NotQuiescent {
        /// How long was waited.
        waited: Duration,
        /// What there was.
        found: String,
    },
    /// Calls did not start as the scenario demands.
    #[error(
        "{what}: {discarded} calls in a row did not find the pool as it should be: is the machine very busy?"
    )]
    WrongStart {
        /// The program and the scenario.
        what: String,
        /// How many calls there were.
        discarded: usize,
    },
    /// No target of the session has the scenario.
    #[error("there is no {0} here: no engine of the session has it")]
    NoSuchScenario(&'static str),
    /// A server did not end well.
    #[error("a server ended badly ({0}); isolator gc removes what it left behind")]
    Stop(ExitStatus),
    /// A server did not end at all, and was killed.
    #[error("a server did not end within {0:?} and was killed; isolator gc removes what it left")]
    Killed(Duration),
}

impl BenchError {
    /// An error of the plain API.
    pub(crate) fn docker(doing: &'static str) -> impl FnOnce(bollard::errors::Error) -> Self {
        move |source| Self::Docker { doing, source }
    }
}
