//! The arguments of the tools of sessions.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AdditionalFile;

/// Arguments of `open_session`. Commands send these and the following to servers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OpenSession {
    /// Language of the session's cells.
    pub language: Option<String>,
    /// As additional_files of execute_code.
    pub files: Vec<AdditionalFile>,
    /// Memory limit in MiB for all that is in it.
    pub memory_mb: Option<u64>,
    /// CPU limit in cores.
    pub cpus: Option<f64>,
    /// As of execute_code; for all cells.
    pub packages: Vec<String>,
    /// How long it can be unused, such as "10m".
    pub idle_timeout: Option<String>,
    /// Handle of an earlier session: what it ran is run again.
    pub replay: Option<String>,
}

/// Arguments of `run_command`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RunCommand {
    /// Handle of the session.
    pub session: Option<String>,
    /// The shell command.
    pub command: Option<String>,
    /// Folder in which it runs, if not the working directory.
    pub cwd: Option<String>,
    /// Text for standard input.
    pub stdin: Option<String>,
    /// Environment variables, each as NAME=value.
    #[schemars(with = "Vec<String>")]
    pub env: BTreeMap<String, String>,
    /// Longest run time, such as "30s".
    pub timeout: Option<String>,
}

/// Arguments of `rewind_session`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RewindSession {
    /// Handle of the session.
    pub session: Option<String>,
    /// How many cells to undo.
    pub cells: Option<u64>,
}

/// Arguments of `interrupt_session` and `close_session`, which only name a session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OneSession {
    /// Handle of the session.
    pub session: Option<String>,
}

/// Arguments of the call with which a prompt asks for names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CompleteText {
    /// Handle of the session.
    pub session: Option<String>,
    /// The text before the cursor.
    pub text: String,
}

impl OpenSession {
    /// Bytes of the files.
    pub(crate) fn weight(&self) -> usize {
        self.files.iter().map(|file| file.content.len()).sum()
    }
}

impl RunCommand {
    /// Bytes of the command and its input.
    pub(crate) fn weight(&self) -> usize {
        [&self.command, &self.stdin].into_iter().flatten().map(String::len).sum()
    }
}
