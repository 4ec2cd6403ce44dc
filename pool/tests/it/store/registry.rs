//! Images from a real registry: Debian's `docker-registry`, started for each test.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use isolator_pool::engine::store::StoreError;
use oci_client::client::{Client, ClientConfig, ClientProtocol, Config, ImageLayer};
use oci_client::manifest::{IMAGE_CONFIG_MEDIA_TYPE, IMAGE_LAYER_GZIP_MEDIA_TYPE, OciManifest};
use oci_client::secrets::RegistryAuth;
use oci_client::{Reference, RegistryOperation};
use serde_json::json;

use crate::store::support::{Tar, World, architecture, config, gzip, sha256};

/// A registry that ends with the test.
struct Registry {
    process: Child,
    address: String,
    directory: tempfile::TempDir,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Registry {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let config = json!({
            "version": 0.1,
            "log": { "level": "error", "accesslog": { "disabled": true } },
            "storage": { "filesystem": { "rootdirectory": directory.path().join("data") } },
            "http": { "addr": address },
        });
        let path = directory.path().join("config.yml");
        fs::write(&path, config.to_string()).unwrap();
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("this test needs the package docker-registry");
        let registry = Self { process, address, directory };
        let end = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(&registry.address).is_err() {
            assert!(Instant::now() < end, "the registry does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        registry
    }

    fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    fn client() -> Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let protocol = ClientProtocol::Http;
        Client::try_from(ClientConfig { protocol, ..ClientConfig::default() }).unwrap()
    }

    /// Pushes an image of layers and returns the digest of its manifest.
    async fn push(&self, name: &str, layers: &[Vec<u8>]) -> String {
        let reference: Reference = self.name(name).parse().unwrap();
        let packed: Vec<_> = layers
            .iter()
            .map(|layer| ImageLayer::new(gzip(layer), IMAGE_LAYER_GZIP_MEDIA_TYPE.to_owned(), None))
            .collect();
        let config = config(layers).to_string().into_bytes();
        let config = Config::new(config, IMAGE_CONFIG_MEDIA_TYPE.to_owned(), None);
        let (client, anyone) = (Self::client(), RegistryAuth::Anonymous);
        client.push(&reference, &packed, config, &anyone, None).await.unwrap();
        client.fetch_manifest_digest(&reference, &anyone).await.unwrap()
    }

    fn blob(&self, content: &[u8]) -> PathBuf {
        let hex = sha256(content);
        let blobs = self.directory.path().join("data/docker/registry/v2/blobs/sha256");
        blobs.join(&hex[..2]).join(hex).join("data")
    }
}

fn layers() -> Vec<Vec<u8>> {
    let second = Tar::default().file("etc/.wh.gone", "").file("b", "2").end();
    vec![Tar::default().file("etc/gone", "1").file("a", "1").end(), second.clone(), second]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_pulled_by_its_tag_and_by_its_digest() {
    let (registry, world) = (Registry::start(), World::new());
    let layers = layers();
    let digest = registry.push("some/image:1", &layers).await;
    let said = std::sync::Mutex::new(Vec::new());
    let progress = |line: &str| said.lock().unwrap().push(line.to_owned());
    let image = world.store.pull(&registry.name("some/image:1"), &progress).await.unwrap();
    assert_eq!(image.digest, format!("sha256:{}", sha256(config(&layers).to_string().as_bytes())));
    let root = world.root(&image);
    assert!(!root.join("etc/gone").exists() && root.join("a").exists() && root.join("b").exists());
    let count =
        |start: &str| said.lock().unwrap().iter().filter(|line| line.starts_with(start)).count();
    // A layer that is there twice is fetched once.
    assert_eq!((count("fetched"), count("unpacking")), (2, 3));

    let name = registry.name(&format!("some/image@{digest}"));
    assert_eq!(world.store.pull(&name, &progress).await.unwrap(), image);
    assert_eq!(count("fetched"), 2);
    assert_eq!(world.store.find(&name).unwrap(), Some(image));
    world.check(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_index_the_image_for_this_machine_is_pulled() {
    let (registry, world) = (Registry::start(), World::new());
    let digest = registry.push("image:one", &layers()).await;
    let other = registry.push("image:other", &layers()[..1]).await;
    let entry = |digest: &str, architecture: &str, os: &str| {
        json!({ "mediaType": crate::store::support::MANIFEST, "digest": digest, "size": 1,
            "platform": { "architecture": architecture, "os": os } })
    };
    let index: OciManifest = serde_json::from_value(json!({
        "schemaVersion": 2, "mediaType": crate::store::support::INDEX,
        "manifests": [entry(&other, "unknown", "unknown"), entry(&other, "s390x", "linux"),
            entry(&digest, architecture(), "linux")],
    }))
    .unwrap();
    let client = Registry::client();
    let reference: Reference = registry.name("image:all").parse().unwrap();
    client.auth(&reference, &RegistryAuth::Anonymous, RegistryOperation::Push).await.unwrap();
    client.push_manifest(&reference, &index).await.unwrap();
    let image = world.store.pull(&registry.name("image:all"), &|_| {}).await.unwrap();
    assert!(world.root(&image).join("b").exists());
    world.check(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_fails_leaves_nothing() {
    let (registry, world) = (Registry::start(), World::new());
    let layers = layers();
    registry.push("image:1", &layers).await;
    let missing = world.store.pull(&registry.name("image:2"), &|_| {}).await.unwrap_err();
    assert!(matches!(missing, StoreError::Registry { .. }), "{missing}");
    assert!(missing.to_string().contains("image:2"), "{missing}");

    let blob = registry.blob(&gzip(&layers[0]));
    let content = fs::read(&blob).unwrap();
    let mut damaged = content.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&blob, damaged).unwrap();
    let damaged = world.store.pull(&registry.name("image:1"), &|_| {}).await.unwrap_err();
    assert!(damaged.to_string().to_lowercase().contains("digest"), "{damaged}");
    world.check(0);

    fs::remove_file(&blob).unwrap();
    let missing = world.store.pull(&registry.name("image:1"), &|_| {}).await.unwrap_err();
    assert!(matches!(missing, StoreError::Registry { .. }), "{missing}");
    world.check(0);

    fs::write(&blob, content).unwrap();
    world.store.pull(&registry.name("image:1"), &|_| {}).await.unwrap();
    world.check(1);
    let name = registry.name("image:1");
    drop(registry);
    let refused = world.store.pull(&name, &|_| {}).await.unwrap_err().to_string();
    assert!(refused.contains("refused"), "{refused}");
    world.check(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_pull_leaves_nothing() {
    let (registry, world) = (Registry::start(), World::new());
    // Incompressible content takes time in proportion to its size.
    let mut state = 1_u64;
    let noise: Vec<u8> = (0..32 << 20)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) as u8
        })
        .collect();
    let layer = Tar::default().file_with("noise", 0o644, &noise).end();
    registry.push("image:1", &[layer]).await;
    let name = registry.name("image:1");
    let fetching = async {
        loop {
            let staged = world.staging();
            if staged
                .iter()
                .any(|path| !crate::store::support::entries(&path.join("blobs/sha256")).is_empty())
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        pulled = world.store.pull(&name, &|_| {}) => panic!("{pulled:?}"),
        () = fetching => {}
    }
    let end = Instant::now() + Duration::from_secs(30);
    while !world.staging().is_empty() {
        assert!(Instant::now() < end, "something is left");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.check(0);
}
