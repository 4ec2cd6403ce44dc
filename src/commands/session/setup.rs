//! The options of the command line for a session.

use std::sync::Arc;

use anyhow::{Context as _, bail};

use super::SessionArguments;
use crate::calls::command::{CommandAnswer, CommandCall, CommandError, OpenOptions, OpenedSession};
use crate::commands::backend::{Backend, CallFailure};
use crate::commands::options::not_a_language;
use crate::commands::run::input::{Names, additional_file, with_unit};
use crate::commands::sent_files;
use crate::commands::server::OnPiece;
use crate::config::{Config, Language};
use crate::request::arguments::OpenSession;
use crate::request::understand::languages;
use crate::request::{limits, resolve};

/// Extensions of files in TypeScript.
const TYPESCRIPT: [&str; 2] = [".ts", ".mts"];

/// The session that the command line describes.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) language: Arc<Language>,
    /// Whether cells are in TypeScript.
    pub(super) typescript: bool,
    /// The longest run time of each cell, if it is not the usual one.
    pub(super) timeout: Option<String>,
}

/// The opening of a session.
#[derive(Debug)]
pub(super) struct Opening {
    /// The arguments of the call.
    pub(super) arguments: OpenSession,
    /// The parts that are no arguments.
    pub(super) options: OpenOptions,
    /// The names of the arguments on the command line.
    pub(super) names: Names,
}

impl Opening {
    /// Opens the session.
    ///
    /// # Errors
    ///
    /// See [`CallFailure`].
    pub(super) async fn call(
        &self,
        backend: Backend<'_>,
        max_wait_ms: Option<u64>,
        on_piece: Option<Arc<OnPiece>>,
    ) -> Result<OpenedSession, CallFailure> {
        let options = OpenOptions { max_wait_ms, ..self.options.clone() };
        let call = CommandCall::Open(Box::new(self.arguments.clone()), options);
        match backend.call(call, on_piece).await? {
            CommandAnswer::Opened(opened) => Ok(*opened),
            other => {
                let message = format!("the answer is not that of a session: {other:?}");
                Err(CommandError::Failed { message, has_not_run: true }.into())
            }
        }
    }

    /// Checks the arguments as a call does.
    ///
    /// # Errors
    ///
    /// The first that can't be used.
    pub(super) fn check(&self, config: &Config) -> anyhow::Result<()> {
        let timeout = limits::timeout(self.options.timeout.as_deref(), &config.limits);
        let checked = timeout.and_then(|_| resolve::opening(self.arguments.clone(), config));
        checked.map(drop).map_err(|error| self.names.explain(CommandError::from(error).into()))
    }

    /// The names of the files that are sent.
    pub(super) fn sent(&self) -> Vec<String> {
        self.arguments.files.iter().map(|file| file.filename.clone()).collect()
    }
}

impl Setup {
    /// A session for cells of the language with this name.
    ///
    /// # Errors
    ///
    /// When there is no such language.
    pub(super) fn new(
        config: &Config,
        language: &str,
        timeout: Option<String>,
    ) -> anyhow::Result<Self> {
        let Some(found) = languages::find(language, &config.languages) else {
            bail!("{}", not_a_language(language, config));
        };
        let typescript = found.extension.as_deref().is_some_and(|it| TYPESCRIPT.contains(&it));
        let language = config.languages.get(&found.language.name).cloned();
        let language = language.with_context(|| format!("{} is gone", found.language.name))?;
        Ok(Self { language, typescript, timeout: timeout.map(with_unit) })
    }

    /// The call that opens the session.
    ///
    /// # Errors
    ///
    /// When a file can't be read.
    pub(super) fn opening(
        &self,
        config: &Config,
        command: &SessionArguments,
    ) -> anyhow::Result<Opening> {
        let (mut files, mut names) = (Vec::new(), Vec::new());
        for argument in &command.files {
            let read = sent_files::read(argument, config.limits.files())
                .with_context(|| format!("--file {argument}"))?;
            names.extend(read.iter().map(|_| argument.clone()));
            files.extend(read.into_iter().map(additional_file));
        }
        let arguments = OpenSession {
            language: Some(self.language.name.clone()),
            files,
            memory_mb: command.memory,
            cpus: command.cpus,
            packages: command.packages.clone(),
            ..OpenSession::default()
        };
        let options = OpenOptions { timeout: self.timeout.clone(), max_wait_ms: None };
        Ok(Opening { arguments, options, names: Names::of_files(names) })
    }

    /// The name of the language at the prompt.
    pub(super) fn name(&self) -> &str {
        if self.typescript { "typescript" } else { &self.language.name }
    }

    /// The name of a cell for a policy: its extension tells the language.
    pub(super) fn cell_name(&self, cell: u32) -> String {
        let usual = self.language.extensions.first().map_or("", String::as_str);
        format!("cell-{cell}{}", if self.typescript { TYPESCRIPT[0] } else { usual })
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
        let command = SessionArguments::from_arg_matches(&matches)?;
        Setup::new(&config, &command.language, command.timeout)
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
}
