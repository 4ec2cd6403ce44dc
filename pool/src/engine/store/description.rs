//! The description of an image.

use std::path::{Component, Path};

use oci_spec::image::{Arch, ImageConfiguration, Os};
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::error::StoreError;

/// The variables and volumes of an image, and when it was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Variables for its programs, in the form `NAME=VALUE`.
    pub env: Vec<String>,
    /// Absolute paths that it declares as volumes.
    pub volumes: Vec<String>,
    /// When it was made, according to its maker.
    pub created: Option<String>,
}

/// What is read from the configuration of an OCI or Docker image.
#[derive(Debug)]
pub(super) struct Configuration {
    pub(super) description: Description,
    /// Digests of the uncompressed layers.
    pub(super) diff_ids: Vec<Digest>,
}

impl Configuration {
    /// Reads a configuration.
    pub(super) fn parse(what: &str, json: &[u8]) -> Result<Self, StoreError> {
        let unusable = |message: &str| StoreError::unusable(what, message);
        let configuration: ImageConfiguration =
            serde_json::from_slice(json).map_err(|error| unusable(&error.to_string()))?;
        let (os, arch) = (configuration.os(), configuration.architecture());
        if *os != Os::default() || *arch != Arch::default() {
            return Err(unusable(&format!(
                "it is for {os}/{arch}, which is not the platform of this machine"
            )));
        }
        let diff_ids = configuration.rootfs().diff_ids().iter();
        let diff_ids = diff_ids.map(|id| {
            Digest::parse(id)
                .ok_or_else(|| unusable(&format!("{id:?} is not the digest of a layer")))
        });
        let config = configuration.config().as_ref();
        let description = Description {
            env: config.and_then(|config| config.env().clone()).unwrap_or_default(),
            volumes: config.and_then(|config| config.volumes().clone()).unwrap_or_default(),
            created: configuration.created().clone(),
        };
        Ok(Self {
            description: description.check().map_err(|message| unusable(&message))?,
            diff_ids: diff_ids.collect::<Result<_, _>>()?,
        })
    }
}

impl Description {
    /// Checks variables and volumes. Volumes matter because something is mounted at each.
    pub(super) fn check(mut self) -> Result<Self, String> {
        for variable in &self.env {
            let name = variable.split_once('=').map_or("", |(name, _)| name);
            if name.is_empty() || variable.contains('\0') {
                return Err(format!("{variable:?} is not a variable of the form NAME=VALUE"));
            }
        }
        for volume in &mut self.volumes {
            if !is_clean(volume) {
                return Err(format!("its volume {volume:?} is not a normalized absolute path"));
            }
            // Some images have a trailing slash.
            volume.truncate(volume.trim_end_matches('/').len());
        }
        // In the configuration they are the keys of an object, which has no order.
        self.volumes.sort_unstable();
        self.volumes.dedup();
        Ok(self)
    }
}

fn is_clean(path: &str) -> bool {
    let mut components = Path::new(path).components();
    let rooted = components.next() == Some(Component::RootDir);
    let mut names = 0;
    let mut clean = !path.contains("//") && !path.contains("/./") && !path.ends_with("/.");
    for component in components {
        names += 1;
        clean &= matches!(component, Component::Normal(_));
    }
    rooted && clean && names > 0 && !path.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_clean_absolute_paths() {
        for path in ["/data", "/data/", "/a/b"] {
            assert!(is_clean(path), "{path}");
        }
        for path in ["/", "", "data", "../x", "/../x", "/a/..", "/a/./b", "/.", "//a", "/a\0"] {
            assert!(!is_clean(path), "{path:?}");
        }
    }

    #[test]
    fn configurations_of_old_docker_versions_are_read() {
        let config = format!(
            r#"{{"architecture":"{}","os":"linux","config":{{"Env":null,"Volumes":null,"ExposedPorts":null,
            "Entrypoint":null,"OnBuild":null,"Labels":null,"Hostname":"x"}},"rootfs":{{"type":"layers","diff_ids":[]}}}}"#,
            Arch::default()
        );
        let read = Configuration::parse("a test", config.as_bytes()).unwrap();
        assert_eq!(read.description, Description::default());
    }

    #[test]
    fn an_image_for_another_machine_is_refused() {
        let config =
            r#"{"architecture":"s390x","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}"#;
        let error = Configuration::parse("a test", config.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("s390x"), "{error}");
    }
}
