//! The files that all sandboxes of an instance share: the runner's directory, which is mounted over every image.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use isolator_runner::paths as runner_paths;

use super::{EmbeddedEngine, refused, spec};
use crate::engine::store;
use crate::engine::{Call, EngineError};
use crate::lock::lock;

/// A file that sandboxes share: its path, its content, its mode.
type SharedFile = (PathBuf, &'static [u8], u32);

/// Directories that had all of the files, as they were then. Adding or removing a file changes its directory.
pub(super) type Complete = Vec<(PathBuf, Option<State>)>;

/// The state of a directory: device, inode and time of the last change.
type State = (u64, u64, i64, i64);

impl EmbeddedEngine {
    pub(super) fn shared(&self) -> PathBuf {
        self.settings.state.join(&self.instance)
    }

    /// The files that are mounted over every image.
    fn shared_files(&self) -> Vec<SharedFile> {
        let directory = spec::runner(&self.shared());
        let runner = runner_paths::files(self.settings.runner).into_iter();
        let runner = runner.map(|file| (directory.join(file.path), file.content, file.mode));
        let template = (directory.join("preload/template.so"), self.settings.template, 0o755);
        let others = spec::FILES.into_iter();
        let others =
            others.map(|(name, _, content)| (directory.join(name), content.as_bytes(), 0o644));
        runner.chain([template]).chain(others).collect()
    }

    /// Where a set of packages is mounted in a sandbox that is given one.
    fn place_of_packages(&self) -> PathBuf {
        self.shared().join(runner_paths::PACKAGES.trim_start_matches('/'))
    }

    /// Whether they all exist, without a look at their content.
    pub(super) fn has_shared(&self) -> bool {
        let mut complete = lock(&self.complete);
        let is_same = |(directory, then): &(PathBuf, _)| *then == state(directory);
        if !complete.is_empty() && complete.iter().all(is_same) {
            return true;
        }
        let (place, files) = (self.place_of_packages(), self.shared_files());
        let paths: Vec<_> = files.iter().map(|(path, ..)| path).chain([&place]).collect();
        let directories: BTreeSet<_> = paths.iter().filter_map(|path| path.parent()).collect();
        // Before the look at the files, of which one may just be removed.
        let now = directories.into_iter().map(|it| (it.to_owned(), state(it))).collect();
        let has_all = paths.iter().all(|path| path.exists());
        *complete = if has_all { now } else { Vec::new() };
        has_all
    }

    pub(super) fn write_shared(&self) -> io::Result<()> {
        let shared = self.shared();
        make_folder(&shared, &self.place_of_packages())?;
        let files = self.shared_files();
        files.iter().try_for_each(|(path, content, mode)| write(&shared, path, content, *mode))
    }

    /// The error when the shared files can't be written.
    pub(super) fn not_written(&self, error: &io::Error) -> EngineError {
        let message = format!("{} can't be written: {error}", self.shared().display());
        match store::is_full(error) {
            true => EngineError::DiskFull(message.into()),
            false => refused(Call::Prepare, message),
        }
    }
}

/// The state of a directory, if it is there.
fn state(directory: &Path) -> Option<State> {
    let found = fs::metadata(directory).ok()?;
    Some((found.dev(), found.ino(), found.ctime(), found.ctime_nsec()))
}

/// Makes a folder below a directory, readable by all.
fn make_folder(shared: &Path, path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    for directory in path.ancestors().take_while(|directory| directory.starts_with(shared)) {
        // Whatever the umask of this process is.
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Writes a file below a directory, readable by all. If it has that content already it is left alone, because
/// sandboxes that have it must not see it change.
pub(super) fn write(shared: &Path, path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    if fs::read(path).is_ok_and(|found| found == content) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_folder(shared, parent)?;
    }
    // Under another name first, so that no process sees half of a file.
    let new = path.with_extension("new");
    fs::write(&new, content)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
    fs::rename(&new, path)
}
