//! The programs that are measured, each with its language's configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use isolator::config::{Config, Language};
use isolator_pool::engine::SandboxSpec;
use isolator_pool::run::workspace::{Workspace, WorkspaceBuilder, WorkspaceLimits};

use crate::scenario::PoolShape;

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
    /// A library that our image has, but an operator's may lack. If the program fails, it is left out.
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

/// A program with everything that is needed to start it.
#[derive(Debug)]
pub struct Workload {
    /// The program.
    pub program: &'static Program,
    /// The command that runs the program's file.
    pub argv: Vec<String>,
    /// Variables for the program.
    pub env: BTreeMap<String, String>,
    /// The program's file.
    pub workspace: Workspace,
    /// The sandboxes of its language.
    pub sandbox: SandboxSpec,
    /// The pool of its language, used while throughput is measured.
    pub pool: PoolShape,
}

impl Workload {
    /// Its place among all programs.
    pub(crate) fn place(&self) -> Option<usize> {
        PROGRAMS.iter().position(|program| std::ptr::eq(program, self.program))
    }

    /// What tables and errors call it.
    pub fn label(&self) -> String {
        format!("{}, {}", self.program.language, self.program.name)
    }
}

/// A language that can't be measured.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LanguageError {
    /// It is not configured.
    #[error("{name:?} is not a configured language: use some of {}", .measured.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The languages that can be measured.
        measured: Vec<&'static str>,
    },
    /// There is no program in it.
    #[error("there is no benchmark program in {name}: use some of {}", .measured.join(", "))]
    NoProgram {
        /// What was asked for.
        name: String,
        /// The languages that can be measured.
        measured: Vec<&'static str>,
    },
    /// The configuration has no language with a program.
    #[error("the configuration enables none of the languages with a benchmark program: {}", .0.join(", "))]
    Nothing(Vec<&'static str>),
}

/// The programs in the named languages, or in all that the configuration has.
///
/// # Errors
///
/// See [`LanguageError`].
pub fn choose(config: &Config, names: &[String]) -> Result<Vec<Arc<Workload>>, LanguageError> {
    let mut measured: Vec<_> = PROGRAMS.iter().map(|program| program.language).collect();
    measured.dedup();
    let all = measured.clone();
    measured.retain(|name| config.languages.contains_key(*name));
    if measured.is_empty() {
        return Err(LanguageError::Nothing(all));
    }
    if let Some(name) = names.iter().find(|name| !measured.contains(&name.as_str())).cloned() {
        return Err(if config.languages.contains_key(&name) {
            LanguageError::NoProgram { name, measured }
        } else {
            LanguageError::Unknown { name, measured }
        });
    }
    let is_named = |name: &str| names.is_empty() || names.iter().any(|named| named == name);
    let workload = |program: &'static Program| {
        let language = config.languages.get(program.language)?;
        is_named(&language.name).then(|| Arc::new(workload(program, language)))
    };
    Ok(PROGRAMS.iter().filter_map(workload).collect())
}

fn workload(program: &'static Program, language: &Language) -> Workload {
    let total = program.code.len() as u64;
    let mut workspace = WorkspaceBuilder::new(WorkspaceLimits { files: 1, total });
    // The name was validated with the configuration.
    let file = workspace.add(&language.default_file, program.code.into()).unwrap_or_default();
    Workload {
        program,
        argv: language.argv(&file, std::slice::from_ref(&file), language.sandbox.resources.memory),
        env: language.env.clone(),
        workspace: workspace.build(),
        sandbox: language.sandbox.clone(),
        pool: PoolShape { size: language.pool.size.most(), hot: language.pool.hot },
    }
}

/// Every program as a workload that can't be started, for the tests of what keeps the books.
#[cfg(test)]
pub(crate) fn examples() -> Vec<Arc<Workload>> {
    use isolator_pool::engine::limits::{ByteSize, CpuShare, FixedLimits, Resources};
    use isolator_pool::engine::{Image, RootAccess};

    let mib = ByteSize::mib(1);
    let sandbox = SandboxSpec {
        image: Image::default(),
        resources: Resources { memory: mib, cpu: CpuShare::millis(500) },
        limits: FixedLimits {
            pids: 4,
            open_files: 64,
            workspace: mib,
            tmp: mib,
            inodes: 64,
            shm: mib,
        },
        workdir: "/workspace".to_owned(),
        user: (1000, 1000),
        network: "none".to_owned(),
        cap_drop: Vec::new(),
        root: RootAccess::ReadOnly,
        runtime: None,
        preload: None,
        packages: None,
        allow_unlimited: false,
    };
    let workload = |program| Workload {
        program,
        argv: Vec::new(),
        env: BTreeMap::new(),
        workspace: WorkspaceBuilder::new(WorkspaceLimits { files: 0, total: 0 }).build(),
        sandbox: sandbox.clone(),
        pool: PoolShape { size: 2, hot: 1 },
    };
    PROGRAMS.iter().map(workload).map(Arc::new).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, None, Path::new("/")).unwrap()
    }

    fn labels(workloads: &[Arc<Workload>]) -> Vec<String> {
        workloads.iter().map(|workload| workload.label()).collect()
    }

    #[test]
    fn every_program_is_measured_unless_languages_are_named() {
        let config = config("{}");
        let all = choose(&config, &[]).unwrap();
        assert_eq!(
            labels(&all),
            ["python, hello", "python, import pandas", "javascript, hello", "go, hello"]
        );
        let go = choose(&config, &["go".to_owned()]).unwrap();
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
        let all = choose(&config, &[]).unwrap();
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
            let error = choose(&config, &[name.to_owned()]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("python, javascript"), "{error}");
        }
    }
}
