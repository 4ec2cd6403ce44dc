//! Shows what became of a cell.

use isolator_pool::pool::session::{CellEnd, CellOutcome, Occasion};
use isolator_pool::quote::escaped;
use isolator_pool::run::outcome::{Captured, End, Status};
use isolator_pool::run::output::Stream;

use super::{After, Console};
use crate::commands::session::setup::Setup;
use crate::commands::session::{json, shown};
use crate::result::cell;
use crate::result::context::{Caller, Context};
use crate::result::explain;

impl<'a> Console<'a> {
    /// Shows what became of a cell. Its output was passed on, up to where the middle is missing.
    pub(super) async fn show(&mut self, cell: &CellOutcome) -> anyhow::Result<After> {
        let context = self.context();
        let cause = explain::cause(&cell.outcome, &context);
        let cause = cell::cause(cause, cell);
        let notes = explain::notes(&cell.outcome, &[], &context);
        if self.style.is_json {
            self.screen.line(&json::line(cell, cause.as_deref(), &notes)?).await?;
        } else {
            self.show_to_people(cell, cause, &notes).await?;
        }
        let code = cell.outcome.shell_code();
        Ok(match cell.end {
            _ if !cell.is_alive => After::Over(code),
            // As in a program, nothing runs after its exit.
            Some(CellEnd::Exited) if !self.style.is_interactive && !self.style.keeps_going => {
                After::Over(code)
            }
            _ if json::has_failed(cell) => After::Failed(code),
            _ => After::Fine,
        })
    }

    async fn show_to_people(
        &mut self,
        cell: &CellOutcome,
        cause: Option<String>,
        notes: &[String],
    ) -> anyhow::Result<()> {
        let outcome = &cell.outcome;
        let streams = [(Stream::Stdout, &outcome.stdout), (Stream::Stderr, &outcome.stderr)];
        for (stream, Captured { tail, dropped, .. }) in streams {
            let rest = Captured { head: Vec::new(), tail: tail.clone(), dropped: *dropped };
            self.screen.pass_on(stream, &rest.to_bytes()).await?;
        }
        self.show_things(cell).await?;
        if let Some(remark) = remark(cell, cause, self.style.is_interactive) {
            self.screen.remark(&remark).await?;
        }
        if self.style.is_quiet {
            return Ok(());
        }
        for note in notes {
            self.screen.remark(note).await?;
        }
        if let Some(why) = cell.no_checkpoint
            && cell.no_checkpoint != self.no_checkpoint
            && self.has_blocks()
        {
            let remark = format!("there is no checkpoint before this cell, because {}", why.why());
            self.screen.remark(&remark).await?;
            self.no_checkpoint = cell.no_checkpoint;
        }
        if !cell.background.is_empty() || cell.background_dropped > 0 {
            let text = String::from_utf8_lossy(&cell.background);
            let missing = match cell.background_dropped {
                0 => String::new(),
                bytes => format!(" ({bytes} more bytes are lost)"),
            };
            let text = escaped(text.trim_end());
            self.screen
                .remark(&format!("printed in the background since the last cell{missing}: {text}"))
                .await?;
        }
        Ok(())
    }

    /// Shows values as text, and tells of pictures.
    async fn show_things(&mut self, cell: &CellOutcome) -> anyhow::Result<()> {
        for thing in &cell.shown {
            if thing.occasion == Occasion::Background {
                self.screen.remark("shown in the background since the last cell:").await?;
            }
            let (plain, others) = shown::divided(thing);
            if let Some(plain) = plain {
                self.screen.show(plain).await?;
            }
            let Some(best) =
                others.iter().find(|(kind, _)| kind.starts_with("image/")).or(others.first())
            else {
                continue;
            };
            let told = shown::told(best);
            let line = if self.style.is_interactive {
                let number = self.gallery.add(thing.forms.clone());
                format!("{told} (:save {number} to keep it)")
            } else {
                format!("{told} (--json returns it)")
            };
            self.screen.end_line().await?;
            self.screen.say(Stream::Stdout, &line).await?;
        }
        if cell.shown_dropped > 0 {
            let count = cell.shown_dropped;
            self.screen
                .remark(&format!(
                    "{count} more things that it showed are too many or too large, and lost"
                ))
                .await?;
        }
        Ok(())
    }

