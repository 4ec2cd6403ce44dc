//! The programs that are measured, each in its language as the configuration has it.

use std::sync::Arc;

use isolator_pool::run::workspace::{Workspace, WorkspaceBuilder, WorkspaceLimits};

use crate::config::{Config, Language};

/// A program and what it prints.
#[derive(Debug)]
pub struct Program {
    /// Name of its language.
    pub language: &'static str,
    /// What it does, in a word or two.
    pub name: &'static str,
    /// Its source.
    pub code: &'static str,
    /// Its standard output, followed by its standard error.
    pub prints: &'static str,
    /// A library that our image has, but one of the operator's may lack. A program that fails for
    /// want of it is left out.
    pub needs: Option<&'static str>,
}

/// All programs. Each does next to nothing, because starting it is what is measured.
pub static PROGRAMS: [Program; 4] = [
    Program { language: "python", name: "hello", code: "print('hi')", prints: "hi\n", needs: None },
    Program {
        language: "python",
        name: "import pandas",
        code: "import pandas\nprint(pandas.Series([1, 2, 3]).sum())",
        prints: "6\n",
        needs: Some("pandas"),
    },
    Program {
        language: "javascript",
        name: "hello",
        code: "console.log('hi')",
        prints: "hi\n",
        needs: None,
    },
    Program {
        language: "go",
        name: "hello",
        code: "package main\n\nfunc main() { println(\"hi\") }\n",
        prints: "hi\n",
        needs: None,
    },
];

/// A program in its language, ready to be started either way.
#[derive(Debug)]
pub struct Workload {
    /// The program.
    pub program: &'static Program,
    /// Its language.
    pub language: Arc<Language>,
    /// The language's command with the program's file.
    pub argv: Vec<String>,
    /// The program's file.
    pub workspace: Workspace,
}

/// A language that can't be measured.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LanguageError {
    /// It is not configured.
    #[error("{name:?} is not a language here: use some of {}", .measured.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What would do.
        measured: Vec<String>,
    },
    /// There is no program in it.
    #[error("there is no program in {name} to measure: use some of {}", .measured.join(", "))]
    NoProgram {
        /// What was asked for.
        name: String,
        /// What would do.
        measured: Vec<String>,
    },
    /// The configuration has no language with a program.
    #[error("the configuration enables no language that has a program to measure: {}", .0.join(", "))]
    Nothing(Vec<&'static str>),
}

impl Workload {
    /// The programs in the named languages, or in all that the configuration has.
    ///
    /// # Errors
    ///
    /// See [`LanguageError`].
    pub fn choose(config: &Config, names: &[String]) -> Result<Vec<Arc<Self>>, LanguageError> {
        let all: Vec<_> = PROGRAMS
            .iter()
            .filter_map(|program| {
                let language = config.languages.get(program.language)?;
                Some(Arc::new(Self::new(program, Arc::clone(language))))
            })
            .collect();
        let mut measured: Vec<_> = all.iter().map(|s| s.language.name.clone()).collect();
        measured.dedup();
        if all.is_empty() {
            let mut languages = PROGRAMS.iter().map(|program| program.language).collect::<Vec<_>>();
            languages.dedup();
            return Err(LanguageError::Nothing(languages));
        }
        if let Some(name) = names.iter().find(|name| !measured.contains(name)).cloned() {
            return Err(if config.languages.contains_key(&name) {
                LanguageError::NoProgram { name, measured }
            } else {
                LanguageError::Unknown { name, measured }
            });
        }
        let is_named = |s: &Arc<Self>| names.is_empty() || names.contains(&s.language.name);
        Ok(all.into_iter().filter(is_named).collect())
    }

    fn new(program: &'static Program, language: Arc<Language>) -> Self {
        let total = program.code.len() as u64;
        let mut workspace = WorkspaceBuilder::new(WorkspaceLimits { files: 1, total });
        // The name was validated with the configuration.
        let added = workspace.add(&language.default_file, program.code.into());
        let file = added.unwrap_or_default();
        let argv = language.argv(&file, std::slice::from_ref(&file));
        Self { program, language, argv, workspace: workspace.build() }
    }

    /// Its place among all programs.
    pub(super) fn place(&self) -> Option<usize> {
        PROGRAMS.iter().position(|program| std::ptr::eq(program, self.program))
    }

    /// What tables and errors call it.
    pub fn label(&self) -> String {
        format!("{}, {}", self.language.name, self.program.name)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, None, Path::new("/")).unwrap()
    }

    fn labels(subjects: &[Arc<Workload>]) -> Vec<String> {
        subjects.iter().map(|subject| subject.label()).collect()
    }

    #[test]
    fn every_program_is_measured_unless_languages_are_named() {
        let config = config("{}");
        let all = Workload::choose(&config, &[]).unwrap();
        assert_eq!(
            labels(&all),
            ["python, hello", "python, import pandas", "javascript, hello", "go, hello"]
        );
        let go = Workload::choose(&config, &["go".to_owned()]).unwrap();
        assert_eq!(labels(&go), ["go, hello"]);
    }

    #[test]
    fn a_program_is_started_by_the_operator_s_command() {
        let config = config(
            r#"{ "languageSettings": {
                "python": { "command": ["pypy3", "-I", "{file}"], "defaultFile": "app.py" },
                "go": { "enabled": false }
            } }"#,
        );
        let all = Workload::choose(&config, &[]).unwrap();
        assert_eq!(all[0].argv, ["pypy3", "-I", "app.py"]);
        assert!(!labels(&all).contains(&"go, hello".to_owned()));
    }

    #[test]
    fn a_language_that_can_not_be_measured_is_refused_with_those_that_can() {
        let config = config(
            r#"{ "languageSettings": {
                "go": { "enabled": false },
                "bash": { "image": "x", "extensions": [".sh"], "command": ["bash", "{file}"] }
            } }"#,
        );
        for name in ["go", "cobol", "bash"] {
            let error = Workload::choose(&config, &[name.to_owned()]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("python, javascript"), "{error}");
        }
    }
}
