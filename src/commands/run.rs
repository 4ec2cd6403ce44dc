//! `isolator run`: runs one program from the command line, in a sandbox made for it.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use isolator_pool::pool::admission::Client;
use isolator_pool::run::RunRequest;
use isolator_pool::run::outcome::{End, Outcome, Status};
use std::sync::Arc;
use std::time::Duration;

use crate::app::{App, PoolFill};
use crate::commands::cli::RunArguments;
use crate::commands::signals::stop_signal;
use crate::commands::{Work, complain};
use crate::config::{Config, Language};
use crate::request::arguments::{AdditionalFile, Arguments, Encoding};
use crate::request::resolve::{self, Request};
use crate::request::snippets::Snippets;
use crate::result::explain::{self, Context};

/// Added to the number of a signal that ended a program, as shells do.
const SIGNALLED: i32 = 128;

/// Runs the program, and passes on its output and its exit code.
pub fn run(config: Config, command: RunArguments) -> Work {
    Box::pin(async move {
        let arguments = arguments(&config, command)?;
        let mut request = resolve::resolve(arguments, &config, &Snippets::new(&config))?;
        // Files don't come back on the command line.
        request.run.files = None;
        let name = &request.language.name;
        let found = config.policies.check(name, request.unchecked.clone()).await;
        if !found.is_empty() {
            bail!(
                "the policy for {name} forbids something in the program, so it was not run:\n{found}"
            );
        }
        let app = App::new(&config).await?;
        let stop_signal = stop_signal()?;
        let pools = app.start_pools(&config, PoolFill::Nothing)?;
        let client = Client::host();
        let ended = tokio::select! {
            executed = pools.execute(name, &client, &request.run) => Ok(executed),
            signal = stop_signal => Err(signal),
        };
        let closed = pools.close(Duration::ZERO).await;
        let (outcome, _) = match ended {
            Ok(executed) => executed?,
            Err(signal) => {
                closed?;
                return Ok(ExitCode::from(u8::try_from(SIGNALLED + signal).unwrap_or(u8::MAX)));
            }
        };
        closed?;
        Ok(pass_on(&outcome, &config, &request))
    })
}

fn arguments(config: &Config, command: RunArguments) -> anyhow::Result<Arguments> {
    let (code, name) = read_program(&command.file)?;
    let language = match (command.language, &name) {
        (Some(language), _) => language,
        (None, Some(name)) => language_of(config, name)?,
        (None, None) => bail!("--language is required for a program from standard input"),
    };
    let env = command.env.iter().map(|variable| {
        let (name, value) = variable
            .split_once('=')
            .ok_or_else(|| anyhow!("--env {variable}: write it as NAME=VALUE"))?;
        Ok((name.to_owned(), value.to_owned()))
    });
    Ok(Arguments {
        language: Some(language),
        entrypoint_code: Some(code),
        entrypoint_filename: name,
        additional_files: command
            .files
            .iter()
            .map(|file| additional_file(file))
            .collect::<anyhow::Result<_>>()?,
        args: command.args,
        env: env.collect::<anyhow::Result<_>>()?,
        timeout: command.timeout,
        memory_mb: command.memory,
        cpus: command.cpus,
        ..Arguments::default()
    })
}

/// The program's source, and its name unless it comes from standard input.
fn read_program(file: &Path) -> anyhow::Result<(String, Option<String>)> {
    if file == Path::new("-") {
        let mut code = String::new();
        std::io::stdin().read_to_string(&mut code).context("standard input can't be read")?;
        return Ok((code, None));
    }
    let code = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok((code, name))
}

fn language_of(config: &Config, name: &str) -> anyhow::Result<String> {
    let has_extension = |language: &&Arc<Language>| {
        language.extensions.iter().any(|extension| name.ends_with(extension.as_str()))
    };
    config.languages.values().find(has_extension).map(|language| language.name.clone()).ok_or_else(
        || {
            let known: Vec<_> = config.languages.keys().cloned().collect();
            anyhow!(
                "can't tell the language of {name}: give one with --language: {}",
                known.join(", ")
            )
        },
    )
}

/// A file given as `PATH` or `NAME=PATH`.
fn additional_file(argument: &str) -> anyhow::Result<AdditionalFile> {
    let (name, path) = match argument.split_once('=') {
        Some((name, path)) => (name.to_owned(), PathBuf::from(path)),
        None => {
            let path = PathBuf::from(argument);
            let name = path.file_name().context("--file needs the path of a file")?;
            (name.to_string_lossy().into_owned(), path)
        }
    };
    let content = std::fs::read(&path).with_context(|| path.display().to_string())?;
    Ok(AdditionalFile {
        filename: name,
        content: BASE64.encode(content),
        encoding: Encoding::Base64,
    })
}

fn pass_on(outcome: &Outcome, config: &Config, request: &Request) -> ExitCode {
    // If nobody reads the output any more, the exit code stays the same.
    let _ = std::io::stdout().write_all(&outcome.stdout.to_bytes());
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().write_all(&outcome.stderr.to_bytes());
    let Request { language, run: RunRequest { timeout, resources, .. }, .. } = request;
    let context = Context { config, language, timeout: *timeout, resources: *resources };
    let is_plain_exit =
        outcome.status == Status::Error && matches!(outcome.end, Some(End::Code(_)));
    if let Some(cause) = explain::cause(outcome, &context).filter(|_| !is_plain_exit) {
        complain(&format!("isolator: {}: {cause}", outcome.status.as_str()));
    }
    ExitCode::from(u8::try_from(outcome.shell_code()).unwrap_or(u8::MAX))
}
