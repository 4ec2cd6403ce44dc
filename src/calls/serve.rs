//! Serves jobs: checks them against the policies, gets their packages and runs them.

use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::{ExecuteError, Receipt};
use isolator_pool::run::RunRequest;
use isolator_pool::run::outcome::Outcome;
use std::sync::Arc;
use std::time::Duration;

use super::served::{Ran, RunEnd, Served};
use super::{Call, CallError, Calls, Job};
use crate::audit::Note;
use crate::config::Language;
use crate::policy::{NoTurn, Policies, SourceFile};
use crate::request::arguments::InvalidArgument;
use crate::request::resolve::{ProgramJob, StepJob};
use crate::request::syntax::{Syntax, SyntaxJob};
use crate::result::receipt::ReceiptReport;
use crate::sessions::journal::Step;
use crate::sessions::{InUse, NoSession};

/// The note of a cell that was undone after it had installed something.
pub(super) const PACKAGES_STAY: &str =
    "the installed packages are still there: an undo does not take them back";

impl Calls {
    /// Serves a job. Dropping the future ends the program and removes its sandbox.
    ///
    /// # Errors
    ///
    /// When nothing has run, or the sandbox failed. The failure of a program is an outcome.
    pub(crate) async fn serve(
        &self,
        job: Job,
        call: &Call,
        note: &mut Note,
    ) -> Result<Served, CallError> {
        job.note(note);
        match job {
            Job::Program(job) => self.run_program(*job, call, note).await,
            Job::Syntax { mut job, packages, advice, mut notes } => {
                self.check_packages(&job.language, packages).await?;
                job.run.max_queue = call.longest_wait(job.run.max_queue);
                let syntax = self.check_syntax(&job, &call.client, note).await?;
                notes.extend(advice.filter(|_| !syntax.valid));
                Ok(Served::Checked(Syntax { notes, ..syntax }))
            }
            // Its future is large and rarely needed.
            Job::Open(job) => Box::pin(self.open_session(*job, call, note)).await,
            Job::Step { session, job, notes } => {
                self.run_in_session(session, *job, notes, call, note).await
            }
            Job::Rewind { session, cells } => self.rewind_session(&session, cells).await,
            Job::Interrupt(session) => Ok(Served::Interrupted(session.session.interrupt())),
            Job::Close(handle) => match self.sessions.close(&call.client, &handle) {
                Ok(()) => Ok(Served::Closed(true)),
                // One that has ended is closed, too.
                Err(NoSession::Gone(_)) => Ok(Served::Closed(false)),
                Err(error) => Err(CallError::no_session(&handle, error)),
            },
        }
    }

    async fn run_program(
        &self,
        job: ProgramJob,
        call: &Call,
        note: &mut Note,
    ) -> Result<Served, CallError> {
        let ProgramJob {
            language,
            syntax,
            mut run,
            wanted,
            unchecked,
            advice,
            packages,
            max_wait,
            mut notes,
        } = job;
        if let Some(mut syntax) = syntax {
            syntax.run.max_queue = call.longest_wait(syntax.run.max_queue);
            let syntax = self.check_syntax(&syntax, &call.client, note).await?;
            if !syntax.valid {
                notes.extend(advice.map(|advice| advice.text));
                return Ok(Served::Checked(Syntax { notes, ..syntax }));
            }
        }
        let policies = &self.config.policies;
        self.check_policies(policies, &language.name, unchecked, call.waiter(), &mut notes).await?;
        let mut packages = self.packages_for(&language, packages, call, max_wait).await?;
        notes.append(&mut packages.notes);
        packages.note(note);
        run.packages = packages.set();
        let in_sandbox = packages.in_sandbox(&self.packages, &language, call);
        run.installer = Some(self.installer(in_sandbox));
        run.watch = call.watch.clone();
        run.max_queue = call.longest_wait(run.max_queue);
        let (outcome, receipt) = self.execute(&language, &run, &call.client, note).await?;
        note.ran(&outcome);
        let asked = packages.asked().to_vec();
        Ok(Served::Ran(Box::new(Ran {
            receipt: ReceiptReport::of_program(&outcome, &receipt, packages.used()),
            end: RunEnd::Program(Box::new(outcome)),
            notes,
            wanted,
            unenforced: receipt.unenforced,
            language,
            timeout: run.timeout,
            resources: run.resources,
            advice,
            sent: run.workspace.names(),
            packages: asked,
        })))
    }

