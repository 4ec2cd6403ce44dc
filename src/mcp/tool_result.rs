//! The answers of the tools, as MCP results.

use std::collections::BTreeMap;
use std::mem;
use std::panic;
use std::time::Duration;

use isolator_pool::OutputLimits;
use isolator_pool::engine::limits::ByteSize;
use isolator_pool::pool::CheckoutError;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::{ExecuteError, Receipt};
use isolator_pool::run::RunError;
use isolator_pool::run::outcome::{Captured, ChangedFile, Outcome};
use rmcp::model::{CallToolResult, ContentBlock, ProtocolVersion, Resource, ResourceContents};
use serde::Serialize;
use serde_json::{Value, json};

use crate::config::Config;
use crate::duration;
use crate::mcp::tools::{EXECUTE_CODE, GET_RESULT, RUN_COMMAND};
use crate::packages::Refusal;
use crate::policy::NoTurn;
use crate::request::arguments::InvalidArgument;
use crate::request::syntax;
use crate::request::wanted_files::Wanted;
use crate::result::explain::{self, Context};
use crate::result::files::{Attachment, LeftFiles};
use crate::result::forms::Room;
use crate::result::kept::{Item, Results};
use crate::result::receipt::{ReceiptReport, UsedPackages};
use crate::result::report::Report;
use crate::result::so_far::SoFar;

/// The answer to a run: the text, the data, and the files. What is too long for the answer is kept for the client.
/// `notes` say what was understood of the call.
pub(crate) async fn of_run(
    mut outcome: Outcome,
    (receipt, packages): (&Receipt, Option<UsedPackages>),
    context: &Context<'_>,
    wanted: &Wanted,
    notes: Vec<String>,
    (results, client): (&Results, &Client),
) -> CallToolResult {
    let unenforced = &receipt.unenforced;
    let describe = |outcome: &Outcome| Report::new(outcome, unenforced, context);
    let keep = (results, client);
    let (mut report, attachments, _) =
        assemble(&mut outcome, describe, wanted, notes, keep, Kept::default(), context.config)
            .await;
    if report.is_silent() && outcome.in_tmp.is_empty() {
        report.notes.push(explain::silent(context));
    }
    let result = of_report(&report, attachments);
    with_receipt(result, &ReceiptReport::new(&outcome, receipt, packages))
}

/// What was shown before the files of a run are looked at.
#[derive(Default)]
pub(super) struct Kept {
    /// How much more the answer can hold.
    pub room: Room,
    /// What is kept because there was no room for it.
    pub items: BTreeMap<String, Item>,
}

/// The report of a run, what comes with it, and how the addresses of what is kept begin. What is too long for the answer is kept
/// for the client.
pub(super) async fn assemble(
    outcome: &mut Outcome,
    describe: impl FnOnce(&Outcome) -> Report,
    wanted: &Wanted,
    notes: Vec<String>,
    (results, client): (&Results, &Client),
    shown: Kept,
    config: &Config,
) -> (Report, Vec<ContentBlock>, Option<String>) {
    let mut long = BTreeMap::new();
    for (name, stream) in [(STDOUT, &mut outcome.stdout), (STDERR, &mut outcome.stderr)] {
        let limits = config.limits.output();
        let short = stream.shortened(limits.head, limits.tail);
        let is_longer = short.dropped > stream.dropped;
        let whole = mem::replace(stream, short);
        if is_longer {
            long.insert(name.to_owned(), output(whole));
        }
    }
    let (files, is_all) = (mem::take(&mut outcome.files), !outcome.more_files);
    let mut left = sorted(files, is_all, wanted, shown.room).await;
    let is_long = [STDOUT, STDERR].map(|name| long.contains_key(name));
    let mut items = mem::take(&mut left.items);
    items.extend(long);
    items.extend(shown.items);
    let kept = (!items.is_empty()).then(|| results.keep(client, items)).transpose();
    let base = kept.as_ref().ok().and_then(Option::as_deref);
    let returned = left.returned(base);
    let mut report = describe(outcome);
    report.notes.splice(..0, notes);
    report.files = returned.files;
    report.notes.extend(returned.notes);
    if let Err(error) = &kept {
        tracing::warn!(%error, "the results of a run could not be kept");
        let note = "the program left more than the server can keep, so it can't be read later";
        report.notes.push(note.to_owned());
    }
    if let Some(base) = base {
        let [stdout, stderr] = is_long;
        report.stdout_uri = stdout.then(|| format!("{base}{STDOUT}"));
        report.stderr_uri = stderr.then(|| format!("{base}{STDERR}"));
    }
    let base = base.map(ToOwned::to_owned);
    (report, returned.attachments.into_iter().map(block).collect(), base)
}

