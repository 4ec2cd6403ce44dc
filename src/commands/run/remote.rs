//! Runs a program in a server.

use anyhow::{anyhow, bail};
use serde_json::{Value, json};

use super::input::Names;
use super::local::EXECUTE_CODE;
use crate::calls::finished::{FINISHED, Finished, Wanted};
use crate::commands::server::Server;
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
    match result["_meta"][FINISHED].take() {
        Value::Null => {}
        finished => return Ok(Some(serde_json::from_value(finished)?)),
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
            if !server.is_chosen && is_before_run(text) {
                return Ok(None);
            }
            let failure = text.split("\n\n").next().unwrap_or_default();
            let failure =
                FAILURES.iter().find_map(|it| failure.strip_prefix(it)).unwrap_or(failure);
            Err(anyhow!("{}: {failure}", server.name()))
        }
        _ => bail!("{} is another version of Isolator", server.name()),
    }
}

/// The beginnings of answers to calls of which no program has a result.
const FAILURES: [&str; 2] = ["Sandbox error: ", "Packages error: "];

/// Whether such an answer says that nothing has run.
fn is_before_run(text: &str) -> bool {
    ["The program did not run", "Nothing was run"].iter().any(|it| text.contains(it))
}
