//! Packs the files of a request into a workspace.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use isolator_pool::engine::limits::ByteSize;
use isolator_pool::run::workspace::{FileError, Workspace, WorkspaceBuilder, below};

use crate::config::{Config, Language};
use crate::policy::SourceFile;
use crate::request::arguments::{AdditionalFile, Encoding, InvalidArgument};

/// The program itself.
pub(super) struct Entrypoint {
    pub(super) language: Arc<Language>,
    pub(super) file_name: String,
    pub(super) code: String,
    /// The argument that named the file.
    pub(super) field: &'static str,
    /// Whether it is the operator's own.
    pub(super) is_snippet: bool,
}

/// A request's files.
pub(super) struct Packed {
    /// The entrypoint's name.
    pub(super) file_name: String,
    /// The names of the sources.
    pub(super) sources: Vec<String>,
    /// All of them.
    pub(super) workspace: Workspace,
    /// Those that a policy applies to.
    pub(super) unchecked: Vec<SourceFile>,
}

/// Packs the files of a request.
///
/// # Errors
///
/// The first file that can't be sent.
pub(super) fn pack(
    config: &Config,
    entrypoint: Entrypoint,
    additional: Vec<AdditionalFile>,
) -> Result<Packed, InvalidArgument> {
    let language = &entrypoint.language;
    let is_checked = config.policies.apply_to(&language.name);
    let workdir = &language.sandbox.workdir;
    let mut unchecked = Vec::new();
    let mut builder = WorkspaceBuilder::new(config.limits.files());
    let code = entrypoint.code.into_bytes();
    let copy = (is_checked && !entrypoint.is_snippet).then(|| code.clone());
    let file_name = builder
        .add(below(workdir, &entrypoint.file_name), code)
        .map_err(|error| file_error(entrypoint.field, "entrypoint_code", &error))?;
    if let Some(content) = copy {
        unchecked.push(SourceFile { name: file_name.clone(), content, is_entrypoint: true });
    }
    let mut sources = vec![file_name.clone()];
    for (index, file) in additional.into_iter().enumerate() {
        let at = format!("additional_files[{index}]");
        let content_field = format!("{at}.content");
        if file.append {
            let message =
                "needs a session: a new sandbox has no file to which something can be added";
            return Err(InvalidArgument::new(format!("{at}.append"), message));
        }
        let (name, content) = content(file, &at)?;
        let copy = is_checked.then(|| content.clone());
        let name = builder
            .add(below(workdir, &name), content)
            .map_err(|error| file_error(&format!("{at}.filename"), &content_field, &error))?;
        if let Some(content) = copy {
            unchecked.push(SourceFile { name: name.clone(), content, is_entrypoint: false });
        }
        if is_source_beside(&name, &file_name, language) {
            sources.push(name);
        }
    }
    Ok(Packed { file_name, sources, workspace: builder.build(), unchecked })
}

/// A file's name and the bytes in it. `at` is its place among the arguments.
///
/// # Errors
///
/// When it is not written as it says.
pub(super) fn content(
    file: AdditionalFile,
    at: &str,
) -> Result<(String, Vec<u8>), InvalidArgument> {
    let content = match file.encoding {
        Encoding::Utf8 => file.content.into_bytes(),
        Encoding::Base64 => BASE64.decode(file.content.trim()).map_err(|error| {
            InvalidArgument::new(format!("{at}.content"), format!("this is not base64: {error}"))
        })?,
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

fn file_error(name_field: &str, content_field: &str, error: &FileError) -> InvalidArgument {
    let field = match error {
        FileError::TooLarge(_) => content_field,
        FileError::TooMany(_) => "additional_files",
        _ => name_field,
    };
    InvalidArgument::new(field, error.to_string())
}

/// Whether a file is a source of the same program as the entrypoint. Test files are not: compilers that take
/// lists of sources refuse them.
pub(super) fn is_source_beside(name: &str, entrypoint: &str, language: &Language) -> bool {
    let (name, entrypoint) = (Path::new(name), Path::new(entrypoint));
    let Some(stem) = name.file_stem().and_then(|stem| stem.to_str()) else {
        return false;
    };
    let extension = name.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    name.parent() == entrypoint.parent()
        && language.extensions.iter().any(|known| known[1..] == *extension)
        && !stem.ends_with("_test")
}
