//! Resolves the arguments of calls that use a session: what they run, their files and limits.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use isolator_pool::engine::limits::Resources;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::pool::session::{CellRequest, CellRun};
use isolator_pool::run::workspace::{WorkspaceBuilder, below};

use crate::config::{Config, Language};
use crate::duration;
use crate::policy::{Policies, SourceFile};
use crate::request::arguments::{
    AdditionalFile, Arguments, Encoding, InvalidArgument, OpenSession, RunCommand, required,
};
use crate::request::limits::{cpu, memory, timeout};
use crate::request::pack::{content, refuse_more_than_memory};
use crate::request::resolve;
use crate::request::understand;
use crate::request::wanted_files::Wanted;
use crate::sessions::Wish;
use crate::sessions::journal::{Given, SentFile, Step};

/// A cell whose every part was checked.
pub(crate) struct Cell {
    /// What to run.
    pub run: CellRequest,
    /// The same for the journal.
    pub step: Step,
    /// Its files for the journal.
    pub files: Vec<SentFile>,
    /// Whether it is run again without its files, because they were too large to be remembered.
    pub has_lost_files: bool,
    /// Which files should come back.
    pub wanted: Wanted,
    /// The caller's sources, if a policy applies to them.
    pub unchecked: Vec<SourceFile>,
    /// What to say if the language's own tools can't read the source.
    pub advice: Option<understand::Advice>,
}

impl Cell {
    /// The names and contents of the files that come with it.
    pub(crate) fn sent(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|file| (file.name.as_str(), file.content.as_slice()))
    }
}

/// A session that is to be opened, with its first files.
pub(crate) struct Opening {
    /// The session.
    pub wish: Wish,
    /// The sets of packages, and requirements, that its cells can import from.
    pub packages: Vec<String>,
    /// What writes its files, if there are any.
    pub first: Option<Cell>,
}

/// Checks the arguments of `open_session`.
///
/// # Errors
///
/// The first argument that can't be used.
pub(crate) fn opening(arguments: OpenSession, config: &Config) -> Result<Opening, InvalidArgument> {
    let language = required(arguments.language, "language", "the language of the session's cells")?;
    let language = resolve::language(&language, config)?;
    let mut resources = language.sandbox.resources;
    if let Some(mb) = arguments.memory_mb {
        resources.memory = memory("memory_mb", mb, &config.limits)?;
    }
    if let Some(cores) = arguments.cpus {
        resources.cpu = cpu(cores, &config.limits)?;
    }
    let idle_timeout = arguments.idle_timeout.as_deref().map(|text| idle_timeout(text, config));
    let idle_timeout = idle_timeout.transpose()?;
    let first = if arguments.files.is_empty() {
        None
    } else {
        let mut cell = only_files(config);
        add_files(&mut cell, arguments.files, "files", &language, &config.policies, config)?;
        refuse_more_than_memory(&cell.run.workspace, &[], resources.memory)?;
        Some(cell)
    };
    let wish = Wish { language, resources, idle_timeout, packages: None };
    Ok(Opening { wish, packages: arguments.packages, first })
}

fn idle_timeout(text: &str, config: &Config) -> Result<Duration, InvalidArgument> {
    let wrong = |message: String| InvalidArgument::new("idle_timeout", message);
    let time =
        duration::parse(text).map_err(|error| wrong(format!("this is not a duration: {error}")))?;
    let most = config.sessions.idle_timeout;
    if time < Duration::from_secs(1) || time > most {
        let most = duration::shown(most);
        return Err(wrong(format!(
            "must be between 1s and {most}, the most that the operator allows"
        )));
    }
    Ok(time)
}

