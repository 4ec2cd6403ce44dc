//! Differences between the engines that speak Docker's API.

use std::path::PathBuf;

use bollard::Docker;
use bollard::models::SystemVersionComponents;
use tokio::sync::OnceCell;

use super::connect::EngineAddress;
use super::error::translate;
use crate::engine::instance::Instance;
use crate::engine::seccomp;
use crate::engine::{Call, EngineError, refused};

/// How this engine expects the options that all containers have in common.
#[derive(Debug)]
pub(super) struct Dialect {
    /// The security option that carries the seccomp profile.
    pub(super) seccomp: String,
    /// Which options a tmpfs can have.
    pub(super) tmpfs: TmpfsOptions,
}

/// Which options a tmpfs can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TmpfsOptions {
    /// Size, number of files, owner.
    All,
    /// Size and mode. Its mode lets every user write. The memory limit covers the number of files
    /// as far as the kernel charges for them, as it does with cgroup v2.
    SizeAndMode,
}

/// Finds the engine's dialect when the first container is made.
pub(super) struct DialectProbe {
    found: OnceCell<Dialect>,
    /// Where the profile is written if the engine reads it from a file.
    file: PathBuf,
    address: EngineAddress,
}

impl DialectProbe {
    pub(super) fn new(instance: &Instance, address: &EngineAddress) -> Self {
        Self { found: OnceCell::new(), file: instance.side_file(), address: address.clone() }
    }

    /// The engine's dialect, or an error if the profile can't be passed to this engine: without it no sandbox
    /// is made.
    pub(super) async fn dialect(&self, docker: &Docker) -> Result<&Dialect, EngineError> {
        let dialect = self.found.get_or_try_init(|| async {
            if self.is_podman(docker).await? { self.podman() } else { Ok(self.docker()) }
        });
        let dialect = dialect.await?;
        if dialect.tmpfs == TmpfsOptions::SizeAndMode && !self.file.exists() {
            // It was deleted meanwhile.
            self.write_profile()?;
        }
        Ok(dialect)
    }

    fn docker(&self) -> Dialect {
        Dialect {
            seccomp: format!("seccomp={}", seccomp::docker_profile()),
            tmpfs: TmpfsOptions::All,
        }
    }

    /// Podman takes the profile as the path of a file. It can't limit the number of files of a tmpfs, nor set
    /// its owner.
    fn podman(&self) -> Result<Dialect, EngineError> {
        if !matches!(self.address, EngineAddress::Unix(_)) {
            return Err(refused(
                Call::Create,
                "Podman reads the seccomp profile from a file on its own machine: connect to its \
                 Unix socket, not over TCP",
            ));
        }
        self.write_profile()?;
        Ok(Dialect {
            seccomp: format!("seccomp={}", self.file.display()),
            tmpfs: TmpfsOptions::SizeAndMode,
        })
    }

    fn write_profile(&self) -> Result<(), EngineError> {
        let folder = self.file.parent().unwrap_or(&self.file);
        let written = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&self.file, seccomp::docker_profile()));
        written.map_err(|error| {
            let message = format!("{}: {error}", self.file.display());
            refused(Call::Create, message)
        })
    }

    async fn is_podman(&self, docker: &Docker) -> Result<bool, EngineError> {
        let shown = self.address.to_string();
        let version = docker.version().await;
        let version = version.map_err(|error| translate(Call::Check, &shown, error))?;
        Ok(is_podman(&version.components.unwrap_or_default()))
    }
}

/// Whether an engine with these components is Podman.
pub(super) fn is_podman(components: &[SystemVersionComponents]) -> bool {
    components.iter().any(|component| component.name.contains("Podman"))
}
