//! Sessions: opening and rewinding them, and running steps in them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use isolator_pool::engine::preload::Interpreter;
use isolator_pool::pool::session::{CellEnd, CellOutcome, Rewound, SessionError, UndoneFiles};
use isolator_pool::run::installs::Installer;
use isolator_pool::run::outcome::Status;
use isolator_pool::run::output::Watch;

use super::replay::to_run_again;
use super::serve::PACKAGES_STAY;
use super::served::{Opened, Replayed, Served};
use super::{Call, CallError, Calls};
use crate::audit::Note;
use crate::request::arguments::InvalidArgument;
use crate::request::packages::WantedPackages;
use crate::request::resolve::{OpenJob, StepJob};
use crate::result::cell::state_after;
use crate::result::receipt::ReceiptReport;
use crate::sessions::journal::{EntryEnd, JournalEntry, Step};
use crate::sessions::journals::KeptJournal;
use crate::sessions::{InUse, OpenSession, Sessions};

/// How long a step that was interrupted can run at least when it is run again.
const LEAST_TIME: Duration = Duration::from_secs(1);

/// A session whose handle its client does not have yet. It ends if the client goes away before.
struct Unanswered<'a> {
    sessions: &'a Sessions,
    session: InUse,
    is_answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            // An error means that it has ended by itself.
            let _ = self.sessions.close(&self.session.client, &self.session.id);
        }
    }
}

impl Calls {
    /// Opens a session, with its first files and the steps of the session that it repeats.
    pub(super) async fn open_session(
        &self,
        job: OpenJob,
        call: &Call,
        note: &mut Note,
    ) -> Result<Served, CallError> {
        let OpenJob { mut wish, packages: mut names, first, max_wait, replay, mut notes } = job;
        let mut steps = VecDeque::new();
        let mut replayed = None;
        if let Some(handle) = replay {
            let found = self.sessions.journal(&call.client, &handle).await?;
            let KeptJournal { language, journal } =
                found.ok_or_else(|| self.no_journal(&handle))?;
            if language != wish.language.name {
                let message =
                    format!("that session's language is {language}: open one in the same language");
                return Err(InvalidArgument::new("replay", message).into());
            }
            if names.is_empty() {
                names = journal.packages().to_vec();
            }
            steps.extend(journal.entries().filter_map(to_run_again));
            replayed = Some(Replayed { forgotten: journal.missing(), ..Replayed::default() });
        }
        let wanted = WantedPackages::named(names);
        let mut packages = self.packages_for(&wish.language, wanted, call, max_wait).await?;
        notes.append(&mut packages.notes);
        let in_sandbox = packages.in_sandbox(&self.packages, &wish.language, call);
        let installer = self.installer(in_sandbox.clone());
        wish.set = packages.set();
        wish.packages = Some(in_sandbox);
        wish.installer = Some(Arc::clone(&installer) as Arc<dyn Installer>);
        wish.max_queue = call.longest_wait(None);
        let (session, receipt, mut evicted) =
            self.sessions.open(&call.client, &self.config, wish).await?;
        installer.set_session(&session.id);
        notes.append(&mut evicted);
        note.place(&session.language.name, Some(&session.id));
        note.limits(session.idle_timeout, session.resources);
        note.took(receipt.start, receipt.found);
        packages.note(note);
        let receipt = ReceiptReport::of_opening(&session.session, &receipt, packages.used());
        let mut unanswered = Unanswered { sessions: &self.sessions, session, is_answered: false };
        let session = &unanswered.session;
        if let Some(mut first) = first {
            // Without its files it is not what was asked for.
            note.files(first.sent());
            let (policies, language) = (&self.config.policies, &session.language.name);
            let unchecked = std::mem::take(&mut first.unchecked);
            self.check_policies(policies, language, unchecked, call.waiter(), &mut notes).await?;
            let ran = self.run_step(session, first, None, &mut notes).await;
            ran.map_err(|error| CallError::of_session(error, session))?;
        }
        if let Some(replayed) = &mut replayed {
            self.replay(session, steps, replayed, call.watch.clone(), &mut notes).await?;
            self.sessions.count_replay();
        }
        unanswered.is_answered = true;
        notes.extend(self.sessions.about_the_end());
        let session = unanswered.session.another();
        Ok(Served::Opened(Box::new(Opened { session, receipt, replayed, notes })))
    }

    /// The error of a handle that leads to no journal.
    fn no_journal(&self, handle: &str) -> CallError {
        match self.sessions.lost(handle) {
            Some(lost) => CallError::Lost(lost),
            None => InvalidArgument::no_such_session("replay", handle).into(),
        }
    }

