//! The server's side: starts checkers, and asks them.

use std::fmt;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use deadpool::managed::{self, Metrics, Object, Pool, PoolError, QueueMode, RecycleResult};
use isolator_pool::pool::admission::{
    Admission, AdmissionError, AdmissionLimits, Admitted, Client,
};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::messages::{LanguagePolicies, MAX_OF_CHECKER, Request, RequestFile, Setup, encode};
use super::{MOST_CHECKS, SUBCOMMAND};
use crate::policy::check::one_line;
use crate::policy::findings::{Findings, MAX_LISTED, SourceFile, Violation};
use crate::policy::language::Policy;

/// Programs that are checked at the same time, each by a process: they do nothing but compute.
const MAX_CONCURRENT: usize = 2;

/// Programs that wait for their check, and for how long.
const MAX_WAITING: usize = 256;
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The checkers of a configuration, started as they are needed and reused. All end with the server, because their standard
/// input does.
pub(in crate::policy) struct Checkers {
    /// Clients share the checkers as they share the sandboxes. The pool has one for each turn, so nothing waits there.
    turns: Admission,
    pool: Pool<Starter>,
}

impl Default for Checkers {
    fn default() -> Self {
        Self::new([])
    }
}

impl fmt::Debug for Checkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkers").field("pool", &self.pool.status()).finish_non_exhaustive()
    }
}

/// Starts checkers with the policies of a configuration.
struct Starter(Setup);

impl managed::Manager for Starter {
    type Type = Checker;
    type Error = io::Error;

    async fn create(&self) -> io::Result<Checker> {
        Checker::start(&self.0).await
    }

    async fn recycle(&self, checker: &mut Checker, _: &Metrics) -> RecycleResult<io::Error> {
        match checker.process.try_wait() {
            Ok(None) => Ok(()),
            ended => {
                tracing::warn!(?ended, "an idle policy checker ended; starting another");
                Err(io::Error::from(io::ErrorKind::BrokenPipe).into())
            }
        }
    }
}

/// A process that checks one program at a time. Dropping it kills it.
struct Checker {
    process: Child,
    input: ChildStdin,
    output: ChildStdout,
    checks_left: u32,
}

/// A checker that leaves the pool and is killed, unless its check ends and it can do another.
struct InUse(Option<Object<Starter>>);

impl Drop for InUse {
    fn drop(&mut self) {
        drop(self.0.take().map(Object::take));
    }
}

impl InUse {
    async fn check(mut self, language: &str, files: &[SourceFile]) -> io::Result<Findings> {
        let checker = self.0.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let found = checker.check(language, files).await?;
        if checker.checks_left > 0 {
            drop(self.0.take());
        }
        Ok(found)
    }
}

impl Checkers {
    /// Checkers for these policies of languages.
    pub(in crate::policy) fn new<'a>(
        policies: impl IntoIterator<Item = (&'a str, &'a Policy)>,
    ) -> Self {
        let languages = policies.into_iter().map(|(language, policy)| {
            let texts = policy.rules.iter().map(|rules| rules.text.clone()).collect();
            (language.to_owned(), LanguagePolicies { extensions: policy.extensions.clone(), texts })
        });
        let setup = Setup { languages: languages.collect() };
        let limits = AdmissionLimits {
            running: MAX_CONCURRENT,
            running_of_one: MAX_CONCURRENT - 1,
            queue: MAX_WAITING,
            wait: MAX_WAIT,
        };
        let pool = Pool::builder(Starter(setup)).max_size(MAX_CONCURRENT);
        // The one that was used last, so that with one client there is one process.
        let pool = pool.queue_mode(QueueMode::Lifo).build().expect("there are no timeouts");
        Self { turns: Admission::new(limits, None), pool }
    }

    /// Waits until a client's program can be checked, no longer than given.
    ///
    /// # Errors
    ///
    /// When too many wait, or this one has waited for too long.
    pub(in crate::policy) async fn turn(
        &self,
        client: &Client,
        longest_wait: Option<Duration>,
    ) -> Result<Admitted, AdmissionError> {
        self.turns.enter_within(client, longest_wait).await
    }

    /// Has the files of a program checked, which has its [turn](Self::turn). Dropping the future kills the process that does.
    ///
    /// # Errors
    ///
    /// If no process can be started, or if it ends or its report makes no sense.
    pub(in crate::policy) async fn check(
        &self,
        language: &str,
        files: &[SourceFile],
    ) -> io::Result<Findings> {
        loop {
            let checker = self.pool.get().await.map_err(|error| match error {
                PoolError::Backend(error) => error,
                error => io::Error::other(error),
            })?;
            let is_new = Object::metrics(&checker).recycle_count == 0;
            match InUse(Some(checker)).check(language, files).await {
                // An earlier program, or the kernel, may have ended it. One that is new fails because of this program.
                Err(error) if !is_new => {
                    tracing::warn!(%error, "a policy checker ended; starting another");
                }
                checked => return checked,
            }
        }
    }
}

impl Checker {
    async fn start(setup: &Setup) -> io::Result<Self> {
        let mut process = Command::new("/proc/self/exe")
            .arg(SUBCOMMAND)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Signals for the server's process group, such as Ctrl-C, are not for it.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (input, output) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        let mut checker = Self { process, input, output, checks_left: MOST_CHECKS };
        checker.input.write_all(&encode(setup)?).await?;
        checker.receive::<()>().await?;
        Ok(checker)
    }

    async fn check(&mut self, language: &str, files: &[SourceFile]) -> io::Result<Findings> {
        let of_request = files.iter().map(|file| RequestFile {
            name: file.name.clone(),
            is_entrypoint: file.is_entrypoint,
            length: file.content.len(),
        });
        let request = Request { language: language.to_owned(), files: of_request.collect() };
        self.checks_left -= 1;
        self.input.write_all(&encode(&request)?).await?;
        for file in files {
            self.input.write_all(&file.content).await?;
        }
        plausible(self.receive().await?, files)
    }

    async fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let length = self.output.read_u32_le().await?;
        if length > MAX_OF_CHECKER {
            return Err(io::Error::other("a policy checker's report is too long"));
        }
        let mut bytes = vec![0; length as usize];
        self.output.read_exact(&mut bytes).await?;
        Ok(serde_json::from_slice(&bytes)?)
    }
}

/// The report of a checker, if it makes sense, in single lines.
fn plausible(report: Findings, files: &[SourceFile]) -> io::Result<Findings> {
    let Findings { listed, more } = report;
    let is_of_program =
        |violation: &Violation| files.iter().any(|file| file.name == violation.file);
    if listed.len() > MAX_LISTED || !listed.iter().all(is_of_program) {
        return Err(io::Error::other("a policy checker's report makes no sense"));
    }
    let clean = |violation: Violation| Violation {
        rule: one_line(&violation.rule),
        message: one_line(&violation.message),
        ..violation
    };
    Ok(Findings { listed: listed.into_iter().map(clean).collect(), more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn programs_of_one_client_do_not_hold_up_those_of_another() {
        let checkers = Checkers::default();
        let [one, two] = ["one", "two"].map(Client::named);
        let _checked = checkers.turn(&one, None).await.unwrap();
        let mut next = Box::pin(checkers.turn(&one, None));
        assert!(futures_util::poll!(&mut next).is_pending());
        assert!(checkers.turn(&two, None).await.is_ok());
    }
}
