//! Credentials for registries, from Docker's configuration.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// Docker's names of the default registry.
const DOCKER: [&str; 3] = ["https://index.docker.io/v1/", "index.docker.io", "docker.io"];

#[derive(Default, Deserialize)]
struct Credentials {
    #[serde(default)]
    auths: BTreeMap<String, Auth>,
}

#[derive(Default, Deserialize)]
struct Auth {
    #[serde(default)]
    auth: String,
}

/// The name and password of a user of a registry.
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
}

/// The credentials for a registry, if there are any. Credential helpers are not used.
pub(super) fn find(directory: Option<&Path>, registry: &str) -> Option<Login> {
    let path = directory?.join("config.json");
    let json = fs::read(&path).ok()?;
    let credentials: Credentials = serde_json::from_slice(&json).unwrap_or_else(|error| {
        tracing::warn!(
            "registries get no password, because {} can't be read: {error}",
            path.display()
        );
        Credentials::default()
    });
    let (_, entry) = credentials.auths.iter().find(|(name, _)| is_meant(name, registry))?;
    let decoded = String::from_utf8(STANDARD.decode(&entry.auth).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some(Login { user: user.to_owned(), password: password.to_owned() })
}

fn is_meant(name: &str, registry: &str) -> bool {
    if registry == "docker.io" {
        return DOCKER.contains(&name);
    }
    let host = name.trim_start_matches("https://").trim_start_matches("http://");
    host.split('/').next() == Some(registry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_registry_gets_its_own_password() {
        let directory = tempfile::tempdir().unwrap();
        let config = r#"{"auths": {"https://index.docker.io/v1/": {"auth": "YTpi"},
            "registry.example:5000": {"auth": "YzpkOmU="}, "https://other.example/v2/": {}}, "credsStore": "x"}"#;
        fs::write(directory.path().join("config.json"), config).unwrap();
        let find = |registry| {
            let found = find(Some(directory.path()), registry);
            found.map(|Login { user, password }| (user, password))
        };
        let login = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(find("docker.io"), login("a", "b"));
        assert_eq!(find("registry.example:5000"), login("c", "d:e"));
        for unknown in ["other.example", "registry.example", "example"] {
            assert_eq!(find(unknown), None, "{unknown}");
        }
        assert!(super::find(None, "docker.io").is_none());
    }
}
