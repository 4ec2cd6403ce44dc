//! The files that tools have installed, adapted to the image.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use isolator_pool::folders;
use isolator_pool::quote::escaped;
use pep440_rs::{Version, VersionSpecifiers};

use crate::packages::store::tree::{EntryKind, TreeEntry};
use crate::packages::store::{AtPath as _, StoreError, remove_file};

/// Most modules of a set that are listed.
const MOST_MODULES: usize = 5_000;

/// Largest script whose first line is changed, in bytes.
const LARGEST_SCRIPT: u64 = 1 << 20;

/// Folders of Python that may have modules.
const LIBRARIES: [&str; 2] = ["lib", "lib64"];

/// Moves the modules from where the Python of this machine looks for them to where the image's does.
pub(super) fn python(files: &Path, minor: &str, executable: &str) -> Result<(), StoreError> {
    // uv's lock for several that install into one folder.
    remove_file(&files.join(".lock"))?;
    let place = files.join(format!("lib/python{minor}"));
    for library in LIBRARIES {
        let library = files.join(library);
        for found in read_dir(&library)? {
            let is_python =
                found.file_name().to_str().is_some_and(|name| name.starts_with("python"));
            if is_python && found.path() != place {
                merge(&found.path(), &place)?;
            }
        }
    }
    let other = files.join("lib64");
    if other.is_dir() && read_dir(&other)?.is_empty() {
        fs::remove_dir(&other).at(&other)?;
    }
    let modules = place.join("site-packages");
    fs::create_dir_all(&modules).at(&modules)?;
    for script in read_dir(&files.join("bin"))? {
        rewrite_script(&script.path(), executable)?;
    }
    Ok(())
}

/// The entries of a folder, which may be missing.
fn read_dir(folder: &Path) -> Result<Vec<fs::DirEntry>, StoreError> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries.at(folder)?.collect::<Result<_, _>>().at(folder),
    }
}

/// Moves a folder, into one that may be there.
fn merge(from: &Path, to: &Path) -> Result<(), StoreError> {
    if !to.exists() {
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).at(parent)?;
        }
        return fs::rename(from, to).at(from);
    }
    // Without recursion, because packages can nest folders deeply.
    let mut ahead = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = ahead.pop() {
        for entry in read_dir(&from)? {
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            if is_folder(&to) && is_folder(&from) {
                ahead.push((from, to));
            } else {
                fs::rename(&from, &to).at(&from)?;
            }
        }
    }
    // Only folders are left.
    folders::remove(from).map(drop).at(from)
}

/// Whether this is a folder, and not a link to one.
fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Lets a script start with the image's interpreter instead of this machine's.
fn rewrite_script(path: &Path, executable: &str) -> Result<(), StoreError> {
    let metadata = fs::symlink_metadata(path).at(path)?;
    if !metadata.is_file() || metadata.len() > LARGEST_SCRIPT {
        return Ok(());
    }
    let mut content = Vec::new();
    let file = fs::File::open(path).at(path)?;
    file.take(LARGEST_SCRIPT).read_to_end(&mut content).at(path)?;
    let Some(rest) = after_interpreter(&content) else { return Ok(()) };
    // A new file: the old one may be linked to the tool's cache.
    let folder = path.parent().unwrap_or(path);
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        writeln!(file, "#!{executable}")?;
        file.write_all(rest)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(0o755))?;
        file.persist(path).map(drop).map_err(|error| error.error)
    };
    write().at(path)
}

/// The rest of a script after the lines that name Python, if it begins with them.
fn after_interpreter(content: &[u8]) -> Option<&[u8]> {
    let (first, rest) = split_line(content)?;
    let first = std::str::from_utf8(first).ok()?.strip_prefix("#!")?.trim();
    let program = first.split_whitespace().next()?.rsplit('/').next()?;
    if program.starts_with("python") || program.starts_with("pypy") {
        return Some(rest);
    }
    // A path that is long or has spaces: a line that is a command for a shell and a text for Python.
    let (second, rest) = split_line(rest).filter(|_| program == "sh")?;
    let (third, rest) = split_line(rest)?;
    (second.starts_with(b"'''exec'") && third.starts_with(b"' '''")).then_some(rest)
}

fn split_line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b'\n')?;
    Some((&text[..end], &text[end + 1..]))
}

/// The part of a package's description that is searched for its versions of Python, in bytes.
const LONGEST_HEAD: u64 = 1 << 20;

/// Most characters of a package's description that people see.
const LONGEST_SHOWN: usize = 200;

/// A package that is for other versions of Python than the image has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OtherPython {
    /// Its name and version.
    pub package: String,
    /// The versions of Python that it says.
    pub wants: String,
}

/// Finds a package that says that it is not for this version of Python. pip refuses such packages. uv compares only the oldest
/// version that a package is for, and the package may fail when it is imported.
pub(super) fn for_other_python(
    files: &Path,
    minor: &str,
    version: &str,
) -> Result<Option<OtherPython>, StoreError> {
    let Ok(version) = version.parse::<Version>() else { return Ok(None) };
    for found in read_dir(&files.join(format!("lib/python{minor}/site-packages")))? {
        if !found.file_name().to_string_lossy().ends_with(".dist-info") {
            continue;
        }
        let path = found.path().join("METADATA");
        let mut head = Vec::new();
        match fs::File::open(&path).and_then(|file| file.take(LONGEST_HEAD).read_to_end(&mut head))
        {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            read => drop(read.at(&path)?),
        }
        let head = String::from_utf8_lossy(&head);
        let field = |wanted: &str| {
            let lines = head.lines().take_while(|line| !line.trim().is_empty());
            let mut fields = lines.filter_map(|line| line.split_once(':'));
            let found = fields.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.trim()).unwrap_or_default()
        };
        // As in pip, versions that can't be read are ignored.
        let Ok(wants) = field("Requires-Python").parse::<VersionSpecifiers>() else { continue };
        if !wants.contains(&version) {
            let shown =
                |text: &str| -> String { escaped(text).chars().take(LONGEST_SHOWN).collect() };
            let package = shown(&format!("{} {}", field("Name"), field("Version")));
            return Ok(Some(OtherPython { package, wants: shown(&wants.to_string()) }));
        }
    }
    Ok(None)
}

