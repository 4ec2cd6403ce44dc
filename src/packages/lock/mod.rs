//! A lock: the packages of a set with their versions and hashes, as the tools of their ecosystem write it.
//!
//! Locks are committed and edited by people, so what is read from one is checked as if it came from a stranger: packages of
//! the index with hashes, and nothing else. Tools read only what was written anew from that.

pub(super) mod node;
pub(super) mod pins;
pub(super) mod python;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use isolator_pool::engine::preload::Interpreter;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::requirement::Recipe;
use crate::hex::hex;

/// The files of a lock of Python: what was asked for, and what that is.
pub(super) const WANTED: &str = "requirements.in";
pub(super) const REQUIREMENTS: &str = "requirements.txt";

/// What the locks of its parts settle, for uv.
pub(super) const CONSTRAINTS: &str = "constraints.txt";

/// Those of a lock of Node.js.
pub(super) const PACKAGE: &str = "package.json";
pub(super) const PACKAGE_LOCK: &str = "package-lock.json";

/// Largest file of a lock, in bytes.
const LARGEST: u64 = 32 << 20;

/// The first words of a set's identity. They change when the same packages would become other files.
const FORMAT: &str = "isolator set 1";

/// A package of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Locked {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The packages that want it; none if only the requirements do.
    pub wanted_by: Vec<String>,
}

/// What is in a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lock {
    /// The files of the lock: their names, and what is in them.
    pub files: BTreeMap<&'static str, String>,
    /// The packages, in the order of their names.
    pub packages: Vec<Locked>,
    /// What it was made for: the name of a `Target`.
    pub target: String,
    /// The identity of the set: a hash of the target and of the packages with their hashes.
    pub hash: String,
}

/// A lock that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct LockError(String);

impl LockError {
    fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// The names of the files of an interpreter's locks.
const fn names(interpreter: Interpreter) -> [&'static str; 2] {
    match interpreter {
        Interpreter::Python => [WANTED, REQUIREMENTS],
        Interpreter::Node => [PACKAGE, PACKAGE_LOCK],
    }
}

impl Lock {
    /// Understands the files of a lock.
    ///
    /// # Errors
    ///
    /// When they have something else than packages with hashes.
    pub(super) fn of(
        interpreter: Interpreter,
        files: BTreeMap<&'static str, String>,
    ) -> Result<Self, LockError> {
        let (target, packages, identity) = match interpreter {
            Interpreter::Python => {
                let (target, pinned) = python::parse(&files[REQUIREMENTS])?;
                let identity: Vec<_> = pinned.iter().map(python::Pinned::line).collect();
                (target, pinned.into_iter().map(|it| it.package).collect(), identity)
            }
            Interpreter::Node => {
                let target = node::target(&files[PACKAGE])?;
                let tree = node::parse(&files[PACKAGE_LOCK])?;
                let identity: Vec<_> = tree.iter().map(node::Pinned::line).collect();
                let packages = tree.into_iter().filter(|it| it.is_for(&target));
                let mut packages: Vec<_> = packages.map(|it| it.package).collect();
                node::sort(&mut packages);
                (target, packages, identity)
            }
        };
        let identity = format!("{FORMAT}\n{target}\n{}\n", identity.join("\n"));
        let hash = hex(&Sha256::digest(identity.as_bytes()));
        Ok(Self { files, packages, target, hash })
    }

    /// Reads a lock from its folder, if there is one.
    ///
    /// # Errors
    ///
    /// When there is one that can't be read, or has something else than packages with hashes.
    pub(crate) fn read(interpreter: Interpreter, folder: &Path) -> Result<Option<Self>, LockError> {
        let mut files = BTreeMap::new();
        let [wanted, locked] = names(interpreter);
        for name in [wanted, locked] {
            let path = folder.join(name);
            match read_bounded(&path) {
                Ok(text) => {
                    files.insert(name, text);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(LockError(format!("{}: {error}", path.display()))),
            }
        }
        if files.is_empty() {
            return Ok(None);
        }
        let missing = |name| {
            LockError(format!(
                "the lock in {} has no {name}: write it again with `isolator packages lock`",
                folder.display()
            ))
        };
        for name in [wanted, locked] {
            if !files.contains_key(name) {
                return Err(missing(name));
            }
        }
        let lock = Self::of(interpreter, files).map_err(|LockError(why)| {
            LockError(format!(
                "the lock in {} can't be used: {why}; `isolator packages lock` writes it again",
                folder.display()
            ))
        });
        lock.map(Some)
    }

    /// Writes the lock into its folder, which is made. Other files in the folder stay.
    ///
    /// # Errors
    ///
    /// When that is not possible.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), LockError> {
        let failed =
            |path: &Path, error: io::Error| LockError(format!("{}: {error}", path.display()));
        fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
        for (name, content) in &self.files {
            let path = folder.join(name);
            // Nobody ever sees half a file.
            let written = tempfile::Builder::new()
                .prefix(".")
                .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
                .tempfile_in(folder)
                .and_then(|mut file| {
                    file.write_all(content.as_bytes())?;
                    file.persist(&path).map_err(|error| error.error)
                });
            written.map_err(|error| failed(&path, error))?;
        }
        Ok(())
    }

    /// Whether it was made for exactly these requirements.
    pub(crate) fn fits(&self, recipe: &Recipe) -> bool {
        match recipe.interpreter {
            Interpreter::Python => {
                self.files.get(WANTED).is_some_and(|text| *text == python::wanted(recipe))
            }
            Interpreter::Node => self.files.get(PACKAGE).is_some_and(|text| {
                node::wanted(recipe, &self.target).is_ok_and(|wanted| {
                    node::dependencies(text).ok() == node::dependencies(&wanted).ok()
                })
            }),
        }
    }
}

/// Reads a text that is not too long.
pub(super) fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("is not a file"));
    }
    if file.take(LARGEST + 1).read_to_string(&mut text)? as u64 > LARGEST {
        return Err(io::Error::other(format!("is larger than {} MiB", LARGEST >> 20)));
    }
    Ok(text)
}