    /// What was asked of a cell, for what is said of it.
    fn context(&self) -> Context<'a> {
        let Setup { language, timeout, resources, .. } = self.setup;
        Context {
            config: self.config,
            language,
            timeout: *timeout,
            resources: *resources,
            advice: None,
            caller: Caller::Prompt,
            sent: &[],
            packages: None,
        }
    }
}

/// What to say of a cell's end, besides what it printed.
fn remark(cell: &CellOutcome, cause: Option<String>, is_interactive: bool) -> Option<String> {
    let outcome = &cell.outcome;
    let because = || cause.clone().unwrap_or_else(|| "its process ended".to_owned());
    if !cell.is_alive {
        return Some(format!("the session has ended with this cell: {}", because()));
    }
    match cell.undone {
        0 => {}
        1 => return Some(format!("the session is as before this cell: {}", because())),
        cells => {
            return Some(format!("the session is as before the last {cells} cells: {}", because()));
        }
    }
    if cell.end == Some(CellEnd::Exited) && is_interactive {
        return Some("the cell asked to exit; the session goes on, and :quit ends it".to_owned());
    }
    // The program's own words have said so.
    let is_said = |cause: &str| match outcome.end {
        Some(End::Code(code)) => {
            cell.end.is_some()
                && outcome.status == Status::Error
                && cause == format!("exit code {code}")
        }
        _ => false,
    };
    let cause = cause.filter(|cause| !is_said(cause))?;
    Some(format!("{}: {cause}", outcome.status.as_str()))
}

#[cfg(test)]
mod tests {
    use isolator_pool::pool::session::CellTimes;
    use isolator_pool::run::outcome::Outcome;

    use super::*;

    fn told(change: impl FnOnce(&mut CellOutcome), cause: Option<&str>) -> Option<String> {
        let mut cell = CellOutcome {
            cell: 1,
            outcome: Outcome { end: Some(End::Code(1)), ..Outcome::of(Status::Error) },
            end: Some(CellEnd::Raised),
            shown: Vec::new(),
            shown_dropped: 0,
            undone: 0,
            no_checkpoint: None,
            checkpoints: 0,
            background: Vec::new(),
            background_dropped: 0,
            is_alive: true,
            times: CellTimes::default(),
        };
        change(&mut cell);
        remark(&cell, cause.map(str::to_owned), true)
    }

    #[test]
    fn what_the_program_has_said_is_not_said_again() {
        assert_eq!(told(|_| (), Some("exit code 1")), None);
        let hint = told(|_| (), Some("exit code 1; the module 'x' is missing")).unwrap();
        assert_eq!(hint, "error: exit code 1; the module 'x' is missing");
        // A command says nothing of its exit code.
        let command = told(|cell| cell.end = None, Some("exit code 1")).unwrap();
        assert_eq!(command, "error: exit code 1");
        assert_eq!(told(|cell| cell.outcome.status = Status::Success, None), None);
    }

    #[test]
    fn what_became_of_the_session_is_said_in_one_line() {
        let undone = |cells| {
            told(|cell| (cell.undone, cell.end) = (cells, Some(CellEnd::Died)), Some("why"))
                .unwrap()
        };
        assert_eq!(undone(1), "the session is as before this cell: why");
        assert_eq!(undone(3), "the session is as before the last 3 cells: why");
        let over = told(|cell| (cell.undone, cell.is_alive) = (1, false), Some("why")).unwrap();
        assert_eq!(over, "the session has ended with this cell: why");
        let exited = told(|cell| cell.end = Some(CellEnd::Exited), Some("exit code 1")).unwrap();
        assert!(exited.contains(":quit"), "{exited}");
    }
}
