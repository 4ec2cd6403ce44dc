//! Names that the server and its launchers share: paths in a launcher's view, names in the folder of a build, and the number of
//! users of a sandbox.

use std::path::{Path, PathBuf};

/// Number of users, and of groups, in a sandbox's user namespace: all 16-bit IDs.
pub(super) const IDS: u32 = 1 << 16;

/// Processes of a launcher have higher numbers than this, those in a sandbox that waits have lower ones.
pub(super) const FIRST_PID: u32 = 10_000;

/// The store of images, as the launcher sees it.
pub(super) const IMAGES: &str = "/tmp/images";

/// The files that are mounted over every image, as the launcher sees them: the runner and its files.
pub(super) const SHARED: &str = "/tmp/shared";

/// The folder of all sets of packages, as the launcher sees it.
pub(super) const PACKAGES: &str = "/tmp/packages";

/// A folder with nothing in it, as the launcher sees it.
pub(super) const EMPTY: &str = "/tmp/empty";

/// The root of an image that is being built, as the launcher sees it.
pub(super) const BUILDING: &str = "/tmp/building";

/// Roots of sandboxes, while these are being made.
pub(super) const ROOTS: &str = "/tmp/roots";

/// The root of a sandbox while it is being made, as the launcher sees it.
pub(super) fn root_of(name: &str) -> PathBuf {
    Path::new(ROOTS).join(name).join("root")
}

/// The folder of the build context in an image's root, while its script runs.
pub(super) const CONTEXT: &str = "build";

/// Copies of the machine's network configuration, in the build context. The script may write to them, as it
/// may with Docker.
pub(super) const NETWORK: &str = ".network";
