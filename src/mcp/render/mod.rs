//! Renders the results of calls for MCP. Each is rendered once.

mod run;
mod session;

use std::time::Duration;

use isolator_pool::OutputLimits;
use isolator_pool::pool::CheckoutError;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::ExecuteError;
use isolator_pool::pool::session::SessionError;
use isolator_pool::run::RunError;
use rmcp::model::{CallToolResult, ContentBlock, ProtocolVersion, Resource, ResourceContents};
use serde::Serialize;
use serde_json::{Value, json};

use crate::calls::command::{COMMAND, CommandAnswer, CommandError, CommandServed};
use crate::calls::served::{Ran, RunEnd};
use crate::calls::{CallError, CallOutcome, Calls, Served, ToolName};
use crate::mcp::tools::Tested;
use crate::request::arguments::InvalidArgument;
use crate::result::kept::Results;
use crate::result::receipt::ReceiptReport;
use crate::result::report::Report;
use crate::result::returned::Attachment;
use crate::result::so_far::SoFar;
use crate::sessions::OpenFailure;

/// The place of the receipt in an answer's `_meta`. Models don't read it there.
const RECEIPT: &str = "isolator/receipt";

/// The place of the outcome, if the call did not run or that is unknown.
const OUTCOME: &str = "isolator/outcome";

/// The answer to a call, with what metrics and traces need of it.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// The answer in the protocol's form.
    pub result: CallToolResult,
    /// Whether it says that the tool failed.
    pub is_failure: bool,
    /// The status of the call.
    pub status: &'static str,
    /// Whether the call has run.
    pub outcome: CallOutcome,
    /// How its program was served, if one ran.
    pub receipt: Option<ReceiptReport>,
    /// Bytes of the answer.
    pub weight: usize,
}

/// Renders the results of one client's calls.
pub(super) struct Renderer<'a> {
    pub calls: &'a Calls,
    /// Files and long output, to be read later.
    pub results: &'a Results,
    pub client: &'a Client,
}

