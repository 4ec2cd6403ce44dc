//! Names of images, and the file with the digest for each name.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use oci_spec::distribution::{ParseError, Reference};

use super::error::{IoContext, StoreError};

const NAMES: &str = "names.json";
const NEW: &str = "names.json.new";

/// The digest for each name.
pub(super) type Names = BTreeMap<String, String>;

/// Parses a name as container engines do, so that each image has one full name: `python` is
/// `docker.io/library/python:latest`. A tag next to a digest is ignored.
pub(super) fn reference(name: &str) -> Result<Reference, StoreError> {
    let reference: Reference = name.parse().map_err(|error: ParseError| StoreError::Name {
        name: name.to_owned(),
        message: error.to_string(),
    })?;
    Ok(match reference.digest() {
        Some(digest) => Reference::with_digest(
            reference.registry().to_owned(),
            reference.repository().to_owned(),
            digest.to_owned(),
        ),
        None => reference,
    })
}

/// The full form of a name.
pub(super) fn normalize(name: &str) -> Result<String, StoreError> {
    reference(name).map(|reference| reference.whole())
}

/// Reads the names of a store; without the file it has none.
pub(super) fn read(directory: &Path) -> Result<Names, StoreError> {
    let path = directory.join(NAMES);
    match fs::read(&path) {
        Ok(names) => serde_json::from_slice(&names).at("read", &path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Names::new()),
        Err(error) => Err(error).at("read", &path),
    }
}

/// Replaces the names of a store, which must be locked, in one step.
pub(super) fn write(directory: &Path, names: &Names) -> Result<(), StoreError> {
    let write = || -> io::Result<()> {
        let new = directory.join(NEW);
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec_pretty(names)?)?;
        file.sync_all()?;
        fs::rename(&new, directory.join(NAMES))?;
        File::open(directory)?.sync_all()
    };
    write().at("write the names in", directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_one_name_however_it_is_written() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (name, normal) in [
            ("python", "docker.io/library/python:latest".to_owned()),
            ("isolator/python", "docker.io/isolator/python:latest".to_owned()),
            ("docker.io/isolator/python:latest", "docker.io/isolator/python:latest".to_owned()),
            ("localhost:5000/a:1", "localhost:5000/a:1".to_owned()),
            (&format!("python:3@{digest}"), format!("docker.io/library/python@{digest}")),
        ] {
            assert_eq!(normalize(name).unwrap(), normal);
        }
        for name in ["", "Python", "a b", "../x", "a@sha256:1"] {
            assert!(normalize(name).is_err(), "{name}");
        }
    }
}
