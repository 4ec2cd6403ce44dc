//! What comes back from a run: output, exit code, and the files that the program left.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use isolator_pool::WantedFiles;
use isolator_pool::pool::pools::Receipt;
use isolator_pool::quote::quoted;
use isolator_pool::run::RunRequest;
use isolator_pool::run::outcome::{ChangedFile, End, Outcome, Status};
use isolator_pool::run::output::Stream;

use super::RunArguments;
use crate::commands::options::in_words_of_options;
use crate::commands::program_output::ProgramOutput;
use crate::commands::{complain, print, print_to_stderr, say};
use crate::config::Config;
use crate::packages::Packages;
use crate::request::resolve::ProgramJob;
use crate::result::explain::{self, Caller, Context, PackagesAdvice};
use crate::result::files::FileReport;
use crate::result::receipt::{ReceiptReport, UsedPackages};
use crate::result::report::Report;

/// Files that are named if they are not kept.
const MAX_NAMED: usize = 5;

/// Where output and files go.
#[derive(Debug)]
pub(super) struct Output {
    is_json: bool,
    is_quiet: bool,
    /// The folder for the files that the program leaves.
    folder: Option<PathBuf>,
}

/// How the run was served.
pub(super) struct Served<'a> {
    /// The receipt.
    pub receipt: &'a Receipt,
    /// The packages that it had.
    pub used: Option<UsedPackages>,
    /// Those that it could have had, if it failed.
    pub packages: Option<&'a Packages>,
}

impl Output {
    /// What the command line says.
    ///
    /// # Errors
    ///
    /// When the folder for files has something in it. Nothing is ever replaced.
    pub(super) fn new(command: &RunArguments) -> anyhow::Result<Self> {
        if let Some(folder) = &command.out {
            let is_empty = match std::fs::read_dir(folder) {
                Ok(mut entries) => entries.next().is_none(),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
                Err(error) => return Err(error).context(format!("--out {}", folder.display())),
            };
            if !is_empty {
                bail!("--out {}: there are files in this folder; name a new one", folder.display());
            }
        }
        Ok(Self { is_json: command.json, is_quiet: command.quiet, folder: command.out.clone() })
    }

    /// Whether only errors are said.
    pub(super) const fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// Which files the sandbox has to send: all or none. It lists them in either case.
    pub(super) fn wanted(&self, config: &Config) -> WantedFiles {
        match self.folder {
            Some(_) => WantedFiles {
                globs: vec!["**".to_owned()],
                pictures: true,
                most: config.results.files.as_bytes(),
            },
            None => WantedFiles::default(),
        }
    }

    /// Passes everything on.
    ///
    /// # Errors
    ///
    /// When the output or a file can't be written.
    pub(super) fn pass_on(
        &self,
        mut outcome: Outcome,
        served: Served<'_>,
        config: &Config,
        request: &ProgramJob,
    ) -> anyhow::Result<ExitCode> {
        let code = ExitCode::from(u8::try_from(outcome.shell_code()).unwrap_or(u8::MAX));
        let ProgramJob {
            language,
            run: RunRequest { timeout, resources, workspace, .. },
            advice,
            ..
        } = request;
        let asked = served.used.as_ref().map_or_else(Vec::new, |used| used.sets.clone());
        let context = Context {
            config,
            language,
            timeout: *timeout,
            resources: *resources,
            advice: advice.as_ref(),
            caller: Caller::CommandLine,
            sent: &workspace.names(),
            packages: served.packages.map(|packages| PackagesAdvice { packages, asked: &asked }),
        };
        let files = std::mem::take(&mut outcome.files);
        let printed = if self.is_json {
            say(&as_json(&outcome, (served.receipt, served.used), &context, &files)?)
        } else {
            pass_output_on(&outcome, &context)?;
            if !self.is_quiet {
                let notes = explain::notes(&outcome, &served.receipt.unenforced, &context);
                for note in notes.iter().chain(&request.notes) {
                    complain(&format!("isolator: {}", in_words_of_options(note)));
                }
            }
            Ok(())
        };
        // Files are kept even if the output has nowhere to go.
        match &self.folder {
            Some(folder) => self.keep(folder, &files, config)?,
            None if !self.is_quiet && !files.is_empty() => complain(&not_kept(&files)),
            None => {}
        }
        printed.map(|()| code)
    }

    /// Writes the files below the folder. Their names are the program's, so each part has to be an ordinary name.
    fn keep(&self, folder: &Path, files: &[ChangedFile], config: &Config) -> anyhow::Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("--out {}", folder.display()))?;
        for ChangedFile { path, size, content } in files {
            let Some(content) = content else {
                complain(&format!(
                    "isolator: {} was not kept: it has {size} bytes, and all files together can have {} \
                     (results.maxFilesKB)",
                    quoted(path),
                    config.results.files.as_bytes()
                ));
                continue;
            };
            let is_ordinary = |part: Component<'_>| matches!(part, Component::Normal(_));
            if !Path::new(path).components().all(is_ordinary) {
                bail!("the sandbox sent a file whose name leads elsewhere: {}", quoted(path));
            }
            write_new(&folder.join(path), content)
                .with_context(|| format!("{} can't be kept", quoted(path)))?;
        }
        if !self.is_quiet && !files.is_empty() {
            let folder = folder.display();
            complain(&format!("isolator: files that the program left are in {folder}"));
        }
        Ok(())
    }
}

fn write_new(path: &Path, content: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    OpenOptions::new().write(true).create_new(true).open(path)?.write_all(content)
}

/// The same data as a call of `execute_code` returns, with its receipt.
fn as_json(
    outcome: &Outcome,
    (receipt, packages): (&Receipt, Option<UsedPackages>),
    context: &Context<'_>,
    files: &[ChangedFile],
) -> serde_json::Result<String> {
    let mut report = Report::new(outcome, &receipt.unenforced, context);
    let of_file = |file: &ChangedFile| FileReport::named(file.path.clone(), file.size);
    report.files = files.iter().map(of_file).collect();
    let mut data = serde_json::to_value(report)?;
    data["receipt"] = serde_json::to_value(ReceiptReport::of_program(outcome, receipt, packages))?;
    serde_json::to_string_pretty(&data)
}

fn pass_output_on(outcome: &Outcome, context: &Context<'_>) -> anyhow::Result<()> {
    print(&ProgramOutput::to(Stream::Stdout).whole(&outcome.stdout.to_bytes()))?;
    print_to_stderr(&ProgramOutput::to(Stream::Stderr).whole(&outcome.stderr.to_bytes()))?;
    // Our own exit code says it already.
    let is_plain_exit = |cause: &str| {
        let Some(End::Code(code)) = outcome.end else { return false };
        outcome.status == Status::Error && cause == format!("exit code {code}")
    };
    if let Some(cause) = explain::cause(outcome, context).filter(|cause| !is_plain_exit(cause)) {
        let cause = in_words_of_options(&cause);
        complain(&format!("isolator: {}: {cause}", outcome.status.as_str()));
    }
    Ok(())
}

fn not_kept(files: &[ChangedFile]) -> String {
    let mut names: Vec<_> = files.iter().take(MAX_NAMED).map(|file| quoted(&file.path)).collect();
    if files.len() > MAX_NAMED {
        names.push(format!("{} more", files.len() - MAX_NAMED));
    }
    format!(
        "isolator: the program left {}, which is gone with its sandbox; --out FOLDER keeps files",
        names.join(", ")
    )
}
