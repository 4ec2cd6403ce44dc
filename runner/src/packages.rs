//! Sets of packages, and how the programs of a sandbox find them.
//!
//! Python looks for a set in the folder that a variable names, and our image also where an interpreter looks that ignores variables.
//! Node.js looks for packages in the folders above a program, so the workspace gets links to them, as if they were installed there. The
//! program's own packages come first.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use isolator_runner::paths::{PACKAGE_SETS, PACKAGES, SET_LINK};
use isolator_runner::wire::{Failed, FailedCause, Interpreter, Packages};

/// The variable by which Python finds a set.
const PYTHON_VARIABLE: &str = "PYTHONUSERBASE";

/// Where the packages of Node.js are, below a set and below the workspace.
const NODE_FOLDER: &str = "node_modules";

/// Maximum number of links that are made one by one. Each takes a few microseconds and an inode of the workspace.
const MOST_LINKS: usize = 4096;

/// How a workspace gets links to the packages of Node.js.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// One link for all of them, if there is nothing in its place.
    AsFewAsPossible,
    /// One link for each package, in a folder of the workspace into which more can be installed.
    OneByOne,
    /// The same, and links to another set lead to this one, because programs may run already.
    InPlaceOfOthers,
}

/// Makes a set ready for the programs of a workspace. Its folder becomes the one where they find it.
///
/// # Errors
///
/// When the set is not there, or there can't be links to it.
pub(crate) fn make_ready(
    packages: &mut Packages,
    workdir: &Path,
    links: Links,
) -> Result<(), Failed> {
    let folder = Path::new(&packages.folder);
    let missing = |error: io::Error| Failed {
        cause: FailedCause::Packages,
        message: format!("{}: {error}", folder.display()),
    };
    match packages.interpreter {
        Interpreter::Python => fs::read_dir(folder).map(drop).map_err(missing)?,
        Interpreter::Node => {
            let from = folder.join(NODE_FOLDER);
            fs::read_dir(&from).map_err(missing)?;
            link(&from, &workdir.join(NODE_FOLDER), links).map_err(|error| Failed {
                cause: match error.kind() {
                    io::ErrorKind::StorageFull => FailedCause::WorkspaceFull,
                    _ => FailedCause::Workspace,
                },
                message: format!("{NODE_FOLDER}: {error}"),
            })?;
        }
    }
    if folder.starts_with(PACKAGE_SETS) {
        link_anew(folder, Path::new(SET_LINK)).map_err(|error| Failed {
            cause: FailedCause::Packages,
            message: format!("{SET_LINK}: {error}"),
        })?;
        packages.folder = SET_LINK.to_owned();
    }
    Ok(())
}

/// The set that this sandbox has by now, for a process that is not told of each.
pub(crate) fn present() -> Option<Packages> {
    let folder = if Path::new(PACKAGE_SETS).is_dir() { SET_LINK } else { PACKAGES };
    let has = |part: &str| Path::new(folder).join(part).is_dir();
    let interpreter = match (has("lib"), has(NODE_FOLDER)) {
        (true, _) => Interpreter::Python,
        (_, true) => Interpreter::Node,
        _ => return None,
    };
    Some(Packages { interpreter, folder: folder.to_owned() })
}

