//! Why there is no set, in words for an operator or whoever asked for packages.

use std::path::PathBuf;
use std::time::Duration;

use crate::packages::requirement::Pins;
use crate::packages::store::StoreError;

/// Why there is no set. The texts are for people: they have no credentials and a bounded length.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BuildError {
    /// The lock does not fit, or has something that no lock of ours has.
    #[error("{0}")]
    Lock(String),
    /// The image was asked for its interpreter, and there is no usable answer.
    #[error("which packages fit the image of {language} is not known: {why}")]
    Target {
        /// The language.
        language: String,
        /// Why.
        why: String,
    },
    /// A tool is not there.
    #[error(
        "{tool} is needed to install packages and can't be started ({why}): install it, or name it in \
         packages.tools.{tool} of the configuration"
    )]
    NoTool {
        /// Its name.
        tool: &'static str,
        /// Why.
        why: String,
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
        /// What the tool said.
        said: String,
    },
    /// The index wants other credentials.
    #[error("{index} refuses this server; look at its credentials\n{said}")]
    Forbidden {
        /// The index, as people may see it.
        index: String,
        /// What the tool said.
        said: String,
    },
    /// No versions fulfil the requirements.
    #[error("no versions fulfil all requirements (for {target}):\n{said}")]
    Unsolvable {
        /// For what they have to be.
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
        /// For what it has to be.
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
    /// What came from the index is no package.
    #[error(
        "the file of {package} is damaged or no package at all, so it can't be installed: ask for another version, or look at what \
         the index has\n{said}"
    )]
    Damaged {
        /// The package, as far as it is known.
        package: String,
        /// What the tool said.
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
    /// A tool needed more memory than it may have.
    #[error(
        "{tool} was ended because it needed more than {most} MiB of memory (packages.buildMemoryMB): the description of a \
         package may be far too long; ask for fewer packages or other versions, or raise packages.buildMemoryMB"
    )]
    Memory {
        /// The tool.
        tool: &'static str,
        /// What it may have, in MiB.
        most: u64,
    },
    /// It took too long.
    #[error("it took longer than {} s (packages.buildTimeout) and was given up; the last that was heard:\n{last}", after.as_secs())]
    Timeout {
        /// How long it could take.
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
        /// How it ended.
        how: String,
        /// What it said.
        said: String,
    },
    /// The store can't be used.
    #[error("{0}")]
    Store(String),
}

impl BuildError {
    /// The same for a set that had to keep to locks.
    pub(super) fn beside(self, pins: &Pins) -> Self {
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

    /// Whether the same requirements would have the same fate in a minute.
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
                | Self::Memory { .. }
        )
    }
}

impl From<StoreError> for BuildError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full(folder) => Self::Full(folder),
            error => Self::Store(error.to_string()),
        }
    }
}
