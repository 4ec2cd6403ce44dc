//! What a call asks for in packages: with its argument, or in its program.

use isolator_pool::engine::preload::Interpreter;

use super::script::{self, Script};
use crate::config::Language;

/// What a call asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Wanted {
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
    /// What has these dependencies, which the program lists. Without it the program is run all the same: the image may have
    /// them.
    Dependencies(Vec<String>),
}

/// What a program asks for, and what its caller should know of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WantedPackages {
    /// What is asked for.
    pub wanted: Wanted,
    /// The versions of Python with which the program works, if it says so.
    pub requires_python: Option<String>,
    /// What could not be read.
    pub notes: Vec<String>,
}

impl WantedPackages {
    /// What a call asks for with its argument, and if it is not given, in the program. `field` is the argument with the program.
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
            found.wanted = Wanted::Named { names, field: "packages" };
        }
        found
    }

    /// What a call asks for with its argument, where there is no program yet.
    pub(crate) fn named(names: Vec<String>) -> Self {
        let wanted = match names.is_empty() {
            true => Wanted::Nothing,
            false => Wanted::Named { names, field: "packages" },
        };
        Self { wanted, ..Self::default() }
    }

    fn of_program(code: &str, field: &'static str) -> Self {
        match script::of_program(code) {
            Ok(None) => Self::default(),
            Ok(Some(Script { packages, dependencies, requires_python })) => {
                let wanted = match (packages.is_empty(), dependencies.is_empty()) {
                    (false, _) => Wanted::Named { names: packages, field },
                    (true, false) => Wanted::Dependencies(dependencies),
                    (true, true) => Wanted::Nothing,
                };
                Self { wanted, requires_python, notes: Vec::new() }
            }
            Err(why) => {
                let note = format!("the program's block \"# /// script\" {why}; it was ignored");
                Self { notes: vec![note], ..Self::default() }
            }
        }
    }
}