impl Renderer<'_> {
    /// The answer to a call.
    pub(super) async fn answer(&self, tool: ToolName, served: Result<Served, CallError>) -> Answer {
        let status = served.as_ref().map_or_else(CallError::status, Served::status);
        let outcome = CallOutcome::of(&served);
        let answer = match served {
            Ok(served) => self.served(tool, served).await,
            Err(error) => self.failed(tool, error),
        };
        Answer { status, ..answer }.with_outcome(outcome)
    }

    async fn served(&self, tool: ToolName, served: Served) -> Answer {
        match served {
            Served::Ran(ran) if tool == ToolName::TestCode => tested(*ran),
            Served::Ran(mut ran) => {
                let (report, attachments) = self.report(&mut ran).await;
                Answer::of_report(&report, attachments).with_receipt(ran.receipt)
            }
            Served::Checked(mut syntax) if tool == ToolName::TestCode => {
                let notes = std::mem::take(&mut syntax.notes);
                Answer::of_data(&Tested::invalid(syntax, notes))
            }
            Served::Checked(syntax) => Answer::of_data(&syntax),
            Served::Opened(opened) => {
                let data = session::opened(&opened, self.calls.config());
                Answer::of_data(&data).with_receipt(opened.receipt)
            }
            Served::Rewound { undone, left, notes, expires_at } => {
                let mut data = json!({
                    "undone_cells": undone, "can_rewind": left, "expires_at": expires_at,
                });
                if !notes.is_empty() {
                    data["notes"] = json!(notes);
                }
                Answer::of_data(&data)
            }
            Served::Interrupted(was_running) => {
                Answer::of_data(&json!({ "interrupted": was_running }))
            }
            Served::Closed(was_open) => Answer::of_data(&json!({ "closed": was_open })),
        }
    }

    /// The answer when a call was not served. The model can see from it whether its program is the cause.
    fn failed(&self, tool: ToolName, error: CallError) -> Answer {
        let text = match &error {
            CallError::Invalid(error) => return invalid(tool, error),
            CallError::Forbidden { .. } => return forbidden(tool, error),
            CallError::SessionGone(gone) | CallError::SessionEnded(gone) => {
                return session::gone(gone);
            }
            CallError::Lost(lost) => {
                let has_journals = self.calls.config().sessions.journals.server.is_some();
                // A replay has just been asked for, and there is no journal.
                return session::lost(lost, has_journals && tool != ToolName::OpenSession);
            }
            CallError::NoAudit(why) => (*why).to_owned(),
            CallError::TooMuchAtOnce { .. } => {
                format!("Sandbox error: {error}\n\nThe program did not run. Try again in a moment.")
            }
            CallError::CheckBusy(_) => format!(
                "Sandbox error: {error}\n\nThe program did not run, and nothing is known against it. Try again in a moment."
            ),
            CallError::Packages(_) => format!("Packages error: {error}\n\nNothing was run."),
            CallError::PackagesComing { .. } => format!(
                "Packages error: {error}\n\nNothing was run. The build goes on: call again with the same arguments in a \
                 minute."
            ),
            CallError::NotOpened(OpenFailure::AllInUse { .. } | OpenFailure::Full { .. }) => {
                format!(
                    "Sandbox error: {error}\n\nNo session was opened. Close one, or try again later."
                )
            }
            CallError::NotOpened(
                OpenFailure::Open(ExecuteError::Session(_)) | OpenFailure::Random(_),
            ) => format!(
                "Sandbox error: the session could not be opened: {error}\n\nTry again. If it fails again, tell the operator to \
                 run `isolator doctor`."
            ),
            CallError::Sandbox(source) | CallError::NotOpened(OpenFailure::Open(source)) => {
                format!("Sandbox error: {error}\n\n{}", self.advice(source))
            }
            CallError::Journal(_) => format!(
                "Sandbox error: {error}\n\nNo session was opened. Try again in a moment, or open a new session without replay."
            ),
            CallError::Agent(_) => format!("Sandbox error: {error}"),
            CallError::NoVerdict(_) => format!(
                "Syntax check failed: {error}\n\nIt is not known whether the program is valid."
            ),
            CallError::Session(source) => {
                format!("Sandbox error: {error}{}", advice_in_session(source))
            }
        };
        Answer::failure(text, "error")
    }

    /// Advice when a sandbox failed.
    fn advice(&self, error: &ExecuteError) -> String {
        match error {
            ExecuteError::Admission(_) => {
                let when_busy = self.calls.pools().advice_when_busy();
                let parts = ["The program did not run."].into_iter().chain(when_busy);
                parts.collect::<Vec<_>>().join(" ")
            }
            ExecuteError::Aborted => {
                "The program may have done a part of its work. Call again when the server is back."
                    .to_owned()
            }
            ExecuteError::Checkout(CheckoutError::ImageComing { .. }) => {
                "The program did not run. Try again in a minute, or use a language that is ready."
                    .to_owned()
            }
            ExecuteError::Run(RunError::WorkspaceFull(_)) => {
                "The program did not run. Send less, or ask the operator for a larger workspace."
                    .to_owned()
            }
            _ => "The sandbox failed, not the program, which may not have run. Try again. If it fails \
                  again, tell the operator to run `isolator doctor`."
                .to_owned(),
        }
    }
}

/// Advice when a step of a session has no outcome.
const fn advice_in_session(error: &SessionError) -> &'static str {
    match error {
        SessionError::Admission(_) => "\n\nNothing was run. Try again in a moment.",
        SessionError::Busy => {
            "\n\nNothing was run. Wait for the answers to these calls before you send the next one: the calls of a session run \
             one after the other."
        }
        SessionError::Files(_) => {
            "\n\nNothing was run; files before the one that failed are written. Send less, or remove files from the working directory."
        }
        SessionError::Command(_)
        | SessionError::TooLarge(_)
        | SessionError::NoFolder(_)
        | SessionError::NoKernel => "\n\nNothing was run.",
        SessionError::NoSuchFile(_) | SessionError::Ended(_) | SessionError::Paused => "",
    }
}

