//! Bytecode for the modules of a set of Python, made in sandboxes of the image: this machine's Python has another version,
//! and a set can't be written by programs, so without it each import would compile again.
//!
//! Only the standard library runs there, and it only reads the files. The bytecode is trusted no more than the files themselves: it
//! is written only as the bytecode of the same files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use isolator_pool::OutputLimits;
use isolator_pool::engine::Progress;
use isolator_pool::run::RunRequest;
use isolator_pool::run::outcome::{Outcome, Status};
use isolator_pool::run::workspace::{WorkspaceBuilder, WorkspaceLimits};

use super::error::BuildError;
use super::sandboxes::{self, Sandboxes};
use crate::config::Language;
use crate::packages::blocking::blocking;
use crate::packages::store::tree::{EntryKind, TreeEntry};
use crate::packages::store::{AtPath as _, StoreError, remove_file};

/// The program that compiles the files of a batch.
const PROGRAM: &str = include_str!("compile.py");

/// Most files of a batch.
const MOST_FILES: usize = 1500;

/// Most bytes of a batch. A module can take a hundred times its size while it is compiled, but only one is at a time.
const MOST_BYTES: u64 = 6 << 20;

/// Larger files are data, whose bytecode is not worth the memory.
const LARGEST: u64 = 3 << 20;

/// Batches at the same time.
const AT_ONCE: usize = 2;

/// A batch compiles in a few seconds.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The number after the last file.
const END: u32 = u32::MAX;

/// Bytecode that is used without comparing it with its source begins with its magic number and this.
const UNCHECKED: [u8; 4] = [1, 0, 0, 0];

/// A module's file.
#[derive(Debug, Clone)]
struct Module {
    path: PathBuf,
    size: u64,
}

/// Compiles all modules of a set, and writes their bytecode to where Python looks for it.
pub(super) async fn compile(
    sandboxes: &dyn Sandboxes,
    language: &Language,
    files: &Path,
    entries: &[TreeEntry],
    tag: &str,
    say: Progress<'_>,
) -> Result<(), BuildError> {
    let mut modules = Vec::new();
    for TreeEntry { path, kind } in entries {
        let EntryKind::File { size, .. } = kind else { continue };
        let is_module = path.starts_with("lib/") && path.ends_with(".py");
        if is_module && *size <= LARGEST {
            modules.push(Module { path: files.join(path), size: *size });
        }
    }
    let room = language.sandbox.limits.workspace.as_bytes() / 2;
    let batches = batches(modules, MOST_BYTES.min(room));
    let count = batches.len();
    let mut done = 0;
    let mut running = stream::iter(batches)
        .map(|batch| compile_batch(sandboxes, language, batch, tag))
        .buffer_unordered(AT_ONCE);
    while running.try_next().await?.is_some() {
        done += 1;
        say(&format!("compiled {done} of {count} parts"));
    }
    Ok(())
}

