//! The packages that a call asks for, in its argument or in its program.

use isolator_pool::engine::preload::Interpreter;

use super::script::{self, Script};
use crate::config::Language;

/// A request for packages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum PackageRequest {
    /// Only what the image has.
    #[default]
    Nothing,
    /// These sets or requirements. Without them the program is not run.
    Named {
        /// The names and requirements.
        names: Vec<String>,
        /// The argument that has them.
        field: &'static str,
    },
    /// Packages with these dependencies, which the program lists. The program is run without them, too: the image may have
    /// them.
    Dependencies(Vec<String>),
}

/// The packages that a program asks for, with remarks for its caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WantedPackages {
    pub wanted: PackageRequest,
    /// The versions of Python with which the program works, if it says so.
    pub requires_python: Option<String>,
    /// Remarks on parts that could not be read.
    pub notes: Vec<String>,
    /// Whether the program is not run while its dependencies are being built.
    pub awaits_dependencies: bool,
}

impl WantedPackages {
    /// The packages of the argument, or else of the program. `field` is the argument with the program.
    pub(crate) fn new(
        names: Vec<String>,
        code: &str,
        field: &'static str,
        language: &Language,
    ) -> Self {
        let mut found = if language.kernel == Some(Interpreter::Python) {
            Self::of_program(code, field)
        } else {
            Self::default()
        };
        if !names.is_empty() {
            found.wanted = PackageRequest::Named { names, field: "packages" };
        }
        found
    }

    /// The packages of the argument of a call without a program.
    pub(crate) fn named(names: Vec<String>) -> Self {
        let wanted = match names.is_empty() {
            true => PackageRequest::Nothing,
            false => PackageRequest::Named { names, field: "packages" },
        };
        Self { wanted, ..Self::default() }
    }

    fn of_program(code: &str, field: &'static str) -> Self {
        match script::of_program(code) {
            Ok(None) => Self::default(),
            Ok(Some(Script { packages, dependencies, requires_python })) => {
                let wanted = match (packages.is_empty(), dependencies.is_empty()) {
                    (false, _) => PackageRequest::Named { names: packages, field },
                    (true, false) => PackageRequest::Dependencies(dependencies),
                    (true, true) => PackageRequest::Nothing,
                };
                Self { wanted, requires_python, ..Self::default() }
            }
            Err(why) => {
                let note = format!("the program's block \"# /// script\" {why}; it was ignored");
                Self { notes: vec![note], ..Self::default() }
            }
        }
    }
}
