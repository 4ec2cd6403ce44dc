//! Builds the language images from the folder `images/`, which is part of the binary.

mod docker;
mod embedded;
mod error;
mod script;

use std::env;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use include_dir::{Dir, include_dir};
use isolator_pool::engine::images::{BuiltFrom, Former, ImageBuilder, ImageStore};
use isolator_pool::engine::limits::ByteSize;
use isolator_pool::engine::{Engine, EngineError, Image, Progress, store};
use sha2::{Digest as _, Sha256};

use self::error::refused;
use self::script::Script;
use crate::hex::hex;

static IMAGES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/images");

/// The beginning of the names of our images.
const PREFIX: &str = "isolator/";

/// The base of the language images, if it was built here.
const BASE: &str = "isolator/base";

/// The base of the language images if it can be pulled.
const PUBLIC_BASE: &str = "debian:trixie-slim";

/// Certificates of this machine, because builds may reach the package registries through its proxy.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Space that building the base image takes in the folder for temporary files: Debian's packages, their files, and the archive.
const BASE_ROOM: ByteSize = ByteSize::mib(512);

/// The version of the builder. Raise it when the same folder and the same base give another image than before.
const BUILDER: &str = "1";

/// An engine on which images can be built.
#[async_trait]
pub(crate) trait BuildEngine: Engine + ImageStore {
    /// Whether this machine lets this user build images.
    ///
    /// # Errors
    ///
    /// When something is missing; the error says how to fix it.
    async fn can_build(&self) -> Result<(), EngineError>;

    /// Builds an image of ours.
    async fn build(&self, recipe: Recipe<'_>, progress: Progress<'_>) -> Result<(), EngineError>;

    /// The sources of an image, if it is there and names them.
    async fn built_from(&self, name: &str) -> Result<Option<BuiltFrom>, EngineError>;
}

/// The sources of an image of ours.
pub(crate) struct Recipe<'a> {
    name: &'a str,
    /// An image that is there.
    base: &'a str,
    /// The image's description.
    folder: &'static Dir<'static>,
    /// The build context, as a tar.
    context: Vec<u8>,
    /// The label by which it is recognized later.
    built_from: BuiltFrom,
    former: Former,
}

/// Builds the language images on an engine.
pub(crate) struct LanguageImages {
    engine: Arc<dyn BuildEngine>,
    /// The only image that they may start from, if the operator has chosen one.
    chosen_base: Option<String>,
    /// Held during a build, because two at once would both build the base. The new base of builds that ignore former ones: one is
    /// enough for all images.
    building: tokio::sync::Mutex<Option<Image>>,
    script: Script,
}

impl LanguageImages {
    /// A builder that uses the engine, and the base image if the operator has chosen one.
    pub(crate) fn new(engine: Arc<dyn BuildEngine>, chosen_base: Option<String>) -> Self {
        let (building, script) = Default::default();
        Self { engine, chosen_base, building, script }
    }

    /// The present base images: only the chosen one, or else the one built before and the public one.
    async fn present_bases(&self) -> Result<Vec<Image>, EngineError> {
        let accepted = match &self.chosen_base {
            Some(chosen) => vec![chosen.as_str()],
            None => vec![BASE, PUBLIC_BASE],
        };
        let mut present = Vec::new();
        for name in accepted {
            present.extend(self.engine.find_image(name).await?);
        }
        Ok(present)
    }

    /// The present base image for an image, if there is one: the one that it was built from before, or else the first.
    async fn present_base(&self, name: &str) -> Result<Option<Image>, EngineError> {
        let mut present = self.present_bases().await?;
        let former = self.engine.built_from(name).await?.and_then(|former| former.base);
        let at = present.iter().position(|base| former.as_ref() == Some(&base.digest));
        Ok((!present.is_empty()).then(|| present.swap_remove(at.unwrap_or(0))))
    }

    /// Pulls or builds a base image.
    async fn new_base(&self, progress: Progress<'_>) -> Result<Image, EngineError> {
        let name = match self.chosen_base.as_deref() {
            Some(BASE) => self.build_base(progress).await?,
            Some(chosen) => {
                progress(&format!("pulling {chosen}"));
                self.engine.pull_image(chosen, progress).await.map(|()| chosen)?
            }
            None => self.public_base(progress).await?,
        };
        let image = self.engine.find_image(name).await?;
        image.ok_or_else(|| EngineError::NoSuchImage(name.to_owned()))
    }

