//! What the command line says of a session.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use isolator_pool::engine::limits::Resources;
use isolator_pool::packages::PackageSet;
use isolator_pool::pool::session::SessionRequest;
use isolator_pool::run::workspace::WorkspaceBuilder;

use super::SessionArguments;
use crate::calls::CallError;
use crate::commands::options::not_a_language;
use crate::commands::run::input::with_unit;
use crate::commands::sent_files;
use crate::config::{Config, Language};
use crate::policy::SourceFile;
use crate::request::arguments::InvalidArgument;
use crate::request::limits::{cpu, memory, timeout};
use crate::request::options::{option, with_options};
use crate::request::understand::languages;

/// Extensions of files in TypeScript.
const TYPESCRIPT: [&str; 2] = [".ts", ".mts"];

/// What a session is to be.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) language: Arc<Language>,
    /// Whether cells are in TypeScript.
    pub(super) typescript: bool,
    /// Of each cell.
    pub(super) timeout: Duration,
    pub(super) resources: Resources,
}

impl Setup {
    /// What the command line says.
    ///
    /// # Errors
    ///
    /// The first option that can't be used.
    pub(super) fn new(config: &Config, command: &SessionArguments) -> anyhow::Result<Self> {
        let Some(found) = languages::find(&command.language, &config.languages) else {
            bail!("{}", not_a_language(&command.language, config));
        };
        let typescript = found.extension.as_deref().is_some_and(|it| TYPESCRIPT.contains(&it));
        let language = config.languages.get(&found.language.name).cloned();
        let language = language.with_context(|| format!("{} is gone", found.language.name))?;
        let limits = &config.limits;
        let asked = command.timeout.clone().map(with_unit);
        let timeout = timeout(asked.as_deref(), limits).map_err(as_option)?;
        let mut resources = language.sandbox.resources;
        if let Some(mb) = command.memory {
            resources.memory = memory("memory_mb", mb, limits).map_err(as_option)?;
        }
        if let Some(cores) = command.cpus {
            resources.cpu = cpu(cores, limits).map_err(as_option)?;
        }
        Ok(Self { language, typescript, timeout, resources })
    }

    /// What the pool is asked for.
    pub(super) fn request(
        &self,
        config: &Config,
        packages: Option<Arc<PackageSet>>,
    ) -> SessionRequest {
        SessionRequest {
            kernel: self.language.kernel_command(self.resources.memory),
            resources: self.resources,
            packages,
            checkpoints: config.sessions.checkpoints,
        }
    }

    /// What the prompt calls the language.
    pub(super) fn name(&self) -> &str {
        if self.typescript { "typescript" } else { &self.language.name }
    }

    /// The name of a cell for a policy: its extension tells the language.
    pub(super) fn cell_name(&self, cell: u32) -> String {
        let usual = self.language.extensions.first().map_or("", String::as_str);
        format!("cell-{cell}{}", if self.typescript { TYPESCRIPT[0] } else { usual })
    }
}

/// An error of an argument in the words of the command line.
fn as_option(InvalidArgument { field, message }: InvalidArgument) -> anyhow::Error {
    anyhow!("{}: {}", option(&field).unwrap_or(&field), with_options(&message))
}

/// An error of a call in the words of the command line.
pub(super) fn explain(error: CallError) -> anyhow::Error {
    match error {
        CallError::Invalid(error) => as_option(error),
        error => error.into(),
    }
}

/// Files that will go into the workspace with the next cell.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) files: WorkspaceBuilder,
    /// Those that a policy applies to.
    pub(super) unchecked: Vec<SourceFile>,
    /// Their names.
    pub(super) names: Vec<String>,
}

impl Pending {
    pub(super) fn new(config: &Config) -> Self {
        let files = WorkspaceBuilder::new(config.limits.files());
        Self { files, unchecked: Vec::new(), names: Vec::new() }
    }

    /// Adds what an argument such as `PATH` or `NAME=PATH` names.
    ///
    /// # Errors
    ///
    /// When it can't be read or sent.
    pub(super) fn add(
        &mut self,
        argument: &str,
        config: &Config,
        language: &Language,
    ) -> anyhow::Result<()> {
        let is_checked = config.policies.apply_to(&language.name);
        for (name, content) in sent_files::read(argument, config.limits.files())? {
            let copy = is_checked.then(|| content.clone());
            let name = self.files.add(&name, content)?;
            self.names.push(name.clone());
            if let Some(content) = copy {
                self.unchecked.push(SourceFile { name, content, is_entrypoint: false });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    fn setup(arguments: &[&str]) -> anyhow::Result<Setup> {
        let config = Config::parse("{}", None, std::path::Path::new("")).unwrap();
        let command = SessionArguments::augment_args(clap::Command::new("session"));
        let matches = command.try_get_matches_from([&["session"], arguments].concat())?;
        Setup::new(&config, &SessionArguments::from_arg_matches(&matches)?)
    }

    #[test]
    fn languages_have_the_names_that_callers_give_them() {
        for (arguments, name, cell) in [
            (vec![], "python", "cell-1.py"),
            (vec!["py3"], "python", "cell-1.py"),
            (vec!["node"], "javascript", "cell-1.js"),
            (vec!["ts"], "typescript", "cell-1.ts"),
            (vec!["golang"], "go", "cell-1.go"),
        ] {
            let setup = setup(&arguments).unwrap();
            assert_eq!((setup.name(), setup.cell_name(1).as_str()), (name, cell), "{arguments:?}");
        }
        let error = setup(&["cobol"]).unwrap_err().to_string();
        assert!(error.contains("use one of go, javascript, python"), "{error}");
    }

    #[test]
    fn what_can_t_be_used_is_named_as_on_the_command_line() {
        for (arguments, expected) in [
            (["--timeout", "5M"], "--timeout: \"5M\" is not a duration"),
            (["--timeout", "9000"], "longer than the maximum"),
            (["--memory", "1"], "--memory: 1 is not allowed"),
            (["--memory-mb", "1"], "--memory: 1 is not allowed"),
            (["--cpus", "0"], "--cpus: 0 is not allowed"),
        ] {
            let error = setup(&arguments).unwrap_err().to_string();
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
        assert_eq!(setup(&["--timeout", "0.5"]).unwrap().timeout, Duration::from_millis(500));
    }
}
