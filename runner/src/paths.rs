//! Paths of the runner and its files in every sandbox. Engines put them there, read-only.

/// The directory, which has no other files.
pub const DIRECTORY: &str = "/.isolator";

/// The runner's own path.
pub const RUNNER: &str = "/.isolator/isolator-runner";

/// Directory of the module that stops Python before it runs the program.
pub const PYTHON_PRELOAD: &str = "/.isolator/preload/python";

/// The module that stops Node.js before it runs the program.
pub const NODE_PRELOAD: &str = "/.isolator/preload/node.cjs";

/// The program that runs the cells of a session in Python.
pub const PYTHON_KERNEL: &str = "/.isolator/session/kernel.py";

/// The program that runs the cells of a session in Node.js.
pub const NODE_KERNEL: &str = "/.isolator/session/kernel.cjs";

/// Where the set of packages is that a sandbox was given, or, with an engine that can't give a set to one sandbox alone,
/// the volume with [the folder](PACKAGE_SETS) of all sets.
pub const PACKAGES: &str = "/.isolator/packages";

/// The folder of all sets. It can't be listed, and the names of the sets can't be guessed.
pub const PACKAGE_SETS: &str = "/.isolator/packages/sets";

/// A file of the directory.
#[derive(Debug, Clone, Copy)]
pub struct PlacedFile {
    /// Its path below [`DIRECTORY`].
    pub path: &'static str,
    /// Its permissions.
    pub mode: u32,
    /// Its content.
    pub content: &'static [u8],
}

/// A file as it is in this crate.
macro_rules! placed {
    ($path:literal) => {
        PlacedFile { path: $path, mode: 0o644, content: include_bytes!(concat!("../", $path)) }
    };
}

/// All files of the directory. `runner` is the static binary, which can't contain itself.
pub const fn files(runner: &'static [u8]) -> [PlacedFile; 24] {
    [
        PlacedFile { path: "isolator-runner", mode: 0o755, content: runner },
        placed!("preload/python/sitecustomize.py"),
        placed!("preload/node.cjs"),
        placed!("session/cells.py"),
        placed!("session/channel.py"),
        placed!("session/charts.py"),
        placed!("session/errors.py"),
        placed!("session/figures.py"),
        placed!("session/forms.py"),
        placed!("session/html.py"),
        placed!("session/idioms.py"),
        placed!("session/inspector.cjs"),
        placed!("session/kernel.cjs"),
        placed!("session/kernel.py"),
        placed!("session/loop.py"),
        placed!("session/magics.py"),
        placed!("session/notebooks.py"),
        placed!("session/printing.cjs"),
        placed!("session/programs.py"),
        placed!("session/program.cjs"),
        placed!("session/runs.py"),
        placed!("session/source.cjs"),
        placed!("session/variables.py"),
        placed!("session/watch.cjs"),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_file_of_the_kernels_is_placed() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/session");
        let there: BTreeSet<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| format!("session/{}", entry.unwrap().file_name().into_string().unwrap()))
            .collect();
        let placed = files(b"").into_iter().map(|file| file.path.to_owned());
        let placed: BTreeSet<_> = placed.filter(|path| path.starts_with("session/")).collect();
        assert_eq!(placed, there);
    }
}
