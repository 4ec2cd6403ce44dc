//! Paths of the runner and its files in every sandbox. Engines put them there, read-only.

/// The directory, which has no other files.
pub const DIRECTORY: &str = "/.isolator";

/// The runner's own path.
pub const RUNNER: &str = "/.isolator/isolator-runner";

/// Directory of the module that stops Python before it runs the program.
pub const PYTHON_PRELOAD: &str = "/.isolator/preload/python";

/// The module that stops Node.js before it runs the program.
pub const NODE_PRELOAD: &str = "/.isolator/preload/node.cjs";

/// A file of the directory.
#[derive(Debug, Clone, Copy)]
pub struct PlacedFile {
    /// Its path below [`DIRECTORY`].
    pub path: &'static str,
    /// Its permissions.
    pub mode: u32,
    /// What is in it.
    pub content: &'static [u8],
}

/// All files of the directory. `runner` is the static binary, which can't carry itself.
pub const fn files(runner: &'static [u8]) -> [PlacedFile; 3] {
    [
        PlacedFile { path: "isolator-runner", mode: 0o755, content: runner },
        PlacedFile {
            path: "preload/python/sitecustomize.py",
            mode: 0o644,
            content: include_bytes!("../preload/python/sitecustomize.py"),
        },
        PlacedFile {
            path: "preload/node.cjs",
            mode: 0o644,
            content: include_bytes!("../preload/node.cjs"),
        },
    ]
}