/// The answer of `test_code` when the program ran. Its failure is not the tool's.
fn tested(ran: Ran) -> Answer {
    let Ran { end, receipt, notes, unenforced, .. } = ran;
    let outcome = match end {
        RunEnd::Program(outcome) => *outcome,
        RunEnd::Step { cell, .. } => cell.outcome,
    };
    Answer::of_data(&Tested::executed(&outcome, &unenforced, notes)).with_receipt(receipt)
}

/// The answer when a policy forbids the program. `test_code` reports that like any other fault of the program.
fn forbidden(tool: ToolName, error: CallError) -> Answer {
    match error {
        CallError::Forbidden { found, notes } if tool == ToolName::TestCode => {
            Answer::of_data(&Tested::forbidden(found, notes))
        }
        CallError::Forbidden { found, notes } => {
            Answer::of_report(&Report { notes, ..Report::refused(found) }, Vec::new())
        }
        error => Answer::failure(error.to_string(), "error"),
    }
}

/// The answer to arguments that can't be used. As an error of the protocol, many hosts would end the agent's run with
/// it instead of showing it to the model.
pub(super) fn invalid(tool: ToolName, error: &InvalidArgument) -> Answer {
    let report = Report::invalid(error);
    match tool {
        ToolName::ExecuteCode | ToolName::GetResult | ToolName::RunCommand => {
            Answer::of_report(&report, Vec::new())
        }
        _ => {
            let data = json!({
                "status": report.status, "field": error.field, "message": error.message,
            });
            Answer::failure(report.to_text(), "invalid_arguments").with_data(data)
        }
    }
}

impl Answer {
    /// A report, and the files and pictures that come with it.
    fn of_report(report: &Report, attachments: Vec<Attachment>) -> Self {
        let text = report.to_text();
        let weight = text.len() + attachments.iter().map(Attachment::weight).sum::<usize>();
        let mut content = vec![ContentBlock::text(text)];
        content.extend(attachments.into_iter().map(block));
        let is_failure = report.is_failure();
        let mut answer = Self::new(content, is_failure, report.status.as_str());
        answer.weight = weight + report.weight();
        answer.result.structured_content = Some(as_json(report));
        answer
    }

    /// An answer that is only data. A program's failure is not the tool's.
    fn of_data(data: &impl Serialize) -> Self {
        // Objects have the order of the type here, and that of their keys in a `Value`.
        let text = serde_json::to_string(data).expect(PLAIN);
        let weight = 2 * text.len();
        let mut answer = Self::new(vec![ContentBlock::text(text)], false, "success");
        answer.result.structured_content = Some(as_json(data));
        Self { weight, ..answer }
    }

    /// The answer to a command.
    pub(super) fn command(served: CommandServed) -> Self {
        let CommandServed { answer, status, receipt, outcome } = served;
        let weight = answer.weight();
        let result: Result<CommandAnswer, CommandError> = Ok(answer);
        let is_failure = result.as_ref().is_ok_and(CommandAnswer::is_failure);
        let content = vec![ContentBlock::text("The result is in _meta.")];
        let answer = Self::new(content, is_failure, status).with_result(&result);
        Self { weight, receipt, ..answer }.with_outcome(outcome)
    }

    /// The answer to a command that was not served.
    pub(super) fn command_failed(error: CommandError, outcome: CallOutcome) -> Self {
        let (text, status) = (error.to_string(), error.status());
        Self::failure(text, status).with_result(&Err(error)).with_outcome(outcome)
    }

