//! Packs the files of a request into a workspace.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use isolator_pool::engine::limits::ByteSize;
use isolator_pool::run::workspace::{FileError, Workspace, WorkspaceBuilder, below};

use crate::config::{Config, Language};
use crate::policy::{Policies, SourceFile};
use crate::request::arguments::{AdditionalFile, Encoding, InvalidArgument};
use crate::sessions::journal::SentFile;

/// The program itself.
pub(super) struct Entrypoint {
    pub(super) language: Arc<Language>,
    pub(super) file_name: String,
    pub(super) code: String,
    /// The argument that named the file.
    pub(super) field: &'static str,
    /// Whether it is a snippet, which is the operator's.
    pub(super) is_snippet: bool,
}

/// Packs the files of one request.
pub(super) struct Packer<'c> {
    language: &'c Language,
    /// Whether a policy applies to the sources.
    is_checked: bool,
    /// The files so far.
    pub(super) builder: WorkspaceBuilder,
    /// The sources that a policy applies to.
    pub(super) unchecked: Vec<SourceFile>,
    /// The names of the program's sources; the first is its entrypoint.
    pub(super) sources: Vec<String>,
    /// Copies for a session's journal; `None` for a new sandbox, which has no file that could be appended to.
    pub(super) sent: Option<Vec<SentFile>>,
}

impl<'c> Packer<'c> {
    /// Packs nothing yet, for a new sandbox.
    pub(super) fn new(language: &'c Language, policies: &Policies, config: &Config) -> Self {
        Self {
            language,
            is_checked: policies.apply_to(&language.name),
            builder: WorkspaceBuilder::new(config.limits.files()),
            unchecked: Vec::new(),
            sources: Vec::new(),
            sent: None,
        }
    }

    /// Packs nothing yet, for a session.
    pub(super) fn for_session(
        language: &'c Language,
        policies: &Policies,
        config: &Config,
    ) -> Self {
        Self { sent: Some(Vec::new()), ..Self::new(language, policies, config) }
    }

    /// Adds the program itself, before its other files.
    pub(super) fn entrypoint(&mut self, entrypoint: Entrypoint) -> Result<(), InvalidArgument> {
        let Entrypoint { file_name, code, field, is_snippet, .. } = entrypoint;
        let code = code.into_bytes();
        let copy = (self.is_checked && !is_snippet).then(|| code.clone());
        let name = self
            .builder
            .add(below(&self.language.sandbox.workdir, &file_name), code)
            .map_err(|error| file_error(field, "entrypoint_code", "additional_files", &error))?;
        if let Some(content) = copy {
            self.unchecked.push(SourceFile { name: name.clone(), content, is_entrypoint: true });
        }
        self.sources.push(name);
        Ok(())
    }

    /// Adds the files of an argument.
    pub(super) fn files(
        &mut self,
        field: &str,
        files: Vec<AdditionalFile>,
    ) -> Result<(), InvalidArgument> {
        for (index, file) in files.into_iter().enumerate() {
            self.file(field, &format!("{field}[{index}]"), file)?;
        }
        Ok(())
    }

    /// Adds one file; `at` is its place among the arguments.
    fn file(&mut self, field: &str, at: &str, file: AdditionalFile) -> Result<(), InvalidArgument> {
        let append = file.append;
        if append && self.sent.is_none() {
            let message =
                "needs a session: a new sandbox has no file to which something can be added";
            return Err(InvalidArgument::new(format!("{at}.append"), message));
        }
        let content_field = format!("{at}.content");
        let (name, content) = decoded(file, &content_field)?;
        let to_check = self.is_checked.then(|| content.clone());
        let to_remember = self.sent.is_some().then(|| content.clone());
        let name =
            self.builder.add(below(&self.language.sandbox.workdir, &name), content).map_err(
                |error| file_error(&format!("{at}.filename"), &content_field, field, &error),
            )?;
        if let Some(content) = to_check {
            self.unchecked.push(SourceFile { name: name.clone(), content, is_entrypoint: false });
        }
        if let (Some(sent), Some(content)) = (&mut self.sent, to_remember) {
            sent.push(SentFile { name: name.clone(), content, append });
        }
        if let Some(entrypoint) = self.sources.first()
            && is_source_next_to(&name, entrypoint, self.language)
        {
            self.sources.push(name);
        }
        Ok(())
    }
}

/// A file's name and content; `field` has the content.
fn decoded(file: AdditionalFile, field: &str) -> Result<(String, Vec<u8>), InvalidArgument> {
    let content = match file.encoding {
        Encoding::Utf8 => file.content.into_bytes(),
        Encoding::Base64 => BASE64
            .decode(file.content.trim())
            .map_err(|error| InvalidArgument::new(field, format!("this is not base64: {error}")))?,
    };
    Ok((file.filename, content))
}

/// Refuses what would fill the sandbox's memory: it holds files and standard input, and the program needs some, too.
///
/// # Errors
///
/// When there is more than half of it.
pub(crate) fn refuse_more_than_memory(
    workspace: &Workspace,
    stdin: &[u8],
    memory: ByteSize,
) -> Result<(), InvalidArgument> {
    let total = (workspace.tar().len() + stdin.len()) as u64;
    if total <= memory.as_bytes() / 2 {
        return Ok(());
    }
    let field = if stdin.len() > workspace.tar().len() { "stdin" } else { "additional_files" };
    let message = format!(
        "files and standard input hold {total} bytes together, more than half of the memory limit \
         of {memory}: send less, or ask for more with memory_mb"
    );
    Err(InvalidArgument::new(field, message))
}

fn file_error(
    name_field: &str,
    content_field: &str,
    list_field: &str,
    error: &FileError,
) -> InvalidArgument {
    let field = match error {
        FileError::TooLarge(_) => content_field,
        FileError::TooMany(_) => list_field,
        _ => name_field,
    };
    InvalidArgument::new(field, error.to_string())
}

/// The sources among the files of a program, of which the first is its entrypoint.
pub(crate) fn sources(names: &[String], language: &Language) -> Vec<String> {
    let is_source =
        |name: &&String| **name == names[0] || is_source_next_to(name, &names[0], language);
    names.iter().filter(is_source).cloned().collect()
}

/// Whether a file is a source of the same program as the entrypoint. Test files are not: compilers that take
/// lists of sources refuse them.
fn is_source_next_to(name: &str, entrypoint: &str, language: &Language) -> bool {
    let (name, entrypoint) = (Path::new(name), Path::new(entrypoint));
    let Some(stem) = name.file_stem().and_then(|stem| stem.to_str()) else {
        return false;
    };
    let extension = name.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    name.parent() == entrypoint.parent()
        && language.extensions.iter().any(|known| known[1..] == *extension)
        && !stem.ends_with("_test")
}
