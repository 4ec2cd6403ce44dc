//! The sections `engine` and `images`.

use isolator_pool::engine::images::PullPolicy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::section::section;

section! {
    /// The engine that makes the sandboxes.
    #[derive(Clone)]
    pub struct EngineConfig {
        /// Which engine makes the sandboxes.
        pub kind: EngineKind = EngineKind::Auto,
        /// Address of the Docker engine, in the form of DOCKER_HOST. Default: DOCKER_HOST, the docker context, or one of the
        /// usual sockets.
        pub host: Option<String> = None,
        /// Whether programs may run where the engine can't limit their memory, CPU time or processes. Each answer then says
        /// which limits did not hold.
        pub allow_unlimited: bool = false,
        /// Another OCI runtime for Docker, such as "runsc". Default: the engine's own.
        pub runtime: Option<String> = None,
        /// Whether the embedded engine, as root, tells the kernel to favour changes of control groups, which makes sandboxes
        /// sooner. The setting affects the whole machine.
        pub favordynmods: bool = true,
        /// Whether `--engine` gave the kind.
        #[serde(skip)]
        pub is_chosen_on_command_line: bool = false,
    }
}

/// A kind of engine.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// Docker if it answers, otherwise the embedded engine.
    Auto,
    /// A Docker engine, or another with the same API.
    Docker,
    /// Isolator makes the sandboxes itself.
    Embedded,
}

impl EngineKind {
    /// Its name in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Docker => "docker",
            Self::Embedded => "embedded",
        }
    }
}

section! {
    /// When images are built or pulled, and from which base.
    #[derive(Clone)]
    pub struct ImagesConfig {
        /// When images are built or pulled.
        #[serde(with = "Policy")]
        #[schemars(with = "Policy")]
        pub policy: PullPolicy = PullPolicy::Missing,
        /// The image that the language images are built from, best with a digest: "debian@sha256:…". "isolator/base" is
        /// always made from Debian's signed packages. Default: isolator/base or debian:trixie-slim, whichever is there.
        pub base: Option<String> = None,
    }
}

/// When images are built or pulled.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(remote = "PullPolicy", rename_all = "lowercase")]
enum Policy {
    /// If they are missing.
    Missing,
    /// Never.
    Never,
    /// Whenever the server starts.
    Always,
}
