//! Resolves the arguments of calls that use a session: the step to run, its files and limits.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use isolator_pool::engine::limits::Resources;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::pool::session::{CellOutcome, CellRequest, CellRun, SessionError};
use isolator_pool::run::workspace::WorkspaceBuilder;

use super::{check_argument, language, resources, stdin, variables};
use crate::config::{Config, Language};
use crate::duration;
use crate::policy::{Policies, SourceFile};
use crate::request::arguments::{
    AdditionalFile, Arguments, Encoding, InvalidArgument, OpenSession, RunCommand, required,
};
use crate::request::limits::timeout;
use crate::request::pack::{Entrypoint, Packer, refuse_more_than_memory};
use crate::request::understand;
use crate::request::wanted_files::OutputFiles;
use crate::sessions::Wish;
use crate::sessions::journal::{SentFile, Step, StepInput};

/// A step of a session, whose every part was checked: a cell, a shell command, or only files.
pub(crate) struct StepJob {
    /// The request to the session.
    pub run: CellRequest,
    /// The step for the journal.
    pub step: Step,
    /// Its files for the journal.
    pub files: Vec<SentFile>,
    /// Whether it is run again without its files, because they were too large to be remembered.
    pub has_lost_files: bool,
    /// The files that should come back.
    pub wanted: OutputFiles,
    /// The caller's sources, if a policy applies to them.
    pub unchecked: Vec<SourceFile>,
    /// An explanation if the language's own tools can't read the source.
    pub advice: Option<understand::Advice>,
    /// Called with its end, even if its caller has gone away.
    pub on_end: Option<OnEnd>,
    /// The language of its code, if that is another than the session's.
    pub language: Option<Arc<Language>>,
    /// Whether it is noted in the journal of the session, to be run again in another. The journal is that of context 0.
    pub is_noted: bool,
}

/// A callback for the end of a step that has begun.
pub(crate) type OnEnd = Box<dyn FnOnce(&Result<CellOutcome, SessionError>) + Send>;

impl StepJob {
    /// The names and contents of the files that come with it.
    pub(crate) fn sent(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.files.iter().map(|file| (file.name.as_str(), file.content.as_slice()))
    }

    pub(super) fn new(
        run: CellRun,
        step: Step,
        input: Vec<u8>,
        timeout: Duration,
        wanted: OutputFiles,
        config: &Config,
    ) -> Self {
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
            shown_watch: None,
            interrupt: None,
            context: 0,
            keeps_session: false,
        };
        Self {
            run,
            step,
            files: Vec::new(),
            has_lost_files: false,
            wanted,
            unchecked: Vec::new(),
            advice: None,
            on_end: None,
            language: None,
            is_noted: true,
        }
    }

    /// A step that only brings files.
    fn only_files(config: &Config) -> Self {
        let (wanted, timeout) =
            (OutputFiles::none(config.results.files.as_bytes()), config.limits.default_timeout);
        Self::new(CellRun::Files, Step::Files, Vec::new(), timeout, wanted, config)
    }

    /// The step with the files that were packed for it.
    fn with_files(mut self, packer: Packer<'_>) -> Self {
        self.files = packer.sent.unwrap_or_default();
        let appended = self.files.iter().filter(|file| file.append);
        self.run.appended = appended.map(|file| file.name.clone()).collect();
        self.run.workspace = packer.builder.build();
        self.unchecked.extend(packer.unchecked);
        self
    }
}

/// A session to open, whose every part was checked.
pub(crate) struct OpenJob {
    pub wish: Wish,
    /// The sets of packages, and requirements, that its cells can import from.
    pub packages: Vec<String>,
    /// The step that writes its files, if there are any.
    pub first: Option<StepJob>,
    /// How long it waits for packages that are being built; for ever if there is no limit.
    pub max_wait: Option<Duration>,
    /// The handle of the session that it repeats, if it repeats one.
    pub replay: Option<String>,
    pub notes: Vec<String>,
}

