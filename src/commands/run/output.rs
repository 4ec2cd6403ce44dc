//! The result of a run: output, exit code, and the files that the program left.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use isolator_pool::quote::{first_of, quoted};
use isolator_pool::run::output::Stream;

use super::RunArguments;
use crate::calls::command::{Bytes, Finished, FinishedFile};
use crate::commands::program_output::ProgramOutput;
use crate::commands::{complain, print, print_to_stderr, say};
use crate::config::Config;

/// Files that are named if they are not kept.
const MAX_NAMED: usize = 5;

/// The destination of output and files.
#[derive(Debug)]
pub(super) struct Output {
    is_json: bool,
    is_quiet: bool,
    /// The folder for the files that the program leaves.
    folder: Option<PathBuf>,
}

impl Output {
    /// Reads it from the command line.
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

    /// Whether only errors are written to standard error.
    pub(super) const fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// Whether the sandbox has to send the files that the program leaves. It lists them in either case.
    pub(super) const fn wants_files(&self) -> bool {
        self.folder.is_some()
    }

    /// Passes everything on.
    ///
    /// # Errors
    ///
    /// When the output or a file can't be written.
    pub(super) fn pass_on(&self, finished: &Finished, config: &Config) -> anyhow::Result<ExitCode> {
        let Finished { code, cause, stdout, stderr, notes, files, data, .. } = finished;
        let printed = if self.is_json {
            say(&serde_json::to_string_pretty(data)?)
        } else {
            print(&ProgramOutput::to(Stream::Stdout).whole(stdout))?;
            print_to_stderr(&ProgramOutput::to(Stream::Stderr).whole(stderr))?;
            let notes = notes.iter().filter(|_| !self.is_quiet);
            for line in cause.iter().chain(notes) {
                complain(&format!("isolator: {line}"));
            }
            Ok(())
        };
        // Files are kept even if the output has nowhere to go.
        match &self.folder {
            Some(folder) => self.keep(folder, files, config)?,
            None if !self.is_quiet && !files.is_empty() => complain(&not_kept(files)),
            None => {}
        }
        printed.map(|()| ExitCode::from(u8::try_from(*code).unwrap_or(u8::MAX)))
    }

    /// Writes the files below the folder. Their names are the program's, so each part has to be an ordinary name.
    fn keep(&self, folder: &Path, files: &[FinishedFile], config: &Config) -> anyhow::Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("--out {}", folder.display()))?;
        for FinishedFile { path, size, content } in files {
            let Some(Bytes(content)) = content else {
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

fn not_kept(files: &[FinishedFile]) -> String {
    let names = files.iter().map(|file| quoted(&file.path));
    format!(
        "isolator: the program left {}, which is gone with its sandbox; --out FOLDER keeps files",
        first_of(names, MAX_NAMED)
    )
}
