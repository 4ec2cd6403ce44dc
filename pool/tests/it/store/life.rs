//! Images in the store: how they appear, what keeps them, how they are removed.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolator_pool::engine::store::{Description, Store, StoreError};
use serde_json::json;
use tokio::sync::Notify;

use crate::store::support::{NAME, Tar, World, config, entries, saved};

/// An image that takes a while.
fn large() -> Vec<u8> {
    let tar = (0..20_000).fold(Tar::default().directory("d", 0o555), |tar, index| {
        tar.file(&format!("d/{index}"), "x")
    });
    let layer = tar.end();
    saved(&config(std::slice::from_ref(&layer)), &[layer], &[])
}

fn small(content: &str) -> Vec<u8> {
    let layer = Tar::default().file("a", content).end();
    saved(&config(std::slice::from_ref(&layer)), &[layer], &[])
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_import_leaves_nothing() {
    let world = World::new();
    let path = world.write(&large());
    let unpacking = Arc::new(Notify::new());
    let said = Arc::clone(&unpacking);
    let progress = move |line: &str| {
        if line.starts_with("unpacking") {
            said.notify_one();
        }
    };
    tokio::select! {
        imported = world.store.import(&path, Some(NAME), &progress) => panic!("{imported:?}"),
        () = unpacking.notified() => {}
    }
    until("it ends", || world.staging().is_empty()).await;
    world.check(0);
    assert!(world.store.find(NAME).unwrap().is_none());
}

const STORE: &str = "ISOLATOR_TEST_STORE";
const ARCHIVE: &str = "ISOLATOR_TEST_ARCHIVE";

/// This test starts itself once more, and its other self is the process that it kills.
#[tokio::test]
async fn leftovers_of_killed_processes_are_pruned() {
    let path_in = |variable| std::env::var_os(variable).map(PathBuf::from);
    if let (Some(store), Some(archive)) = (path_in(STORE), path_in(ARCHIVE)) {
        Store::new(store).import(&archive, Some(NAME), &|_| {}).await.unwrap();
        return;
    }
    let world = World::new();
    let path = world.write(&large());
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::life::leftovers_of_killed_processes_are_pruned"])
        .env(STORE, world.directory.path().join("a/b/store"))
        .env(ARCHIVE, &path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let unpacked = || {
        let staged = world.staging();
        staged.iter().any(|staged| entries(&staged.join("image/root/d")).len() > 100)
    };
    until("it unpacks", unpacked).await;
    // Not while another process works on it.
    assert_eq!(world.store.prune().await.unwrap().images, 0);
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(world.store.list().unwrap().is_empty());
    let pruned = world.store.prune().await.unwrap();
    assert!(pruned.images >= 1 && pruned.bytes >= 100, "{pruned:?}");
    world.check(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_imports_of_an_image_make_one() {
    let world = World::new();
    let path = world.write(&small("x"));
    let other = Store::new(world.directory.path().join("a/b/store"));
    let (one, two) = tokio::join!(
        world.store.import(&path, Some("one"), &|_| {}),
        other.import(&path, Some("two"), &|_| {})
    );
    assert_eq!(one.unwrap(), two.unwrap());
    assert_eq!(world.store.list().unwrap()[0].names.len(), 2);
    world.check(1);
}

#[tokio::test]
async fn an_image_is_found_by_all_that_it_is_called() {
    let world = World::new();
    let image = world.import(&small("x")).await.unwrap();
    for name in [NAME, "docker.io/test/image", "docker.io/test/image:latest", &image.digest] {
        assert_eq!(world.store.find(name).unwrap().as_ref(), Some(&image), "{name}");
    }
    assert_eq!(world.store.get(&image.digest).unwrap().as_ref(), Some(&image));
    for name in ["test/image:other", "image", &format!("sha256:{}", "0".repeat(64))] {
        assert_eq!(world.store.find(name).unwrap(), None, "{name}");
    }
    assert!(world.store.find("Not A Name").is_err());
    assert_eq!(image.image("x").digest, image.digest);
}

#[tokio::test]
async fn an_empty_store_is_no_error() {
    let world = World::new();
    assert!(world.store.find(NAME).unwrap().is_none());
    assert!(world.store.list().unwrap().is_empty());
    assert_eq!(world.store.prune().await.unwrap().images, 0);
    assert!(matches!(world.store.remove(NAME).await, Err(StoreError::NoSuchImage(_))));
}

#[tokio::test]
async fn an_image_goes_with_its_last_name_and_not_while_it_is_held() {
    let world = World::new();
    let image = world.import(&small("x")).await.unwrap();
    let path = world.write(&small("x"));
    world.store.import(&path, Some("other"), &|_| {}).await.unwrap();
    let held = image.hold().unwrap();
    let also = image.hold().unwrap();
    // One name of two goes, even if the image is held.
    world.store.remove("other").await.unwrap();
    for name in [NAME, &image.digest] {
        let refused = world.store.remove(name).await.unwrap_err();
        assert!(matches!(refused, StoreError::InUse(_)), "{refused}");
    }
    drop(held);
    assert!(world.store.remove(NAME).await.is_err());
    assert!(world.store.find(NAME).unwrap().is_some());
    drop(also);
    world.store.remove(NAME).await.unwrap();
    world.check(0);
    assert!(matches!(image.hold(), Err(StoreError::NoSuchImage(_))));
    assert!(matches!(world.store.remove(NAME).await, Err(StoreError::NoSuchImage(_))));
}

#[tokio::test]
async fn images_without_a_name_are_pruned_unless_they_are_held() {
    let world = World::new();
    let first = world.import(&small("first")).await.unwrap();
    let second = world.import(&small("second")).await.unwrap();
    assert_eq!(world.store.find(NAME).unwrap().as_ref(), Some(&second));
    let held = first.hold().unwrap();
    assert_eq!(world.store.prune().await.unwrap().images, 0);
    drop(held);
    let pruned = world.store.prune().await.unwrap();
    assert_eq!(pruned.images, 1);
    assert!(pruned.bytes >= 5, "{pruned:?}");
    assert_eq!(world.store.find(NAME).unwrap(), Some(second));
    world.check(1);
}

#[tokio::test]
async fn an_image_is_built_from_another() {
    let world = World::new();
    let layer = Tar::default()
        .directory("d", 0o555)
        .file_with("d/a", 0o600, b"content")
        .hard_link("b", "d/a")
        .symlink("l", "/d")
        .end();
    let base =
        world.import(&saved(&config(std::slice::from_ref(&layer)), &[layer], &[])).await.unwrap();
    let build = async |content: &str| {
        let staged = world.store.stage().await.unwrap().copy_from(&base).await.unwrap();
        fs::write(staged.root().join("new"), content).unwrap();
        fs::set_permissions(staged.root().join("new"), fs::Permissions::from_mode(0o4755)).unwrap();
        let description = Description { env: vec!["A=b".into()], ..Description::default() };
        world.store.commit(staged, description, &["built".to_owned()]).await.unwrap()
    };
    let built = build("1").await;
    let root = world.root(&built);
    let metadata = |path: &str| fs::symlink_metadata(root.join(path)).unwrap();
    assert_eq!(metadata("d/a").ino(), metadata("b").ino());
    assert_ne!(metadata("b").ino(), fs::metadata(world.root(&base).join("b")).unwrap().ino());
    assert_eq!((metadata("d").mode() & 0o7777, metadata("b").mode() & 0o7777), (0o555, 0o600));
    assert_eq!(metadata("new").mode() & 0o7777, 0o755);
    assert_eq!((metadata("d").mtime(), metadata("l").mtime()), (1_000_000_000, 1_000_000_000));
    assert_eq!(fs::read_link(root.join("l")).unwrap(), Path::new("/d"));
    assert_eq!(built.size, 8);
    assert_eq!(world.store.find("built").unwrap().as_ref(), Some(&built));
    // The same content is the same image.
    assert_eq!(build("1").await, built);
    assert_ne!(build("2").await.digest, built.digest);
    world.check(3);
    assert_eq!(world.store.prune().await.unwrap().images, 1);
}

#[tokio::test]
async fn built_images_are_checked_too() {
    let world = World::new();
    let staged = world.store.stage().await.unwrap();
    let socket = std::os::unix::net::UnixListener::bind(staged.root().join("socket")).unwrap();
    let refused = world.store.commit(staged, Description::default(), &[]).await.unwrap_err();
    assert!(refused.to_string().contains("socket"), "{refused}");
    drop(socket);
    let staged = world.store.stage().await.unwrap();
    let volume = Description { volumes: vec!["/".into()], ..Description::default() };
    assert!(world.store.commit(staged, volume, &[]).await.is_err());
    drop(world.store.stage().await.unwrap());
    until("all is removed", || world.staging().is_empty()).await;
    world.check(0);
}

#[tokio::test]
async fn an_image_has_its_mount_points_from_the_beginning() {
    let world = World::new();
    // Links as images and the root file systems of machines have them.
    let links = [
        ("lib", "usr/lib"),
        ("var/run", "/run"),
        ("var/lock", "/run/lock"),
        ("etc/mtab", "../proc/self/mounts"),
        ("dev/fd", "/proc/self/fd"),
        ("usr/tmp", "../var/tmp"),
        ("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf"),
    ];
    // Into some of these directories only root could make something later.
    let tar = Tar::default().directory("./", 0o555).directory("etc", 0o555);
    let layer = links.iter().fold(tar, |tar, (link, target)| tar.symlink(link, target)).end();
    let mut config = config(std::slice::from_ref(&layer));
    config["config"]["Volumes"] = json!({ "/data/": {}, "/var/run/x": {}, "/run/x": {} });
    let image = world.import(&saved(&config, &[layer], &[])).await.unwrap();
    // A volume is where its links lead.
    assert_eq!(image.description.volumes, ["/data", "/run/x"]);
    let root = world.root(&image);
    let metadata = |path: &str| fs::symlink_metadata(root.join(path)).unwrap();
    for directory in ["proc", "dev", "sys", "tmp", "data", "run/x"] {
        assert!(metadata(directory).is_dir(), "{directory}");
        assert_eq!(metadata(directory).mode() & 0o7777, 0o755, "{directory}");
    }
    for file in ["etc/hosts", "etc/hostname", "etc/resolv.conf"] {
        assert!(metadata(file).is_file() && metadata(file).len() == 0, "{file}");
    }
    assert_eq!((metadata("").mode() & 0o7777, metadata("etc").mode() & 0o7777), (0o555, 0o555));
    assert_eq!(entries(&root.join("etc")).len(), 4);
    for (link, target) in &links[..6] {
        assert_eq!(fs::read_link(root.join(link)).unwrap(), Path::new(target), "{link}");
    }
    world.check(1);
}

#[tokio::test]
async fn missing_mount_points_are_made_once() {
    let world = World::new();
    let image = world.import(&small("x")).await.unwrap();
    let root = world.root(&image);
    let held = image.hold().unwrap();
    let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
    let (directories, files) = (paths(&["/proc", "/work/x"]), paths(&["/etc/hosts", "/b/c"]));
    held.make_mountpoints(&directories, &files).unwrap();
    assert!(root.join("work/x").is_dir() && root.join("b/c").is_file());
    fs::remove_dir(root.join("work/x")).unwrap();
    held.make_mountpoints(&directories, &files).unwrap();
    assert!(!root.join("work/x").exists());
    for bad in ["/a", "/a/x", "/..", "/x/../y", &format!("/{}", "n".repeat(256))] {
        assert!(held.make_mountpoints(&paths(&[bad]), &[]).is_err(), "{bad}");
    }
    for bad in ["/proc", "/a/x", "/", "/..", "/x/../y"] {
        assert!(held.make_mountpoints(&[], &paths(&[bad])).is_err(), "{bad}");
    }
    world.check(1);
}
