//! The server's side: starts checkers, and asks them.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use isolator_pool::lock::lock;
use isolator_pool::pool::admission::{
    Admission, AdmissionError, AdmissionLimits, Admitted, Client,
};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::messages::{
    Answer, LanguagePolicies, MAX_OF_CHECKER, Request, RequestFile, Setup, encode,
};
use super::{MOST_CHECKS, SUBCOMMAND};
use crate::policy::check::one_line;
use crate::policy::{Findings, MAX_LISTED, Policy, SourceFile, Violation};

/// Programs that are checked at the same time, each by a process: they do nothing but compute.
const MOST_AT_ONCE: usize = 2;

/// Programs that wait for their check, and for how long.
const MOST_WAITING: usize = 256;
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Checkers, which are started as they are needed and wait for more. All end with the server, because their standard
/// input does.
pub(in crate::policy) struct Checkers {
    setup: Setup,
    /// Clients share the checkers as they share the sandboxes.
    turns: Admission,
    idle: Mutex<Vec<Checker>>,
}

impl Default for Checkers {
    fn default() -> Self {
        Self::new(BTreeMap::new())
    }
}

impl fmt::Debug for Checkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkers").field("idle", &lock(&self.idle).len()).finish_non_exhaustive()
    }
}

/// A process that checks one program at a time. Dropping it kills it.
struct Checker {
    _process: Child,
    input: ChildStdin,
    output: ChildStdout,
    checks_left: u32,
}

impl Checkers {
    /// Checkers for these policies.
    pub(in crate::policy) fn new(policies: BTreeMap<String, &Policy>) -> Self {
        let languages = policies.into_iter().map(|(language, policy)| {
            let texts = policy.rules.iter().map(|rules| rules.text.clone()).collect();
            (language, LanguagePolicies { extensions: policy.extensions.clone(), texts })
        });
        let setup = Setup { languages: languages.collect() };
        let limits = AdmissionLimits {
            running: MOST_AT_ONCE,
            running_of_one: MOST_AT_ONCE - 1,
            queue: MOST_WAITING,
            wait: LONGEST_WAIT,
        };
        Self { setup, turns: Admission::new(limits, None), idle: Mutex::default() }
    }

    /// Waits until a client's program can be checked.
    ///
    /// # Errors
    ///
    /// When too many wait, or this one has waited for too long.
    pub(in crate::policy) async fn turn(
        &self,
        client: &Client,
    ) -> Result<Admitted, AdmissionError> {
        self.turns.enter(client).await
    }

    /// Has the files of a program checked, which has its [turn](Self::turn). Dropping the future ends the process that does.
    ///
    /// # Errors
    ///
    /// If no process can be started, or if it ends or says what makes no sense.
    pub(in crate::policy) async fn check(
        &self,
        language: &str,
        files: &[SourceFile],
    ) -> io::Result<Findings> {
        let idle = lock(&self.idle).pop();
        if let Some(mut checker) = idle {
            match checker.check(language, files).await {
                Ok(found) => {
                    self.put_back(checker);
                    return Ok(found);
                }
                // It may have been ended while it waited.
                Err(error) => tracing::warn!(%error, "a policy checker ended; starting another"),
            }
        }
        let mut checker = Checker::start(&self.setup).await?;
        let found = checker.check(language, files).await?;
        self.put_back(checker);
        Ok(found)
    }

    fn put_back(&self, checker: Checker) {
        if checker.checks_left > 0 {
            lock(&self.idle).push(checker);
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
        let mut checker = Self { _process: process, input, output, checks_left: MOST_CHECKS };
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
        let answer = self.receive().await?;
        findings(answer, files)
    }

    async fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let length = self.output.read_u32_le().await?;
        if length > MAX_OF_CHECKER {
            return Err(io::Error::other("a policy checker's answer is too long"));
        }
        let mut bytes = vec![0; length as usize];
        self.output.read_exact(&mut bytes).await?;
        Ok(serde_json::from_slice(&bytes)?)
    }
}

/// What a checker found, as far as it makes sense.
fn findings(Answer { listed, more }: Answer, files: &[SourceFile]) -> io::Result<Findings> {
    let is_of_program =
        |violation: &Violation| files.iter().any(|file| file.name == violation.file);
    if listed.len() > MAX_LISTED || !listed.iter().all(is_of_program) {
        return Err(io::Error::other("a policy checker's answer makes no sense"));
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
        let _checked = checkers.turn(&one).await.unwrap();
        let mut next = Box::pin(checkers.turn(&one));
        assert!(futures_util::poll!(&mut next).is_pending());
        assert!(checkers.turn(&two).await.is_ok());
    }
}
