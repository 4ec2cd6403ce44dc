//! `isolator install`: adds this server to a host's configuration.

use crate::commands::hosts::entry::server_name;
use clap::Args;
use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{self, Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use clap::ValueEnum;

use crate::commands::hosts::edit::{self, Other};
use crate::commands::hosts::entry::Entry;
use crate::commands::hosts::file::Original;
use crate::commands::hosts::place::{self, Surroundings, System};
use crate::commands::hosts::{Host, Timeout, parser};
use crate::commands::{complain, say};
use crate::config::{Config, EngineKind};

/// Arguments of `isolator install`. The host starts the server with the `--engine` that is given here, and with the
/// configuration that is used here.
#[derive(Debug, Args)]
pub struct InstallArguments {
    /// The host
    #[arg(value_parser = parser())]
    pub host: &'static Host,
    /// Show what would be written and where, but change nothing. Only the entry goes to standard output
    #[arg(long, conflicts_with_all = ["uninstall", "force"])]
    pub print: bool,
    /// Remove the server from the host's configuration
    #[arg(long)]
    pub uninstall: bool,
    /// Name of the server in the host's configuration
    #[arg(long, default_value = "isolator", value_parser = server_name)]
    pub name: String,
    /// The host's configuration file, if it is not in its usual place
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Replace or remove a different server with that name
    #[arg(long)]
    pub force: bool,
}

/// Variables that change what the server does, and that hosts don't pass on; besides Isolator's own, of which only
/// the configuration's file is pinned.
const NOT_PASSED_ON: [&str; 6] = [
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_CERT_PATH",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
];

/// Adds this server to a host's configuration, removes it, or shows what would be written.
pub fn install(
    config: Option<&Path>,
    engine: Option<EngineKind>,
    arguments: InstallArguments,
) -> anyhow::Result<ExitCode> {
    let host = arguments.host;
    // To remove an entry, its name and its command are enough.
    let config = if arguments.uninstall { None } else { checked(config)? };
    let entry = Entry::new(host, utf8(&own_path()?)?, args(config.as_deref(), engine)?);
    if arguments.print {
        complain(&said_of(config.as_deref()));
        return print(host, &arguments, &entry);
    }
    let file = file(host, &arguments)?;
    let original = Original::read(&file)?;
    if arguments.uninstall {
        return uninstall(host, &arguments, &entry, &file, &original);
    }
    if arguments.file.is_some() && !original.has_folder() {
        bail!(
            "the folder of {} does not exist; create it first if the path is right",
            file.display()
        );
    }
    let name = &arguments.name;
    let text = original.text()?;
    let other = other(&arguments);
    let changed =
        edit::add(text, host, name, &entry, other).map_err(|error| refused(&file, host, error))?;
    let Some(changed) = changed else {
        say(&format!("{name} is in {} already: {}", host.title, file.display()))?;
        say(&said_of(config.as_deref()))?;
        return Ok(ExitCode::SUCCESS);
    };
    let was_started = original.exists() || original.has_folder();
    let copy = original.replace(&changed)?;
    say(&format!("{name} is now in {}: {}", host.title, file.display()))?;
    say(&said_of(config.as_deref()))?;
    say_copy(copy.as_deref())?;
    say(&format!("next: {}", host.next))?;
    if !was_started {
        let title = host.title;
        complain(&format!("note: it seems that this user has never started {title}"));
    }
    note_what_hosts_leave_out();
    Ok(ExitCode::SUCCESS)
}

fn uninstall(
    host: &Host,
    arguments: &InstallArguments,
    entry: &Entry,
    file: &Path,
    original: &Original,
) -> anyhow::Result<ExitCode> {
    let name = &arguments.name;
    let text = original.text()?;
    let changed = edit::remove(text, host, name, entry, other(arguments))
        .map_err(|error| refused(file, host, error))?;
    let Some(changed) = changed.filter(|_| original.exists()) else {
        say(&format!("{name} is not in {}: {}", host.title, file.display()))?;
        return Ok(ExitCode::SUCCESS);
    };
    let copy = original.replace(&changed)?;
    say(&format!("{name} is no longer in {}: {}", host.title, file.display()))?;
    say_copy(copy.as_deref())?;
    Ok(ExitCode::SUCCESS)
}

/// Only the entry goes to standard output, so that it can be piped; remarks go to standard error.
fn print(host: &Host, arguments: &InstallArguments, entry: &Entry) -> anyhow::Result<ExitCode> {
    match file(host, arguments) {
        Ok(file) => complain(&format!("for {}:", file.display())),
        Err(error) => complain(&format!("note: {error:#}")),
    }
    let text = edit::add("", host, &arguments.name, entry, Other::Refuse)?;
    say(text.unwrap_or_default().trim_end())?;
    if let Some(command) = host.command {
        complain(&format!("or run: {}", entry.command_of_host(command, &arguments.name)));
        if let Some(Timeout(key, time)) = host.timeout {
            let seconds = time.as_secs();
            complain(&format!(
                "and then add {key} = {seconds} to the entry: the command can't, and long calls would end too soon"
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn refused(file: &Path, host: &Host, error: edit::EditError) -> anyhow::Error {
    let title = host.title;
    anyhow!("the configuration of {title}, {}, was left as it is: {error}", file.display())
}

fn other(arguments: &InstallArguments) -> Other {
    if arguments.force { Other::Replace } else { Other::Refuse }
}

fn say_copy(copy: Option<&Path>) -> anyhow::Result<()> {
    if let Some(copy) = copy {
        say(&format!("backup of the old configuration: {}", copy.display()))?;
    }
    Ok(())
}

/// The host's configuration file.
fn file(host: &Host, arguments: &InstallArguments) -> anyhow::Result<PathBuf> {
    if let Some(file) = &arguments.file {
        return path::absolute(file).with_context(|| file.display().to_string());
    }
    let variable = |name: &str| env::var_os(name);
    Ok(place::find(host, &Surroundings { system: System::here(), variable: &variable })?)
}

/// The configuration's file, if there is one. It is the one that `serve` would use here: a host starts the server in
/// another folder and with few variables, where it might find another one or none.
///
/// # Errors
///
/// It is wrong. A server that exits at once can't tell its host why.
fn checked(config: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
    let file = Config::load(config)?.file;
    file.map(|file| path::absolute(&file).with_context(|| file.display().to_string())).transpose()
}

fn said_of(config: Option<&Path>) -> String {
    match config {
        Some(file) => format!("configuration: {}", file.display()),
        None => "configuration: the defaults, because there is no file; `isolator config init` writes one"
            .to_owned(),
    }
}

/// The arguments with which the host starts this program.
fn args(config: Option<&Path>, engine: Option<EngineKind>) -> anyhow::Result<Vec<String>> {
    let mut args = vec!["serve".to_owned()];
    if let Some(config) = config {
        args.extend(["--config".to_owned(), utf8(config)?]);
    }
    if let Some(engine) = engine.and_then(|engine| engine.to_possible_value()) {
        args.extend(["--engine".to_owned(), engine.get_name().to_owned()]);
    }
    Ok(args)
}

fn utf8(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str();
    let text = text.ok_or_else(|| {
        anyhow!(
            "{}: this path is not UTF-8, so the host's configuration can't hold it",
            path.display()
        )
    })?;
    Ok(text.to_owned())
}

/// This program's path. The name it was called by is better, if it leads here: it may be a link that stays when
/// the next version is installed.
fn own_path() -> anyhow::Result<PathBuf> {
    let real = env::current_exe().context("can't find this program's own file")?;
    let itself = fs::metadata(&real).with_context(|| {
        format!("{}: this program is no longer where it was started from", real.display())
    })?;
    let called = env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let candidates: Vec<_> = if called.components().count() > 1 {
        path::absolute(&called).into_iter().collect()
    } else {
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path).map(|folder| folder.join(&called)).collect()
    };
    let is_it = |path: &PathBuf| {
        path.is_absolute()
            && fs::metadata(path)
                .is_ok_and(|found| (found.dev(), found.ino()) == (itself.dev(), itself.ino()))
    };
    Ok(candidates.into_iter().find(is_it).unwrap_or(real))
}

/// Notes what the host will not pass on: it starts the server with few variables.
fn note_what_hosts_leave_out() {
    let ours = |name: &str| name.starts_with("ISOLATOR_") && name != "ISOLATOR_CONFIG";
    for (name, value) in env::vars_os() {
        let name = name.to_string_lossy();
        if !value.is_empty() && (NOT_PASSED_ON.contains(&&*name) || ours(&name)) {
            complain(&format!(
                "note: {name} is set here, but hosts don't pass it on; set it under \"env\" in the \
                 entry, or set the same in Isolator's configuration"
            ));
        }
    }
}
