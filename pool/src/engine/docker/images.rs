//! Images on a Docker engine.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, Read};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bollard::models::{CreateImageInfo, ErrorDetail, ImageInspect, ImageSummary};
use bollard::query_parameters::{
    BuildImageOptionsBuilder, BuilderVersion, CreateImageOptionsBuilder, ImportImageOptionsBuilder,
    ListImagesOptionsBuilder, RemoveImageOptions, TagImageOptionsBuilder,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};
use tokio_util::io::ReaderStream;

use super::{DockerEngine, error};
use crate::engine::images::{BuiltFrom, Former, ImageStore, ListedImage, Pruned};
use crate::engine::{Call, EngineError, Image, Progress};

/// Looks an image up.
pub(super) async fn find(engine: &DockerEngine, name: &str) -> Result<Option<Image>, EngineError> {
    let Some(inspected) = inspect(engine, name).await? else { return Ok(None) };
    let ImageInspect { id, size, config, .. } = inspected;
    let Some(digest) = id else { return Ok(None) };
    let volumes = config.and_then(|config| config.volumes).unwrap_or_default();
    let size = u64::try_from(size.unwrap_or(0)).unwrap_or(0);
    Ok(Some(Image { name: name.to_owned(), digest, size, volumes }))
}

async fn inspect(engine: &DockerEngine, name: &str) -> Result<Option<ImageInspect>, EngineError> {
    match engine.docker().await?.inspect_image(name).await {
        Ok(inspected) => Ok(Some(inspected)),
        Err(error) if error::status(&error) == Some(404) => Ok(None),
        Err(error) => Err(engine.failed(Call::FindImage)(error)),
    }
}

/// Pulls an image from its registry.
pub(super) async fn pull(
    engine: &DockerEngine,
    name: &str,
    progress: Progress<'_>,
) -> Result<(), EngineError> {
    let (repository, tag) = split_name(name);
    let options = CreateImageOptionsBuilder::new().from_image(repository).tag(tag).build();
    let lines = engine.docker().await?.create_image(Some(options), None, None);
    let pulled = follow(engine, lines, progress).await;
    with_room(engine, pulled, "an image takes about four times what its registry says").await
}

/// Adds the folder that needs room, and how much, to the error of a full disk.
async fn with_room(
    engine: &DockerEngine,
    fetched: Result<(), EngineError>,
    needed: &str,
) -> Result<(), EngineError> {
    let Err(EngineError::DiskFull(cause)) = fetched else { return fetched };
    let info = engine.docker().await?.info().await.ok();
    let folder = info.and_then(|info| info.docker_root_dir);
    let folder = folder.unwrap_or_else(|| "the engine's folder".to_owned());
    Err(EngineError::DiskFull(format!("{cause}; make room in {folder}: {needed}").into()))
}

/// An image's repository and its tag, or its digest in the place of the tag.
fn split_name(name: &str) -> (&str, &str) {
    if let Some((repository, digest)) = name.split_once('@') {
        return (repository, digest);
    }
    match name.rsplit_once(':') {
        // A colon before a slash is a port.
        Some((repository, tag)) if !tag.contains('/') => (repository, tag),
        _ => (name, "latest"),
    }
}

/// A request to build an image.
pub struct ImageBuild<'a> {
    /// Name of the image.
    pub name: &'a str,
    /// The build context as a tar, with a `Dockerfile`.
    pub context: Vec<u8>,
    /// Values of the `Dockerfile`'s arguments.
    pub arguments: HashMap<String, String>,
    /// Its origin, by which it is recognized later.
    pub built_from: BuiltFrom,
    /// Whether the engine may use its cache of earlier builds.
    pub former: Former,
}

impl DockerEngine {
    /// Builds an image with the engine's own builder. The steps use the engine's host network,
    /// because they fetch packages.
    ///
    /// # Errors
    ///
    /// The engine's; the output of the step that failed goes to `progress`.
    pub async fn build_image(
        &self,
        build: ImageBuild<'_>,
        progress: Progress<'_>,
    ) -> Result<(), EngineError> {
        let BuiltFrom { recipe, base } = build.built_from;
        let labels = [(RECIPE, Some(recipe)), (BASE, base)];
        let labels: HashMap<_, _> =
            labels.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        let options = BuildImageOptionsBuilder::new()
            .t(build.name)
            .buildargs(&build.arguments)
            .labels(&labels)
            .nocache(build.former == Former::Ignored)
            .networkmode("host")
            .rm(true)
            .forcerm(true)
            .version(BuilderVersion::BuilderV1)
            .build();
        let context = bollard::body_full(build.context.into());
        let mut lines =
            std::pin::pin!(self.docker().await?.build_image(options, None, Some(context)));
        let built = async {
            while let Some(line) = lines.next().await {
                let line = line.map_err(self.failed(Call::FetchImage))?;
                let output = line.stream.unwrap_or_default();
                output.lines().filter(|line| !line.trim().is_empty()).for_each(progress);
                check_error(line.error_detail)?;
            }
            Ok(())
        };
        let needed = "a build takes up to 4 GiB there, with what the engine keeps of it";
        with_room(self, built.await, needed).await
    }