/// Checks the arguments of `execute_code` with a session. The policies are those of the session: its language may be gone from the
/// configuration.
///
/// # Errors
///
/// The first argument that can't be used.
pub(crate) fn cell(
    mut arguments: Arguments,
    language: &Arc<Language>,
    resources: Resources,
    policies: &Policies,
    config: &Config,
) -> Result<Cell, InvalidArgument> {
    refuse_what_makes_no_sense(&arguments, language)?;
    let code =
        required(arguments.entrypoint_code.take(), "entrypoint_code", "the source of the cell")?;
    let timeout = timeout(arguments.timeout.as_deref(), &config.limits)?;
    let advice = understand::advice(&code, language);
    let file_name = arguments.entrypoint_filename.take();
    let wanted = Wanted::new(
        arguments.output_files.clone(),
        &language.sandbox.workdir,
        config.results.files.as_bytes(),
    )?;
    let given = Given {
        args: arguments.args.clone(),
        env: arguments.env.clone(),
        stdin: arguments.stdin.clone().unwrap_or_default(),
    };
    let step = Step::Code { code: code.clone(), file_name: file_name.clone(), given };
    let mut unchecked = Vec::new();
    if policies.apply_to(&language.name) {
        let name = file_name.clone().unwrap_or_else(|| language.default_file.clone());
        let content = code.clone().into_bytes();
        unchecked.push(SourceFile { name, content, is_entrypoint: true });
    }
    let mut cell = if let Some(interpreter) = language.kernel {
        let typescript = interpreter == Interpreter::Node
            && file_name.as_deref().is_some_and(|name| name.ends_with("ts"));
        let run = CellRun::Code { typescript, columns: None };
        let mut cell = of(run, step, code.into_bytes(), timeout, wanted, config);
        let files = arguments.additional_files;
        add_files(&mut cell, files, "additional_files", language, policies, config)?;
        cell
    } else {
        let file_name = file_name.unwrap_or_else(|| language.default_file.clone());
        let stdin = arguments.stdin.take().unwrap_or_default().into_bytes();
        let env = resolve::arguments_and_variables(&arguments, language)?;
        let entrypoint = AdditionalFile {
            filename: file_name.clone(),
            content: code,
            ..AdditionalFile::default()
        };
        let run = CellRun::Program { argv: Vec::new(), env, cwd: String::new() };
        let mut cell = of(run, step, stdin, timeout, wanted, config);
        let mut files = vec![entrypoint];
        files.extend(arguments.additional_files);
        let names = add_files(&mut cell, files, "additional_files", language, policies, config)?;
        // The program is not one of the files that came with it.
        cell.files.remove(0);
        if let CellRun::Program { argv, .. } = &mut cell.run.run {
            let sources = resolve::sources(&names, language);
            *argv = language.argv(&names[0], &sources, resources.memory);
            argv.extend(arguments.args);
        }
        cell
    };
    cell.advice = advice;
    cell.unchecked.extend(unchecked);
    refuse_more_than_memory(&cell.run.workspace, &cell.run.input, resources.memory)?;
    Ok(cell)
}

/// Checks the arguments of `run_command`.
///
/// # Errors
///
/// The first argument that can't be used.
pub(crate) fn command(
    arguments: RunCommand,
    language: &Language,
    config: &Config,
) -> Result<Cell, InvalidArgument> {
    let RunCommand { command, cwd, stdin, env, timeout: time, .. } = arguments;
    let command = required(command, "command", "the shell command")?;
    if command.trim().is_empty() {
        return Err(InvalidArgument::new("command", "is empty: give a shell command"));
    }
    resolve::refuse_unusable("command", &command)?;
    let cwd = cwd.unwrap_or_default();
    resolve::refuse_unusable("cwd", &cwd)?;
    let timeout = timeout(time.as_deref(), &config.limits)?;
    let stdin = stdin.unwrap_or_default();
    if stdin.len() as u64 > config.limits.files().total {
        let message = format!("is longer than {} bytes", config.limits.files().total);
        return Err(InvalidArgument::new("stdin", message));
    }
    let given = Given { env, stdin, ..Given::default() };
    shell(command, cwd, given, language, timeout, config)
}

/// A step of a journal, to be run again.
///
/// # Errors
///
/// When the configuration has changed so that it can't.
pub(crate) fn again(
    step: Step,
    files: Vec<SentFile>,
    timeout: Duration,
    language: &Arc<Language>,
    resources: Resources,
    config: &Config,
) -> Result<Cell, InvalidArgument> {
    let files = files.into_iter().map(|SentFile { name, content, append }| AdditionalFile {
        filename: name,
        content: BASE64.encode(content),
        encoding: Encoding::Base64,
        append,
    });
    let files: Vec<_> = files.collect();
    // It is for a session that was opened just now.
    let policies = &config.policies;
    match step {
        Step::Files => {
            let mut cell = only_files(config);
            add_files(&mut cell, files, "files", language, policies, config)?;
            Ok(cell)
        }
        Step::Command { command, cwd, given } => {
            let mut cell = shell(command, cwd, given, language, timeout, config)?;
            add_files(&mut cell, files, "files", language, policies, config)?;
            Ok(cell)
        }
        Step::Code { code, file_name, given: Given { args, env, stdin } } => {
            let arguments = Arguments {
                entrypoint_code: Some(code),
                entrypoint_filename: file_name,
                additional_files: files,
                args,
                env,
                stdin: (!stdin.is_empty()).then_some(stdin),
                ..Arguments::default()
            };
            let mut cell = self::cell(arguments, language, resources, policies, config)?;
            cell.run.timeout = timeout;
            Ok(cell)
        }
    }
}

