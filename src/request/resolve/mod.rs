//! Resolves the arguments of calls against the configuration: the program, its language, files and limits.
//!
//! [`program`] is for programs in new sandboxes, and [`session`] for what runs in sessions.

mod context;
mod program;
mod session;

use std::collections::BTreeMap;
use std::sync::Arc;

use isolator_pool::engine::limits::Resources;
use isolator_pool::quote::quoted;

use crate::config::{Config, Language};
use crate::request::arguments::InvalidArgument;
use crate::request::limits::{cpu, memory};

pub(crate) use context::{ContextCell, context_cell};
pub(crate) use program::{ProgramJob, program, test};
pub(crate) use session::{OpenJob, StepJob, again, cell, command, files, opening};

/// Longest argument or variable, in bytes: Linux takes 128 KiB with the closing NUL.
const MAX_ARGUMENT: usize = 128 * 1024 - 1;

/// All arguments and variables together, in bytes. Linux takes a quarter of the stack's limit,
/// usually 2 MiB, for these and the pointers to them.
const MAX_ARGUMENTS: usize = 512 * 1024;

/// The language of that name.
pub(crate) fn language(name: &str, config: &Config) -> Result<Arc<Language>, InvalidArgument> {
    config.languages.get(name).cloned().ok_or_else(|| {
        let message = format!(
            "{} is not a configured language: use one of {}",
            quoted(name),
            language_names(config)
        );
        InvalidArgument::new("language", message)
    })
}

fn language_names(config: &Config) -> String {
    config.languages.keys().cloned().collect::<Vec<_>>().join(", ")
}

/// The limits of a sandbox: the language's, unless the caller asks for others.
fn resources(
    language: &Language,
    memory_mb: Option<u64>,
    cpus: Option<f64>,
    config: &Config,
) -> Result<Resources, InvalidArgument> {
    let mut resources = language.sandbox.resources;
    if let Some(mb) = memory_mb {
        resources.memory = memory("memory_mb", mb, &config.limits)?;
    }
    if let Some(cores) = cpus {
        resources.cpu = cpu(cores, &config.limits)?;
    }
    Ok(resources)
}

/// Checks a program's standard input.
fn stdin(text: String, config: &Config) -> Result<Vec<u8>, InvalidArgument> {
    check_stdin(text.len(), config)?;
    Ok(text.into_bytes())
}

/// Checks the length of a program's input.
pub(crate) fn check_stdin(length: usize, config: &Config) -> Result<(), InvalidArgument> {
    let most = config.limits.files().total;
    match length as u64 > most {
        true => Err(InvalidArgument::new("stdin", format!("is longer than {most} bytes"))),
        false => Ok(()),
    }
}

/// Checks a program's arguments and variables, and returns the variables: the language's and the caller's.
fn variables(
    args: &[String],
    variables: &BTreeMap<String, String>,
    language: &Language,
) -> Result<BTreeMap<String, String>, InvalidArgument> {
    let mut total = 0;
    for (index, arg) in args.iter().enumerate() {
        check_argument(&format!("args[{index}]"), arg)?;
        total += arg.len();
    }
    let mut env = language.env.clone();
    for (name, value) in variables {
        let field = format!("env.{}", name.chars().take(60).collect::<String>());
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(InvalidArgument::new(field, "this is not the name of a variable"));
        }
        check_argument(&field, value)?;
        total += name.len() + value.len();
        env.insert(name.clone(), value.clone());
    }
    if total > MAX_ARGUMENTS {
        let field = if args.is_empty() { "env" } else { "args" };
        let message = format!(
            "arguments and variables hold {total} bytes together, more than {MAX_ARGUMENTS}: send \
             large data in additional_files or stdin"
        );
        return Err(InvalidArgument::new(field, message));
    }
    Ok(env)
}

/// Checks variables that are added to those of a language.
pub(crate) fn check_variables(
    env: &BTreeMap<String, String>,
    language: &Language,
) -> Result<(), InvalidArgument> {
    variables(&[], env, language).map(drop)
}

/// Refuses a text that can't be an argument of a program.
fn check_argument(field: &str, text: &str) -> Result<(), InvalidArgument> {
    if text.contains('\0') {
        return Err(InvalidArgument::new(field, "contains a NUL character"));
    }
    if text.len() > MAX_ARGUMENT {
        let message = format!(
            "is longer than {MAX_ARGUMENT} bytes: send large data in additional_files or stdin"
        );
        return Err(InvalidArgument::new(field, message));
    }
    Ok(())
}
