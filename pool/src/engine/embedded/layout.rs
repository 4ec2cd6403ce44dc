//! Names that the server and its launchers share: paths in a launcher's view, names in the folder of a build, and the number of
//! users of a sandbox.

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

/// Where the root of a sandbox is attached in the sandbox's mounts, for a moment.
pub(super) const ROOT: &str = "/tmp/root";

/// Where the launcher mounts the writable layer of a sandbox, for a moment.
pub(super) const LAYER: &str = "/tmp/layer";

/// The folder of the build context in an image's root, while its script runs.
pub(super) const CONTEXT: &str = "build";

/// Copies of the machine's network configuration, in the build context. The script may write to them, as it
/// may with Docker.
pub(super) const NETWORK: &str = ".network";