/// The files that a program left. Pictures are decoded where that keeps nobody waiting.
async fn sorted(files: Vec<ChangedFile>, is_all: bool, wanted: &Wanted, room: Room) -> LeftFiles {
    if files.is_empty() {
        return LeftFiles::new(files, is_all, wanted, room);
    }
    let wanted = wanted.clone();
    let sort = move || LeftFiles::new(files, is_all, &wanted, room);
    match tokio::task::spawn_blocking(sort).await {
        Ok(left) => left,
        Err(error) => panic::resume_unwind(error.into_panic()),
    }
}

/// Where an answer has its receipt. Models don't read it there.
const RECEIPT: &str = "isolator/receipt";

/// The status in an answer, and its receipt, if it has them.
pub(super) fn served(result: &CallToolResult) -> (Option<String>, Option<Value>) {
    let status = result.structured_content.as_ref().and_then(|data| data["status"].as_str());
    let receipt = result.meta.as_ref().and_then(|meta| meta.get(RECEIPT));
    (status.map(ToOwned::to_owned), receipt.cloned())
}

pub(super) fn with_receipt(mut result: CallToolResult, receipt: &impl Serialize) -> CallToolResult {
    match serde_json::to_value(receipt) {
        Ok(receipt) => {
            let meta = result.meta.get_or_insert_default();
            meta.insert(RECEIPT.to_owned(), receipt);
        }
        Err(error) => tracing::error!(%error, "a receipt could not be written as JSON"),
    }
    result
}