/// Splits the modules into batches that fit a sandbox.
fn batches(modules: Vec<Module>, most: u64) -> Vec<Vec<Module>> {
    let mut batches: Vec<Vec<Module>> = Vec::new();
    let mut bytes = 0;
    for module in modules {
        let fits = |batch: &Vec<Module>| batch.len() < MOST_FILES && bytes + module.size <= most;
        if !batches.last().is_some_and(fits) {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += module.size;
        if let Some(batch) = batches.last_mut() {
            batch.push(module);
        }
    }
    batches
}

/// Compiles one batch. If its sandbox does not finish, the halves are tried, so that one file can't keep others from being
/// compiled.
async fn compile_batch(
    sandboxes: &dyn Sandboxes,
    language: &Language,
    batch: Vec<Module>,
    tag: &str,
) -> Result<(), BuildError> {
    let mut waiting = vec![batch];
    while let Some(batch) = waiting.pop() {
        let request = request(language, &batch)?;
        let outcome = sandboxes::run(sandboxes, &language.name, request).await;
        let outcome = outcome.map_err(|error| BuildError::Target {
            language: language.name.clone(),
            why: Box::new(error.into()),
        })?;
        match made(&outcome, batch.len()) {
            Some(made) => {
                let write: Vec<(PathBuf, Vec<u8>)> = made
                    .into_iter()
                    .map(|(index, bytes)| (batch[index].path.clone(), bytes.to_vec()))
                    .collect();
                let tag = tag.to_owned();
                let written = blocking(move || {
                    write.into_iter().try_for_each(|(path, bytes)| write_one(&path, &tag, &bytes))
                });
                written.await??;
            }
            None if batch.len() > 1 => {
                let mut first = batch;
                let second = first.split_off(first.len() / 2);
                waiting.extend([second, first]);
            }
            // The module works without bytecode, only slower.
            None => {
                let path = batch.first().map(|module| module.path.display().to_string());
                tracing::info!(
                    path,
                    status = outcome.status.as_str(),
                    "a module could not be compiled"
                );
            }
        }
    }
    Ok(())
}

fn request(language: &Language, batch: &[Module]) -> Result<RunRequest, BuildError> {
    let total = batch.iter().map(|module| module.size).sum::<u64>();
    let limits = WorkspaceLimits { files: batch.len() + 1, total: total + PROGRAM.len() as u64 };
    let mut workspace = WorkspaceBuilder::new(limits);
    let name = workspace.add(&language.default_file, PROGRAM.into())?;
    for (index, module) in batch.iter().enumerate() {
        let source = fs::read(&module.path).at(&module.path)?;
        workspace.add(&format!("s/{index}"), source)?;
    }
    // Bytecode is seldom larger than twice its source; each file has a header.
    let most =
        usize::try_from(total * 4).unwrap_or(usize::MAX / 2) + batch.len() * 1024 + (1 << 20);
    let output = OutputLimits { head: most, tail: 0, kill: most as u64 + (1 << 20) };
    Ok(sandboxes::request(language, &name, workspace.build(), TIMEOUT, output))
}

/// The bytecode that a sandbox has made, with the index of each file; `None` if its output is not as expected.
fn made(outcome: &Outcome, count: usize) -> Option<Vec<(usize, &[u8])>> {
    if outcome.status != Status::Success || outcome.stdout.dropped > 0 {
        return None;
    }
    let mut rest = outcome.stdout.head.as_slice();
    let mut made: Vec<(usize, &[u8])> = Vec::new();
    loop {
        let (header, after) = rest.split_first_chunk::<8>()?;
        let [a, b, c, d, e, f, g, h] = *header;
        let (index, length) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        if index == END {
            return after.is_empty().then_some(made);
        }
        let (index, length) = (usize::try_from(index).ok()?, usize::try_from(length).ok()?);
        let is_next = index < count && made.last().is_none_or(|(last, _)| *last < index);
        let (bytes, after) = after.split_at_checked(length).filter(|_| is_next)?;
        if bytes.get(4..8) != Some(&UNCHECKED) {
            return None;
        }
        made.push((index, bytes));
        rest = after;
    }
}

/// Writes the bytecode of a module to where Python looks for it.
fn write_one(module: &Path, tag: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let (Some(folder), Some(stem)) =
        (module.parent(), module.file_stem().and_then(|it| it.to_str()))
    else {
        return Ok(());
    };
    let folder = folder.join("__pycache__");
    fs::create_dir_all(&folder).at(&folder)?;
    let path = folder.join(format!("{stem}.{tag}.pyc"));
    // One that came with the package may be linked to the tool's cache.
    remove_file(&path)?;
    fs::write(&path, bytes).at(&path)
}

#[cfg(test)]
mod tests {
    use isolator_pool::run::outcome::Captured;

    use super::*;

    fn outcome(parts: &[(u32, &[u8])]) -> Outcome {
        let mut head = Vec::new();
        for (index, bytes) in parts {
            head.extend(index.to_be_bytes());
            head.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
            head.extend(*bytes);
        }
        Outcome { stdout: Captured { head, ..Captured::default() }, ..Outcome::of(Status::Success) }
    }

    const CODE: &[u8] = b"\xf3\x0d\x0d\x0a\x01\0\0\0rest";

    #[test]
    fn only_bytecode_of_the_batch_is_taken() {
        let good = outcome(&[(0, CODE), (2, CODE), (END, b"")]);
        assert_eq!(made(&good, 3), Some(vec![(0, CODE), (2, CODE)]));
        for bad in [
            outcome(&[(0, CODE)]),
            outcome(&[(3, CODE), (END, b"")]),
            outcome(&[(1, CODE), (1, CODE), (END, b"")]),
            outcome(&[(0, b"\xf3\x0d\x0d\x0a\0\0\0\0checked"), (END, b"")]),
            outcome(&[(0, b""), (END, b"")]),
            outcome(&[(END, b""), (0, CODE)]),
            Outcome { status: Status::Error, ..good.clone() },
        ] {
            assert_eq!(made(&bad, 3), None, "{bad:?}");
        }
    }

    #[test]
    fn a_batch_fits_a_sandbox() {
        let module = |size| Module { path: PathBuf::new(), size };
        let sizes = |batches: Vec<Vec<Module>>| -> Vec<Vec<u64>> {
            batches.iter().map(|batch| batch.iter().map(|module| module.size).collect()).collect()
        };
        let modules = [4, 4, 4, 20, 1].map(module).to_vec();
        assert_eq!(sizes(batches(modules, 10)), [vec![4, 4], vec![4], vec![20], vec![1]]);
        assert!(batches(Vec::new(), 10).is_empty());
    }
}