    /// The origin of an image, if its labels have it.
    ///
    /// # Errors
    ///
    /// The engine's.
    pub async fn built_from(&self, name: &str) -> Result<Option<BuiltFrom>, EngineError> {
        let config = inspect(self, name).await?.and_then(|inspected| inspected.config);
        let mut labels = config.and_then(|config| config.labels).unwrap_or_default();
        let base = labels.remove(BASE);
        Ok(labels.remove(RECIPE).map(|recipe| BuiltFrom { recipe, base }))
    }

    /// Makes an image from a tar of a root file system.
    ///
    /// # Errors
    ///
    /// The engine's.
    async fn import_image(
        &self,
        name: &str,
        tar: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
        progress: Progress<'_>,
    ) -> Result<(), EngineError> {
        let (repository, tag) = split_name(name);
        let options =
            CreateImageOptionsBuilder::new().from_src("-").repo(repository).tag(tag).build();
        let tar = bollard::body_try_stream(tar);
        let lines = self.docker().await?.create_image(Some(options), Some(tar), None);
        follow(self, lines, progress).await
    }
}

/// The label of all images that Isolator has built, intermediate ones included.
const LABEL: &str = "isolator.image";

/// Its value on an intermediate image of a build.
const STAGE: &str = "build";

/// The labels with the origin of an image.
const RECIPE: &str = "isolator.recipe";
const BASE: &str = "isolator.base";

#[async_trait]
impl ImageStore for DockerEngine {
    async fn list(&self) -> Result<Vec<ListedImage>, EngineError> {
        let listed = labelled(self, &[]).await?;
        let listed = listed.into_iter().filter_map(|image| {
            // Older engines give this name to an image that has none.
            let names = image.repo_tags.into_iter().filter(|name| name != "<none>:<none>");
            let names: Vec<_> = names.collect();
            // Intermediate images stay for the next build.
            let is_stage = image.labels.get(LABEL).is_some_and(|label| label == STAGE);
            let size = u64::try_from(image.size).unwrap_or(0);
            (!is_stage || !names.is_empty()).then_some(ListedImage {
                names,
                digest: image.id,
                size,
            })
        });
        Ok(listed.collect())
    }

    async fn import(
        &self,
        file: &Path,
        name: Option<&str>,
        progress: Progress<'_>,
    ) -> Result<Vec<String>, EngineError> {
        let unreadable = |error: std::io::Error| {
            error::refused(Call::FetchImage, format!("{}: {error}", file.display()))
        };
        let (source, _copy) = read_again(file).await.map_err(unreadable)?;
        let open = async || tokio::fs::File::open(&source).await.map(ReaderStream::new);
        if !contains_images(source.clone()).await.map_err(unreadable)? {
            let name = name.ok_or_else(|| {
                let message = "it is a root file system, which has no name of its own: give it one with --name";
                error::refused(Call::FetchImage, format!("{}: {message}", file.display()))
            })?;
            self.import_image(name, open().await.map_err(unreadable)?, progress).await?;
            return Ok(vec![name.to_owned()]);
        }
        let loaded = load(self, open().await.map_err(unreadable)?, progress).await?;
        match (name, loaded.as_slice()) {
            (None, _) => Ok(loaded),
            (Some(name), [image]) => {
                let (repo, tag) = split_name(name);
                let options = TagImageOptionsBuilder::new().repo(repo).tag(tag).build();
                let tagged = self.docker().await?.tag_image(image, Some(options)).await;
                tagged.map_err(self.failed(Call::FetchImage))?;
                Ok(vec![name.to_owned()])
            }
            (Some(_), images) => {
                let message = format!(
                    "the archive holds {} images, and --name can name only one: {images:?}",
                    images.len()
                );
                Err(error::refused(Call::FetchImage, message))
            }
        }
    }

    async fn remove(&self, name: &str) -> Result<(), EngineError> {
        let removed =
            self.docker().await?.remove_image(name, None::<RemoveImageOptions>, None).await;
        match removed {
            Ok(_) => Ok(()),
            Err(error) if error::status(&error) == Some(404) => {
                Err(EngineError::NoSuchImage(name.to_owned()))
            }
            Err(error) => Err(self.failed(Call::RemoveImage)(error)),
        }
    }

