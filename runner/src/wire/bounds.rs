//! The bounds of programs and cells.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The bounds of a program or a cell, and the part of it that is reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// From start to kill.
    pub deadline: Duration,
    /// How much of its output is kept.
    pub output: OutputLimits,
    /// Directories whose file systems count when the disk limit is reported.
    pub disks: Vec<String>,
    /// The created or changed files of the workspace that are reported, if any.
    pub files: Option<WantedFiles>,
}

/// How much of each of the two output streams is kept, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputLimits {
    /// Kept from the beginning of a stream; sent as it comes.
    pub head: usize,
    /// Kept from the end of a stream; sent when the program has ended.
    pub tail: usize,
    /// Both streams together; a program that prints more is killed.
    pub kill: u64,
}

/// The created or changed files that are sent. All are listed, [`MAX_FILES`](super::MAX_FILES) at most.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedFiles {
    /// Patterns of paths below the workspace. In all of them `*` stops at a slash and `**` does not.
    pub globs: Vec<String>,
    /// Whether pictures are sent, too. They are recognized by their extension.
    pub pictures: bool,
    /// Maximum size of all files that are sent, in bytes. A file that does not fit is skipped.
    pub most: u64,
}
