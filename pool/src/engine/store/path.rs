//! What a path in a layer may be: rules without any file system.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Directories inside each other. Trees are walked with a descriptor and a call for each, so there must be
/// an end; the deepest in use are a third of this.
pub(super) const DEPTH: usize = 128;

/// Bytes of a name in a directory (`NAME_MAX`).
const NAME: usize = 255;

const WHITEOUT: &[u8] = b".wh.";
const RESERVED: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// What an entry's path means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The root itself.
    Root,
    /// Something of this name in a directory.
    Named { parent: PathBuf, name: PathBuf },
    /// What earlier layers have of this name is hidden.
    Hidden { parent: PathBuf, name: PathBuf },
    /// Everything that earlier layers have in a directory is hidden.
    Opaque { directory: PathBuf },
}

/// Tells what an entry's path means.
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

/// A path below the root, as it stands in an archive.
pub(super) fn relative(path: &[u8], longest: usize) -> Result<PathBuf, &'static str> {
    if path.len() > longest {
        return Err("the path is too long");
    }
    if path.contains(&0) {
        return Err("there is a NUL in the path");
    }
    if path.starts_with(b"/") {
        return Err("the path is absolute");
    }
    let mut clean = PathBuf::new();
    for (depth, component) in Path::new(OsStr::from_bytes(path)).components().enumerate() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) if name.len() > NAME => return Err("a name is too long"),
            Component::Normal(_) if depth >= DEPTH => return Err("the path is too deep"),
            Component::Normal(name) => clean.push(name),
            _ => return Err("there is a .. in the path"),
        }
    }
    Ok(clean)
}

/// Checks where a symbolic link leads that lies in a directory `depth` below the root. An absolute one is
/// fine, because a sandbox has no other root than this.
pub(super) fn target(target: &[u8], depth: usize, longest: usize) -> Result<(), &'static str> {
    if target.is_empty() {
        return Err("the link leads nowhere");
    }
    if target.len() > longest {
        return Err("the path that the link leads to is too long");
    }
    if target.contains(&0) {
        return Err("there is a NUL in the path that the link leads to");
    }
    if target.starts_with(b"/") {
        return Ok(());
    }
    let mut depth = depth;
    for component in Path::new(OsStr::from_bytes(target)).components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::ParentDir => {
                depth = depth.checked_sub(1).ok_or("the link leads out of the image")?;
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
        assert!(meaning(b"a/".repeat(DEPTH + 1).as_slice(), 4095).is_err());
    }

    #[test]
    fn whiteouts_are_told_from_names() {
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