/// What has a meaning for a program of its own and none for a cell.
fn refuse_what_makes_no_sense(
    arguments: &Arguments,
    language: &Language,
) -> Result<(), InvalidArgument> {
    let refuse = |field: &str, why: &str| Err(InvalidArgument::new(field, why));
    if let Some(other) = arguments.language.as_ref().filter(|other| **other != language.name) {
        let message = format!(
            "the session's language is {}: open another session for {other}",
            language.name
        );
        return refuse("language", &message);
    }
    if arguments.snippet_name.is_some() {
        return refuse(
            "snippet_name",
            "a snippet runs in a sandbox of its own: call without session",
        );
    }
    if arguments.memory_mb.is_some() {
        return refuse("memory_mb", "is set when a session is opened: give it to open_session");
    }
    if arguments.cpus.is_some() {
        return refuse("cpus", "is set when a session is opened: give it to open_session");
    }
    if !arguments.packages.is_empty() {
        return refuse(
            "packages",
            "are given to a session when it is opened: give them to open_session",
        );
    }
    if language.kernel.is_none() {
        return Ok(());
    }
    if !arguments.args.is_empty() {
        return refuse(
            "args",
            "a cell has no command line: set variables in the code, or use run_command",
        );
    }
    if arguments.stdin.is_some() {
        return refuse("stdin", "a cell has no standard input: send a file, or use run_command");
    }
    if !arguments.env.is_empty() {
        return refuse(
            "env",
            "the interpreter runs already: set variables in the code, or use run_command",
        );
    }
    match &arguments.entrypoint_filename {
        Some(name) if !is_typescript(name, language) => refuse(
            "entrypoint_filename",
            "a cell has no file: send files with additional_files, and leave this out",
        ),
        _ => Ok(()),
    }
}

/// The only name of a file that says something about a cell.
fn is_typescript(name: &str, language: &Language) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    language.kernel == Some(Interpreter::Node)
        && extension
            .is_some_and(|extension| ["ts", "mts", "cts", "js", "mjs", "cjs"].contains(&extension))
}

fn of(
    run: CellRun,
    step: Step,
    input: Vec<u8>,
    timeout: Duration,
    wanted: Wanted,
    config: &Config,
) -> Cell {
    let run = CellRequest {
        run,
        workspace: WorkspaceBuilder::new(config.limits.files()).build(),
        appended: Vec::new(),
        input,
        timeout,
        output: config.output_with_kept(),
        shown: config.results.files.as_bytes(),
        files: Some(wanted.to_sandbox()),
        watch: None,
    };
    Cell {
        run,
        step,
        files: Vec::new(),
        has_lost_files: false,
        wanted,
        unchecked: Vec::new(),
        advice: None,
    }
}

/// A cell that only brings files.
fn only_files(config: &Config) -> Cell {
    let wanted = Wanted::none(config.results.files.as_bytes());
    of(CellRun::Files, Step::Files, Vec::new(), config.limits.default_timeout, wanted, config)
}

fn shell(
    command: String,
    cwd: String,
    given: Given,
    language: &Language,
    timeout: Duration,
    config: &Config,
) -> Result<Cell, InvalidArgument> {
    let argv = ["sh", "-c", &command].map(str::to_owned).to_vec();
    let arguments = Arguments { env: given.env.clone(), ..Arguments::default() };
    let env = resolve::arguments_and_variables(&arguments, language)?;
    let stdin = given.stdin.clone().into_bytes();
    let run = CellRun::Program { argv, env, cwd: cwd.clone() };
    let step = Step::Command { command, cwd, given };
    Ok(of(run, step, stdin, timeout, Wanted::none(config.results.files.as_bytes()), config))
}

/// Packs the files of a call. Returns their names.
fn add_files(
    cell: &mut Cell,
    files: Vec<AdditionalFile>,
    field: &str,
    language: &Language,
    policies: &Policies,
    config: &Config,
) -> Result<Vec<String>, InvalidArgument> {
    let is_checked = policies.apply_to(&language.name);
    let mut builder = WorkspaceBuilder::new(config.limits.files());
    let mut names = Vec::new();
    for (index, file) in files.into_iter().enumerate() {
        let at = format!("{field}[{index}]");
        let append = file.append;
        let (name, bytes) = content(file, &at)?;
        let copy = bytes.clone();
        let name = builder
            .add(below(&language.sandbox.workdir, &name), bytes)
            .map_err(|error| InvalidArgument::new(format!("{at}.filename"), error.to_string()))?;
        if append {
            cell.run.appended.push(name.clone());
        }
        if is_checked {
            let (name, content) = (name.clone(), copy.clone());
            cell.unchecked.push(SourceFile { name, content, is_entrypoint: false });
        }
        cell.files.push(SentFile { name: name.clone(), content: copy, append });
        names.push(name);
    }
    cell.run.workspace = builder.build();
    Ok(names)
}