    /// Pulls the public base image. Where that fails, one is built.
    async fn public_base(&self, progress: Progress<'_>) -> Result<&'static str, EngineError> {
        progress(&format!("pulling {PUBLIC_BASE}"));
        match self.engine.pull_image(PUBLIC_BASE, progress).await {
            Ok(()) => Ok(PUBLIC_BASE),
            Err(error @ EngineError::Unreachable { .. }) => Err(error),
            Err(error) => {
                progress(&format!(
                    "{error}; building the base image from Debian's packages instead"
                ));
                self.build_base(progress).await
            }
        }
    }

    async fn build_base(&self, progress: Progress<'_>) -> Result<&'static str, EngineError> {
        if !rustix::process::geteuid().is_root() {
            return Err(refused(format!(
                "only root can build the base image: run this as root once, or let the engine get {PUBLIC_BASE} or \
                 what images.base names"
            )));
        }
        let folder = tempfile::tempdir().map_err(refused)?;
        let free = store::free(folder.path());
        if free.is_some_and(|free| free < BASE_ROOM) {
            let needed = format!(
                "the base image takes up to {BASE_ROOM} while it is built; TMPDIR names another folder"
            );
            return Err(EngineError::DiskFull(store::make_room(&env::temp_dir(), &needed).into()));
        }
        let (script, tar) = (folder.path().join("build.sh"), folder.path().join("base.tar"));
        tokio::fs::write(&script, content("base/build.sh")).await.map_err(refused)?;
        self.script.run(&script, &tar, progress).await?;
        self.engine.import(&tar, Some(BASE), progress).await?;
        Ok(BASE)
    }
}

#[async_trait]
impl ImageBuilder for LanguageImages {
    fn makes(&self, name: &str) -> bool {
        folder(name).is_some()
    }

    async fn build(
        &self,
        name: &str,
        former: Former,
        progress: Progress<'_>,
    ) -> Result<(), EngineError> {
        let Some(folder) = folder(name) else {
            return Err(EngineError::NoSuchImage(name.to_owned()));
        };
        self.engine.can_build().await?;
        let mut new_base = self.building.lock().await;
        progress("step 1 of 2: the base image");
        let present = match former {
            Former::Used => self.present_base(name).await?,
            Former::Ignored => new_base.clone(),
        };
        let base = match present {
            Some(base) => base,
            None => self.new_base(progress).await?,
        };
        if former == Former::Ignored {
            *new_base = Some(base.clone());
        }
        progress(&format!("step 2 of 2: building {name} from {}", base.name));
        let context = context(folder).map_err(refused)?;
        let built_from = BuiltFrom { recipe: recipe(folder), base: Some(base.digest) };
        let recipe = Recipe { name, base: &base.name, folder, context, built_from, former };
        self.engine.build(recipe, progress).await
    }

    async fn is_current(&self, name: &str) -> Result<bool, EngineError> {
        let (Some(folder), Some(built_from)) = (folder(name), self.engine.built_from(name).await?)
        else {
            return Ok(false);
        };
        if built_from.recipe != recipe(folder) {
            return Ok(false);
        }
        // The base of a copy from another engine is unknown. It is not taken for a chosen one.
        let Some(base) = built_from.base else { return Ok(self.chosen_base.is_none()) };
        let present = self.present_bases().await?;
        // A base that was removed is no reason to build, because the next one may be the same. A chosen one has to be the base.
        let is_gone = present.is_empty() && self.chosen_base.is_none();
        Ok(is_gone || present.iter().any(|present| present.digest == base))
    }

    async fn can_build(&self) -> Result<(), EngineError> {
        self.engine.can_build().await
    }

    async fn settle(&self) {
        self.script.settle().await;
    }
}

/// The digest of everything that determines the result of a build, besides its base. The certificates of this machine don't: they
/// only let it reach the registries, and the locks name the packages.
fn recipe(folder: &Dir<'_>) -> String {
    let mut digest = Sha256::new_with_prefix(BUILDER);
    let mut add = |field: &[u8]| {
        digest.update((field.len() as u64).to_le_bytes());
        digest.update(field);
    };
    let mut files: Vec<_> = folder.files().map(|file| (file.path(), file.contents())).collect();
    files.push((Path::new("common.sh"), content("common.sh")));
    files.sort_unstable();
    for (path, content) in files {
        add(path.as_os_str().as_encoded_bytes());
        add(content);
    }
    hex(&digest.finalize())
}

/// The folder of an image of ours.
fn folder(name: &str) -> Option<&'static Dir<'static>> {
    let name = name.strip_suffix(":latest").unwrap_or(name);
    let folder = IMAGES.get_dir(name.strip_prefix(PREFIX)?)?;
    folder.get_file(folder.path().join("Dockerfile")).map(|_| folder)
}

/// The build context: the image's own files, the common ones, and the certificates.
fn context(folder: &Dir<'_>) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for file in folder.files() {
        let name = file.path().file_name().unwrap_or_default();
        append(&mut archive, Path::new(name), file.contents())?;
    }
    append(&mut archive, Path::new("common.sh"), content("common.sh"))?;
    let certificates = env::var_os("SSL_CERT_FILE").unwrap_or_else(|| CERTIFICATES.into());
    // Without them the image's own are used.
    let certificates = std::fs::read(certificates).unwrap_or_default();
    append(&mut archive, Path::new("ca-certificates.crt"), &certificates)?;
    archive.into_inner()
}

fn append(archive: &mut tar::Builder<Vec<u8>>, name: &Path, content: &[u8]) -> std::io::Result<()> {
    let is_script = name.extension().is_some_and(|extension| extension == "sh");
    let mut header = tar::Header::new_gnu();
    header.set_mode(if is_script { 0o755 } else { 0o644 });
    header.set_size(content.len() as u64);
    archive.append_data(&mut header, name, content)
}

fn content(path: &str) -> &'static [u8] {
    IMAGES.get_file(path).map(include_dir::File::contents).unwrap_or_default()
}

#[cfg(test)]
mod tests;
