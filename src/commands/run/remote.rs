//! Runs a program in a server.

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Value, json};

use super::input::Names;
use super::local::EXECUTE_CODE;
use crate::calls::finished::{FINISHED, Finished, Wanted};
use crate::commands::server::{MAY_HAVE_RUN, Server};
use crate::request::arguments::{Arguments, InvalidArgument};

/// Longest wait for packages in a server that the user did not name.
const MAX_PACKAGES_WAIT_MS: u64 = 500;

/// Runs a program. Returns nothing if the user did not name the server, and it is certain that nothing has run there: then the
/// command can run it. Dropping the future ends the program.
///
/// # Errors
///
/// When the arguments can't be used, a policy refuses the program, or the sandbox failed.
pub(super) async fn execute(
    server: &Server,
    arguments: &Arguments,
    wanted: &Wanted,
    names: &Names,
) -> anyhow::Result<Option<Finished>> {
    // Otherwise the command shows how far the packages are.
    let max_wait_ms = (!server.is_chosen).then_some(MAX_PACKAGES_WAIT_MS);
    let wanted = Wanted { max_wait_ms, ..wanted.clone() };
    let meta = json!({ FINISHED: wanted, "isolator/detach": false });
    let mut result = match server.call_tool(EXECUTE_CODE, arguments, meta).await {
        Ok(result) => result,
        Err(error) if error.is_before_run() && !server.is_chosen => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let finished = result.get_mut("_meta").and_then(|meta| meta.get_mut(FINISHED));
    let finished = finished.map(Value::take).unwrap_or_default();
    let has_not_run = finished.get(HAS_RUN) == Some(&Value::Bool(false));
    if !finished.is_null() && !has_not_run {
        let finished = serde_json::from_value(finished)
            .with_context(|| format!("{} sent an unknown result; {MAY_HAVE_RUN}", server.name()))?;
        return Ok(Some(finished));
    }
    let data = &result["structuredContent"];
    let text = |field: &str| data[field].as_str().unwrap_or_default();
    match text("status") {
        "invalid_arguments" => {
            Err(names.explain(&InvalidArgument::new(text("field"), text("message"))))
        }
        "refused" => {
            let found = text("message").split_once('\n').map_or("", |(_, found)| found);
            let language = arguments.language.as_deref().unwrap_or_default();
            bail!(
                "the policy for {language} forbids something in the program, so it was not run:\n{found}"
            )
        }
        "" => {
            let text = result["content"][0]["text"].as_str().unwrap_or_default();
            if !server.is_chosen && has_not_run {
                return Ok(None);
            }
            let failure = text.split("\n\n").next().unwrap_or_default();
            let failure =
                FAILURES.iter().find_map(|it| failure.strip_prefix(it)).unwrap_or(failure);
            match has_not_run {
                true => Err(anyhow!("{}: {failure}", server.name())),
                false => Err(anyhow!("{}: {failure}; {MAY_HAVE_RUN}", server.name())),
            }
        }
        _ => bail!("{} is another version of Isolator; {MAY_HAVE_RUN}", server.name()),
    }
}

/// The beginnings of answers to calls of which no program has a result.
const FAILURES: [&str; 2] = ["Sandbox error: ", "Packages error: "];

/// The field with which a server says, instead of an end, that the program has not run.
const HAS_RUN: &str = "has_run";
