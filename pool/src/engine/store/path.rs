//! Rules for paths in layers. They don't touch the file system.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Deepest nesting of directories. Walking a tree takes a descriptor and a stack frame for each, so there must
/// be a limit; real images need a third of this.
pub(super) const MAX_DEPTH: usize = 128;

/// Longest name in a directory, in bytes (`NAME_MAX`).
const MAX_NAME: usize = 255;

const WHITEOUT: &[u8] = b".wh.";
const RESERVED: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// The meaning of an entry's path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The root itself.
    Root,
    /// Something of this name in a directory.
    Named { parent: PathBuf, name: PathBuf },
    /// A whiteout: hides this name of earlier layers.
    Hidden { parent: PathBuf, name: PathBuf },
    /// An opaque whiteout: hides everything that earlier layers have in a directory.
    Opaque { directory: PathBuf },
}

/// Parses an entry's path.
pub(super) fn meaning(path: &[u8], longest: usize) -> Result<Meaning, &'static str> {
    let path = relative(path, longest)?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Meaning::Root);
    };
    let parent = parent.to_owned();
    if parent.iter().any(|name| name.as_bytes().starts_with(WHITEOUT)) {
        return Err("a directory has the name of a whiteout");
    }
    let name = name.as_bytes();
    if name == OPAQUE {
        return Ok(Meaning::Opaque { directory: parent });
    }
    if name.starts_with(RESERVED) {
        return Err("the name is reserved for whiteouts");
    }
    match name.strip_prefix(WHITEOUT) {
        Some(b"" | b"." | b"..") => Err("the whiteout names nothing in its directory"),
        Some(hidden) => Ok(Meaning::Hidden { parent, name: OsStr::from_bytes(hidden).into() }),
        None => Ok(Meaning::Named { parent, name: OsStr::from_bytes(name).into() }),
    }
}

/// Parses a path of an archive, which must be relative and stay below the root.
pub(super) fn relative(path: &[u8], longest: usize) -> Result<PathBuf, &'static str> {
    if path.len() > longest {
        return Err("the path is too long");
    }
    if path.contains(&0) {
        return Err("the path contains a NUL");
    }
    if path.starts_with(b"/") {
        return Err("the path is absolute");
    }
    let mut clean = PathBuf::new();
    for (depth, component) in Path::new(OsStr::from_bytes(path)).components().enumerate() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) if name.len() > MAX_NAME => return Err("a name is too long"),
            Component::Normal(_) if depth >= MAX_DEPTH => {
                return Err("the path has too many directories");
            }
            Component::Normal(name) => clean.push(name),
            _ => return Err("the path contains .."),
        }
    }
    Ok(clean)
}

/// Checks the target of a symbolic link in a directory at `depth` below the root. An absolute target is fine:
/// in a sandbox this is the root.
pub(super) fn target(target: &[u8], depth: usize, longest: usize) -> Result<(), &'static str> {
    if target.is_empty() {
        return Err("the link has no target");
    }
    if target.len() > longest {
        return Err("the target of the link is too long");
    }
    if target.contains(&0) {
        return Err("the target of the link contains a NUL");
    }
    if target.starts_with(b"/") {
        return Ok(());
    }
    let mut depth = depth;
    for component in Path::new(OsStr::from_bytes(target)).components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::ParentDir => {
                depth = depth.checked_sub(1).ok_or("the target of the link is out of the image")?;
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_out_are_refused() {
        let refused: [&[u8]; 9] = [
            b"/etc/passwd",
            b"../x",
            b"a/../../x",
            b"..",
            b"a/..",
            b"a\0b",
            b".wh...",
            b".wh..",
            b".wh.",
        ];
        for path in refused {
            assert!(meaning(path, 100).is_err(), "{:?}", path.escape_ascii().to_string());
        }
        assert!(meaning(&[b'a'; 101], 100).is_err());
        assert!(meaning(&[b'a'; 256], 4095).is_err());
        assert!(meaning(b"a/".repeat(MAX_DEPTH + 1).as_slice(), 4095).is_err());
    }

    #[test]
    fn whiteouts_are_distinguished_from_names() {
        let named = |parent: &str, name: &str| (PathBuf::from(parent), PathBuf::from(name));
        let (parent, name) = named("a", "b");
        assert_eq!(meaning(b"./a//b/", 100), Ok(Meaning::Named { parent, name }));
        let (parent, name) = named("a", "b");
        assert_eq!(meaning(b"a/.wh.b", 100), Ok(Meaning::Hidden { parent, name }));
        let directory = PathBuf::from("a");
        assert_eq!(meaning(b"a/.wh..wh..opq", 100), Ok(Meaning::Opaque { directory }));
        assert_eq!(meaning(b"./", 100), Ok(Meaning::Root));
        assert!(meaning(b".wh..wh.plnk", 100).is_err());
        assert!(meaning(b".wh.a/b", 100).is_err());
    }

    #[test]
    fn a_link_may_climb_as_far_as_the_root() {
        assert_eq!(target(b"../../x", 2, 100), Ok(()));
        assert!(target(b"../../x", 1, 100).is_err());
        assert!(target(b"a/../../x", 0, 100).is_err());
        assert_eq!(target(b"/etc/passwd", 0, 100), Ok(()));
        assert!(target(b"", 0, 100).is_err());
    }
}
