//! What engines that speak Docker's API want said differently.

use std::path::PathBuf;

use bollard::Docker;
use bollard::models::SystemVersionComponents;
use tokio::sync::OnceCell;

use super::connect::EngineAddress;
use super::error::Translate;
use crate::engine::instance::Instance;
use crate::engine::seccomp;
use crate::engine::{Call, EngineError};

/// How this engine takes what all containers have in common.
#[derive(Debug)]
pub(super) struct Dialect {
    /// The security option that carries the seccomp profile.
    pub(super) seccomp: String,
    /// What can be said of a tmpfs.
    pub(super) tmpfs: TmpfsOptions,
    /// Limit on the processes of the user on the whole machine, where the engine would otherwise
    /// set one that it may not be allowed to set.
    pub(super) user_processes: Option<i64>,
}

/// Low enough for every service to set, and high enough never to be met: a sandbox's own limit is
/// far below.
const USER_PROCESSES: i64 = 30_000;

/// What can be said of a tmpfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TmpfsOptions {
    /// Size, number of files, owner.
    All,
    /// Size and mode. Its mode lets everybody write. The memory limit covers the number of files
    /// as far as the kernel charges for them, as it does with cgroup v2.
    SizeAndMode,
}

/// Finds the engine's dialect when the first container is made.
pub(super) struct Interpreter {
    dialect: OnceCell<Dialect>,
    /// Where the profile goes if the engine wants a file.
    file: PathBuf,
    address: EngineAddress,
}

impl Interpreter {
    pub(super) fn new(owner: &Instance, address: &EngineAddress) -> Self {
        Self { dialect: OnceCell::new(), file: owner.side_file(), address: address.clone() }
    }

    /// The engine's dialect. Without a way to pass the profile there is none, and no sandbox.
    pub(super) async fn dialect(&self, docker: &Docker) -> Result<&Dialect, EngineError> {
        let dialect = self.dialect.get_or_try_init(|| async {
            if self.is_podman(docker).await? { self.podman() } else { Ok(self.docker()) }
        });
        dialect.await
    }

    fn docker(&self) -> Dialect {
        Dialect {
            seccomp: format!("seccomp={}", seccomp::docker_profile()),
            tmpfs: TmpfsOptions::All,
            user_processes: None,
        }
    }

    /// Podman takes the profile as the path of a file, and neither the owner nor the number of files
    /// of a tmpfs.
    fn podman(&self) -> Result<Dialect, EngineError> {
        let refused = |message| EngineError::Refused { call: Call::Create, message };
        if !matches!(self.address, EngineAddress::Unix(_)) {
            return Err(refused(
                "Podman takes the seccomp profile as a file, which it can't find on another \
                 machine: use its Unix socket"
                    .to_owned(),
            ));
        }
        std::fs::write(&self.file, seccomp::docker_profile())
            .map_err(|error| refused(format!("{}: {error}", self.file.display())))?;
        Ok(Dialect {
            seccomp: format!("seccomp={}", self.file.display()),
            tmpfs: TmpfsOptions::SizeAndMode,
            user_processes: Some(USER_PROCESSES),
        })
    }

    async fn is_podman(&self, docker: &Docker) -> Result<bool, EngineError> {
        let shown = self.address.to_string();
        let translate = Translate { call: Call::Check, address: &shown };
        let version = docker.version().await.map_err(|e| translate.error(e))?;
        Ok(is_podman(&version.components.unwrap_or_default()))
    }
}

/// Whether an engine that is made of these parts is Podman.
pub(super) fn is_podman(components: &[SystemVersionComponents]) -> bool {
    components.iter().any(|component| component.name.contains("Podman"))
}
