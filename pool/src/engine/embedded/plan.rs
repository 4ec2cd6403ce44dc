//! The plan of a sandbox: what the server asks a launcher to make. `spec.rs` writes it, `launcher/maker/` carries it out.
//!
//! It says how sandboxes differ. What all of them have is in the maker. Paths are as the launcher sees them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::cgroups::GroupPlan;
use super::host::Ids;

/// The plan of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) role: Role,
    pub(super) root: Root,
    pub(super) host_name: String,
    /// Its control groups, where it has some.
    pub(super) groups: Option<GroupPlan>,
    /// File systems in memory, in the order in which they are mounted.
    pub(super) memory: Vec<MemoryMount>,
    /// Files of the root that are mounted over others, read-only: their paths, and where.
    pub(super) files: Vec<(PathBuf, PathBuf)>,
    /// The path of its set of packages below the folder of all sets, if it is made with one.
    pub(super) packages: Option<PathBuf>,
    /// The paths where its program may be. The first one that is there is started.
    pub(super) program: Vec<PathBuf>,
    pub(super) arguments: Vec<String>,
    /// Variables, as `NAME=value`. The last one of a name counts.
    pub(super) variables: Vec<String>,
    /// The directory in which the program starts.
    pub(super) directory: PathBuf,
    /// User and group.
    pub(super) user: (u32, u32),
    /// Capabilities that the program may have, as the kernel's bits.
    pub(super) capabilities: u64,
    pub(super) limits: Vec<ResourceLimit>,
}

/// The role of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Role {
    /// It runs programs.
    Program {
        /// Its users, where it has some of its own.
        users: Option<Users>,
    },
    /// It has an interpreter that is forked into sandboxes. Its program is made unreadable: all forks have it as their own
    /// program, and could lock or watch it.
    Template,
    /// A script builds an image in it.
    Build {
        /// Its users.
        ids: Ids,
    },
}

/// The users of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Users {
    /// The range that they are mapped to.
    pub(super) ids: Ids,
    /// The user of the launcher's namespace whose processes may enter the sandbox, if any.
    pub(super) entered_by: Option<u32>,
}

/// The root of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Root {
    /// An image with the shared files over it.
    Image {
        /// The image's root.
        image: PathBuf,
        /// The layer for writes to its root, if it may write there.
        layer: Option<WritableLayer>,
    },
    /// The image that is being built.
    Building,
}

/// A writable layer over an image. It is in memory and counts against the sandbox's memory limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WritableLayer {
    /// Its size in bytes.
    pub(super) size: u64,
    /// Maximum number of files in it.
    pub(super) inodes: u32,
    /// The account of the programs, if they can add files to the usual folders of the image.
    pub(super) open_to: Option<Account>,
}

/// A user of the sandbox, as `/etc/passwd` has one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Account {
    pub(super) name: String,
    /// User and group.
    pub(super) user: (u32, u32),
    pub(super) home: String,
}

/// A file system in memory to which every user may write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MemoryMount {
    pub(super) path: PathBuf,
    /// Its size in bytes.
    pub(super) size: u64,
    /// Maximum number of files, if there is one.
    pub(super) inodes: Option<u32>,
    /// User and group that own it.
    pub(super) owner: (u32, u32),
    /// Whether programs in it can be started.
    pub(super) is_executable: bool,
}

/// A limit of a process, with the kernel's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ResourceLimit {
    pub(super) resource: u32,
    pub(super) soft: u64,
    pub(super) hard: u64,
}

impl Plan {
    /// Whether it is the plan of a template.
    pub(super) fn is_template(&self) -> bool {
        self.role == Role::Template
    }
}