/// Resolves the arguments of `open_session`.
pub(crate) fn opening(arguments: OpenSession, config: &Config) -> Result<OpenJob, InvalidArgument> {
    let name = required(arguments.language, "language", "the language of the session's cells")?;
    let language = language(&name, config)?;
    let resources = resources(&language, arguments.memory_mb, arguments.cpus, config)?;
    let idle_timeout = arguments.idle_timeout.as_deref().map(|text| idle_timeout(text, config));
    let idle_timeout = idle_timeout.transpose()?;
    let first = if arguments.files.is_empty() {
        None
    } else {
        let files = arguments.files;
        Some(packed_files("files", files, &language, resources, &config.policies, config)?)
    };
    let wish = Wish {
        language,
        resources,
        idle_timeout,
        set: None,
        packages: None,
        installer: None,
        env: BTreeMap::new(),
        deadline: None,
        max_queue: None,
    };
    let (packages, replay) = (arguments.packages, arguments.replay);
    let max_wait = Some(config.results.detach_after);
    Ok(OpenJob { wish, packages, first, max_wait, replay, notes: Vec::new() })
}

/// Resolves a step that only writes files.
///
/// # Errors
///
/// The first file that can't be sent.
pub(crate) fn files(
    files: Vec<AdditionalFile>,
    language: &Language,
    resources: Resources,
    policies: &Policies,
    config: &Config,
) -> Result<StepJob, InvalidArgument> {
    packed_files("additional_files", files, language, resources, policies, config)
}

