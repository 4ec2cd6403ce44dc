//! A request to run a program.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use isolator_runner::wire::{OutputLimits, WantedFiles};

use super::installs::Installer;
use super::output::Watch;
use super::workspace::Workspace;
use crate::engine::limits::Resources;
use crate::packages::PackageSet;

/// Everything that a run needs besides a sandbox.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Variables added to the image's.
    pub env: BTreeMap<String, String>,
    /// The files.
    pub workspace: Workspace,
    /// The program's standard input.
    pub stdin: Vec<u8>,
    /// From the program's start to its end.
    pub timeout: Duration,
    /// CPU time that each of the program's processes may use, to the nearest second; otherwise its
    /// timeout bounds that.
    pub cpu_time: Option<Duration>,
    /// Limits of the program; a sandbox made with other limits is adjusted.
    pub resources: Resources,
    /// Limits of the output that is kept.
    pub output: OutputLimits,
    /// Which of the files that it creates or changes are returned, if any.
    pub files: Option<WantedFiles>,
    /// The set of packages that it can import from, if any.
    pub packages: Option<Arc<PackageSet>>,
    /// Serves its requests for packages while it runs. Without one they are refused.
    pub installer: Option<Arc<dyn Installer>>,
    /// How long it waits for a slot, if not for as long as others.
    pub max_queue: Option<Duration>,
    /// Callback for the beginning of the output while the program runs.
    pub watch: Option<Watch>,
}

impl RunRequest {
    /// A program that runs for up to `timeout`, without standard input, variables or files that come back.
    pub fn new(
        argv: Vec<String>,
        workspace: Workspace,
        timeout: Duration,
        resources: Resources,
        output: OutputLimits,
    ) -> Self {
        Self {
            argv,
            env: BTreeMap::new(),
            workspace,
            stdin: Vec::new(),
            timeout,
            cpu_time: None,
            resources,
            output,
            files: None,
            packages: None,
            installer: None,
            max_queue: None,
            watch: None,
        }
    }
}
