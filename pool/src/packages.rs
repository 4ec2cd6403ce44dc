//! Sets of packages, which a sandbox is given when its request has come.
//!
//! A set is a folder that no longer changes. The caller of this crate builds and checks the folders; here they are only
//! brought into sandboxes. For Python the folder is a *user base*: modules are in `lib/pythonX.Y/site-packages` below
//! it, where Python looks for them by itself, after the standard library and before the image's own packages. For Node.js
//! it holds `node_modules`.

use std::fs::File;
use std::path::PathBuf;

use isolator_runner::wire::Interpreter;

/// A set of packages on this machine.
#[derive(Debug)]
pub struct PackageSet {
    /// The hash of its content, in hexadecimal digits: two sets with the same hash have the same content.
    pub hash: String,
    /// Its folder, which belongs to the store of sets.
    pub folder: PathBuf,
    /// For which interpreter it is.
    pub interpreter: Interpreter,
    /// The topmost modules that it has.
    pub modules: Vec<String>,
    /// Keeps other processes from removing the folder, by a lock that ends with this.
    pub held: File,
}

impl PartialEq for PackageSet {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Eq for PackageSet {}