/// An attachment in the protocol's form.
pub(super) fn block(attachment: Attachment) -> ContentBlock {
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

const STDOUT: &str = "stdout";
const STDERR: &str = "stderr";

fn output(stream: Captured) -> Item {
    let content = stream.into_bytes();
    let is_text = std::str::from_utf8(&content).is_ok();
    let media_type = if is_text { "text/plain" } else { "application/octet-stream" };
    Item { content, media_type: media_type.to_owned() }
}

/// A report, and what comes with it.
pub(crate) fn of_report(report: &Report, more: Vec<ContentBlock>) -> CallToolResult {
    let mut content = vec![ContentBlock::text(report.to_text())];
    content.extend(more);
    let mut result = if report.is_failure() {
        CallToolResult::error(content)
    } else {
        CallToolResult::success(content)
    };
    match serde_json::to_value(report) {
        Ok(value) => result.structured_content = Some(value),
        Err(error) => tracing::error!(%error, "a report could not be written as JSON"),
    }
    result
}

/// The answer while a detached program is running.
pub(crate) fn of_running(handle: String, kept_for: Duration, so_far: &SoFar) -> CallToolResult {
    of_report(&Report::running(handle, kept_for, so_far), Vec::new())
}

/// An answer that is only data. A program's failure is not the tool's.
pub(crate) fn of_data(data: &impl Serialize) -> CallToolResult {
    let text = serde_json::to_string(data).and_then(|text| Ok((serde_json::to_value(data)?, text)));
    match text {
        Ok((value, text)) => {
            let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
            result.structured_content = Some(value);
            result
        }
        Err(error) => {
            tracing::error!(%error, "an answer could not be written as JSON");
            failure("The answer could not be written.")
        }
    }
}

/// The answer when a syntax check gave no verdict.
pub(crate) fn no_verdict(error: &syntax::NoVerdict, outcome: &Outcome) -> CallToolResult {
    tracing::warn!(%error, status = outcome.status.as_str(), "a syntax check failed");
    failure(format!(
        "Syntax check failed: {error}\n\nIt is not known whether the program is valid."
    ))
}

/// The answer when the sandbox failed, so that the model does not look for the mistake in its program.
/// `when_busy` is what helps if there are too many requests.
pub(crate) fn sandbox_fault(error: &ExecuteError, when_busy: Option<&str>) -> CallToolResult {
    tracing::warn!(%error, "a call failed");
    let did_not_run = ["The program did not run."].into_iter().chain(when_busy);
    let did_not_run = did_not_run.collect::<Vec<_>>().join(" ");
    let advice = match error {
        ExecuteError::Admission(_) => &did_not_run,
        ExecuteError::Checkout(CheckoutError::ImageComing { .. }) => {
            "The program did not run. Try again in a minute, or use a language that is ready."
        }
        ExecuteError::Run(RunError::WorkspaceFull(_)) => {
            "The program did not run. Send less, or ask the operator for a larger workspace."
        }
        _ => {
            "The sandbox failed, not the program, which may not have run. Try again. If it fails \
             again, tell the operator to run `isolator doctor`."
        }
    };
    failure(format!("Sandbox error: {error}\n\n{advice}"))
}

/// The answer when a program was not checked, because too many others are, so that the model does not look for the mistake in it.
pub(crate) fn no_turn(error: &NoTurn) -> CallToolResult {
    tracing::warn!(%error, "a call failed");
    failure(format!(
        "Sandbox error: {error}\n\nThe program did not run, and nothing is known against it. Try again in a moment."
    ))
}

/// The answer when the packages that a call asks for are not there, so that the model does not look for the mistake in its program.
pub(crate) fn no_packages(refusal: &Refusal) -> CallToolResult {
    tracing::info!(%refusal, "a call got no packages");
    failure(format!("Packages error: {refusal}\n\nNothing was run."))
}

/// The answer when the packages that a call asks for are not there yet, and nobody should wait longer for an answer.
pub(crate) fn packages_coming(waited: Duration, step: Option<&str>) -> CallToolResult {
    let waited = duration::shown(waited);
    let step = step.map(|step| format!(" ({step})")).unwrap_or_default();
    failure(format!(
        "Packages error: the packages are still being built after {waited}{step}\n\nNothing was run. The build goes on: call again \
         with the same arguments in a minute."
    ))
}

/// The answer to arguments that can't be used. As an error of the protocol, many hosts would end the agent's run with
/// it instead of showing it to the model.
pub(crate) fn invalid_arguments(tool: &str, error: &InvalidArgument) -> CallToolResult {
    let report = Report::invalid(error);
    if [EXECUTE_CODE, GET_RESULT, RUN_COMMAND].contains(&tool) {
        return of_report(&report, Vec::new());
    }
    let mut result = failure(report.to_text());
    let data = json!({ "status": report.status, "field": error.field, "message": error.message });
    result.structured_content = Some(data);
    result
}

/// The answer when the requests take too much memory.
pub(crate) fn too_much_at_once(most: ByteSize) -> CallToolResult {
    failure(format!(
        "Sandbox error: the requests being served hold more than {} MiB together\n\nThe program did \
         not run. Try again in a moment.",
        most.as_mib()
    ))
}

/// The answer to an unknown handle.
pub(crate) fn unknown_handle() -> CallToolResult {
    let message = "there is no run with this handle: it has expired, or the server was restarted; run the program \
                   again";
    invalid_arguments(GET_RESULT, &InvalidArgument::new("handle", message))
}

/// The answer when a detached run ended without a result, with its output so far.
pub(crate) fn ended_without_result(so_far: &SoFar, limits: OutputLimits) -> CallToolResult {
    of_report(&Report::ended_without_result(so_far, limits), Vec::new())
}

/// Removes what a client of an older revision does not understand: links to resources came with 2025-06-18. The
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

pub(super) fn failure(text: impl Into<String>) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(text)])
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
