//! From the command line to the arguments of a call, and back from their errors to the flags.

use std::io::{IsTerminal, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::RunArguments;
use crate::calls::command::CommandError;
use crate::commands::backend::CallFailure;
use crate::commands::options::{languages_of, no_language_of, not_a_language};
use crate::commands::{complain, sent_files};
use crate::config::Config;
use crate::request::arguments::{AdditionalFile, Arguments, Encoding};
use crate::request::options::{option, with_options};
use crate::request::understand::languages;

/// How long standard input may stay open before a remark says that the command waits for it.
const SILENT_FOR: Duration = Duration::from_secs(2);

/// The command with its words where they belong: a stored program has no file, so all of them are its arguments.
///
/// # Errors
///
/// When there is nothing to run, or an argument is not UTF-8.
pub(super) fn understood(mut command: RunArguments) -> anyhow::Result<RunArguments> {
    match (&command.snippet, command.file.take()) {
        (Some(_), Some(first)) => {
            let first = first.into_os_string().into_string();
            command
                .args
                .insert(0, first.map_err(|_| anyhow!("an argument of the program is not UTF-8"))?);
        }
        (None, None) => bail!(
            "there is nothing to run: give the file of a program, - to read it from standard input, or --snippet NAME for a \
             stored one; isolator run --help has the options"
        ),
        (_, file) => command.file = file,
    }
    Ok(command)
}

/// The arguments of the call, and what its parts are called on the command line.
///
/// # Errors
///
/// When something that the command line names can't be read.
pub(super) fn arguments(
    config: &Config,
    command: RunArguments,
) -> anyhow::Result<(Arguments, Names)> {
    let (mut additional_files, mut names) = (Vec::new(), Names::of(&command));
    for argument in &command.files {
        let files = sent_files::read(argument, config.limits.files())
            .with_context(|| format!("--file {argument}"))?;
        names.files.extend(files.iter().map(|_| argument.clone()));
        additional_files.extend(files.into_iter().map(additional_file));
    }
    let mut arguments = Arguments {
        additional_files,
        args: command.args,
        env: command.env.iter().map(|text| variable(text)).collect::<anyhow::Result<_>>()?,
        timeout: command.timeout.map(with_unit),
        memory_mb: command.memory,
        cpus: command.cpus,
        snippet_name: command.snippet,
        packages: command.packages,
        ..Arguments::default()
    };
    if let Some(file) = &command.file {
        let (code, name) = read_program(file)?;
        arguments.language = Some(match (command.language, &name) {
            (Some(name), _) => match languages::find(&name, &config.languages) {
                Some(found) => found.language.name.clone(),
                None => bail!("--language: {}", not_a_language(&name, config)),
            },
            (None, Some(name)) => language_of(config, name)?,
            (None, None) => bail!(
                "--language is required for a program from standard input: use one of {}",
                languages_of(config)
            ),
        });
        arguments.entrypoint_code = Some(code);
        arguments.entrypoint_filename = name;
    }
    Ok((arguments, names))
}

fn variable(text: &str) -> anyhow::Result<(String, String)> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| anyhow!("--env {text}: write it as NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A number without a unit is seconds.
pub(in crate::commands) fn with_unit(timeout: String) -> String {
    match timeout.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds < 1e9 => format!("{}ms", (seconds * 1e3).ceil()),
        _ => timeout,
    }
}

/// The program's source, and its name unless it comes from standard input.
fn read_program(file: &Path) -> anyhow::Result<(String, Option<String>)> {
    if file == Path::new("-") {
        let mut code = String::new();
        std::io::stdin().read_to_string(&mut code).context("standard input can't be read")?;
        return Ok((code, None));
    }
    if file.is_dir() {
        bail!("{} is a folder; give the file of the program", file.display());
    }
    let code = std::fs::read(file).with_context(|| file.display().to_string())?;
    let code = String::from_utf8(code)
        .map_err(|_| anyhow!("{}: this is not a program in UTF-8", file.display()))?;
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok((code, name))
}

/// The program's standard input: all of ours, unless that is a terminal or had the program itself.
///
/// # Errors
///
/// When it can't be read, or is more than a request can bring.
pub(super) fn standard_input(config: &Config, command: &RunArguments) -> anyhow::Result<Vec<u8>> {
    if command.file.as_deref() == Some(Path::new("-")) || std::io::stdin().is_terminal() {
        return Ok(Vec::new());
    }
    let most = config.limits.files().total;
    let is_read = Arc::new(AtomicBool::new(command.quiet));
    let still_reading = Arc::clone(&is_read);
    // A user that left a pipe open has to know what the command waits for. The thread ends with the process at the latest.
    std::thread::spawn(move || {
        std::thread::sleep(SILENT_FOR);
        if !still_reading.load(Ordering::Relaxed) {
            complain(
                "isolator: waiting for the end of standard input, which the program gets; use </dev/null if \
                 it needs none",
            );
        }
    });
    let mut input = Vec::new();
    let read = std::io::stdin().take(most + 1).read_to_end(&mut input);
    is_read.store(true, Ordering::Relaxed);
    read.context("standard input can't be read")?;
    if input.len() as u64 > most {
        bail!("standard input: it is longer than {most} bytes (limits.maxFilesKB)");
    }
    Ok(input)
}

fn language_of(config: &Config, name: &str) -> anyhow::Result<String> {
    let found = languages::of_file(name, &config.languages);
    found
        .map(|language| language.name.clone())
        .ok_or_else(|| anyhow!("{}", no_language_of(name, config)))
}

pub(in crate::commands) fn additional_file(
    (filename, content): (String, Vec<u8>),
) -> AdditionalFile {
    AdditionalFile {
        append: false,
        filename,
        content: BASE64.encode(content),
        encoding: Encoding::Base64,
    }
}

/// The names of the parts of a call on the command line.
#[derive(Debug)]
pub(in crate::commands) struct Names {
    program: String,
    /// For each additional file, the option that brought it.
    files: Vec<String>,
}

impl Names {
    fn of(command: &RunArguments) -> Self {
        let file = command.file.as_ref().map(|file| file.display().to_string());
        Self { program: file.unwrap_or_default(), files: Vec::new() }
    }

    /// The files that come with a session.
    pub(in crate::commands) fn of_files(files: Vec<String>) -> Self {
        Self { program: String::new(), files }
    }

    /// An error in the words of the command line.
    pub(in crate::commands) fn explain(&self, error: CallFailure) -> anyhow::Error {
        match error {
            CallFailure::Command(CommandError::Invalid { field, message }) => {
                anyhow!("{}: {}", self.name_of(&field), with_options(&message))
            }
            error => error.into(),
        }
    }

    /// The name of an argument on the command line.
    fn name_of(&self, field: &str) -> String {
        let index = || field.split(['[', ']']).nth(1).and_then(|index| index.parse::<usize>().ok());
        match field.split(['.', '[']).next().unwrap_or_default() {
            "entrypoint_code" | "entrypoint_filename" => self.program.clone(),
            "env" => format!("--env {}", field.trim_start_matches("env.")),
            "args" => format!("argument {} of the program", index().unwrap_or_default() + 1),
            "additional_files" | "files" => match index().and_then(|index| self.files.get(index)) {
                Some(file) => format!("--file {file}"),
                None => "--file".to_owned(),
            },
            other => option(other).unwrap_or(other).to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::arguments::InvalidArgument;

    #[test]
    fn an_error_names_the_flag() {
        let names = Names { program: "a.py".to_owned(), files: vec!["x=y".to_owned()] };
        for (field, message, expected) in [
            ("memory_mb", "1 is too little", "--memory: 1 is too little"),
            ("additional_files[0].filename", "is absolute", "--file x=y: is absolute"),
            ("additional_files", "too many", "--file: too many"),
            (
                "args[1]",
                "contains a NUL character",
                "argument 2 of the program: contains a NUL character",
            ),
            (
                "env.A",
                "send it in additional_files or stdin",
                "--env A: send it in --file or standard input",
            ),
            ("entrypoint_filename", "is no name", "a.py: is no name"),
        ] {
            let error = CommandError::from(InvalidArgument::new(field, message));
            assert_eq!(names.explain(error.into()).to_string(), expected);
        }
    }

    #[test]
    fn a_time_without_a_unit_is_in_seconds() {
        for (text, expected) in [("5", "5000ms"), ("0.5", "500ms"), ("5s", "5s"), ("-1", "-1")] {
            assert_eq!(with_unit(text.to_owned()), expected);
        }
    }
}
