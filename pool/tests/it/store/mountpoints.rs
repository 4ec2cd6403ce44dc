//! Images in which something stands in the way of a mount. A link there could lead what makes sandboxes to the host.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use isolator_pool::engine::store::{Description, StoreError, Stored};
use isolator_pool::folders;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;
use tar::EntryType;

use crate::store::support::{Tar, World, config, entries, saved};

fn tar() -> Tar {
    Tar::default()
}

/// Something in the place of a mount point.
#[derive(Debug, Clone, Copy)]
enum Thing {
    /// A link out of the image.
    LinkOut,
    /// A link to a directory of the image.
    LinkInside,
    File,
    Directory,
    Fifo,
    Socket,
}

use Thing::{Directory, Fifo, File, LinkInside, LinkOut, Socket};

/// Paths that must be directories: mount points, and a directory above some.
const DIRECTORIES: [&str; 7] = ["proc", "dev", "sys", "tmp", "etc", "data", "data/deep"];

/// Paths that must be files. A link there is replaced, as no sandbox sees it.
const FILES: [&str; 3] = ["etc/hosts", "etc/hostname", "etc/resolv.conf"];

/// Every mount point with what must not be there.
fn wrong() -> Vec<(&'static str, Thing)> {
    let in_directories = [LinkOut, LinkInside, File, Fifo, Socket];
    let directories = DIRECTORIES.iter().flat_map(|place| in_directories.map(|it| (*place, it)));
    let files = FILES.iter().flat_map(|place| [Directory, Fifo, Socket].map(|it| (*place, it)));
    directories.chain(files).collect()
}

/// Puts something into a root, in place of what is there.
fn put(root: &Path, place: &str, thing: Thing, outside: &Path) {
    let path = root.join(place);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    match fs::symlink_metadata(&path) {
        Ok(found) if found.is_dir() => drop(folders::remove(&path).unwrap()),
        Ok(_) => fs::remove_file(&path).unwrap(),
        Err(_) => {}
    }
    match thing {
        LinkOut => symlink(outside, path).unwrap(),
        LinkInside => {
            fs::create_dir_all(root.join("usr")).unwrap();
            symlink("/usr", path).unwrap();
        }
        File => fs::write(path, "x").unwrap(),
        Directory => fs::create_dir(path).unwrap(),
        Fifo => mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0).unwrap(),
        Socket => mknodat(CWD, path, FileType::Socket, Mode::RUSR, 0).unwrap(),
    }
}

#[tokio::test]
async fn images_without_room_for_mount_points_are_refused() {
    for (place, thing) in wrong() {
        let what = format!("{thing:?} at {place}");
        let world = World::new();
        let outside = world.directory.path();
        let volumes = vec!["/data/deep".to_owned()];
        let mut archives = Vec::new();
        let layer = match thing {
            LinkOut => Some(tar().symlink(place, &outside.display().to_string())),
            LinkInside => Some(tar().directory("usr", 0o755).symlink(place, "/usr")),
            File => Some(tar().file(place, "x")),
            Directory => Some(tar().directory(place, 0o755)),
            // An archive can't contain a socket.
            Fifo => Some(tar().special(place, EntryType::Fifo)),
            Socket => None,
        };
        if let Some(layer) = layer {
            let layer = layer.end();
            let mut config = config(std::slice::from_ref(&layer));
            config["config"]["Volumes"] = json!({ "/data/deep": {} });
            archives.push(saved(&config, std::slice::from_ref(&layer), &[]));
            // A root file system has no volumes.
            archives.extend((!place.starts_with("data")).then_some(layer));
        }
        // The path of a volume may be a link: the volume is where that leads.
        let is_fine = place.starts_with("data") && matches!(thing, LinkOut | LinkInside);
        let is_right = |imported: Result<Stored, StoreError>| match imported {
            Ok(image) => is_fine && !image.description.volumes.concat().contains("data"),
            Err(error) => !is_fine && error.to_string().contains(place),
        };
        for archive in archives {
            let imported = world.import(&archive).await;
            let shown = format!("{imported:?}");
            assert!(is_right(imported), "{what}: {shown}");
        }
        let staged = world.store.stage().await.unwrap();
        put(&staged.root(), place, thing, outside);
        let description = Description { volumes, ..Description::default() };
        let built = world.store.commit(staged, description, &[]).await;
        let shown = format!("{built:?}");
        assert!(is_right(built), "{what}: {shown}");
        world.check(if is_fine { 2 } else { 0 });
    }
}

#[tokio::test]
async fn an_image_of_the_store_is_refused_once_more_before_it_is_used() {
    let world = World::new();
    let layer = tar().file("a", "x").end();
    let stored =
        world.import(&saved(&config(std::slice::from_ref(&layer)), &[layer], &[])).await.unwrap();
    let root = world.root(&stored);
    let outside = world.directory.path().join("victim");
    let directories = DIRECTORIES.map(|name| PathBuf::from(format!("/{name}")));
    let files = FILES.map(|name| PathBuf::from(format!("/{name}")));
    let make = || stored.hold().unwrap().make_mountpoints(&directories, &files);
    for (place, thing) in wrong() {
        put(&root, place, thing, outside.parent().unwrap());
        let refused = make().expect_err(place);
        assert!(matches!(refused, StoreError::Unusable { .. }), "{refused:?}");
        let (refused, kind) = (refused.to_string(), format!("{thing:?}").to_lowercase());
        let kind = if kind.contains("link") { "a symbolic link" } else { kind.as_str() };
        let at = format!("/{place} is");
        let said = [stored.digest.as_str(), &at, kind, "build the image with"];
        for words in said {
            assert!(refused.to_lowercase().contains(words), "{thing:?} at {place}: {refused}");
        }
        // Whatever it was, the next one finds room.
        let right = if FILES.contains(&place) { File } else { Directory };
        put(&root, place, right, &outside);
        make().unwrap();
    }
    for place in FILES {
        put(&root, place, LinkOut, &outside);
        make().unwrap();
        assert!(fs::symlink_metadata(root.join(place)).unwrap().is_file(), "{place}");
    }
    world.check(1);
}

#[tokio::test]
async fn a_build_writes_nothing_through_links_of_its_base() {
    let world = World::new();
    let outside = world.directory.path().display().to_string();
    for layer in [
        tar().symlink("build", &outside),
        tar().symlink("build/.network", &outside),
        tar().file("build/install.sh", "x").symlink("build/x", &format!("{outside}/victim")),
        tar().file("build", "x"),
    ] {
        let base = world.layers(&[layer.end()]).await.unwrap();
        let base = world.store.list().unwrap().into_iter().find(|it| world.root(&it.image) == base);
        let base = base.unwrap().image;
        let staged = world.store.stage().await.unwrap().copy_from(&base).await.unwrap();
        let staged = staged.begin_build("build").await.unwrap();
        let directory = staged.root().join("build");
        assert!(fs::symlink_metadata(&directory).unwrap().is_dir());
        assert_eq!(entries(&directory), Vec::<PathBuf>::new());
        world.store.commit(staged, Description::default(), &[]).await.unwrap();
    }
    let staged = world.store.stage().await.unwrap();
    put(&staged.root(), "dev", LinkOut, world.directory.path());
    let refused = staged.begin_build("build").await.unwrap_err().to_string();
    assert!(refused.contains("/dev is a symbolic link"), "{refused}");
    world.check(world.store.list().unwrap().len());
}