/// Makes a link, or replaces the one that is there. No process finds none meanwhile.
fn link_anew(from: &Path, to: &Path) -> io::Result<()> {
    let mut new = to.as_os_str().to_owned();
    new.push(".new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(from, &new)?;
    fs::rename(&new, to)
}

/// The variables of a program, with those by which it finds its set. A waiting interpreter changes its own variables in the same way.
/// The commands of a set come after those of the image.
pub(crate) fn variables(
    env: &BTreeMap<String, String>,
    packages: Option<&Packages>,
) -> BTreeMap<String, String> {
    let mut env = env.clone();
    let Some(Packages { interpreter, folder }) = packages else { return env };
    let commands = match interpreter {
        Interpreter::Python => {
            env.insert(PYTHON_VARIABLE.to_owned(), folder.clone());
            "bin"
        }
        Interpreter::Node => "node_modules/.bin",
    };
    let path = env.get("PATH").cloned().or_else(|| std::env::var("PATH").ok());
    let place = format!(":{folder}/{commands}");
    if let Some(path) = path.filter(|path| !path.is_empty()) {
        let path = path.strip_suffix(&place).unwrap_or(&path);
        env.insert("PATH".to_owned(), format!("{path}{place}"));
    }
    env
}

/// Deletes a set from the folder of all sets, if it is there.
///
/// # Errors
///
/// When it can't be deleted, or the name is not that of a set.
pub(crate) fn remove(set: &str) -> io::Result<()> {
    if set.is_empty() || !set.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no name of a set"));
    }
    #[expect(clippy::disallowed_methods, reason = "the server has checked that a set is not deep")]
    let removed = fs::remove_dir_all(Path::new(PACKAGE_SETS).join(set));
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn link(from: &Path, to: &Path, links: Links) -> io::Result<()> {
    if links == Links::AsFewAsPossible {
        match symlink(from, to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            linked => return linked,
        }
    }
    if links == Links::InPlaceOfOthers && leads_to_set(to) {
        return link_anew(from, to);
    }
    match fs::create_dir(to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    let mut left = MOST_LINKS;
    link_each(from, to, links, &mut left)
}

/// Whether it is a link into a set of packages.
fn leads_to_set(link: &Path) -> bool {
    fs::read_link(link).is_ok_and(|target| target.starts_with(PACKAGES))
}

/// Links the packages that are not there yet. Those of a scope are in its folder.
fn link_each(from: &Path, to: &Path, links: Links, left: &mut usize) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        let first = name.as_encoded_bytes().first();
        if first == Some(&b'.') {
            // npm's notes, and the folder of commands.
            continue;
        }
        *left = left.checked_sub(1).ok_or_else(|| {
            io::Error::other(format!("the set has more than {MOST_LINKS} packages"))
        })?;
        let (from, to) = (from.join(&name), to.join(&name));
        match symlink(&from, &to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if links == Links::InPlaceOfOthers && leads_to_set(&to) {
                    link_anew(&from, &to)?;
                } else if first == Some(&b'@') && to.is_dir() {
                    link_each(&from, &to, links, left)?;
                }
            }
            linked => linked?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> tempfile::TempDir {
        let set = tempfile::tempdir().unwrap();
        for package in ["one", "two", "@scope/one", "@scope/two", ".bin"] {
            fs::create_dir_all(set.path().join(NODE_FOLDER).join(package)).unwrap();
        }
        set
    }

    fn packages(set: &Path) -> Packages {
        Packages { interpreter: Interpreter::Node, folder: set.to_str().unwrap().to_owned() }
    }

    #[test]
    fn one_link_is_enough_where_nothing_else_is() {
        let (set, place) = (set(), tempfile::tempdir().unwrap());
        make_ready(&mut packages(set.path()), place.path(), Links::AsFewAsPossible).unwrap();
        assert!(fs::symlink_metadata(place.path().join(NODE_FOLDER)).unwrap().is_symlink());
        assert!(place.path().join("node_modules/@scope/one").is_dir());
    }

    #[test]
    fn packages_of_the_workspace_stay_and_others_are_linked() {
        let (set, place) = (set(), tempfile::tempdir().unwrap());
        for own in ["one", "@scope/one"] {
            fs::create_dir_all(place.path().join(NODE_FOLDER).join(own).join("own")).unwrap();
        }
        make_ready(&mut packages(set.path()), place.path(), Links::AsFewAsPossible).unwrap();
        let is_own = |name: &str| place.path().join(NODE_FOLDER).join(name).join("own").is_dir();
        let is_there = |name: &str| place.path().join(NODE_FOLDER).join(name).is_dir();
        assert_eq!(
            ["one", "@scope/one", "two", "@scope/two"].map(is_own),
            [true, true, false, false]
        );
        assert_eq!(["two", "@scope/two", ".bin"].map(is_there), [true, true, false]);
    }

    #[test]
    fn links_one_by_one_leave_room_for_more() {
        let (set, place) = (set(), tempfile::tempdir().unwrap());
        make_ready(&mut packages(set.path()), place.path(), Links::OneByOne).unwrap();
        let folder = place.path().join(NODE_FOLDER);
        assert!(!fs::symlink_metadata(&folder).unwrap().is_symlink());
        assert!(fs::symlink_metadata(folder.join("two")).unwrap().is_symlink());
    }

    #[test]
    fn a_missing_set_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        for interpreter in [Interpreter::Python, Interpreter::Node] {
            let mut packages = Packages { interpreter, folder: "/nowhere".to_owned() };
            let failed = make_ready(&mut packages, place.path(), Links::OneByOne).unwrap_err();
            assert_eq!(failed.cause, FailedCause::Packages, "{}", failed.message);
        }
        fs::write(place.path().join(NODE_FOLDER), "a file").unwrap();
        let failed =
            make_ready(&mut packages(set().path()), place.path(), Links::OneByOne).unwrap_err();
        assert_eq!(failed.cause, FailedCause::Workspace, "{}", failed.message);
    }

    #[test]
    fn the_variables_lead_to_modules_and_commands() {
        let env = BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())]);
        let of = |interpreter| {
            let packages = Packages { interpreter, folder: "/x".to_owned() };
            let env = variables(&env, Some(&packages));
            (env.get(PYTHON_VARIABLE).cloned(), env["PATH"].clone())
        };
        assert_eq!(of(Interpreter::Python), (Some("/x".to_owned()), "/bin:/x/bin".to_owned()));
        assert_eq!(of(Interpreter::Node), (None, "/bin:/x/node_modules/.bin".to_owned()));
        assert_eq!(variables(&env, None), env);
    }
}
