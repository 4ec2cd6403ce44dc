//! Images in the store: how they appear, what keeps them, how they are removed.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isolator_pool::engine::store::{Description, Store, StoreError};
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
async fn an_import_that_nobody_waits_for_ends_and_leaves_nothing() {
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
async fn what_a_killed_process_leaves_is_pruned() {
    let path_in = |variable| std::env::var_os(variable).map(PathBuf::from);
    if let (Some(store), Some(archive)) = (path_in(STORE), path_in(ARCHIVE)) {
        Store::new(store).import(&archive, Some(NAME), &|_| {}).await.unwrap();
        return;
    }
    let world = World::new();
    let path = world.write(&large());
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::life::what_a_killed_process_leaves_is_pruned"])
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
    // Not while somebody works on it.
    assert_eq!(world.store.prune().await.unwrap().staging, 0);
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(world.store.list().unwrap().is_empty());
    let pruned = world.store.prune().await.unwrap();
    assert!(pruned.staging >= 1 && pruned.bytes >= 100, "{pruned:?}");
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
    // One name of two goes, whoever holds the image.
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
    assert_eq!((pruned.images, pruned.staging), (1, 0));
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
async fn what_is_built_is_checked_too() {
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
async fn places_are_made_where_a_sandbox_would_find_them() {
    let world = World::new();
    let layer = Tar::default()
        .symlink("var/run", "/run")
        .symlink("etc/resolv.conf", "../run/resolver/resolv.conf")
        .symlink("escape", &world.directory.path().display().to_string())
        .file("file", "x")
        .directory("directory", 0o755)
        .symlink("a", "b")
        .symlink("b", "a");
    let layer = layer.end();
    let image =
        world.import(&saved(&config(std::slice::from_ref(&layer)), &[layer], &[])).await.unwrap();
    let held = image.hold().unwrap();
    let root = world.root(&image);
    let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
    let directories = paths(&["/proc", "/var/run/x", "/escape/y", "/directory"]);
    let files = paths(&["/etc/hosts", "/etc/resolv.conf", "/escape/victim"]);
    held.make_mountpoints(&directories, &files).unwrap();
    assert!(root.join("proc").is_dir() && root.join("run/x").is_dir());
    assert!(root.join("etc/hosts").is_file());
    assert!(root.join("run/resolver/resolv.conf").is_file());
    let inside = root.join(world.directory.path().strip_prefix("/").unwrap());
    assert!(inside.join("y").is_dir() && inside.join("victim").is_file());
    // Once is enough.
    fs::remove_dir(root.join("proc")).unwrap();
    held.make_mountpoints(&directories, &files).unwrap();
    assert!(!root.join("proc").exists());

    for bad in ["/file", "/file/x", "/a", "/a/x"] {
        assert!(held.make_mountpoints(&paths(&[bad]), &[]).is_err(), "{bad}");
    }
    for bad in ["/directory", "/a", "/file/x", "/", "/.."] {
        assert!(held.make_mountpoints(&[], &paths(&[bad])).is_err(), "{bad}");
    }
    world.check(1);
}
