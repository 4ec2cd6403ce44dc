//! A lock: the packages of a set with their versions and hashes, as the tools of their ecosystem write it.
//!
//! Locks are committed and edited by people, so they are checked like untrusted input: packages of the index with hashes, and
//! nothing else. Tools read only files that are written from the parsed packages.

mod file;
pub(super) mod node;
pub(super) mod pins;
pub(super) mod python;

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use isolator_pool::engine::preload::Interpreter;
use sha2::{Digest as _, Sha256};

use crate::hex::hex;
use crate::requirement::Recipe;

pub(super) use self::file::{
    CONSTRAINTS, PACKAGE, PACKAGE_LOCK, REQUIREMENTS, WANTED, read_bounded,
};
pub(crate) use self::file::{LockError, Locked};

/// The first words of a set's identity. They change when the same packages would become other files.
const FORMAT: &str = "isolator set 1";

/// The packages of a set, and the files of the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lock {
    /// The files of the lock: their names and contents. First the requirements, then the packages.
    pub files: [(&'static str, String); 2],
    /// The packages, in the order of their names.
    pub packages: Vec<Locked>,
    /// The name of the `Target` that it was made for.
    pub target: String,
    /// The identity of the set: a hash of the target and of the packages with their hashes.
    pub hash: String,
}

/// The names of the files of an interpreter's locks: the requirements, and the packages.
pub(super) const fn file_names(interpreter: Interpreter) -> [&'static str; 2] {
    match interpreter {
        Interpreter::Python => [WANTED, REQUIREMENTS],
        Interpreter::Node => [PACKAGE, PACKAGE_LOCK],
    }
}

impl Lock {
    /// Parses the files of a lock: the requirements, and the packages.
    ///
    /// # Errors
    ///
    /// When they have something else than packages with hashes.
    pub(super) fn of(
        interpreter: Interpreter,
        [wanted, locked]: [String; 2],
    ) -> Result<Self, LockError> {
        let (target, packages, identity) = match interpreter {
            Interpreter::Python => {
                let (target, pinned) = python::parse(&locked)?;
                let identity: Vec<_> = pinned.iter().map(python::Pinned::line).collect();
                (target, pinned.into_iter().map(|it| it.package).collect(), identity)
            }
            Interpreter::Node => {
                let target = node::target(&wanted)?;
                let tree = node::parse(&locked)?;
                let identity: Vec<_> = tree.iter().map(node::Pinned::line).collect();
                let packages = tree.into_iter().filter(|it| it.is_for(&target));
                let mut packages: Vec<_> = packages.map(|it| it.package).collect();
                node::sort(&mut packages);
                (target, packages, identity)
            }
        };
        let identity = format!("{FORMAT}\n{target}\n{}\n", identity.join("\n"));
        let hash = hex(&Sha256::digest(identity.as_bytes()));
        let [wanted_name, locked_name] = file_names(interpreter);
        Ok(Self { files: [(wanted_name, wanted), (locked_name, locked)], packages, target, hash })
    }

    /// Reads a lock from its folder, if there is one.
    ///
    /// # Errors
    ///
    /// When there is one that can't be read, or has something else than packages with hashes.
    pub(crate) fn read(interpreter: Interpreter, folder: &Path) -> Result<Option<Self>, LockError> {
        let [wanted, locked] = file_names(interpreter);
        let read = |name: &str| {
            let path = folder.join(name);
            match read_bounded(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                read => read.map(Some).map_err(|error| LockError::io(&path, error)),
            }
        };
        let missing = |name| {
            LockError::new(format!(
                "the lock in {} has no {name}: write it again with `isolator packages lock`",
                folder.display()
            ))
        };
        let files = match (read(wanted)?, read(locked)?) {
            (None, None) => return Ok(None),
            (None, _) => return Err(missing(wanted)),
            (_, None) => return Err(missing(locked)),
            (Some(wanted), Some(locked)) => [wanted, locked],
        };
        let unusable =
            |error| LockError::Folder { folder: folder.to_owned(), error: Box::new(error) };
        Self::of(interpreter, files).map(Some).map_err(unusable)
    }

    /// The text of the requirements.
    pub(super) fn wanted(&self) -> &str {
        &self.files[0].1
    }

    /// The text of the packages with their hashes.
    pub(super) fn locked(&self) -> &str {
        &self.files[1].1
    }

    /// Writes the lock into its folder, which is made. Other files in the folder stay.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), LockError> {
        fs::create_dir_all(folder).map_err(|error| LockError::io(folder, error))?;
        for (name, content) in &self.files {
            let path = folder.join(name);
            // No process ever sees half a file.
            let written = tempfile::Builder::new()
                .prefix(".")
                .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
                .tempfile_in(folder)
                .and_then(|mut file| {
                    file.write_all(content.as_bytes())?;
                    file.persist(&path).map_err(|error| error.error)
                });
            written.map_err(|error| LockError::io(&path, error))?;
        }
        Ok(())
    }

    /// Whether it was made for exactly these requirements.
    pub(crate) fn fits(&self, recipe: &Recipe) -> bool {
        match recipe.interpreter {
            Interpreter::Python => self.wanted() == python::wanted(recipe),
            Interpreter::Node => node::wanted(recipe, &self.target).is_ok_and(|wanted| {
                node::dependencies(self.wanted()).ok() == node::dependencies(&wanted).ok()
            }),
        }
    }
}
