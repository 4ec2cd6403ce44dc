//! Images on a Docker engine.

use std::collections::HashMap;

use bollard::models::{CreateImageInfo, ErrorDetail, ImageInspect};
use bollard::query_parameters::{
    BuildImageOptionsBuilder, BuilderVersion, CreateImageOptionsBuilder,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};

use super::{DockerEngine, error};
use crate::engine::{Call, EngineError, Image, Progress};

/// Looks an image up.
pub(super) async fn find(engine: &DockerEngine, name: &str) -> Result<Option<Image>, EngineError> {
    let inspected = match engine.docker().await?.inspect_image(name).await {
        Ok(inspected) => inspected,
        Err(error) if error::status(&error) == Some(404) => return Ok(None),
        Err(error) => return Err(engine.translate(Call::FindImage).error(error)),
    };
    let ImageInspect { id, size, config, .. } = inspected;
    let Some(digest) = id else { return Ok(None) };
    let volumes = config.and_then(|config| config.volumes).unwrap_or_default();
    let size = u64::try_from(size.unwrap_or(0)).unwrap_or(0);
    Ok(Some(Image { name: name.to_owned(), digest, size, volumes }))
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
    follow(engine, lines, progress).await
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
        let options = BuildImageOptionsBuilder::new()
            .t(build.name)
            .buildargs(&build.arguments)
            .networkmode("host")
            .rm(true)
            .forcerm(true)
            .version(BuilderVersion::BuilderV1)
            .build();
        let context = bollard::body_full(build.context.into());
        let mut lines =
            std::pin::pin!(self.docker().await?.build_image(options, None, Some(context)));
        while let Some(line) = lines.next().await {
            let line = line.map_err(|e| self.translate(Call::FetchImage).error(e))?;
            let said = line.stream.unwrap_or_default();
            said.lines().filter(|line| !line.trim().is_empty()).for_each(progress);
            fail_if_told(line.error_detail)?;
        }
        Ok(())
    }

    /// Makes an image of a root file system that comes as a tar.
    ///
    /// # Errors
    ///
    /// The engine's.
    pub async fn import_image(
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

/// Reads an engine's report to its end. Each change of status is a line; the steps of a download
/// are not.
async fn follow(
    engine: &DockerEngine,
    lines: impl Stream<Item = Result<CreateImageInfo, bollard::errors::Error>>,
    progress: Progress<'_>,
) -> Result<(), EngineError> {
    let mut lines = std::pin::pin!(lines);
    let mut last = String::new();
    while let Some(line) =
        lines.try_next().await.map_err(|e| engine.translate(Call::FetchImage).error(e))?
    {
        fail_if_told(line.error_detail)?;
        let status = line.status.unwrap_or_default();
        if status != last && !status.is_empty() {
            progress(&status);
            last = status;
        }
    }
    Ok(())
}

fn fail_if_told(detail: Option<ErrorDetail>) -> Result<(), EngineError> {
    match detail.and_then(|detail| detail.message) {
        Some(message) => Err(error::refused(Call::FetchImage, message)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_what_follows_the_last_colon_behind_the_last_slash() {
        assert_eq!(split_name("isolator/python"), ("isolator/python", "latest"));
        assert_eq!(split_name("python:3.13-slim"), ("python", "3.13-slim"));
        assert_eq!(split_name("registry:5000/team/image"), ("registry:5000/team/image", "latest"));
        assert_eq!(split_name("registry:5000/image:v1"), ("registry:5000/image", "v1"));
        assert_eq!(split_name("image@sha256:abc"), ("image", "sha256:abc"));
    }
}
