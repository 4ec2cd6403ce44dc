//! The errors of builds, in words for operators and for callers that asked for packages.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use isolator_pool::pool::pools::ExecuteError;
use isolator_pool::quote::quoted;
use isolator_pool::run::workspace::FileError;
use tokio::task::JoinError;

use crate::packages::lock::LockError;
use crate::packages::store::StoreError;
use crate::packages::store::tree::TreeError;
use crate::packages::target::UnfitTarget;
use crate::requirement::Pins;

/// A build that failed. The texts are for people: they have no credentials and a bounded length.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    /// The lock does not fit, or has something that no lock of ours has.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The lock that the operator keeps was made for another image.
    #[error(
        "the lock of the set {set} was made for {lock}, and the image has {target} now; `isolator packages lock {set}` renews it"
    )]
    OtherTarget {
        /// The set of the configuration.
        set: String,
        /// The target of its lock.
        lock: String,
        /// That of the image.
        target: String,
    },
    /// The image was asked for its interpreter, and there is no usable answer.
    #[error("which packages fit the image of {language} is not known: {why}")]
    Target {
        language: String,
        /// The cause.
        #[source]
        why: Box<TargetError>,
    },
    /// A tool is not there.
    #[error(
        "{tool} is needed to install packages and can't be started ({}): install it, or name it in packages.tools.{tool} of \
         the configuration",
        not_started(program, error)
    )]
    NoTool {
        /// Its name.
        tool: &'static str,
        /// The program, as the configuration names it.
        program: PathBuf,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// uv has no Python on this machine.
    #[error(
        "uv needs some Python 3 on this machine, whichever version, and finds none: install one (uv python install), \
         or name it in UV_PYTHON\n{0}"
    )]
    NoPython(String),
    /// The index did not answer.
    #[error("{index} can't be reached; is it up, and is a proxy needed?\n{said}")]
    Unreachable {
        /// The index, as people may see it.
        index: String,
        /// The output of the tool.
        said: String,
    },
    /// The index wants other credentials.
    #[error("{index} refuses this server; look at its credentials\n{said}")]
    Forbidden {
        /// The index, as people may see it.
        index: String,
        /// The output of the tool.
        said: String,
    },
    /// No versions fulfil the requirements.
    #[error("no versions fulfil all requirements (for {target}):\n{said}")]
    Unsolvable {
        /// The target that they have to be for.
        target: String,
        /// The tool's explanation.
        said: String,
    },
    /// A package has no wheel that can be used.
    #[error(
        "a package has no wheel for {target}, and is not built from its source, because that would run its code: ask for a \
         version that has a wheel, or add the package to the image\n{said}"
    )]
    OnlySource {
        /// The target that it has to be for.
        target: String,
        /// The tool's explanation.
        said: String,
    },
    /// A package is for other versions of Python.
    #[error(
        "{package} is for Python {wants}, and the image has Python {has}: ask for a version of it that is for this one, or leave \
         out what needs it"
    )]
    OtherPython {
        /// The package with its version.
        package: String,
        /// The versions of Python that it says.
        wants: String,
        /// The version of the image's.
        has: String,
    },
    /// A file from the index is no package.
    #[error(
        "the file of {package} is damaged or no package at all, so it can't be installed: ask for another version, or look at what \
         the index has\n{said}"
    )]
    Damaged {
        /// The package, as far as it is known.
        package: String,
        /// The output of the tool.
        said: String,
    },
    /// A file is not the one of the lock.
    #[error(
        "a file of a package is not the one that the lock was made for: it may have been tampered with; if the change is \
         meant, renew the lock with `isolator packages lock`\n{0}"
    )]
    Mismatch(String),
    /// A package has something that is refused.
    #[error("a package is refused: {0}")]
    Refused(String),
    /// The tool has resolved something that no lock may have.
    #[error("a package is refused: {0}")]
    RefusedLock(#[source] LockError),
    /// A tool needed more memory than it may have.
    #[error(
        "{tool} was ended because it needed more than {most} MiB of memory (packages.buildMemoryMB): the description of a \
         package may be far too long; ask for fewer packages or other versions, or raise packages.buildMemoryMB"
    )]
    Memory {
        tool: &'static str,
        /// Its limit, in MiB.
        most: u64,
    },
    /// It took too long.
    #[error("it took longer than {} s (packages.buildTimeout) and was given up; the last that was heard:\n{last}", after.as_secs())]
    Timeout {
        after: Duration,
        /// The last lines of the tool.
        last: String,
    },
    /// The disk is full.
    #[error("not enough space is left for packages in {}: free some, or remove sets with `isolator packages prune`", .0.display())]
    Full(PathBuf),
    /// A tool failed for another reason.
    #[error("{tool} failed ({how}):\n{said}")]
    Tool {
        /// Its name.
        tool: &'static str,
        /// Its exit status.
        how: String,
        /// Its output.
        said: String,
    },
    /// The processes of a tool could not be watched.
    #[error("{tool} failed ({error}):\n{said}")]
    Unwatched {
        /// Its name.
        tool: &'static str,
        /// The cause.
        #[source]
        error: io::Error,
        /// Its output.
        said: String,
    },
    /// A path that a tool can't be given.
    #[error("{} is not UTF-8: use another folder", .0.display())]
    NotUtf8(PathBuf),
    /// The modules of a set can't be brought to a sandbox.
    #[error("a batch of modules: {0}")]
    Batch(#[from] FileError),
    /// The store can't be used.
    #[error(transparent)]
    Store(StoreError),
    /// A thread that reads or writes files has panicked.
    #[error(transparent)]
    Thread(#[from] JoinError),
}

/// The interpreter of an image is not known, or can't use packages.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    /// The language has none.
    #[error("it has no interpreter that can use packages")]
    NoInterpreter,
    /// The program that asks it is no file for a sandbox.
    #[error(transparent)]
    Program(#[from] FileError),
    /// No sandbox has run that program.
    #[error(transparent)]
    NotRun(#[from] ExecuteError),
    /// The program failed.
    #[error("asking its interpreter ended with {status} {}", quoted(last))]
    Failed {
        status: &'static str,
        /// The last line that it has printed.
        last: String,
    },
    /// It is none for which packages can be installed.
    #[error(transparent)]
    Unfit(#[from] UnfitTarget),
}

fn not_started(program: &Path, error: &io::Error) -> String {
    let program = program.display();
    match error.kind() {
        io::ErrorKind::NotFound => format!("{program} is not there"),
        _ => format!("{program}: {error}"),
    }
}

impl BuildError {
    /// The same error for a set that had to keep to locks.
    pub(super) fn with_pins(self, pins: &Pins) -> Self {
        match self {
            Self::Unsolvable { target, said } if !pins.locks.is_empty() => {
                let sets = pins.sets();
                let said = format!(
                    "{said}\nThe versions in the locks of {sets} have to be kept: ask for fewer sets and packages at once, or renew \
                     these locks with `isolator packages lock --upgrade`"
                );
                Self::Unsolvable { target, said }
            }
            other => other,
        }
    }

    /// Whether the same requirements would most likely fail in the same way in a minute.
    pub(crate) const fn is_of_requirements(&self) -> bool {
        matches!(
            self,
            Self::Lock(_)
                | Self::Unsolvable { .. }
                | Self::OnlySource { .. }
                | Self::OtherPython { .. }
                | Self::Damaged { .. }
                | Self::Mismatch(_)
                | Self::Refused(_)
                | Self::RefusedLock(_)
                | Self::Memory { .. }
        )
    }

    /// Whether its text is only about packages, and names no files and tools of the server.
    pub(crate) const fn is_of_packages(&self) -> bool {
        match self {
            Self::Lock(error) | Self::RefusedLock(error) => error.is_without_path(),
            other => other.is_of_requirements(),
        }
    }

    /// Whether the index has no versions that fit together and can be used.
    pub(crate) const fn is_no_match(&self) -> bool {
        matches!(self, Self::Unsolvable { .. } | Self::OnlySource { .. } | Self::OtherPython { .. })
    }
}

impl From<StoreError> for BuildError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full(folder) => Self::Full(folder),
            error => Self::Store(error),
        }
    }
}

impl From<TreeError> for BuildError {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Refused(why) => Self::Refused(why),
            TreeError::Store(error) => error.into(),
        }
    }
}
