//! Building an image: a script runs in a copy of another image's root, which then becomes an image.
//!
//! The script is the operator's and works as root, with the network and most of what Docker gives a build.
//! It is kept apart from the machine by namespaces, not held to a sandbox's limits.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;

use super::cgroup::Cgroup;
use super::host::Host;
use super::launcher::{Created, Launcher};
use super::layout::{CONTEXT, NETWORK};
use super::protocol::{Devices, Kind, Places};
use super::{EmbeddedEngine, live, refused, spec};
use crate::engine::store::{Description, Stored};
use crate::engine::{Call, EngineError, Progress};

/// What the script's shell says when all went well.
const DONE: &str = "isolator: the script has ended well";

/// A request to build an image.
pub struct ImageBuild<'a> {
    /// Name of the image.
    pub name: &'a str,
    /// The image to begin with.
    pub base: &'a Stored,
    /// What is unpacked as `/build`: a tar archive, with `install.sh` in it.
    pub context: Vec<u8>,
    /// What the image says of itself.
    pub description: Description,
}

impl EmbeddedEngine {
    /// Builds an image and names it.
    ///
    /// # Errors
    ///
    /// [`EngineError::Refused`] without root, and if the script fails: what it said goes to `progress`.
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
                &"images are built by root only: build them as root or with Docker, write them with \
                  `docker save`, and run `isolator image import FILE`",
            ));
        }
        let staged = self.store.stage().await.map_err(|error| failed(&error))?;
        let staged = staged.copy_from(build.base).await.map_err(|error| failed(&error))?;
        let place = staged.root().join(CONTEXT);
        let ImageBuild { name, context, description, .. } = build;
        let unpacked = self.tasks.spawn_blocking(move || -> io::Result<()> {
            let network = place.join(NETWORK);
            fs::create_dir_all(&network)?;
            for (name, path) in spec::NETWORK_FILES {
                fs::write(network.join(name), fs::read(path).unwrap_or_default())?;
            }
            tar::Archive::new(context.as_slice()).unpack(&place)
        });
        unpacked.await.map_err(io::Error::other).flatten().map_err(|error| failed(&error))?;

        self.write_shared().map_err(|error| failed(&error))?;
        let places = Places {
            images: self.store.images(),
            shared: self.shared(),
            groups: host.second_version.clone(),
            building: Some(staged.root()),
            devices: Devices::Host,
        };
        let launcher = Launcher::start(&self.settings.program, places, None, &self.tasks).await;
        let launcher = launcher.map_err(|error| failed(&error))?;
        let sandbox = format!("isolator-build-{}", uuid::Uuid::new_v4().simple());
        let group = host.groups.as_ref().map(|groups| groups.of(&self.building(), &sandbox));
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

    /// The instance under which builds have their groups: nobody leases them, and they are not sandboxes
    /// that came too late.
    pub(super) fn building(&self) -> String {
        format!("{}+build", self.instance)
    }

    /// Passes on what the script says until it ends, and removes what it ran in.
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

/// Passes lines on, and returns the last.
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
