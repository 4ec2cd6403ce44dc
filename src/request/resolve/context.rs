//! Resolves cells of contexts: code that an API runs in one of the kernels of a session.

use std::collections::BTreeMap;
use std::sync::Arc;

use isolator_pool::OutputLimits;
use isolator_pool::engine::limits::{ByteSize, Resources};
use isolator_pool::pool::session::CellRun;

use super::session::StepJob;
use super::variables;
use crate::config::{Config, Language};
use crate::policy::{Policies, SourceFile};
use crate::request::arguments::{Arguments, InvalidArgument};
use crate::request::pack::refuse_more_than_memory;
use crate::request::wanted_files::OutputFiles;
use crate::sessions::contexts::{Context, ContextLanguage};
use crate::sessions::journal::{Step, StepInput};

/// Runs a shell command in the state that the one before has left. `$1` is the command, and `$2` the file of the state. The variables
/// of the cell are set by `$3`, and `$4` names them: afterwards they are as before. `declare` writes variables and functions so that
/// they can be read again, apart from those that can't be set.
const SHELL: &str = r#"
__isolator=("$@")
[ -r "$2" ] && . "$2" 2>/dev/null
__isolator_before=$(declare -p $4 2>/dev/null)
eval "$3"
trap '__isolator_code=$?
{
  [ -n "${__isolator[3]}" ] && unset ${__isolator[3]}
  eval "$__isolator_before"
  declare -p | grep -vE "^declare -[a-zA-Z]*r|^declare -[a-zA-Z-]+ (BASH|FUNCNAME|__isolator|DIRSTACK|GROUPS|PIPESTATUS|SHLVL|_=)"
  declare -f
  printf "cd -- %q\n" "$PWD"
} > "${__isolator[1]}" 2>/dev/null
exit $__isolator_code' EXIT
set --
eval "${__isolator[0]}"
"#;

/// A cell of a context.
pub(crate) struct ContextCell {
    pub code: String,
    /// Variables only for this cell.
    pub env: BTreeMap<String, String>,
    /// The most that it may print. All of it is returned.
    pub max_output: ByteSize,
}

/// Resolves a cell of a context, which has the operator's longest time. `language` is the session's.
///
/// # Errors
///
/// The first part that can't be used.
pub(crate) fn context_cell(
    cell: ContextCell,
    context: &Context,
    language: &Arc<Language>,
    resources: Resources,
    policies: &Policies,
    config: &Config,
) -> Result<StepJob, InvalidArgument> {
    let ContextCell { code, env, max_output } = cell;
    let mut job = match &context.language {
        ContextLanguage::Programs(language) => {
            let arguments = Arguments { entrypoint_code: Some(code), env, ..Arguments::default() };
            super::session::cell(arguments, language, resources, policies, config)?
        }
        ContextLanguage::Kernel { language: own, typescript } => {
            variables(&[], &env, own)?;
            let run = CellRun::Code {
                typescript: *typescript,
                columns: None,
                env: env.clone(),
                for_program: true,
            };
            let mut job = step(run, &code, env, config);
            if policies.apply_to(&own.name) {
                let (name, content) = (own.default_file.clone(), code.into_bytes());
                job.unchecked.push(SourceFile { name, content, is_entrypoint: true });
            }
            job.language = (own.name != language.name).then(|| Arc::clone(own));
            job
        }
        ContextLanguage::Shell => {
            let state = format!("/tmp/.isolator-shell-{}", context.number);
            variables(&[], &env, language)?;
            if let Some(name) = env.keys().find(|name| !is_shell_name(name)) {
                let field = format!("env_vars.{}", name.chars().take(60).collect::<String>());
                return Err(InvalidArgument::new(
                    field,
                    "no variable of a shell can have this name",
                ));
            }
            let given = env.iter().map(|(name, value)| format!("export {name}={};", quoted(value)));
            let names: Vec<_> = env.keys().map(String::as_str).collect();
            let (given, names) = (given.collect::<String>(), names.join(" "));
            let argv = ["bash", "-c", SHELL, "bash", &code, &state, &given, &names];
            let argv = argv.map(str::to_owned).to_vec();
            let (env_of_process, cwd) = (language.env.clone(), context.cwd.clone());
            let run = CellRun::Program { argv, env: env_of_process, cwd };
            let mut job = step(run, &code, env, config);
            job.run.input = Vec::new();
            job
        }
    };
    job.run.context = context.number;
    job.run.keeps_session = true;
    job.run.files = None;
    let most = max_output.as_usize();
    job.run.output = OutputLimits { head: most, tail: 0, kill: max_output.as_bytes() };
    job.run.timeout = config.limits.max_timeout;
    job.is_noted = context.number == 0;
    refuse_more_than_memory(&job.run.workspace, &job.run.input, resources.memory)?;
    Ok(job)
}

fn step(run: CellRun, code: &str, env: BTreeMap<String, String>, config: &Config) -> StepJob {
    let input = StepInput { env, ..StepInput::default() };
    let step = Step::Code { code: code.to_owned(), file_name: None, input };
    let wanted = OutputFiles::none(config.results.files.as_bytes());
    StepJob::new(run, step, code.into(), config.limits.max_timeout, wanted, config)
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Whether a shell takes it as the name of a variable.
fn is_shell_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.bytes().all(is_part) && !name.starts_with(|first: char| first.is_ascii_digit())
}