    async fn prune(&self) -> Result<Pruned, EngineError> {
        let mut pruned = Pruned::default();
        for image in labelled(self, &[("dangling", "true")]).await? {
            match self.remove(&image.id).await {
                Ok(()) => {
                    pruned.images += 1;
                    pruned.bytes += u64::try_from(image.size).unwrap_or(0);
                }
                // Another image is based on it.
                Err(EngineError::Refused { cause, .. }) => {
                    tracing::debug!(%cause, "the engine kept an image")
                }
                Err(EngineError::NoSuchImage(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(pruned)
    }
}

/// Images that have our label and match the other filters.
async fn labelled(
    engine: &DockerEngine,
    filters: &[(&str, &str)],
) -> Result<Vec<ImageSummary>, EngineError> {
    let filters = [("label", LABEL)].iter().chain(filters);
    let filters: HashMap<_, _> = filters.map(|(key, value)| (*key, vec![*value])).collect();
    let options = ListImagesOptionsBuilder::new().filters(&filters).build();
    let listed = engine.docker().await?.list_images(Some(options)).await;
    listed.map_err(engine.failed(Call::FindImage))
}

/// Loads an archive of images into the engine; returns their names.
async fn load(
    engine: &DockerEngine,
    archive: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    progress: Progress<'_>,
) -> Result<Vec<String>, EngineError> {
    const LOADED: [&str; 2] = ["Loaded image: ", "Loaded image ID: "];
    let archive = bollard::body_try_stream(archive);
    let options = ImportImageOptionsBuilder::new().build();
    let mut lines = std::pin::pin!(engine.docker().await?.import_image(options, archive, None));
    let mut loaded = Vec::new();
    while let Some(line) = lines.next().await {
        let line = line.map_err(engine.failed(Call::FetchImage))?;
        check_error(line.error_detail)?;
        for output in line.stream.unwrap_or_default().lines() {
            progress(output);
            let name = LOADED.into_iter().find_map(|words| output.strip_prefix(words));
            loaded.extend(name.map(|name| name.trim().to_owned()));
        }
    }
    Ok(loaded)
}

/// A path from which a file can be read more than once: its own, or that of a copy of a pipe, which exists as long as the
/// returned file.
async fn read_again(file: &Path) -> std::io::Result<(PathBuf, Option<File>)> {
    let path = file.to_owned();
    let copy = move || {
        let mut opened = File::open(&path)?;
        if opened.metadata()?.is_file() {
            return Ok((path, None));
        }
        // It has no name, so nothing is left of it when this process is killed.
        let mut copy = tempfile::tempfile()?;
        std::io::copy(&mut opened, &mut copy)?;
        Ok((format!("/proc/self/fd/{}", copy.as_raw_fd()).into(), Some(copy)))
    };
    tokio::task::spawn_blocking(copy).await.map_err(std::io::Error::other)?
}

/// Whether an archive, which may be gzipped, contains images rather than a root file system.
async fn contains_images(file: PathBuf) -> std::io::Result<bool> {
    let look = move || {
        let mut reader = std::io::BufReader::new(std::fs::File::open(&file)?);
        let is_compressed = reader.fill_buf()?.starts_with(&[0x1f, 0x8b]);
        let reader: Box<dyn Read> = if is_compressed {
            Box::new(flate2::bufread::GzDecoder::new(reader))
        } else {
            Box::new(reader)
        };
        for entry in tar::Archive::new(reader).entries()? {
            let entry = entry?;
            let path = entry.path()?;
            if ["manifest.json", "oci-layout", "index.json"]
                .iter()
                .any(|name| path == Path::new(name))
            {
                return Ok(true);
            }
        }
        Ok(false)
    };
    tokio::task::spawn_blocking(look).await.map_err(std::io::Error::other)?
}

/// Reads an engine's progress report to its end. Each change of status is passed on as a line; the
/// progress of a download is not.
async fn follow(
    engine: &DockerEngine,
    lines: impl Stream<Item = Result<CreateImageInfo, bollard::errors::Error>>,
    progress: Progress<'_>,
) -> Result<(), EngineError> {
    let mut lines = std::pin::pin!(lines);
    let mut last = String::new();
    while let Some(line) = lines.try_next().await.map_err(engine.failed(Call::FetchImage))? {
        check_error(line.error_detail)?;
        let status = line.status.unwrap_or_default();
        if status != last && !status.is_empty() {
            progress(&status);
            last = status;
        }
    }
    Ok(())
}

fn check_error(detail: Option<ErrorDetail>) -> Result<(), EngineError> {
    match detail.and_then(|detail| detail.message) {
        Some(message) => Err(error::refused(Call::FetchImage, message)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_follows_the_last_colon_after_the_last_slash() {
        assert_eq!(split_name("isolator/python"), ("isolator/python", "latest"));
        assert_eq!(split_name("python:3.13-slim"), ("python", "3.13-slim"));
        assert_eq!(split_name("registry:5000/team/image"), ("registry:5000/team/image", "latest"));
        assert_eq!(split_name("registry:5000/image:v1"), ("registry:5000/image", "v1"));
        assert_eq!(split_name("image@sha256:abc"), ("image", "sha256:abc"));
    }
}
