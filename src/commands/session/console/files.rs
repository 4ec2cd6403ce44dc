//! The commands for files of a session.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::session::{Session, SessionError};
use isolator_pool::quote::{escaped, quoted};
use isolator_pool::run::output::Stream;

use super::{After, Console, Ran};
use crate::commands::session::setup::Pending;
use crate::commands::session::shown::NewFile;

/// Read at once from the sandbox, in bytes.
const PART: u64 = 1 << 20;

/// A program that does nothing: files come with a cell. If an image lacks it, they have come all the same.
const NOTHING: &str = "true";

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
        if let Some(after) = self.send_pending().await? {
            return Ok(after);
        }
        let (files, is_complete) = match self.session.list().await {
            Ok(listed) => listed,
            Err(error) => return self.failed(error).await,
        };
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
        if let Some(after) = self.send_pending().await? {
            return Ok(after);
        }
        let name = Path::new(path)
            .file_name()
            .with_context(|| format!("{} names no file", quoted(path)))?;
        let to = to.map_or_else(|| PathBuf::from(name), PathBuf::from);
        let to = if to.is_dir() { to.join(name) } else { to };
        let most = self.setup.language.sandbox.limits.workspace.as_bytes();
        let file = NewFile::create(&to)?;
        let got = tokio::select! {
            got = fetch(&self.session, path, file, most) => got,
            () = self.interrupts.next() => bail!("interrupted; nothing was written"),
        };
        match got? {
            Ok(size) => {
                let line = format!("wrote {} ({size} bytes)", to.display());
                self.screen.say(Stream::Stdout, &line).await?;
                Ok(After::Fine)
            }
            Err(error) => self.failed(error).await,
        }
    }

    pub(super) async fn put(&mut self, argument: &str) -> anyhow::Result<After> {
        let mut pending = Pending::new(self.config);
        let added = pending.add(argument, self.config, &self.setup.language);
        added.with_context(|| argument.to_owned())?;
        if pending.names.is_empty() {
            bail!("{argument}: there are no files in this folder");
        }
        if let Some(after) = self.send_pending().await? {
            return Ok(after);
        }
        self.pending = pending;
        Ok(self.send_pending().await?.unwrap_or(After::Fine))
    }

    /// Sends files that would come with the next cell. Returns something if that did not work.
    async fn send_pending(&mut self) -> anyhow::Result<Option<After>> {
        if self.pending.names.is_empty() {
            return Ok(None);
        }
        let name = &self.setup.language.name;
        let unchecked = self.pending.unchecked.clone();
        let found = self.config.policies.check(name, unchecked, &Client::Host).await?;
        if !found.is_empty() {
            self.pending = Pending::new(self.config);
            bail!("the policy for {name} forbids something, so nothing was sent:\n{found}");
        }
        let workspace = self.take_pending();
        let run = self.program(vec![NOTHING.to_owned()]);
        match self.drive(run, workspace, Vec::new()).await? {
            Ran::Outcome(cell) if cell.is_alive => Ok(None),
            Ran::Failed(SessionError::Command(_)) => Ok(None),
            Ran::Outcome(cell) => self.show(&cell).await.map(Some),
            Ran::Killed(ended) => self.after_kill(ended).await.map(Some),
            Ran::Failed(error) => self.failed(error).await.map(Some),
        }
    }

    async fn failed(&mut self, error: SessionError) -> anyhow::Result<After> {
        match error {
            SessionError::Ended(reason) => self.over(&reason).await,
            error => Err(error.into()),
        }
    }
}

/// Fetches a file. The inner error is the session's. A file that grows meanwhile is fetched as far as it was at first.
async fn fetch(
    session: &Session,
    path: &str,
    mut file: NewFile,
    most: u64,
) -> anyhow::Result<Result<u64, SessionError>> {
    let mut offset = 0;
    let mut until = None;
    loop {
        let part = match session.read(path, offset, PART).await {
            Ok(part) => part,
            Err(error) => return Ok(Err(error)),
        };
        let until = *until.get_or_insert(part.size);
        // A file can say that it is longer than a disk.
        if until > most {
            bail!("{} claims {until} bytes, more than its workspace has", quoted(path));
        }
        file.write(&part.content)?;
        offset += part.content.len() as u64;
        if offset >= until || part.content.is_empty() {
            file.keep();
            return Ok(Ok(offset));
        }
    }
}
