//! The calls of sessions.

mod replay;

use std::collections::VecDeque;
use std::time::Duration;

use isolator_pool::pool::admission::Client;
use isolator_pool::pool::session::{CellEnd, CellOutcome, Rewound, SessionError};
use isolator_pool::run::outcome::Status;
use isolator_pool::run::output::Watch;
use serde_json::json;

use self::replay::{Replayed, to_run_again};
use super::{Answer, Call, Calls};
use crate::audit::Note;
use crate::duration;
use crate::mcp::{session_answers, tool_result};
use crate::request::arguments::{
    InvalidArgument, OneSession, OpenSession, RewindSession, RunCommand, required,
};
use crate::request::in_session::{self, Cell, Opening};
use crate::request::packages::WantedPackages;
use crate::request::understand::{self, given::Given};
use crate::result::explain::{Caller, Context, PackagesAdvice};

use crate::result::report::Report;
use crate::sessions::journal::{Entry, EntryEnd, Step};
use crate::sessions::{self, InUse, NoSession, Sessions};

/// What the argument of each tool is.
const HANDLE: &str = "the handle that open_session returned";

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
    /// Opens a session.
    pub(super) async fn open_session(
        &self,
        arguments: Given,
        call: Call,
        note: &mut Note,
    ) -> Answer {
        let Call { client, progress, steps: tell, .. } = call;
        let (arguments, notes) = understand::read::<OpenSession>(arguments, &self.config)?;
        let mut share = self.in_flight.share(&client);
        let weight = arguments.files.iter().map(|file| file.content.len()).sum();
        if !share.grow(weight) {
            return Ok(tool_result::too_much_at_once(self.config.requests.max_in_flight));
        }
        let replay = arguments.replay.clone();
        let Opening { mut wish, packages: mut names, first } =
            in_session::opening(arguments, &self.config).map_err(|error| notes.explain(error))?;
        let mut steps = VecDeque::new();
        let mut replayed = None;
        if let Some(handle) = replay {
            let (language, journal) = self
                .sessions
                .journal(&client, &handle)
                .ok_or_else(|| InvalidArgument::new("replay", session_answers::unknown(&handle)))?;
            if language != wish.language.name {
                let message =
                    format!("that session's language is {language}: open one in the same language");
                return Err(InvalidArgument::new("replay", message));
            }
            if names.is_empty() {
                names = journal.packages().to_vec();
            }
            steps.extend(journal.entries().filter_map(to_run_again));
            replayed = Some(Replayed { forgotten: journal.missing(), ..Replayed::default() });
        }
        let mut notes = notes.into_texts();
        let wanted = WantedPackages::named(names);
        let patience = Some(self.config.results.detach_after);
        let got = self.packages_for(&wish.language, wanted, &client, tell.as_ref(), patience).await;
        let mut got = match got {
            Ok(got) => got,
            Err(answer) => return answer,
        };
        notes.append(&mut got.notes);
        wish.packages = got.bound.clone();
        let (session, receipt) = match self.sessions.open(&client, &self.config, wish).await {
            Ok((session, receipt, mut evicted)) => {
                notes.append(&mut evicted);
                (session, receipt)
            }
            Err(error) => {
                return Ok(session_answers::not_opened(&error, self.pools.advice_when_busy()));
            }
        };
        note.place(&session.language.name, Some(&session.id));
        note.limits(session.idle_timeout, session.resources);
        note.took(receipt.start, receipt.found);
        if let Some(bound) = &got.bound {
            note.packages(&bound.asked, &bound.set.hash);
        }
        if let Some(first) = &first {
            note.files(first.sent());
        }
        let mut unanswered = Unanswered { sessions: &self.sessions, session, is_answered: false };
        let session = &unanswered.session;
        if let Some(first) = first
            && let Err(answer) = self.first_files(session, first, &mut notes, note).await
        {
            // Without its files it is not what was asked for.
            return answer;
        }
        if let Some(replayed) = &mut replayed
            && let Err(answer) = self.replay(session, steps, replayed, progress, &mut notes).await
        {
            return answer;
        }
        if replayed.is_some() {
            self.sessions.count_replay();
        }
        let limits = json!({
            "memory_mb": session.resources.memory.as_mib(),
            "cpus": session.resources.cpu.as_cores(),
            "max_timeout": duration::shown(self.config.limits.max_timeout),
            "idle_timeout": duration::shown(session.idle_timeout),
            "max_age": duration::shown(self.config.sessions.max_age),
        });
        let mut answer = json!({
            "session": session.id,
            "language": session.language.name,
            "expires_at": session.expires_at(),
            "limits": limits,
        });
        if let Some(interpreter) = &session.session.opened().interpreter {
            answer["interpreter"] = json!(interpreter);
        }
        if let Some(replayed) = replayed {
            answer["replayed"] = json!(replayed);
        }
        if let Some(bound) = &session.packages {
            answer["packages"] = json!(bound.asked);
        }
        if !notes.is_empty() {
            answer["notes"] = json!(notes);
        }
        let receipt = session_answers::open_receipt(session, &receipt, got.used());
        unanswered.is_answered = true;
        Ok(tool_result::with_receipt(tool_result::of_data(&answer), &receipt))
    }

    /// Writes the files that come with a new session. The error is the answer to the call.
    async fn first_files(
        &self,
        session: &InUse,
        mut first: Cell,
        notes: &mut Vec<String>,
        note: &mut Note,
    ) -> Result<(), Answer> {
        let (policies, language) = (&self.config.policies, &session.language.name);
        let unchecked = std::mem::take(&mut first.unchecked);
        let checked = self.check_policies(policies, language, unchecked, &session.client, note);
        let found = checked.await.map_err(Ok)?;
        if !found.is_empty() {
            return Err(Ok(tool_result::of_report(&Report::refused(found), Vec::new())));
        }
        let ran = self.run_step(session, first, None, notes).await;
        ran.map(|_| ()).map_err(|error| Ok(session_answers::failed(&error, session)))
    }

    /// Runs a cell, and notes it in the journal. `notes` say which sessions have ended because their memory is needed.
    async fn run_step(
        &self,
        session: &InUse,
        cell: Cell,
        watch: Option<Watch>,
        notes: &mut Vec<String>,
    ) -> Result<CellOutcome, SessionError> {
        let Cell { mut run, step, files, has_lost_files, .. } = cell;
        run.watch = watch;
        let (calls, open, timeout) = (self.clone(), session.shared(), run.timeout);
        // The session's task says what became of it, also if nobody waits for the answer anymore.
        let done = move |ran: &Result<CellOutcome, SessionError>| {
            let entry = Entry { cell: 0, step, files, has_lost_files, timeout, end: EntryEnd::Ran };
            calls.note_step(&open, entry, ran);
        };
        let ran = session.session.run(run, done).await;
        if let Err(error) = &ran {
            self.pools.count_failed_cell(&session.language.name, error);
        }
        notes.append(&mut self.sessions.keep_to_memory(&session.client));
        ran
    }

    /// Notes and counts a step that has run, or with which its session has ended.
    fn note_step(
        &self,
        session: &sessions::OpenSession,
        mut entry: Entry,
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
                    // It would go on for as long as it could, if nobody interrupts it the next time.
                    entry.timeout = outcome.outcome.wall.max(LEAST_TIME);
                }
                entry.end = if !outcome.is_alive {
                    EntryEnd::SessionEnded
                } else if outcome.undone > 0 && is_code {
                    EntryEnd::Undone
                } else if outcome.outcome.status == Status::Timeout {
                    EntryEnd::TimedOut
                } else {
                    EntryEnd::Ran
                };
                self.sessions.note(session, |journal| {
                    if outcome.undone > 1 {
                        journal.undo(outcome.undone - 1);
                    }
                    journal.add(entry);
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
                self.sessions.note(session, |journal| journal.add(entry));
            }
            // It did not run.
            Err(_) => {}
        }
    }

    /// Runs a cell of code.
    pub(super) async fn run_cell(
        &self,
        handle: &str,
        arguments: Given,
        client: &Client,
        watch: Option<Watch>,
        note: &mut Note,
    ) -> Answer {
        if !self.has_sessions() {
            return Err(InvalidArgument::new("session", "this server offers no sessions"));
        }
        let session = match self.sessions.take(client, handle) {
            Ok(session) => session,
            Err(none) => return Ok(session_answers::none(handle, &none)),
        };
        note.place(&session.language.name, Some(handle));
        let (arguments, notes) =
            understand::read_cell(arguments, &session.language.name, &self.config)?;
        let mut share = self.in_flight.share(client);
        if !share.grow(arguments.weight()) {
            return Ok(tool_result::too_much_at_once(self.config.requests.max_in_flight));
        }
        let policies = session.policies(&self.config);
        let (language, resources) = (&session.language, session.resources);
        let cell = in_session::cell(arguments, language, resources, policies, &self.config)
            .map_err(|error| notes.explain(error))?;
        let mut notes = notes.into_texts();
        if let Step::Code { code, .. } = &cell.step {
            let (language, bound) = (&session.language, session.packages.as_ref());
            notes.extend(self.packages_of_cell(language, bound, code).await?);
        }
        self.finish(&session, cell, notes, client, watch, note).await
    }

    /// Runs a shell command.
    pub(super) async fn run_command(
        &self,
        arguments: Given,
        client: &Client,
        watch: Option<Watch>,
        note: &mut Note,
    ) -> Answer {
        let (arguments, notes) = understand::read::<RunCommand>(arguments, &self.config)?;
        let handle = required(arguments.session.clone(), "session", HANDLE)?;
        let session = match self.sessions.take(client, &handle) {
            Ok(session) => session,
            Err(none) => return Ok(session_answers::none(&handle, &none)),
        };
        note.place(&session.language.name, Some(&handle));
        let mut share = self.in_flight.share(client);
        let texts = [&arguments.command, &arguments.stdin].into_iter().flatten();
        if !share.grow(texts.map(String::len).sum()) {
            return Ok(tool_result::too_much_at_once(self.config.requests.max_in_flight));
        }
        let cell = in_session::command(arguments, &session.language, &self.config)
            .map_err(|error| notes.explain(error))?;
        self.finish(&session, cell, notes.into_texts(), client, watch, note).await
    }

    async fn finish(
        &self,
        session: &InUse,
        mut cell: Cell,
        mut notes: Vec<String>,
        client: &Client,
        watch: Option<Watch>,
        note: &mut Note,
    ) -> Answer {
        let caller = match &cell.step {
            Step::Command { .. } => Caller::ShellCommand,
            Step::Code { .. } | Step::Files => Caller::Cell,
        };
        match &cell.step {
            Step::Code { code, .. } => note.code(code),
            Step::Command { command, .. } => note.code(command),
            Step::Files => {}
        }
        note.files(cell.sent());
        note.limits(cell.run.timeout, session.resources);
        let unchecked = std::mem::take(&mut cell.unchecked);
        let (policies, language) = (session.policies(&self.config), &session.language.name);
        let found = match self.check_policies(policies, language, unchecked, client, note).await {
            Ok(found) => found,
            Err(busy) => return Ok(busy),
        };
        if !found.is_empty() {
            let report = Report { notes, ..Report::refused(found) };
            return Ok(tool_result::of_report(&report, Vec::new()));
        }
        let (advice, wanted) = (cell.advice.take(), cell.wanted.clone());
        let sent = cell.run.workspace.names();
        let timeout = cell.run.timeout;
        let outcome = match self.run_step(session, cell, watch, &mut notes).await {
            Ok(outcome) => outcome,
            Err(error) => return Ok(session_answers::failed(&error, session)),
        };
        note.ran(&outcome.outcome);
        let context = Context {
            config: &self.config,
            language: &session.language,
            timeout,
            resources: session.resources,
            advice: advice.as_ref(),
            caller,
            sent: &sent,
            packages: Some(PackagesAdvice {
                packages: &self.packages,
                asked: session.packages.as_ref().map_or(&[], |bound| &bound.asked),
            }),
        };
        let unenforced = self.pools.unenforced();
        let keep = (&*self.results, client);
        Ok(session_answers::of_cell(outcome, session, &unenforced, &context, &wanted, notes, keep)
            .await)
    }

    /// Undoes cells.
    pub(super) async fn rewind_session(&self, arguments: Given, call: Call) -> Answer {
        let client = call.client;
        let (RewindSession { session, cells }, _) = understand::read(arguments, &self.config)?;
        let handle = required(session, "session", HANDLE)?;
        let cells = match cells.map(u32::try_from) {
            Some(Ok(cells @ 1..)) => cells,
            Some(_) => return Err(InvalidArgument::new("cells", "must be a whole number from 1")),
            None => {
                return Err(InvalidArgument::new(
                    "cells",
                    "is required: how many cells to undo, at least 1",
                ));
            }
        };
        let session = match self.sessions.take(&client, &handle) {
            Ok(session) => session,
            Err(none) => return Ok(session_answers::none(&handle, &none)),
        };
        let (sessions, open) = (self.sessions.clone(), session.shared());
        let done = move |rewound: &Result<Rewound, SessionError>| {
            if let Ok(Rewound { cells: undone @ 1.., .. }) = *rewound {
                sessions.note(&open, |journal| journal.undo(undone));
                sessions.count_undone(undone);
            }
        };
        let (undone, left) = match session.session.rewind(cells, done).await {
            Ok(rewound) => rewound,
            Err(error) => return Ok(session_answers::failed(&error, &session)),
        };
        if undone == 0 {
            let message = session_answers::no_such_checkpoint(&session, cells, left);
            return Err(InvalidArgument::new("cells", message));
        }
        let expires_at = session.expires_at();
        let answer =
            json!({ "undone_cells": undone, "can_rewind": left, "expires_at": expires_at });
        Ok(tool_result::of_data(&answer))
    }

    /// Interrupts what runs.
    pub(super) fn interrupt_session(&self, arguments: Given, call: &Call) -> Answer {
        let (OneSession { session }, _) = understand::read(arguments, &self.config)?;
        let handle = required(session, "session", HANDLE)?;
        Ok(match self.sessions.take(&call.client, &handle) {
            Ok(session) => {
                tool_result::of_data(&json!({ "interrupted": session.session.interrupt() }))
            }
            Err(none) => session_answers::none(&handle, &none),
        })
    }

    /// Ends a session. One that has ended is closed, too.
    pub(super) fn close_session(&self, arguments: Given, call: &Call) -> Answer {
        let (OneSession { session }, _) = understand::read(arguments, &self.config)?;
        let handle = required(session, "session", HANDLE)?;
        Ok(match self.sessions.close(&call.client, &handle) {
            Ok(()) => tool_result::of_data(&json!({ "closed": true })),
            Err(NoSession::Gone(_)) => tool_result::of_data(&json!({ "closed": false })),
            Err(none @ NoSession::Unknown) => session_answers::none(&handle, &none),
        })
    }
}