    fn with_result(mut self, result: &Result<CommandAnswer, CommandError>) -> Self {
        self.result.meta.get_or_insert_default().insert(COMMAND.to_owned(), as_json(result));
        self
    }

    /// An answer that only says in words why the call failed.
    pub(super) fn failure(text: impl Into<String>, status: &'static str) -> Self {
        let text = text.into();
        let weight = text.len();
        Self { weight, ..Self::new(vec![ContentBlock::text(text)], true, status) }
    }

    /// The answer while a detached program is running.
    pub(super) fn running(handle: String, kept_for: Duration, so_far: &SoFar) -> Self {
        Self::of_report(&Report::running(handle, kept_for, so_far), Vec::new())
    }

    /// The answer when a detached run ended without a result, with its output so far.
    pub(super) fn without_result(so_far: &SoFar, limits: OutputLimits) -> Self {
        Self::of_report(&Report::ended_without_result(so_far, limits), Vec::new())
    }

    fn new(content: Vec<ContentBlock>, is_failure: bool, status: &'static str) -> Self {
        let result = match is_failure {
            true => CallToolResult::error(content),
            false => CallToolResult::success(content),
        };
        let outcome = CallOutcome::Ran;
        Self { result, is_failure, status, outcome, receipt: None, weight: 0 }
    }

    /// Says whether the call has run. Clients without headers read it in `_meta`.
    pub(super) fn with_outcome(mut self, outcome: CallOutcome) -> Self {
        if outcome != CallOutcome::Ran {
            let meta = self.result.meta.get_or_insert_default();
            meta.insert(OUTCOME.to_owned(), outcome.as_str().into());
        }
        Self { outcome, ..self }
    }

    fn with_data(mut self, data: Value) -> Self {
        self.weight += data.to_string().len();
        self.result.structured_content = Some(data);
        self
    }

    fn with_receipt(mut self, receipt: ReceiptReport) -> Self {
        let value = as_json(&receipt);
        self.weight += value.to_string().len();
        self.result.meta.get_or_insert_default().insert(RECEIPT.to_owned(), value);
        Self { receipt: Some(receipt), ..self }
    }
}

/// Answers have only texts, numbers, lists and objects with texts as keys.
const PLAIN: &str = "plain data is JSON";

fn as_json(data: &impl Serialize) -> Value {
    serde_json::to_value(data).expect(PLAIN)
}

/// An attachment in the protocol's form.
fn block(attachment: Attachment) -> ContentBlock {
    match attachment {
        Attachment::Picture { base64, media_type } => ContentBlock::image(base64, media_type),
        Attachment::Text { text, uri, media_type } => {
            let contents = ResourceContents::text(text, uri);
            ContentBlock::resource(contents.with_mime_type(media_type))
        }
        Attachment::Link { uri, path, size, media_type } => {
            let mut link = Resource::new(uri, path);
            link.size = Some(size);
            link.mime_type = Some(media_type);
            ContentBlock::resource_link(link)
        }
    }
}

/// Removes blocks that a client of an older revision does not understand: links to resources came with 2025-06-18. The
/// text has their addresses.
pub(crate) fn for_version(
    mut result: CallToolResult,
    version: Option<&ProtocolVersion>,
) -> CallToolResult {
    if version.is_some_and(|version| *version < ProtocolVersion::V_2025_06_18) {
        result.content.retain(|block| !matches!(block, ContentBlock::ResourceLink(_)));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_client_gets_no_links() {
        let link = ContentBlock::resource_link(Resource::new("isolator://runs/1/files/a", "a"));
        let result = CallToolResult::success(vec![ContentBlock::text("text"), link]);
        let blocks = |version| for_version(result.clone(), version).content.len();
        assert_eq!(blocks(Some(&ProtocolVersion::V_2025_03_26)), 1);
        assert_eq!(blocks(Some(&ProtocolVersion::V_2025_06_18)), 2);
        assert_eq!(blocks(None), 2);
    }
}
