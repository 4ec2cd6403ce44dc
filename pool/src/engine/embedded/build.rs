//! Building an image: a script runs in a copy of another image's root, and the result becomes an image.
//!
//! The script is the operator's. It runs as root, with the network and with most of what Docker gives a
//! build. Namespaces separate it from the machine; a sandbox's limits don't apply.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;

use super::cgroup::Cgroup;
use super::host::Host;
use super::launcher::{Created, Launcher};
use super::layout::{CONTEXT, NETWORK};
use super::protocol::{Devices, Kind, LauncherPaths};
use super::{EmbeddedEngine, live, refused, spec};
use crate::engine::store::{Description, Stored};
use crate::engine::{Call, EngineError, Progress};

/// The last line that the script's shell prints if the script succeeded.
const DONE: &str = "isolator: the script has ended well";

/// A request to build an image.
pub struct ImageBuild<'a> {
    /// Name of the image.
    pub name: &'a str,
    /// The image that the build starts from.
    pub base: &'a Stored,
    /// A tar archive with `install.sh` in it, unpacked to `/build`.
    pub context: Vec<u8>,
    /// The description of the new image.
    pub description: Description,
}

impl EmbeddedEngine {
    /// Builds an image and names it.
    ///
    /// # Errors
    ///
    /// [`EngineError::Refused`] without root, and if the script fails; its output goes to `progress`.
    /// Dropping the future ends the script and leaves no image.
    pub async fn build_image(
        &self,
        build: ImageBuild<'_>,
        progress: Progress<'_>,
    ) -> Result<(), EngineError> {
        let failed = |error: &dyn std::fmt::Display| refused(Call::FetchImage, error);
        let host = self.host()?;
        if host.grant.is_some() {
            return Err(failed(
                &"only root can build images: run this as root, or build the image with Docker, save it \
                  with `docker save`, and run `isolator image import FILE`",
            ));
        }
        let staged = self.store.stage().await.map_err(|error| failed(&error))?;
        let staged = staged.copy_from(build.base).await.map_err(|error| failed(&error))?;
        // Without this, a link in the base image could lead what is written there to the host.
        let staged = staged.begin_build(CONTEXT).await.map_err(|error| failed(&error))?;
        let context_folder = staged.root().join(CONTEXT);
        let ImageBuild { name, context, description, .. } = build;
        let unpacked = self.tasks.spawn_blocking(move || -> io::Result<()> {
            let network = context_folder.join(NETWORK);
            fs::create_dir(&network)?;
            for (name, path) in spec::NETWORK_FILES {
                fs::write(network.join(name), fs::read(path).unwrap_or_default())?;
            }
            tar::Archive::new(context.as_slice()).unpack(&context_folder)
        });
        unpacked.await.map_err(io::Error::other).flatten().map_err(|error| failed(&error))?;

        self.write_shared().map_err(|error| failed(&error))?;
        let paths = LauncherPaths {
            images: self.store.images(),
            shared: self.shared(),
            groups: host.version_two_mount.clone(),
            building: Some(staged.root()),
            devices: Devices::Host,
        };
        let launcher = Launcher::start(&self.settings.program, paths, None, &self.tasks).await;
        let launcher = launcher.map_err(|error| failed(&error))?;
        let sandbox = format!("isolator-build-{}", uuid::Uuid::new_v4().simple());
        let group =
            host.groups.as_ref().map(|groups| Cgroup::new(groups, &self.building(), &sandbox));
        let script = format!("exec 2>&1; /build/install.sh && rm -rf /build && echo '{DONE}'");
        let spec = spec::build(&script, group.as_ref());
        let created = launcher.create(&sandbox, spec, Kind::Build, None).await;
        let ended = match created {
            Ok(created) => self.follow(created, group, progress).await,
            Err(message) => Err(io::Error::other(message)),
        };
        ended.map_err(|error| failed(&error))?;
        let names = [name.to_owned()];
        let committed = self.store.commit(staged, description, &names).await;
        committed.map(|_| ()).map_err(|error| failed(&error))
    }

    /// The instance name for the control groups of builds. Nobody leases them, so they must not be mistaken for
    /// forgotten sandboxes.
    pub(super) fn building(&self) -> String {
        format!("{}+build", self.instance)
    }

    /// Passes on the script's output until it ends, then removes its sandbox.
    async fn follow(
        &self,
        created: Created,
        group: Option<Cgroup>,
        progress: Progress<'_>,
    ) -> io::Result<()> {
        let Created { stream, log: _, process } = created;
        let last = pass_on(stream, progress).await;
        let process = std::sync::Arc::new(process);
        let removed = self.tasks.spawn_blocking(move || live::remove(Some(process), group));
        removed.await.map_err(io::Error::other).flatten()?;
        if let Ok(Host { groups: Some(groups), .. }) = &self.host {
            groups.remove_instance(&self.building())?;
        }
        match last?.as_str() {
            DONE => Ok(()),
            last => Err(io::Error::other(format!("the script failed: {last}"))),
        }
    }
}

/// Passes on lines, and returns the last one that is not blank.
async fn pass_on(stream: OwnedFd, progress: Progress<'_>) -> io::Result<String> {
    let stream = std::os::unix::net::UnixStream::from(stream);
    stream.set_nonblocking(true)?;
    let mut lines = BufReader::new(UnixStream::from_std(stream)?).split(b'\n');
    let mut last = String::new();
    while let Some(line) = lines.next_segment().await? {
        let line = String::from_utf8_lossy(&line).into_owned();
        if line != DONE {
            progress(&line);
        }
        if !line.trim().is_empty() {
            last = line;
        }
    }
    Ok(last)
}
