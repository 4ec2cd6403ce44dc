//! The description of an image.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use oci_spec::image::{Arch, Os};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::error::StoreError;
use super::path;
use crate::engine::images::BuiltFrom;

/// The variables and volumes of an image, and when it was made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Variables for its programs, in the form `NAME=VALUE`.
    pub env: Vec<String>,
    /// Absolute paths that it declares as volumes.
    pub volumes: Vec<String>,
    /// When it was made, according to its maker.
    pub created: Option<String>,
    /// Its origin, if it was built here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built_from: Option<BuiltFrom>,
}

/// The parts of the configuration of an OCI or Docker image that are read.
#[derive(Debug)]
pub(super) struct ImageConfig {
    pub(super) description: Description,
    /// Digests of the uncompressed layers.
    pub(super) diff_ids: Vec<Digest>,
}

/// Maximum size of all variables, in bytes of JSON. They are in the packet that asks for a sandbox, which has 64 KiB
/// for everything (`MAX_MESSAGE` in `embedded/protocol.rs`). Images with dozens of variables have a tenth of this.
const MAX_ENV: usize = 32 << 10;

/// Maximum size of the paths of all volumes, in bytes of JSON, for the same reason.
const MAX_VOLUME_PATHS: usize = 8 << 10;

/// Maximum number of volumes: each sandbox mounts all of them. Images of servers have up to ten.
const MAX_VOLUMES: usize = 32;

/// Longest path of a volume, in bytes. With the root of a sandbox before it, it must be a path of the kernel.
const MAX_VOLUME_PATH: usize = 1024;

/// Longest time of creation, in bytes. With nanoseconds and a time zone it has 35.
const MAX_CREATED: usize = 64;

/// The fields that are read. Sandboxes have no use for the others, such as labels, the command or the user. These
/// are skipped, so they need no limit but that of the whole configuration.
#[derive(Deserialize)]
struct RawImageConfig {
    architecture: Arch,
    os: Os,
    created: Option<String>,
    config: Option<RawConfig>,
    rootfs: RawRootfs,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RawConfig {
    env: Option<Vec<String>>,
    volumes: Option<BTreeMap<String, IgnoredAny>>,
}

#[derive(Deserialize)]
struct RawRootfs {
    diff_ids: Vec<String>,
}

impl ImageConfig {
    /// Reads a configuration.
    pub(super) fn parse(what: &str, json: &[u8]) -> Result<Self, StoreError> {
        let unusable = |message: &str| StoreError::unusable(what, message);
        let raw: RawImageConfig =
            serde_json::from_slice(json).map_err(|error| unusable(&error.to_string()))?;
        let (os, arch) = (raw.os, raw.architecture);
        if os != Os::default() || arch != Arch::default() {
            return Err(unusable(&format!(
                "it is for {os}/{arch}, which is not the platform of this machine"
            )));
        }
        let diff_ids = raw.rootfs.diff_ids.iter().map(|id| {
            Digest::parse(id)
                .ok_or_else(|| unusable(&format!("{id:?} is not the digest of a layer")))
        });
        let (env, volumes) =
            raw.config.map(|config| (config.env, config.volumes)).unwrap_or_default();
        let description = Description {
            env: env.unwrap_or_default(),
            volumes: volumes.unwrap_or_default().into_keys().collect(),
            created: raw.created,
            built_from: None,
        };
        Ok(Self {
            description: description.check(what)?,
            diff_ids: diff_ids.collect::<Result<_, _>>()?,
        })
    }
}

impl Description {
    /// Checks variables and volumes of an image, which is called `what` in messages. Volumes matter because something is
    /// mounted at each.
    pub(super) fn check(mut self, what: &str) -> Result<Self, StoreError> {
        let unusable = |message: String| StoreError::unusable(what, message);
        let lists =
            [("variables", &self.env, MAX_ENV), ("volumes", &self.volumes, MAX_VOLUME_PATHS)];
        for (name, list, most) in lists {
            let bytes = serde_json::to_vec(list).map_or(usize::MAX, |json| json.len());
            if bytes > most {
                return Err(unusable(format!(
                    "its {name} take {bytes} bytes, and {most} are allowed"
                )));
            }
        }
        if self.volumes.len() > MAX_VOLUMES {
            let count = self.volumes.len();
            return Err(unusable(format!("it has {count} volumes, and {MAX_VOLUMES} are allowed")));
        }
        if self.created.as_ref().is_some_and(|created| created.len() > MAX_CREATED) {
            return Err(unusable(format!(
                "its time of creation has more than {MAX_CREATED} bytes"
            )));
        }
        for variable in &self.env {
            let name = variable.split_once('=').map_or("", |(name, _)| name);
            if name.is_empty() || variable.contains('\0') {
                return Err(unusable(format!(
                    "{variable:?} is not a variable of the form NAME=VALUE"
                )));
            }
        }
        for volume in &mut self.volumes {
            if !is_clean(volume) {
                return Err(unusable(format!(
                    "its volume {volume:?} is not a normalized absolute path"
                )));
            }
            path::relative(volume.trim_start_matches('/').as_bytes(), MAX_VOLUME_PATH).map_err(
                |message| unusable(format!("its volume {volume:?} can't be used: {message}")),
            )?;
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
        let read = ImageConfig::parse("a test", config.as_bytes()).unwrap();
        assert_eq!(read.description, Description::default());
    }

    #[test]
    fn an_image_for_another_machine_is_refused() {
        let config =
            r#"{"architecture":"s390x","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}"#;
        let error = ImageConfig::parse("a test", config.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("s390x"), "{error}");
    }
}
