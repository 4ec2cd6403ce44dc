//! A check of the host: what it reads, and what it can find.

use std::io;
use std::path::{Path, PathBuf};

use isolator_pool::engine::Facts;

/// The files that a check reads. Tests put a folder of their own in the place of the machine.
pub(super) struct Subject<'a> {
    /// The machine's files.
    pub(super) machine: Machine,
    /// Whether this process is root, as the server would be if it is started the same way.
    pub(super) is_root: bool,
    /// Whether the kernel can keep programs that don't trust each other off the same core.
    pub(super) has_core_scheduling: bool,
    /// The state of the engine, if it answers.
    pub(super) engine: Option<EngineFound<'a>>,
    /// The languages whose programs have a network.
    pub(super) with_network: Vec<&'a str>,
}

/// The engine, as the checks see it.
pub(super) struct EngineFound<'a> {
    /// Its description of itself.
    pub(super) facts: Facts,
    /// Whether it is Isolator's own.
    pub(super) is_embedded: bool,
    /// The OCI runtime that the configuration names.
    pub(super) runtime: Option<&'a str>,
    /// How many warnings it gave.
    pub(super) warnings: usize,
}

/// The result of a check. Every part is one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is as it should be.
    Fine(String),
    /// It helps an attacker.
    Warning {
        /// Its meaning.
        what: String,
        /// The way to fix it.
        fix: String,
    },
    /// This machine does not say.
    NotKnown {
        /// The reason.
        what: String,
        /// Where to look instead.
        fix: String,
    },
}

impl Verdict {
    pub(super) fn fine(what: impl Into<String>) -> Self {
        Self::Fine(what.into())
    }

    pub(super) fn warning(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Warning { what: what.into(), fix: fix.into() }
    }

    pub(super) fn not_known(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::NotKnown { what: what.into(), fix: fix.into() }
    }
}

/// A named check.
pub(super) struct Check {
    /// The name, by which an operator can accept what it finds.
    pub(super) name: &'static str,
    /// Looks at the subject.
    pub(super) judge: fn(&Subject<'_>) -> Verdict,
}

/// The files in which the kernel describes the machine.
pub(super) struct Machine {
    root: PathBuf,
}

/// The content of a file.
pub(super) enum Reading {
    /// Its text, without spaces around it.
    Text(String),
    /// There is no such file.
    Absent,
    /// It is there and can't be read.
    Unreadable(Verdict),
}

impl Machine {
    /// The machine whose files are below a folder: `/`, except in tests.
    pub(super) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Reads a file.
    pub(super) fn read(&self, path: &str) -> Reading {
        match std::fs::read_to_string(self.root.join(path)) {
            Ok(text) => Reading::Text(text.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Reading::Absent,
            Err(error) => Reading::Unreadable(unreadable(path, &error)),
        }
    }

    /// Reads a file that some machines don't have.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        match self.read(path) {
            Reading::Text(text) => Some(text),
            Reading::Absent | Reading::Unreadable(_) => None,
        }
    }

    /// The names in a folder in order.
    pub(super) fn names(&self, folder: &str) -> Result<Vec<String>, Verdict> {
        let failed = |error: io::Error| unreadable(folder, &error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.root.join(folder)).map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }
}

fn unreadable(path: &str, error: &io::Error) -> Verdict {
    let path = Path::new("/").join(path);
    let fix = "run this on the host itself, as root and not in a container";
    Verdict::not_known(format!("{} can't be read: {error}", path.display()), fix)
}
