//! The images of this engine: unpacked once, shared by all sandboxes, found by name or digest.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::spec;
use crate::engine::{Image, SandboxSpec};

/// A directory of images.
pub struct Store {
    directory: PathBuf,
}

/// An image of the store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Stored {
    /// Its digest.
    pub digest: String,
    /// Size of its files, in bytes.
    pub size: u64,
    /// Variables for its programs, as `NAME=VALUE`.
    pub env: Vec<String>,
    /// Absolute paths that it declares as volumes.
    pub volumes: Vec<String>,
    #[serde(skip)]
    directory: PathBuf,
}

const IMAGES: &str = "images";
const NAMES: &str = "names.json";
const ROOT: &str = "root";
const DESCRIPTION: &str = "image.json";

impl Store {
    pub(super) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    pub(super) fn images(&self) -> PathBuf {
        self.directory.join(IMAGES)
    }

    pub(super) fn find(&self, name: &str) -> io::Result<Option<Stored>> {
        let names: BTreeMap<String, String> = match fs::read(self.directory.join(NAMES)) {
            Ok(names) => serde_json::from_slice(&names)?,
            Err(_) => BTreeMap::new(),
        };
        names.get(name).map_or(Ok(None), |digest| self.get(digest))
    }

    pub(super) fn get(&self, digest: &str) -> io::Result<Option<Stored>> {
        let Some(hex) = digest.strip_prefix("sha256:") else { return Ok(None) };
        let directory = self.images().join(hex);
        match fs::read(directory.join(DESCRIPTION)) {
            Ok(description) => {
                let stored: Stored = serde_json::from_slice(&description)?;
                Ok(Some(Stored { directory, ..stored }))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Stored {
    pub(super) fn image(&self, name: &str) -> Image {
        Image {
            name: name.to_owned(),
            digest: self.digest.clone(),
            size: self.size,
            volumes: self.volumes.clone(),
        }
    }

    pub(super) fn relative_root(&self) -> PathBuf {
        Path::new(self.digest.trim_start_matches("sha256:")).join(ROOT)
    }

    /// Makes the places over which something is mounted in a sandbox.
    pub(super) fn make_places(&self, spec: &SandboxSpec) -> io::Result<()> {
        let root = self.directory.join(ROOT);
        for path in spec::mount_points(spec) {
            fs::create_dir_all(root.join(path.strip_prefix("/").unwrap_or(&path)))?;
        }
        for (_, path, _) in spec::FILES {
            let file = root.join(path.trim_start_matches('/'));
            if !file.exists() {
                fs::write(file, "")?;
            }
        }
        Ok(())
    }
}