    /// Runs a cell, and notes it in the journal. `notes` get the sessions that have ended because their memory is needed.
    pub(super) async fn run_step(
        &self,
        session: &InUse,
        job: StepJob,
        watch: Option<Watch>,
        notes: &mut Vec<String>,
    ) -> Result<CellOutcome, SessionError> {
        let StepJob { mut run, step, files, has_lost_files, on_end, is_noted, .. } = job;
        run.watch = watch;
        let (calls, open, timeout) = (self.clone(), session.shared(), run.timeout);
        // The session's task calls this, also if the call was cancelled.
        let done = move |ran: &Result<CellOutcome, SessionError>| {
            let entry =
                JournalEntry { cell: 0, step, files, has_lost_files, timeout, end: EntryEnd::Ran };
            calls.note_step(&open, entry, is_noted, ran);
            if let Some(on_end) = on_end {
                on_end(ran);
            }
        };
        let ran = session.session.run(run, done).await;
        if let Err(error) = &ran {
            self.pools.count_failed_cell(&session.language.name, error);
        }
        notes.append(&mut self.sessions.keep_to_memory(&session.client));
        notes.extend(self.sessions.journal_note(session));
        ran
    }

    /// Notes and counts a step that has run, or with which its session has ended.
    fn note_step(
        &self,
        session: &Arc<OpenSession>,
        mut entry: JournalEntry,
        is_noted: bool,
        ran: &Result<CellOutcome, SessionError>,
    ) {
        let (is_code, is_cell) =
            (matches!(entry.step, Step::Code { .. }), !matches!(entry.step, Step::Files));
        match ran {
            Ok(outcome) => {
                entry.cell = outcome.cell;
                if outcome.end == Some(CellEnd::Interrupted)
                    && outcome.outcome.status != Status::Timeout
                {
                    // Without another interrupt it would run until its deadline the next time.
                    entry.timeout = outcome.outcome.wall.max(LEAST_TIME);
                }
                entry.end = if !outcome.is_alive {
                    EntryEnd::SessionEnded
                } else if outcome.undone > 0 && is_code {
                    if outcome.undone_files.as_ref().is_some_and(UndoneFiles::is_all) {
                        entry.forget_files();
                    }
                    EntryEnd::Undone
                } else if outcome.outcome.status == Status::Timeout {
                    EntryEnd::TimedOut
                } else {
                    EntryEnd::Ran
                };
                self.sessions.note(session, |journal| {
                    if outcome.undone > 1 && is_noted {
                        let files = outcome.undone_files.as_ref();
                        journal.undo(outcome.undone - 1, files.is_some_and(UndoneFiles::is_all));
                    }
                    if is_noted {
                        journal.add(entry);
                    }
                });
                self.sessions.count_undone(outcome.undone);
                let counts = self.pools.counts_of(&session.language.name).filter(|_| is_cell);
                if let Some(counts) = counts {
                    let took = outcome.times.queue + outcome.times.total;
                    counts.ran_cell(outcome.outcome.status, took);
                }
            }
            // It is not known how far it came.
            Err(SessionError::Ended(_)) => {
                entry.end = EntryEnd::SessionEnded;
                if is_noted {
                    self.sessions.note(session, |journal| journal.add(entry));
                }
            }
            // It did not run.
            Err(_) => {}
        }
    }

    pub(super) async fn rewind_session(
        &self,
        session: &InUse,
        cells: u32,
    ) -> Result<Served, CallError> {
        let (sessions, open) = (self.sessions.clone(), session.shared());
        let done = move |rewound: &Result<Rewound, SessionError>| {
            if let Ok(Rewound { cells: undone @ 1.., files, .. }) = rewound {
                let has_files = files.as_ref().is_some_and(UndoneFiles::is_all);
                sessions.note(&open, |journal| journal.undo(*undone, has_files));
                sessions.count_undone(*undone);
            }
        };
        let rewound = session.session.rewind(cells, done).await;
        let rewound = rewound.map_err(|error| CallError::of_session(error, session))?;
        let Rewound { cells: undone, files, checkpoints: left, .. } = rewound;
        if undone == 0 {
            let message = no_such_checkpoint(session, cells, left);
            return Err(InvalidArgument::new("cells", message).into());
        }
        let state = (!files.as_ref().is_some_and(UndoneFiles::is_all))
            .then(|| state_after(undone, files.as_ref()));
        // Which cell has installed them is not noted.
        let packages = (session.installs() > 0).then(|| PACKAGES_STAY.to_owned());
        let notes = state.into_iter().chain(packages).collect();
        Ok(Served::Rewound { undone, left, notes, expires_at: session.expires_at() })
    }
}

/// Why cells can't be rewound.
fn no_such_checkpoint(session: &OpenSession, cells: u32, left: u32) -> String {
    if session.language.kernel != Some(Interpreter::Python) {
        return format!("sessions in {} can't be rewound", session.language.name);
    }
    match left {
        0 => "no cell can be rewound: there is no checkpoint".to_owned(),
        left => {
            let end = if cells == 1 { "" } else { "s" };
            format!("there is no checkpoint {cells} cell{end} back; the oldest one is {left} back")
        }
    }
}