fn packed_files(
    field: &str,
    files: Vec<AdditionalFile>,
    language: &Language,
    resources: Resources,
    policies: &Policies,
    config: &Config,
) -> Result<StepJob, InvalidArgument> {
    let mut packer = Packer::for_session(language, policies, config);
    packer.files(field, files)?;
    let step = StepJob::only_files(config).with_files(packer);
    refuse_more_than_memory(&step.run.workspace, &[], resources.memory)?;
    Ok(step)
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

/// Resolves the arguments of `execute_code` with a session. The policies are those of the session: its language may be gone from
/// the configuration.
pub(crate) fn cell(
    arguments: Arguments,
    language: &Arc<Language>,
    resources: Resources,
    policies: &Policies,
    config: &Config,
) -> Result<StepJob, InvalidArgument> {
    refuse_meaningless(&arguments, language)?;
    let Arguments {
        entrypoint_code,
        entrypoint_filename: file_name,
        additional_files,
        output_files,
        args,
        stdin,
        env,
        timeout: time,
        ..
    } = arguments;
    let code = required(entrypoint_code, "entrypoint_code", "the source of the cell")?;
    let timeout = timeout(time.as_deref(), &config.limits)?;
    let advice = understand::advice(&code, language);
    let wanted =
        OutputFiles::new(output_files, &language.sandbox.workdir, config.results.files.as_bytes())?;
    let input = StepInput { args, env, stdin: stdin.unwrap_or_default() };
    let mut packer = Packer::for_session(language, policies, config);
    let entrypoint = Entrypoint {
        language: Arc::clone(language),
        file_name: file_name.clone().unwrap_or_else(|| language.default_file.clone()),
        code: code.clone(),
        field: "entrypoint_filename",
        is_snippet: false,
    };
    let (run, stdin) = if let Some(interpreter) = language.kernel {
        if policies.apply_to(&language.name) {
            let (name, content) = (entrypoint.file_name, entrypoint.code.clone().into_bytes());
            packer.unchecked.push(SourceFile { name, content, is_entrypoint: true });
        }
        let typescript = interpreter == Interpreter::Node
            && file_name.as_deref().is_some_and(|name| name.ends_with("ts"));
        packer.files("additional_files", additional_files)?;
        (code_run(typescript), entrypoint.code.into_bytes())
    } else {
        let env = variables(&input.args, &input.env, language)?;
        packer.entrypoint(entrypoint)?;
        packer.files("additional_files", additional_files)?;
        let mut argv = language.argv(&packer.sources[0], &packer.sources, resources.memory);
        argv.extend(input.args.iter().cloned());
        let run = CellRun::Program { argv, env, cwd: String::new() };
        (run, input.stdin.clone().into_bytes())
    };
    let step = Step::Code { code, file_name, input };
    let mut job = StepJob::new(run, step, stdin, timeout, wanted, config).with_files(packer);
    job.advice = advice;
    refuse_more_than_memory(&job.run.workspace, &job.run.input, resources.memory)?;
    Ok(job)
}

/// Resolves the arguments of `run_command`.
pub(crate) fn command(
    arguments: RunCommand,
    language: &Language,
    config: &Config,
) -> Result<StepJob, InvalidArgument> {
    let RunCommand { command, cwd, stdin: text, env, timeout: time, .. } = arguments;
    let command = required(command, "command", "the shell command")?;
    if command.trim().is_empty() {
        return Err(InvalidArgument::new("command", "is empty: give a shell command"));
    }
    check_argument("command", &command)?;
    let cwd = cwd.unwrap_or_default();
    check_argument("cwd", &cwd)?;
    let timeout = timeout(time.as_deref(), &config.limits)?;
    let text = text.unwrap_or_default();
    let input = StepInput { env, stdin: text, ..StepInput::default() };
    shell(command, cwd, input, language, timeout, config)
}

/// Resolves a step of a journal, to run it again in a session that was opened just now.
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
) -> Result<StepJob, InvalidArgument> {
    let files = files.into_iter().map(|SentFile { name, content, append }| AdditionalFile {
        filename: name,
        content: BASE64.encode(content),
        encoding: Encoding::Base64,
        append,
    });
    let files: Vec<_> = files.collect();
    let job = match step {
        Step::Code { code, file_name, input: StepInput { args, mut env, stdin } } => {
            // Cells of an API can have variables.
            let of_cell = language.kernel.map(|_| std::mem::take(&mut env)).unwrap_or_default();
            let arguments = Arguments {
                entrypoint_code: Some(code),
                entrypoint_filename: file_name,
                additional_files: files,
                args,
                env,
                stdin: (!stdin.is_empty()).then_some(stdin),
                ..Arguments::default()
            };
            let mut job = cell(arguments, language, resources, &config.policies, config)?;
            job.run.timeout = timeout;
            if let CellRun::Code { env, .. } = &mut job.run.run {
                *env = of_cell;
            }
            return Ok(job);
        }
        Step::Files => StepJob::only_files(config),
        Step::Command { command, cwd, input } => {
            shell(command, cwd, input, language, timeout, config)?
        }
    };
    let mut packer = Packer::for_session(language, &config.policies, config);
    packer.files("files", files)?;
    Ok(job.with_files(packer))
}

/// Code that is shown to a person.
fn code_run(typescript: bool) -> CellRun {
    CellRun::Code { typescript, columns: None, env: BTreeMap::new(), for_program: false }
}

/// Refuses arguments that mean nothing to a cell.
fn refuse_meaningless(arguments: &Arguments, language: &Language) -> Result<(), InvalidArgument> {
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

fn shell(
    command: String,
    cwd: String,
    input: StepInput,
    language: &Language,
    timeout: Duration,
    config: &Config,
) -> Result<StepJob, InvalidArgument> {
    let argv = ["sh", "-c", &command].map(str::to_owned).to_vec();
    let env = variables(&[], &input.env, language)?;
    let stdin = stdin(input.stdin.clone(), config)?;
    let run = CellRun::Program { argv, env, cwd: cwd.clone() };
    let step = Step::Command { command, cwd, input };
    Ok(StepJob::new(
        run,
        step,
        stdin,
        timeout,
        OutputFiles::none(config.results.files.as_bytes()),
        config,
    ))
}
