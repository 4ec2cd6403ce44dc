//! The commands for files of a session.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use isolator_pool::quote::{escaped, quoted};
use isolator_pool::run::output::Stream;

use super::{After, Console, Ran};
use crate::calls::command::{CellOptions, CommandAnswer, CommandCall};
use crate::commands::backend::Backend;
use crate::commands::run::input::additional_file;
use crate::commands::sent_files;
use crate::commands::session::shown::NewFile;
use crate::request::arguments::Arguments;

/// Read at once from the sandbox, in bytes.
const PART: u64 = 1 << 20;

impl Console<'_> {
    /// The code of a file.
    pub(super) fn read_code(&self, file: &str) -> anyhow::Result<String> {
        let most = self.config.limits.files().total;
        let size = std::fs::metadata(file).with_context(|| file.to_owned())?.len();
        if size > most {
            bail!("{file}: a cell may have {most} bytes (limits.maxFilesKB)");
        }
        let code = std::fs::read(file).with_context(|| file.to_owned())?;
        String::from_utf8(code).ok().with_context(|| format!("{file}: this is not text in UTF-8"))
    }

    pub(super) async fn list(&mut self) -> anyhow::Result<After> {
        let (files, is_complete) = self.backend.list(&self.opened.session).await?;
        let mut lines: Vec<_> = files
            .iter()
            .map(|file| format!("{:>12}  {}", file.size, escaped(&file.path)))
            .collect();
        if lines.is_empty() {
            lines.push("there are no files yet; :put PATH sends one".to_owned());
        }
        if !is_complete {
            lines.push("there are more, which are not listed".to_owned());
        }
        self.screen.say(Stream::Stdout, &lines.join("\n")).await?;
        Ok(After::Fine)
    }

    pub(super) async fn get(&mut self, path: &str, to: Option<&str>) -> anyhow::Result<After> {
        let name = Path::new(path)
            .file_name()
            .with_context(|| format!("{} names no file", quoted(path)))?;
        let to = to.map_or_else(|| PathBuf::from(name), PathBuf::from);
        let to = if to.is_dir() { to.join(name) } else { to };
        let file = NewFile::create(&to)?;
        let (session, most) = (&self.opened.session, self.opened.limits.workspace);
        let size = tokio::select! {
            size = fetch(self.backend, session, path, file, most) => size?,
            () = self.interrupts.next() => bail!("interrupted; nothing was written"),
        };
        let line = format!("wrote {} ({size} bytes)", to.display());
        self.screen.say(Stream::Stdout, &line).await?;
        Ok(After::Fine)
    }

    pub(super) async fn put(&mut self, argument: &str) -> anyhow::Result<After> {
        let files = sent_files::read(argument, self.config.limits.files())
            .with_context(|| argument.to_owned())?;
        if files.is_empty() {
            bail!("{argument}: there are no files in this folder");
        }
        let names: Vec<_> = files.iter().map(|(name, _)| name.clone()).collect();
        let arguments = Arguments {
            session: self.session(),
            additional_files: files.into_iter().map(additional_file).collect(),
            ..Arguments::default()
        };
        let call = CommandCall::Cell(Box::new(arguments), CellOptions::default());
        match self.drive(call).await? {
            Ran::Answer(CommandAnswer::Step(step)) if step.is_alive => {
                self.sent.extend(names);
                self.sent.sort();
                self.sent.dedup();
                Ok(After::Fine)
            }
            Ran::Answer(CommandAnswer::Step(step)) => self.show(*step).await,
            ran => self.not_finished(ran).await,
        }
    }
}

/// Fetches a file. One that grows meanwhile is fetched as far as it was at first.
async fn fetch(
    backend: Backend<'_>,
    session: &str,
    path: &str,
    mut file: NewFile,
    most: u64,
) -> anyhow::Result<u64> {
    let mut offset = 0;
    let mut until = None;
    loop {
        let part = backend.read(session, path, offset, PART).await?;
        let until = *until.get_or_insert(part.size);
        // A file can say that it is longer than a disk.
        if until > most {
            bail!("{} claims {until} bytes, more than its workspace has", quoted(path));
        }
        file.write(&part.content)?;
        offset += part.content.len() as u64;
        if offset >= until || part.content.is_empty() {
            file.keep();
            return Ok(offset);
        }
    }
}