/// The topmost modules that Python can import from a set.
pub(super) fn python_modules(entries: &[TreeEntry], minor: &str) -> Vec<String> {
    let folder = format!("lib/python{minor}/site-packages/");
    let mut modules = Vec::new();
    for entry in entries {
        let Some(path) = entry.path.strip_prefix(&folder) else { continue };
        if !matches!(entry.kind, EntryKind::File { .. }) {
            continue;
        }
        let name = match path.split_once('/') {
            Some((name, _)) => name,
            None => path.split('.').next().unwrap_or_default(),
        };
        let is_module = path.ends_with(".py") || path.ends_with(".so");
        if is_module && is_identifier(name) {
            modules.push(name);
        }
    }
    listed(modules)
}

fn listed(mut modules: Vec<&str>) -> Vec<String> {
    modules.sort_unstable();
    modules.dedup();
    modules.into_iter().take(MOST_MODULES).map(str::to_owned).collect()
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_alphanumeric() || c == '_')
        && name != "__pycache__"
}

/// The packages that Node.js can load from a set.
pub(super) fn node_modules(entries: &[TreeEntry]) -> Vec<String> {
    let mut modules = Vec::new();
    for entry in entries {
        let Some(path) = entry.path.strip_prefix("node_modules/") else { continue };
        let is_folder = entry.kind == EntryKind::Folder;
        let depth = path.matches('/').count();
        let is_package = if path.starts_with('@') { depth == 1 } else { depth == 0 };
        if is_folder && is_package && !path.starts_with('.') {
            modules.push(path);
        }
    }
    listed(modules)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(paths: &[&str]) -> Vec<TreeEntry> {
        let entry = |path: &&str| TreeEntry {
            path: path.trim_end_matches('/').to_owned(),
            kind: if path.ends_with('/') {
                EntryKind::Folder
            } else {
                EntryKind::File { size: 0, executable: false }
            },
        };
        paths.iter().map(entry).collect()
    }

    #[test]
    fn modules_are_found_by_their_files() {
        let site = "lib/python3.13/site-packages";
        let paths = [
            "six.py",
            "_cffi_backend.cpython-313-x86_64-linux-gnu.so",
            "numpy/__init__.py",
            "google/protobuf/message.py",
            "numpy.libs/libblas.so",
            "numpy-2.0.dist-info/RECORD",
            "distutils-precedence.pth",
            "data/readme.txt",
            "__pycache__/six.cpython-313.pyc",
        ];
        let paths: Vec<_> = paths.iter().map(|path| format!("{site}/{path}")).collect();
        let paths: Vec<_> = paths.iter().map(String::as_str).chain(["bin/x.py"]).collect();
        let modules = python_modules(&files(&paths), "3.13");
        assert_eq!(modules, ["_cffi_backend", "google", "numpy", "six"]);
        let modules = node_modules(&files(&[
            "node_modules/",
            "node_modules/.bin/",
            "node_modules/lodash/",
            "node_modules/lodash/fp/",
            "node_modules/@scope/",
            "node_modules/@scope/name/",
            "node_modules/@scope/name/lib/",
        ]));
        assert_eq!(modules, ["@scope/name", "lodash"]);
    }

    #[test]
    fn a_package_for_another_python_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("lib/python3.13/site-packages/a-1.0.dist-info");
        fs::create_dir_all(&place).unwrap();
        let look = |metadata: &str| {
            fs::write(place.join("METADATA"), metadata).unwrap();
            for_other_python(folder.path(), "3.13", "3.13.5").unwrap().map(|found| found.wants)
        };
        for (says, is_fine) in [
            ("", true),
            ("Requires-Python: >=3.8,<4\n", true),
            ("Requires-Python: <3.13\n", false),
            ("requires-python: !=3.13.*\n", false),
            ("Requires-Python: strange\n", true),
            ("\nRequires-Python: <3\n", true),
        ] {
            let found = look(&format!("Metadata-Version: 2.1\nName: a\nVersion: 1.0\n{says}"));
            assert_eq!(found.is_none(), is_fine, "{says}: {found:?}");
        }
        fs::remove_file(place.join("METADATA")).unwrap();
        assert_eq!(for_other_python(folder.path(), "3.13", "3.13.5").unwrap(), None);
    }

    #[test]
    fn scripts_start_the_image_s_python() {
        for (script, expected) in [
            ("#!/usr/bin/python3.11\nimport x\n", Some("import x\n")),
            ("#!/usr/bin/python3 -s\nimport x\n", Some("import x\n")),
            (
                "#!/bin/sh\n'''exec' '/a b/python3' \"$0\" \"$@\"\n' '''\nimport x\n",
                Some("import x\n"),
            ),
            ("#!/bin/sh\necho\n\n", None),
            ("\x7fELF\n", None),
            ("import x\n", None),
        ] {
            let rest = after_interpreter(script.as_bytes());
            assert_eq!(rest.map(|rest| std::str::from_utf8(rest).unwrap()), expected, "{script}");
        }
    }
}
