//! What the operator's policies say of a call's files, before any of them gets into a sandbox.

use isolator_pool::pool::admission::Client;
use isolator_pool::pool::counts::Failure;
use isolator_pool::pool::pools::ExecuteError;
use rmcp::model::CallToolResult;

use super::Calls;
use crate::audit::Note;
use crate::mcp::tool_result;
use crate::policy::{Findings, NoTurn, Policies, SourceFile};

impl Calls {
    /// Looks for what these policies forbid in the files of a program.
    ///
    /// # Errors
    ///
    /// The answer to the call, if too many programs wait for their check. It is counted like one for which there was no room in a
    /// sandbox.
    pub(super) async fn check_policies(
        &self,
        policies: &Policies,
        language: &str,
        files: Vec<SourceFile>,
        client: &Client,
        note: &mut Note,
    ) -> Result<Findings, CallToolResult> {
        policies.check(language, files, client).await.map_err(|error| {
            note.answered(self.count_unchecked(language, &error).as_str());
            tool_result::no_turn(&error)
        })
    }

    /// Counts a program that was not checked.
    pub(super) fn count_unchecked(&self, language: &str, error: &NoTurn) -> Failure {
        let failure = Failure::of(&ExecuteError::Admission(error.0.clone()));
        self.pools.count_failure(language, failure, error.to_string());
        failure
    }
}
