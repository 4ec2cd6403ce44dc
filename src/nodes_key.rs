//! A key that all nodes have, from a file.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Least and most bytes of a key.
const BYTES: std::ops::RangeInclusive<usize> = 32..=4096;

/// Why a file is no key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    /// It can't be read.
    #[error("{}: the key of {setting} can't be read", path.display())]
    Unreadable {
        path: PathBuf,
        /// The key of the configuration that names the file.
        setting: &'static str,
        #[source]
        source: io::Error,
    },
    /// It is too short to be secret, or is another file.
    #[error(
        "{}: the key of {setting} has {bytes} bytes, and needs 32 to 4096: make one with `openssl rand -hex 32`",
        path.display()
    )]
    Length { path: PathBuf, setting: &'static str, bytes: usize },
}

/// Most bytes of a file that are read: those of the longest key, and white space.
const MAX_READ: u64 = 2 * 4096;

/// Reads the key that a setting names. White space around it does not count.
pub(crate) fn read(path: &Path, setting: &'static str) -> Result<Vec<u8>, KeyError> {
    let content = read_secret(path);
    let content = content.map_err(|source| KeyError::Unreadable {
        path: path.to_owned(),
        setting,
        source,
    })?;
    let key = content.trim_ascii();
    if BYTES.contains(&key.len()) {
        Ok(key.to_vec())
    } else {
        Err(KeyError::Length { path: path.to_owned(), setting, bytes: key.len() })
    }
}

/// Reads a short file with a secret, and warns if all users of the machine can do that.
pub(crate) fn read_secret(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    // A pipe, as a shell makes it for `<(...)`, has no other readers.
    if metadata.is_file() && metadata.mode() & 0o007 != 0 {
        tracing::warn!(
            path = %path.display(),
            "all users of this machine can use this file, which has a secret; `chmod o= FILE` changes that"
        );
    }
    let mut content = Vec::new();
    file.take(MAX_READ + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_READ {
        let message = format!("it has more than {MAX_READ} bytes, and is no secret");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_neither_short_nor_endless() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        assert!(matches!(read(&path, "key"), Err(KeyError::Unreadable { .. })));
        for (length, is_key) in [(31, false), (64, true), (4097, false), (1 << 20, false)] {
            std::fs::write(&path, [vec![b'a'; length], b"\n".to_vec()].concat()).unwrap();
            assert_eq!(read(&path, "key").ok().map(|key| key.len()), is_key.then_some(length));
        }
    }
}
