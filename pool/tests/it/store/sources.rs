//! All formats that an image can come in.

use std::fs;

use isolator_pool::engine::store::StoreError;
use serde_json::{Value, json};

use crate::store::support::{
    INDEX, Layout, NAME, Tar, World, architecture, config, gzip, named, saved, sha256, zstd,
};

fn layer() -> Vec<u8> {
    Tar::default().file("etc/hostname", "image").end()
}

#[tokio::test]
async fn archives_of_docker_save_keep_their_names() {
    let (layer, names) = (layer(), ["a/b:1", "c"]);
    let config = config(std::slice::from_ref(&layer));
    let archive = saved(&config, &[layer], &names);
    for archive in [archive.clone(), gzip(&archive), zstd(&archive)] {
        let world = World::new();
        let path = world.write(&archive);
        let imported = world.store.import(&path, None, &|_| {}).await.unwrap();
        let image = &imported[0];
        assert_eq!(image.digest, format!("sha256:{}", sha256(config.to_string().as_bytes())));
        assert_eq!(image.size, 5);
        assert_eq!(image.description.env, ["PATH=/bin", "A=b"]);
        assert_eq!(image.description.volumes, ["/data"]);
        assert_eq!(image.description.created.as_deref(), Some("2024-01-01T00:00:00Z"));
        let listed = world.store.list().unwrap();
        assert_eq!(listed[0].names, ["docker.io/a/b:1", "docker.io/library/c:latest"]);
        assert_eq!(fs::read(world.root(image).join("etc/hostname")).unwrap(), b"image");
        world.check(1);
    }
}

#[tokio::test]
async fn layers_that_docker_saves_once_are_found_through_links() {
    let layer = layer();
    let text = config(std::slice::from_ref(&layer)).to_string();
    let manifest = json!([{ "Config": "c.json", "RepoTags": null, "Layers": ["b/layer.tar"] }]);
    let archive = Tar::default()
        .file_with("a/layer.tar", 0o644, &layer)
        .symlink("b/layer.tar", "../a/layer.tar")
        .file("c.json", &text)
        .file("manifest.json", &manifest.to_string());
    let world = World::new();
    world.import(&archive.clone().end()).await.unwrap();
    // It has no name of its own.
    let world = World::new();
    let path = world.write(&archive.end());
    let refused = world.store.import(&path, None, &|_| {}).await.unwrap_err();
    assert!(refused.to_string().contains("name"), "{refused}");
    world.check(0);
}

/// A layout with an image for two kinds of machines and something about them.
fn layout(name: &str) -> Layout {
    let layer = layer();
    let mut layout = Layout::default();
    let platform = |mut image: Value, architecture: &str, os: &str| {
        image["platform"] = json!({ "architecture": architecture, "os": os });
        image
    };
    let mut other = config(std::slice::from_ref(&layer));
    other["architecture"] = json!("s390x");
    let other = platform(layout.image(&other, vec![layer.clone()]), "s390x", "linux");
    let config = config(std::slice::from_ref(&layer));
    let image = platform(layout.image(&config, vec![zstd(&layer)]), architecture(), "linux");
    let mut about = platform(layout.image(&config, vec![vec![1]]), "unknown", "unknown");
    about["annotations"] = json!({ "vnd.docker.reference.type": "attestation-manifest" });
    let index =
        json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [other, about, image] });
    let index = layout.json(INDEX, index);
    layout.index(vec![named(index, name)])
}

#[tokio::test]
async fn an_oci_layout_is_imported_for_this_machine() {
    for directory in [false, true] {
        let world = World::new();
        let layout = layout("registry.example/a:1");
        let path = if directory {
            let path = world.directory.path().join("input/layout");
            layout.write(&path);
            path
        } else {
            world.write(&gzip(&layout.tar()))
        };
        let imported = world.store.import(&path, None, &|_| {}).await.unwrap();
        assert_eq!(imported.len(), 1);
        assert!(world.store.find("registry.example/a:1").unwrap().is_some());
        assert_eq!(fs::read(world.root(&imported[0]).join("etc/hostname")).unwrap(), b"image");
        // The same once more, with another name.
        let again = world.store.import(&path, Some("b"), &|_| {}).await.unwrap();
        assert_eq!(again, imported);
        assert_eq!(world.store.list().unwrap()[0].names.len(), 2);
        world.check(1);
    }
}

#[tokio::test]
async fn a_mere_tag_is_no_name() {
    let world = World::new();
    let path = world.write(&layout("latest").tar());
    assert!(world.store.import(&path, None, &|_| {}).await.is_err());
    world.store.import(&path, Some(NAME), &|_| {}).await.unwrap();
    world.check(1);
}

#[tokio::test]
async fn an_image_for_another_machine_is_refused() {
    let layer = layer();
    let mut other = config(std::slice::from_ref(&layer));
    other["architecture"] = json!("s390x");
    let world = World::new();
    let refused = world.import(&saved(&other, &[layer], &[])).await.unwrap_err();
    assert!(refused.to_string().contains("s390x"), "{refused}");
    world.check(0);
}

#[tokio::test]
async fn a_root_file_system_is_its_own_digest() {
    let tar = Tar::default().directory("./", 0o755).file("./etc/hostname", "image").end();
    for archive in [tar.clone(), gzip(&tar), zstd(&tar)] {
        let world = World::new();
        let path = world.write(&archive);
        let unnamed = world.store.import(&path, None, &|_| {}).await.unwrap_err();
        assert!(matches!(unnamed, StoreError::Unusable { .. }), "{unnamed}");
        let image = world.import(&archive).await.unwrap();
        assert_eq!(image.digest, format!("sha256:{}", sha256(&archive)));
        assert_eq!(fs::read(world.root(&image).join("etc/hostname")).unwrap(), b"image");
        assert_eq!(world.import(&archive).await.unwrap(), image);
        world.check(1);
    }
}

#[tokio::test]
async fn several_images_come_in_one_archive() {
    let layers = [layer(), Tar::default().file("b", "b").end()];
    let mut layout = Layout::default();
    let manifests = layers.iter().enumerate().map(|(index, layer)| {
        let image = layout.image(&config(std::slice::from_ref(layer)), vec![gzip(layer)]);
        named(image, &format!("image/{index}"))
    });
    let manifests = manifests.collect();
    let world = World::new();
    let path = world.write(&layout.index(manifests).tar());
    assert!(world.store.import(&path, Some(NAME), &|_| {}).await.is_err());
    assert_eq!(world.store.import(&path, None, &|_| {}).await.unwrap().len(), 2);
    world.check(2);
}
