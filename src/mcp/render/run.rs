//! The report of a run, with its files and pictures. Output that is too long for the answer is kept for the client.

use std::{mem, panic};

use isolator_pool::engine::preload::Interpreter;
use isolator_pool::run::outcome::{Captured, ChangedFile};

use super::Renderer;
use crate::calls::served::{Ran, RunEnd};
use crate::request::wanted_files::OutputFiles;
use crate::result::cell;
use crate::result::explain;
use crate::result::files::LeftFiles;
use crate::result::forms::Room;
use crate::result::kept::Item;
use crate::result::report::Report;
use crate::result::returned::Attachment;
use crate::result::shown::{self, Shown};

const STDOUT: &str = "stdout";
const STDERR: &str = "stderr";

impl Renderer<'_> {
    /// Reports a run in a new sandbox or in a session.
    pub(super) async fn report(&self, ran: &mut Ran) -> (Report, Vec<Attachment>) {
        if let RunEnd::Step { cell, session, .. } = &mut ran.end
            && (session.language.kernel == Some(Interpreter::Node)
                || self.calls.config().sessions.checkpoints == 0)
        {
            // There never is one, so the model need not know.
            cell.no_checkpoint = None;
        }
        let Shown { reports, pictures, items: mut kept, room, left_out } = take_shown(ran).await;
        let not_shown: Vec<_> = kept.keys().cloned().collect();
        let output = self.calls.config().limits.output();
        let wanted = ran.wanted.clone();
        let outcome = ran.outcome_mut();
        let [has_long_stdout, has_long_stderr] =
            [(STDOUT, &mut outcome.stdout), (STDERR, &mut outcome.stderr)].map(|(name, stream)| {
                let short = stream.shortened(output.head, output.tail);
                let is_longer = short.dropped > stream.dropped;
                let whole = mem::replace(stream, short);
                if is_longer {
                    kept.insert(name.to_owned(), item_of(whole));
                }
                is_longer
            });
        let (files, is_all) = (mem::take(&mut outcome.files), !outcome.more_files);
        let mut left = sorted(files, is_all, wanted, room).await;
        kept.append(&mut left.items);
        let kept = (!kept.is_empty()).then(|| self.results.keep(self.client, kept)).transpose();
        let base = kept.as_ref().ok().and_then(Option::as_deref);
        let returned = left.returned(base);
        let context = ran.context(self.calls.config(), ran.caller(), Some(self.calls.packages()));
        let mut report = Report::new(ran.outcome(), &ran.unenforced, &context);
        report.files = returned.files;
        report.notes.extend(returned.notes);
        if let Err(error) = &kept {
            tracing::warn!(%error, "the results of a run could not be kept");
            let note = "the program left more than the server can keep, so it can't be read later";
            report.notes.push(note.to_owned());
        }
        if let Some(base) = base {
            report.stdout_uri = has_long_stdout.then(|| format!("{base}{STDOUT}"));
            report.stderr_uri = has_long_stderr.then(|| format!("{base}{STDERR}"));
        }
        match &ran.end {
            RunEnd::Program(outcome) if report.is_silent() && outcome.in_tmp.is_empty() => {
                report.notes.push(explain::silent(&context));
            }
            RunEnd::Program(_) => {}
            RunEnd::Step { cell, session, .. } => {
                cell::complete(&mut report, cell, reports);
                report.notes.extend(shown::not_shown(&not_shown, base));
                report.notes.extend(shown::too_long(left_out));
                report.expires_at = cell.is_alive.then(|| session.expires_at());
            }
        }
        report.notes.splice(..0, mem::take(&mut ran.notes));
        let attachments = pictures.into_iter().chain(returned.attachments);
        (report, attachments.collect())
    }
}

/// The values and pictures that a cell showed.
async fn take_shown(ran: &mut Ran) -> Shown {
    let RunEnd::Step { cell, .. } = &mut ran.end else { return Shown::default() };
    let things = mem::take(&mut cell.shown);
    if things.is_empty() {
        return Shown::default();
    }
    match tokio::task::spawn_blocking(move || shown::shown(things)).await {
        Ok(shown) => shown,
        Err(error) => panic::resume_unwind(error.into_panic()),
    }
}

/// The files that a program left. Pictures are decoded in a thread for that.
async fn sorted(
    files: Vec<ChangedFile>,
    is_all: bool,
    wanted: OutputFiles,
    room: Room,
) -> LeftFiles {
    if files.is_empty() {
        return LeftFiles::new(files, is_all, &wanted, room);
    }
    let sort = move || LeftFiles::new(files, is_all, &wanted, room);
    match tokio::task::spawn_blocking(sort).await {
        Ok(left) => left,
        Err(error) => panic::resume_unwind(error.into_panic()),
    }
}

fn item_of(stream: Captured) -> Item {
    let content = stream.into_bytes();
    let is_text = std::str::from_utf8(&content).is_ok();
    let media_type = if is_text { "text/plain" } else { "application/octet-stream" };
    Item { content, media_type: media_type.to_owned() }
}
