//! The parts of a report that only cells have.

use isolator_pool::pool::session::{CellEnd, CellOutcome, NoCheckpoint, UndoneFiles};
use isolator_pool::run::outcome::Status;

use crate::result::report::Report;
use crate::result::shown::ShownReport;
use crate::result::units::text;

/// Adds the parts that only cells have.
pub(crate) fn complete(report: &mut Report, cell: &CellOutcome, things: Vec<ShownReport>) {
    report.cell = Some(cell.cell);
    report.undone = cell.undone > 0;
    report.result =
        things.iter().rev().find(|thing| thing.is_result).and_then(|it| it.text.clone());
    report.shown = things;
    if !cell.background.is_empty() {
        report.background_output = Some(text(&cell.background));
    }
    report.message = message(cause(report.message.take(), cell), cell);
    if cell.shown_dropped > 0 {
        let note = format!(
            "of what the cell showed, {} things are missing, in one form or in all: they are too many or too large; show less \
             in a cell, or write it to a file",
            cell.shown_dropped
        );
        report.notes.push(note);
    }
    if cell.background_dropped > 0 {
        let note =
            format!("{} bytes of the background output are missing", cell.background_dropped);
        report.notes.push(note);
    }
    if let Some(why) = cell.no_checkpoint.filter(|_| cell.is_alive).map(NoCheckpoint::why) {
        report.notes.push(format!("there is no checkpoint before this cell, because {why}"));
    }
}

/// The cause of a failure, where it is another for a cell than for a program that ended in the same way.
pub(crate) fn cause(cause: Option<String>, cell: &CellOutcome) -> Option<String> {
    match cell.end {
        // Without a checkpoint it is not killed if it can be interrupted.
        Some(CellEnd::Interrupted) => cause.map(|cause| cause.replacen(" and killed;", ";", 1)),
        Some(CellEnd::NotBegun) if cell.outcome.status == Status::Error => Some(
            "the cell did not run: an earlier one has ended the interpreter, keeps it busy, or has used up its open files"
                .to_owned(),
        ),
        _ => cause,
    }
}

/// Describes a session after that number of cells was undone, with these of its files.
pub(crate) fn state_after(cells: u32, files: Option<&UndoneFiles>) -> String {
    let then = if cells == 1 { "before it" } else { "before them" };
    let Some(files) = files else { return format!("variables are as {then}, files are not") };
    let mut text = format!("variables and the files of the working directory are as {then}");
    let mut left: Vec<_> = files.left.iter().map(|name| format!("{name:?}")).collect();
    match files.more {
        0 => {}
        more if left.is_empty() => left.push(format!("{more} files")),
        more => left.push(format!("{more} more")),
    }
    if let Some((last, others)) = left.split_last() {
        let others =
            if others.is_empty() { String::new() } else { format!("{} and ", others.join(", ")) };
        let are = if others.is_empty() && files.more < 2 { "is" } else { "are" };
        text.push_str(&format!(
            ", except for {others}{last}, which {are} too large to be kept, could not be written, or may not be the work of \
             what was undone"
        ));
    }
    if files.has_unknown {
        text.push_str(
            "; others may not be, because there are too many files to list, they changed meanwhile, or a folder can't be read or is \
             nested too deep",
        );
    }
    text
}

/// Describes what was undone with a cell; nothing if no cell was.
pub(crate) fn undone(cell: &CellOutcome) -> Option<String> {
    let state = || state_after(cell.undone, cell.undone_files.as_ref());
    match cell.undone {
        0 => None,
        1 => Some(format!("the cell was undone: {}", state())),
        cells => Some(format!(
            "the last {cells} cells were undone, because there was no newer checkpoint: {}",
            state()
        )),
    }
}

/// The cause of a failure, and what it means for the session.
fn message(cause: Option<String>, cell: &CellOutcome) -> Option<String> {
    let state = match (cell.is_alive, cell.undone, cell.end) {
        (false, ..) => Some(
            "the session has ended with it, because there was no checkpoint to go back to; open_session with replay runs \
             its cells again"
                .to_owned(),
        ),
        (true, 0, Some(CellEnd::Interrupted)) => {
            Some("it was interrupted; what it did until then stays".to_owned())
        }
        (true, 0, Some(CellEnd::Exited)) if cause.is_some() => {
            Some("the session goes on, with its variables".to_owned())
        }
        (true, ..) => undone(cell),
    };
    with_state(cause, state)
}

/// The cause of a failure with what it means for the session, as far as there are any.
pub(crate) fn with_state(cause: Option<String>, state: Option<String>) -> Option<String> {
    match (cause, state) {
        (Some(cause), Some(state)) => Some(format!("{cause}; {state}")),
        (cause, state) => cause.or(state),
    }
}