    async fn run_in_session(
        &self,
        session: InUse,
        mut job: StepJob,
        mut notes: Vec<String>,
        call: &Call,
        note: &mut Note,
    ) -> Result<Served, CallError> {
        let other = job.language.take();
        let is_own = other.is_none();
        let language = other.unwrap_or_else(|| Arc::clone(&session.language));
        if let Step::Code { code, .. } = &job.step
            && is_own
        {
            let bound = session.bound();
            notes.extend(self.packages_of_cell(&language, bound.as_ref(), code).await?);
        }
        let (policies, unchecked) =
            (session.policies(&self.config), std::mem::take(&mut job.unchecked));
        self.check_policies(policies, &language.name, unchecked, call.waiter(), &mut notes).await?;
        let is_command = matches!(job.step, Step::Command { .. });
        let (advice, wanted) = (job.advice.take(), job.wanted.clone());
        let (sent, timeout) = (job.run.workspace.names(), job.run.timeout);
        let installs = session.installs();
        let ran = self.run_step(&session, job, call.watch.clone(), &mut notes).await;
        let cell = Box::new(ran.map_err(|error| CallError::of_session(error, &session))?);
        if cell.undone > 0 && session.installs() > installs {
            notes.push(PACKAGES_STAY.to_owned());
        }
        note.ran(&cell.outcome);
        notes.extend(self.sessions.about_the_end());
        Ok(Served::Ran(Box::new(Ran {
            receipt: ReceiptReport::of_cell(&cell, session.session.image()),
            notes,
            wanted,
            unenforced: self.pools.unenforced(),
            language,
            timeout,
            resources: session.resources,
            advice,
            sent,
            packages: session.bound().map_or_else(Vec::new, |it| it.asked),
            end: RunEnd::Step { cell, is_command, session },
        })))
    }

    /// Checks a program's syntax in a sandbox.
    async fn check_syntax(
        &self,
        job: &SyntaxJob,
        client: &Client,
        note: &mut Note,
    ) -> Result<Syntax, CallError> {
        let (outcome, _) = self.execute(&job.language, &job.run, client, note).await?;
        Ok(job.verdict(&outcome)?)
    }

    async fn execute(
        &self,
        language: &Language,
        run: &RunRequest,
        client: &Client,
        note: &mut Note,
    ) -> Result<(Outcome, Receipt), ExecuteError> {
        let (outcome, receipt) = self.pools.execute(&language.name, client, run).await?;
        note.took(receipt.start, receipt.found);
        Ok((outcome, receipt))
    }

    /// Checks the files of a client's program against these policies, before any of them gets into a sandbox. The client waits for its turn
    /// as long as others, or no longer than given.
    ///
    /// # Errors
    ///
    /// When something is forbidden, or too many programs wait for their check. That is counted like a full queue for sandboxes.
    pub(super) async fn check_policies(
        &self,
        policies: &Policies,
        language: &str,
        files: Vec<SourceFile>,
        (client, longest_wait): (&Client, Option<Duration>),
        notes: &mut Vec<String>,
    ) -> Result<(), CallError> {
        let checked = policies.check(language, files, client, longest_wait).await;
        let found = checked.inspect_err(|busy: &NoTurn| {
            let failure = super::error::failure_of(busy);
            self.pools.count_failure(language, failure, busy.to_string());
        })?;
        match found.is_empty() {
            true => Ok(()),
            false => Err(CallError::Forbidden { found, notes: std::mem::take(notes) }),
        }
    }

    /// Checks the packages that a call names, without building anything.
    async fn check_packages(
        &self,
        language: &Language,
        names: Vec<String>,
    ) -> Result<(), CallError> {
        let names = self.packages.needed(language, names).await;
        if names.is_empty() {
            return Ok(());
        }
        let checked = self.packages.check(language, &names);
        Ok(checked.map_err(|refusal| InvalidArgument::new("packages", refusal.to_string()))?)
    }
}
