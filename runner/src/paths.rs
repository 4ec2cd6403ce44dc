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

/// Directory of the commands that ask for packages, such as `pip`. Programs find them before those of the image.
pub const COMMANDS: &str = "/.isolator/bin";

/// The value of `PATH` for the programs of a sandbox, from that of its image. The commands of a set of packages come last. Programs find
/// them below `sets` also if they have asked for the set themselves.
pub fn search_path(image: &str, sets: &str) -> String {
    let own = format!("{sets}/bin");
    let parts = [COMMANDS, image, &own];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(":")
}

/// Where the set of packages is that a sandbox was given, or, with an engine that can't give a set to one sandbox alone,
/// the volume with [the folder](PACKAGE_SETS) of all sets.
pub const PACKAGES: &str = "/.isolator/packages";

/// The folder of all sets. It can't be listed, and the names of the sets can't be guessed.
pub const PACKAGE_SETS: &str = "/.isolator/packages/sets";

/// A link to the set of packages of a sandbox, with an engine that has all sets in one folder. Interpreters of Python look there from
/// their beginning, so they find a set that the sandbox is given while they run, and also if they ignore variables.
pub const SET_LINK: &str = "/dev/shm/.isolator-packages";

/// Where the runner listens for requests for packages, in the abstract namespace of the sandbox's network.
pub const INSTALL_ADDRESS: &[u8] = b"isolator-packages";

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

/// A command: the script that starts each of them, under its name.
const fn command(path: &'static str) -> PlacedFile {
    PlacedFile { path, mode: 0o755, content: include_bytes!("../commands/start.sh") }
}

/// All files of the directory. `runner` is the static binary, which can't contain itself.
#[must_use]
pub fn files(runner: &'static [u8]) -> Vec<PlacedFile> {
    vec![
        PlacedFile { path: "isolator-runner", mode: 0o755, content: runner },
        command("bin/npm"),
        command("bin/npx"),
        command("bin/pip"),
        command("bin/pip3"),
        command("bin/uv"),
        command("bin/uvx"),
        placed!("commands/pip/__main__.py"),
        placed!("commands/pip/asking.py"),
        placed!("commands/pip/commands.py"),
        placed!("commands/pip/install.py"),
        placed!("commands/pip/inventory.py"),
        placed!("commands/pip/listing.py"),
        placed!("commands/pip/options.py"),
        placed!("commands/pip/requirement_files.py"),
        placed!("commands/pip/uv.py"),
        placed!("commands/npm/asking.cjs"),
        placed!("commands/npm/install.cjs"),
        placed!("commands/npm/main.cjs"),
        placed!("commands/npm/options.cjs"),
        placed!("commands/npm/scripts.cjs"),
        placed!("commands/npm/tree.cjs"),
        placed!("preload/python/sitecustomize.py"),
        placed!("preload/node.cjs"),
        placed!("session/awaited.py"),
        placed!("session/cells.py"),
        placed!("session/modules.cjs"),
        placed!("session/scopes.cjs"),
        placed!("session/rewriting.cjs"),
        placed!("session/names.cjs"),
        placed!("session/edits.cjs"),
        placed!("session/channel.py"),
        placed!("session/charts.py"),
        placed!("session/compiling.py"),
        placed!("session/complete.cjs"),
        placed!("session/complete.py"),
        placed!("session/errors.py"),
        placed!("session/figures.py"),
        placed!("session/forms.py"),
        placed!("session/html.py"),
        placed!("session/imports.py"),
        placed!("session/inspector.cjs"),
        placed!("session/installed.py"),
        placed!("session/ipython.py"),
        placed!("session/kernel.cjs"),
        placed!("session/kernel.py"),
        placed!("session/loop.py"),
        placed!("session/memory.py"),
        placed!("session/plain.py"),
        placed!("session/printing.cjs"),
        placed!("session/program.cjs"),
        placed!("session/programs.py"),
        placed!("session/session.py"),
        placed!("session/shell.py"),
        placed!("session/showing.py"),
        placed!("session/source.cjs"),
        placed!("session/tracebacks.py"),
        placed!("session/variables.py"),
        placed!("session/watch.cjs"),
        placed!("session/weights.py"),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_of_the_kernels_and_commands_is_placed() {
        let placed: BTreeSet<_> = files(b"").into_iter().map(|file| file.path.to_owned()).collect();
        for folder in ["session", "commands/pip", "commands/npm"] {
            let place = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
            let files = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap());
            let files = files.filter(|entry| entry.file_type().unwrap().is_file());
            let there: BTreeSet<_> = files
                .map(|entry| format!("{folder}/{}", entry.file_name().into_string().unwrap()))
                .collect();
            let of_folder = |path: &&String| path.starts_with(&format!("{folder}/"));
            assert_eq!(placed.iter().filter(of_folder).cloned().collect::<BTreeSet<_>>(), there);
        }
    }

    #[test]
    fn commands_come_before_those_of_the_image() {
        assert_eq!(search_path("/usr/bin:/bin", "/x"), "/.isolator/bin:/usr/bin:/bin:/x/bin");
        assert_eq!(search_path("", "/x"), "/.isolator/bin:/x/bin");
    }
}
