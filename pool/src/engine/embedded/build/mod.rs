//! Building an image: a script runs in a copy of another image's root, and the result becomes an image.
//!
//! The script is the operator's, but the packages that it installs are not trusted. So it runs in a sandbox,
//! too: with users of its own, of which one is root there, with a sandbox's system calls and with limits. Unlike
//! a program it can write to the root, and it has a network.

mod network;
mod output;

use std::fs;
use std::io;

use tokio::io::AsyncWriteExt;

use self::network::BuildNetwork;
use super::build_limits;
use super::cgroups::{Cgroup, Hierarchies};
use super::host::{Host, Ids};
use super::labels::{self, BUILDS};
use super::launcher_client::{LauncherClient, SandboxHandles};
use super::layout::{CONTEXT, NETWORK};
use super::protocol::{Building, LauncherPaths};
use super::shared::write;
use super::{EmbeddedEngine, live, refused, spec, store_refused};
use crate::engine::store::{self, Description, StoreError, Stored};
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
    /// Whether this user can build images on this machine. Builds have requirements beyond those of sandboxes.
    ///
    /// # Errors
    /// The missing requirement, and how to fix it.
    pub fn can_build_images(&self) -> Result<(), EngineError> {
        self.host()
            .and_then(Self::ids_of_build)
            .and_then(|_| network::is_installed().map_err(|error| refused(Call::FetchImage, error)))
    }

    /// The users of a build.
    fn ids_of_build(host: &Host) -> Result<Ids, EngineError> {
        let failed = |message: &str| refused(Call::FetchImage, message);
        if host.grant.is_some() {
            return Err(failed(
                "only root can build images: run this as root, or build the image with Docker, save it \
                 with `docker save`, and run `isolator image import FILE`",
            ));
        }
        host.next_ids().ok_or_else(|| {
            failed(
                "builds need users of their own, and no user namespace can be made here; as root, run: \
                 sysctl -w user.max_user_namespaces=15000",
            )
        })
    }

    /// Builds an image and names it.
    ///
    /// # Errors
    ///
    /// Those of [`can_build_images`](Self::can_build_images), and [`EngineError::Refused`] if the script fails or
    /// reaches a limit, and if the machine lacks what separates builds from it. The script's output goes to `progress`.
    /// Dropping the future ends the script and leaves no image.
    pub async fn build_image(
        &self,
        build: ImageBuild<'_>,
        progress: Progress<'_>,
    ) -> Result<(), EngineError> {
        let failed = |error: io::Error| refused(Call::FetchImage, error);
        let host = self.host()?;
        let ids = Self::ids_of_build(host)?;
        let store = self.settings.images.as_path();
        let store_failed = |error: StoreError| {
            let error = error.with_room(store, || build_limits::NEEDED.to_owned());
            store_refused(Call::FetchImage, error)
        };
        let resolv_conf = network::resolv_conf().map_err(failed)?;
        let staged = self.store.stage().await.map_err(store_failed)?;
        let staged = staged.copy_from(build.base).await.map_err(store_failed)?;
        // Without this, a link in the base image could lead what is written there to the host.
        let staged = staged.begin_build(CONTEXT).await.map_err(store_failed)?;
        let context_folder = staged.root().join(CONTEXT);
        let ImageBuild { name, context, description, .. } = build;
        let unpacked = self.blocking(move || {
            let network = context_folder.join(NETWORK);
            for (name, path) in spec::NETWORK_FILES {
                let content = match path {
                    store::RESOLV_CONF => resolv_conf.clone().into_bytes(),
                    _ => fs::read(path).unwrap_or_default(),
                };
                // Package managers read it as a user of their own.
                write(&network, &network.join(name), &content, 0o644)?;
            }
            tar::Archive::new(context.as_slice()).unpack(&context_folder)
        });
        unpacked.await.map_err(failed)?;

        self.write_shared().map_err(failed)?;
        let paths = LauncherPaths {
            images: self.store.images(),
            shared: self.shared(),
            packages: None,
            groups: host.version_two_mount.clone(),
            favordynmods: None,
            building: Some(Building { root: staged.root(), ids }),
        };
        let launcher =
            LauncherClient::start(&self.settings.program, paths, None, &self.tasks).await;
        let launcher = launcher.map_err(failed)?;
        let sandbox = format!("isolator-build-{}", uuid::Uuid::new_v4().simple());
        let group =
            host.groups.as_ref().map(|groups| Cgroup::new(groups, &self.building(), &sandbox));
        // It waits for the network first.
        let script = format!(
            "read -r go || exit 1; exec </dev/null 2>&1; \
             /build/install.sh && rm -rf /build && echo '{DONE}'"
        );
        let plan = spec::build(&script, host, group.as_ref(), ids);
        let created = launcher.create(&sandbox, plan).await;
        let ended = match created {
            Ok(created) => self.follow(created, group, progress).await,
            Err(message) => Err(io::Error::other(message)),
        };
        if let Err(error) = ended {
            // Here, and not when it is dropped: the process may end before that is done.
            staged.discard().await;
            return Err(match store::is_full(&error) {
                true => EngineError::DiskFull(error.into()),
                false => failed(error),
            });
        }
        progress(&format!("storing {name}"));
        let names = [name.to_owned()];
        let committed = self.store.commit(staged, description, &names).await;
        committed.map(|_| ()).map_err(store_failed)
    }

    /// The instance name for the control groups of builds.
    pub(super) fn building(&self) -> String {
        format!("{}{BUILDS}", self.instance)
    }

    /// Removes the processes and groups of builds whose future was dropped, and of builds, tools and templates whose server has
    /// ended.
    pub(super) async fn remove_builds(
        &self,
        groups: &Hierarchies,
        is_dead: impl Fn(&str) -> bool,
    ) -> io::Result<()> {
        let mut left = groups.list()?;
        left.retain(|(instance, _)| labels::is_auxiliary(instance) && is_dead(instance));
        let left: Vec<_> =
            left.iter().map(|(instance, name)| Cgroup::new(groups, instance, name)).collect();
        self.blocking(move || left.iter().try_for_each(Cgroup::remove)).await
    }

    /// Starts the script, passes on its output until it ends or reaches a limit, and removes its sandbox.
    async fn follow(
        &self,
        created: SandboxHandles,
        group: Option<Cgroup>,
        progress: Progress<'_>,
    ) -> io::Result<()> {
        let SandboxHandles { stream, log: _, process } = created;
        let run = async {
            let mut stream = output::stream(stream)?;
            let _network = BuildNetwork::connect(&process).await?;
            stream.write_all(b"go\n").await?;
            output::pass_on(stream, DONE, progress).await
        };
        let last = tokio::select! {
            last = run => last,
            limit = build_limits::reached(self.settings.images.clone(), group.clone()) => Err(limit),
        };
        // The script may have ended because of it.
        let reached = group.as_ref().and_then(Cgroup::reached);
        let process = std::sync::Arc::new(process);
        self.blocking(move || live::remove(Some(process), group)).await?;
        if let Ok(Host { groups: Some(groups), .. }) = &self.host {
            groups.remove_instance(&self.building())?;
        }
        if let Some(kind) = reached {
            return Err(io::Error::other(build_limits::of_group(kind)));
        }
        match last?.as_str() {
            DONE => Ok(()),
            last => Err(io::Error::other(format!("the script failed: {last}"))),
        }
    }
}
