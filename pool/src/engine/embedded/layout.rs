//! What the server and its launchers agree on: paths in a launcher's view, names in the folder of a build,
//! and how many users a sandbox has.

/// Users of a sandbox's own user namespace, and groups: as many as 16 bits can name.
pub(super) const IDS: u32 = 1 << 16;

/// The store of images in the launcher's view.
pub(super) const IMAGES: &str = "/tmp/images";

/// What lies over every image in the launcher's view: the runner and its like.
pub(super) const SHARED: &str = "/tmp/shared";

/// The root in which an image is built in the launcher's view.
pub(super) const BUILDING: &str = "/tmp/building";

/// Roots of sandboxes, while these are being made.
pub(super) const ROOTS: &str = "/tmp/roots";

/// The folder of the context in the root of an image, while its script runs.
pub(super) const CONTEXT: &str = "build";

/// Copies of the machine's files that tell the way to its network, in the context: the script may write to
/// them as it may on Docker.
pub(super) const NETWORK: &str = ".network";
