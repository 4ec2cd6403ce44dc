//! From the command line to the arguments of a call, and back from their errors to the flags.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::commands::cli::RunArguments;
use crate::commands::complain;
use crate::commands::sent_files::name_and_path;
use crate::config::Config;
use crate::request::arguments::{AdditionalFile, Arguments, Encoding, InvalidArgument};
use crate::request::understand::languages;

/// How long standard input may stay open before it is said that it is waited for.
const SILENT_FOR: Duration = Duration::from_secs(2);

/// The arguments of the call.
///
/// # Errors
///
/// When something that the command line names can't be read.
pub(super) fn arguments(config: &Config, command: RunArguments) -> anyhow::Result<Arguments> {
    let mut arguments = Arguments {
        additional_files: command
            .files
            .iter()
            .map(|file| additional_file(file))
            .collect::<anyhow::Result<_>>()?,
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
                // What is refused later is what was given.
                None => name,
            },
            (None, Some(name)) => language_of(config, name)?,
            (None, None) => bail!("--language is required for a program from standard input"),
        });
        arguments.entrypoint_code = Some(code);
        arguments.entrypoint_filename = name;
    }
    Ok(arguments)
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

/// What the program gets on its standard input: all of ours, unless that is a terminal or had the program itself.
///
/// # Errors
///
/// When it can't be read, or is more than a request can bring.
pub(super) fn standard_input(config: &Config, command: &RunArguments) -> anyhow::Result<Vec<u8>> {
    if command.file.as_deref() == Some(Path::new("-")) || std::io::stdin().is_terminal() {
        return Ok(Vec::new());
    }
    let most = config.limits.files.total;
    let is_read = Arc::new(AtomicBool::new(command.quiet));
    let still_reading = Arc::clone(&is_read);
    // Whoever left a pipe open has to know what is waited for. The thread ends with the process at the latest.
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
    found.map(|language| language.name.clone()).ok_or_else(|| {
        let known: Vec<_> = config.languages.keys().cloned().collect();
        anyhow!("can't tell the language of {name}: give one with --language: {}", known.join(", "))
    })
}

fn additional_file(argument: &str) -> anyhow::Result<AdditionalFile> {
    let (name, path) = name_and_path(argument)?;
    let read = || {
        let mut content = Vec::new();
        File::open(&path)?.read_to_end(&mut content).map(|_| content)
    };
    let content = read().with_context(|| format!("--file {argument}"))?;
    Ok(AdditionalFile {
        append: false,
        filename: name,
        content: BASE64.encode(content),
        encoding: Encoding::Base64,
    })
}

/// What the parts of a call are called on the command line.
#[derive(Debug)]
pub(super) struct Names {
    program: String,
    files: Vec<String>,
}

impl Names {
    pub(super) fn of(command: &RunArguments) -> Self {
        let file = command.file.as_ref().map(|file| file.display().to_string());
        Self { program: file.unwrap_or_default(), files: command.files.clone() }
    }

    /// An error of an argument, in the words of the command line.
    pub(super) fn explain(&self, error: &InvalidArgument) -> anyhow::Error {
        let InvalidArgument { field, message } = error;
        let index = || field.split(['[', ']']).nth(1).and_then(|index| index.parse::<usize>().ok());
        let name = match field.split(['.', '[']).next().unwrap_or_default() {
            "language" => "--language".to_owned(),
            "entrypoint_code" | "entrypoint_filename" => self.program.clone(),
            "snippet_name" => "--snippet".to_owned(),
            "packages" => "--packages".to_owned(),
            "stdin" => "standard input".to_owned(),
            "timeout" => "--timeout".to_owned(),
            "memory_mb" => "--memory".to_owned(),
            "cpus" => "--cpus".to_owned(),
            "env" => format!("--env {}", field.trim_start_matches("env.")),
            "args" => format!("argument {} of the program", index().unwrap_or_default() + 1),
            "additional_files" => match index().and_then(|index| self.files.get(index)) {
                Some(file) => format!("--file {file}"),
                None => "--file".to_owned(),
            },
            other => other.to_owned(),
        };
        let mut message = message.clone();
        for (ours, theirs) in [
            ("additional_files", "--file"),
            ("memory_mb", "--memory"),
            ("snippet_name", "--snippet"),
            ("stdin", "standard input"),
        ] {
            message = message.replace(ours, theirs);
        }
        anyhow!("{name}: {message}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let error = InvalidArgument::new(field, message);
            assert_eq!(names.explain(&error).to_string(), expected);
        }
    }

    #[test]
    fn a_time_without_a_unit_is_in_seconds() {
        for (text, expected) in [("5", "5000ms"), ("0.5", "500ms"), ("5s", "5s"), ("-1", "-1")] {
            assert_eq!(with_unit(text.to_owned()), expected);
        }
    }
}
