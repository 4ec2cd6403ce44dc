//! The arguments of the tools of sessions.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::AdditionalFile;

/// Arguments of `open_session`. Commands send these and the following to servers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenSession {
    /// Language of the session's cells.
    #[serde(default)]
    #[schemars(with = "String")]
    pub language: Option<String>,
    /// As additional_files of execute_code.
    #[serde(default)]
    pub files: Vec<AdditionalFile>,
    /// Memory limit in MiB for all that is in it.
    #[serde(default)]
    #[schemars(with = "u64")]
    pub memory_mb: Option<u64>,
    /// CPU limit in cores.
    #[serde(default)]
    #[schemars(with = "f64")]
    pub cpus: Option<f64>,
    /// As of execute_code; for all cells.
    #[serde(default)]
    pub packages: Vec<String>,
    /// How long it can be unused, such as "10m".
    #[serde(default)]
    #[schemars(with = "String")]
    pub idle_timeout: Option<String>,
    /// Handle of an earlier session: what it ran is run again.
    #[serde(default)]
    #[schemars(with = "String")]
    pub replay: Option<String>,
}

/// Arguments of `run_command`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCommand {
    /// Handle of the session.
    #[serde(default)]
    #[schemars(with = "String")]
    pub session: Option<String>,
    /// The shell command.
    #[serde(default)]
    #[schemars(with = "String")]
    pub command: Option<String>,
    /// Folder in which it runs, if not the working directory.
    #[serde(default)]
    #[schemars(with = "String")]
    pub cwd: Option<String>,
    /// Text for standard input.
    #[serde(default)]
    #[schemars(with = "String")]
    pub stdin: Option<String>,
    /// Environment variables, each as NAME=value.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub env: BTreeMap<String, String>,
    /// Longest run time, such as "30s".
    #[serde(default)]
    #[schemars(with = "String")]
    pub timeout: Option<String>,
}

/// Arguments of `rewind_session`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RewindSession {
    /// Handle of the session.
    #[serde(default)]
    #[schemars(with = "String")]
    pub session: Option<String>,
    /// How many cells to undo.
    #[serde(default)]
    #[schemars(with = "u32")]
    pub cells: Option<u64>,
}

/// Arguments of `interrupt_session` and `close_session`, which only name a session.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneSession {
    /// Handle of the session.
    #[serde(default)]
    #[schemars(with = "String")]
    pub session: Option<String>,
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
