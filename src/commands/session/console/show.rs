//! Shows what became of a cell.

use isolator_pool::pool::session::{CellEnd, Occasion};
use isolator_pool::quote::escaped;
use isolator_pool::run::outcome::{Captured, End, Status};
use isolator_pool::run::output::Stream;

use super::{After, Console, Followed};
use crate::calls::command::{FinishedStep, Output, Shown};
use crate::commands::session::{json, shown};

impl Console<'_> {
    /// Shows what became of a cell. The beginning of its output may have been passed on.
    pub(super) async fn show(&mut self, mut step: FinishedStep) -> anyhow::Result<After> {
        self.cells = step.cell;
        self.note(&mut step);
        let after = self.after(&step);
        match self.style.is_json {
            true => self.screen.line(&json::line(&step)?).await?,
            false => self.show_to_people(step).await?,
        }
        Ok(after)
    }

    /// Notes what became of a cell in the record, if one is kept.
    fn note(&mut self, step: &mut FinishedStep) {
        let Some(record) = &mut self.record else { return };
        let Followed { stdout, stderr } = self.followed;
        record.print(Stream::Stdout, &rest(step.stdout.clone(), stdout));
        record.print(Stream::Stderr, &rest(step.stderr.clone(), stderr));
        let printed = record.end(step);
        let Output { head, tail, dropped } = &mut step.stderr;
        let end = if *dropped == 0 { head } else { tail };
        end.extend_from_slice(printed.as_bytes());
    }

    fn after(&self, step: &FinishedStep) -> After {
        match step.cell_end {
            _ if !step.is_alive => After::Over(step.code),
            Some(CellEnd::Exited) if !self.style.is_interactive && !self.style.keeps_going => {
                After::Exited(step.code)
            }
            _ if step.has_failed() => After::Failed(step.code),
            _ => After::Fine,
        }
    }

    async fn show_to_people(&mut self, step: FinishedStep) -> anyhow::Result<()> {
        let remark = remark(&step, self.style.is_interactive);
        let FinishedStep { stdout, stderr, shown, shown_dropped, .. } = step;
        self.pass_on_rest(Stream::Stdout, stdout, self.followed.stdout).await?;
        self.pass_on_rest(Stream::Stderr, stderr, self.followed.stderr).await?;
        self.show_things(shown, shown_dropped).await?;
        if let Some(remark) = remark {
            self.screen.remark(&remark).await?;
        }
        if self.style.is_quiet {
            return Ok(());
        }
        for note in &step.notes {
            self.screen.remark(&escaped(note)).await?;
        }
        if let Some(why) = step.no_checkpoint
            && step.no_checkpoint != self.no_checkpoint
            && self.has_blocks()
        {
            let remark = format!("there is no checkpoint before this cell, because {}", why.why());
            self.screen.remark(&remark).await?;
            self.no_checkpoint = step.no_checkpoint;
        }
        if !step.background.is_empty() || step.background_dropped > 0 {
            let text = String::from_utf8_lossy(&step.background);
            let missing = match step.background_dropped {
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

    /// Passes on the output of a stream that was not passed on while the cell ran.
    async fn pass_on_rest(
        &mut self,
        stream: Stream,
        output: Output,
        followed: usize,
    ) -> anyhow::Result<()> {
        self.screen.pass_on(stream, &rest(output, followed)).await
    }

    /// Shows values as text, and describes pictures.
    async fn show_things(&mut self, things: Vec<Shown>, dropped: u32) -> anyhow::Result<()> {
        for thing in things {
            if thing.occasion == Occasion::Background {
                self.screen.remark("shown in the background since the last cell:").await?;
            }
            let (plain, others) = shown::divided(&thing);
            if let Some(plain) = plain {
                self.screen.show(plain).await?;
            }
            let Some(best) = shown::besides_text(plain, &others) else { continue };
            let described = shown::describe(best);
            let line = if self.style.is_interactive {
                let number = self.gallery.add(thing.forms);
                format!("{described} (:save {number} to keep it)")
            } else {
                format!("{described} (--json returns it)")
            };
            self.screen.end_line().await?;
            self.screen.say(Stream::Stdout, &line).await?;
        }
        if dropped > 0 {
            let remark =
                format!("{dropped} more things that it showed are too many or too large, and lost");
            self.screen.remark(&remark).await?;
        }
        Ok(())
    }
}

/// The output of a stream after the part that was followed.
fn rest(mut output: Output, followed: usize) -> Vec<u8> {
    output.head.drain(..followed.min(output.head.len()));
    Captured::from(output).into_bytes()
}

/// The remark about the end of a cell, besides what it printed.
fn remark(step: &FinishedStep, is_interactive: bool) -> Option<String> {
    let cause = step.cause.as_deref().map(|cause| escaped(cause).into_owned());
    let because = || cause.clone().unwrap_or_else(|| "its process ended".to_owned());
    if !step.is_alive {
        return Some(format!("the session has ended with this cell: {}", because()));
    }
    if let Some(undone) = &step.undone_state {
        return Some(format!("{}; {}", because(), escaped(undone)));
    }
    if step.cell_end == Some(CellEnd::Exited) && is_interactive {
        return Some("the cell asked to exit; the session goes on, and :quit ends it".to_owned());
    }
    // The program's own words have said so.
    let is_said = |cause: &str| match step.end {
        Some(End::Code(code)) => {
            step.cell_end.is_some()
                && step.status == Status::Error.as_str()
                && cause == format!("exit code {code}")
        }
        _ => false,
    };
    let cause = cause.filter(|cause| !is_said(cause))?;
    Some(format!("{}: {cause}", escaped(&step.status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remark_of(change: impl FnOnce(&mut FinishedStep), cause: Option<&str>) -> Option<String> {
        let mut step = FinishedStep {
            cell: 1,
            status: Status::Error.as_str().to_owned(),
            end: Some(End::Code(1)),
            cell_end: Some(CellEnd::Raised),
            cause: cause.map(str::to_owned),
            is_alive: true,
            ..FinishedStep::default()
        };
        change(&mut step);
        remark(&step, true)
    }

    #[test]
    fn causes_that_the_program_has_printed_are_not_repeated() {
        assert_eq!(remark_of(|_| (), Some("exit code 1")), None);
        let hint = remark_of(|_| (), Some("exit code 1; the module 'x' is missing")).unwrap();
        assert_eq!(hint, "error: exit code 1; the module 'x' is missing");
        // A command says nothing of its exit code.
        let command = remark_of(|step| step.cell_end = None, Some("exit code 1")).unwrap();
        assert_eq!(command, "error: exit code 1");
        assert_eq!(remark_of(|step| step.status = "success".to_owned(), None), None);
    }

    #[test]
    fn the_state_of_the_session_is_one_line() {
        let undone = remark_of(
            |step| {
                step.cell_end = Some(CellEnd::Died);
                step.undone_state = Some("the cell was undone: all".to_owned());
            },
            Some("why"),
        );
        assert_eq!(undone.unwrap(), "why; the cell was undone: all");
        let over =
            remark_of(|step| (step.undone, step.is_alive) = (1, false), Some("why")).unwrap();
        assert_eq!(over, "the session has ended with this cell: why");
        let exited =
            remark_of(|step| step.cell_end = Some(CellEnd::Exited), Some("exit code 1")).unwrap();
        assert!(exited.contains(":quit"), "{exited}");
    }
}
