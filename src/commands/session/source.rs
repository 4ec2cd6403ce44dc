//! The place where the cells of a session come from: a user or a pipe, a notebook, or a program with cells.

use std::fs::{self, File};
use std::io::{BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use isolator_pool::quote::quoted;
use tempfile::NamedTempFile;

use super::SessionArguments;
use super::notebook::{MAX_NOTEBOOK, Notebook};
use crate::commands::options::{no_language_of, not_a_language};
use crate::config::Config;
use crate::request::understand::languages;

/// The language of a notebook that names none.
const USUAL_LANGUAGE: &str = "python";

/// The cells of a session.
#[derive(Debug)]
pub(super) enum Source {
    /// Typed at a prompt, or from standard input.
    Input,
    /// In a file of code.
    Program { path: String, file: BufReader<File> },
    /// In a notebook, and where it is written with its outputs.
    Notebook { notebook: Notebook, out: Option<NewVersion> },
}

impl Source {
    /// Opens what the command line names. Returns the name of its language, too.
    ///
    /// # Errors
    ///
    /// When it can't be read, is no notebook, or has no configured language.
    pub(super) fn open(
        command: &SessionArguments,
        config: &Config,
    ) -> anyhow::Result<(Self, String)> {
        let named = &command.language;
        let path = Path::new(named);
        let extension = path.extension().and_then(|it| it.to_str()).unwrap_or_default();
        if extension.eq_ignore_ascii_case("ipynb") {
            let out = command.out.as_deref().map(NewVersion::prepare).transpose()?;
            let notebook = read_notebook(path, config).with_context(|| named.clone())?;
            let language = language_of(&notebook, config).with_context(|| named.clone())?;
            return Ok((Self::Notebook { notebook, out }, language));
        }
        if command.out.is_some() {
            bail!("--out writes a notebook that was run: name one, such as notebook.ipynb");
        }
        if matches!(named.as_str(), "-" | "/dev/stdin") {
            bail!(
                "{named}: cells are read from standard input without a name; a notebook has to be a file whose name ends with .ipynb"
            );
        }
        let is_language = languages::find(named, &config.languages).is_some();
        if is_language || extension.is_empty() {
            return Ok((Self::Input, named.clone()));
        }
        if languages::find(extension, &config.languages).is_none() {
            let is_there = path.exists();
            bail!(
                "{}",
                if is_there {
                    no_language_of(named, config)
                } else {
                    not_a_language(named, config)
                }
            );
        }
        let file = File::open(path).with_context(|| named.clone())?;
        Ok((
            Self::Program { path: named.clone(), file: BufReader::new(file) },
            extension.to_owned(),
        ))
    }

    /// Whether a user may type the cells.
    pub(super) const fn is_input(&self) -> bool {
        matches!(self, Self::Input)
    }
}

fn read_notebook(path: &Path, config: &Config) -> anyhow::Result<Notebook> {
    if path.is_dir() {
        bail!("this is a folder: name the file of a notebook");
    }
    let mut content = Vec::new();
    let read = File::open(path)?.take(MAX_NOTEBOOK + 1).read_to_end(&mut content)?;
    if read as u64 > MAX_NOTEBOOK {
        bail!("it is larger than {} MiB, which is the most of a notebook", MAX_NOTEBOOK >> 20);
    }
    Notebook::parse(&content, config.limits.files().total)
}

fn language_of(notebook: &Notebook, config: &Config) -> anyhow::Result<String> {
    let names = notebook.languages();
    let known = |name: &&String| languages::find(name, &config.languages).is_some();
    match (names.iter().find(known), names.first()) {
        (Some(name), _) => Ok(name.clone()),
        (None, None) => Ok(USUAL_LANGUAGE.to_owned()),
        (None, Some(first)) => {
            bail!("its kernel is for {}; {}", quoted(first), not_a_language(first, config))
        }
    }
}

/// A file that replaces another when it is whole. Until then the other one stays.
#[derive(Debug)]
pub(super) struct NewVersion {
    path: PathBuf,
    file: NamedTempFile,
}

impl NewVersion {
    /// Makes the file in the folder of the one that it replaces, so that a folder without room or permission is noticed before anything runs.
    ///
    /// # Errors
    ///
    /// When the file can't be made.
    fn prepare(path: &str) -> anyhow::Result<Self> {
        const USUAL: u32 = 0o666;
        let named = || format!("--out {path}");
        if path == "-" || ["/dev", "/proc"].iter().any(|it| Path::new(path).starts_with(it)) {
            bail!(
                "{}: this is no file: what cells print goes to standard output, so name a file for the notebook",
                named()
            );
        }
        let old = fs::metadata(path);
        if old.as_ref().is_ok_and(|old| !old.is_file()) {
            bail!("{}: this is no file that can be replaced", named());
        }
        // A link stays, and its file is replaced.
        let target = match fs::canonicalize(path) {
            Ok(target) => target,
            Err(_) if Path::new(path).is_symlink() => {
                bail!("{}: this is a link to a file that is not there: name that file", named())
            }
            Err(_) => PathBuf::from(path),
        };
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        if !folder.is_dir() {
            bail!("{}: there is no folder {}: make it first", named(), folder.display());
        }
        let mode = old.as_ref().map_or(USUAL, |old| old.permissions().mode() & 0o777);
        let file = tempfile::Builder::new()
            .prefix(".")
            .permissions(fs::Permissions::from_mode(mode))
            .tempfile_in(folder)
            .with_context(named)?;
        Ok(Self { path: target, file })
    }

    /// Puts it in the place of the other one.
    ///
    /// # Errors
    ///
    /// When it can't be written. The other one is as it was.
    pub(super) fn write(mut self, content: &[u8]) -> anyhow::Result<()> {
        let named = self.path.display().to_string();
        self.file.write_all(content).with_context(|| named.clone())?;
        self.file.as_file().sync_all().with_context(|| named.clone())?;
        self.file.persist(&self.path).map_err(|error| error.error).context(named)?;
        Ok(())
    }
}
