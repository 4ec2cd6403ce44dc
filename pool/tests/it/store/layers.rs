//! Valid layers, on top of each other.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use tar::EntryType;

use crate::store::support::{Tar, World, entries};

fn tar() -> Tar {
    Tar::default()
}

fn names(directory: &Path) -> Vec<String> {
    let names = entries(directory).into_iter();
    names.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn whiteouts_hide_what_earlier_layers_have() {
    let world = World::new();
    let first = tar()
        .file("d/gone", "1")
        .file("d/stays", "1")
        .file("d/tree/x/y", "1")
        .file("o/old", "1")
        .file("o/sub/old", "1")
        .symlink("link", "/d");
    let second = tar()
        .file("d/.wh.gone", "")
        .file("link/.wh.tree", "")
        .file("none/.wh.there", "")
        // In the order that hides the most if it is done carelessly.
        .file("o/new", "2")
        .file("o/sub/new", "2")
        .file("o/.wh..wh..opq", "");
    let root = world.layers(&[first.end(), second.end()]).await.unwrap();
    assert_eq!(names(&root.join("d")), ["stays"]);
    assert_eq!(names(&root.join("o")), ["new", "sub"]);
    assert_eq!(names(&root.join("o/sub")), ["new"]);
    assert!(!root.join("none").exists());
    world.check(1);
}

#[tokio::test]
async fn a_whiteout_leaves_what_its_own_layer_has() {
    let world = World::new();
    let first = tar().file("a/old", "1").file("b", "1");
    let second = tar().file("b", "2").file(".wh.b", "").file("a/new", "2").file(".wh.a", "");
    let root = world.layers(&[first.end(), second.end()]).await.unwrap();
    assert_eq!(fs::read(root.join("b")).unwrap(), b"2");
    assert_eq!(names(&root.join("a")), ["new"]);
}

#[tokio::test]
async fn later_layers_replace_what_is_there() {
    let world = World::new();
    let first = tar()
        .file("becomes-directory", "1")
        .file("becomes-file/x", "1")
        .symlink("link-becomes-directory", "/becomes-file")
        .symlink("link-becomes-file", "/target")
        .file("target", "1")
        .file("becomes-link/x", "1")
        .directory("d", 0o700)
        .file_with("changed", 0o600, b"1");
    // A directory replaces a file where its own entry says so.
    let second = tar()
        .directory("becomes-directory", 0o755)
        .file("becomes-directory/x", "2")
        .file("becomes-file", "2")
        .directory("link-becomes-directory", 0o755)
        .file("link-becomes-file", "2")
        .symlink("becomes-link", "target")
        .directory("d", 0o555)
        .file_with("changed", 0o640, b"2");
    let root = world.layers(&[first.end(), second.end()]).await.unwrap();
    assert_eq!(fs::read(root.join("becomes-directory/x")).unwrap(), b"2");
    assert_eq!(fs::read(root.join("becomes-file")).unwrap(), b"2");
    assert!(fs::symlink_metadata(root.join("link-becomes-directory")).unwrap().is_dir());
    assert!(fs::symlink_metadata(root.join("link-becomes-file")).unwrap().is_file());
    assert_eq!(fs::read(root.join("target")).unwrap(), b"1");
    assert_eq!(fs::read_link(root.join("becomes-link")).unwrap(), Path::new("target"));
    assert_eq!(mode(&root.join("d")), 0o555);
    assert_eq!(mode(&root.join("changed")), 0o640);
}

#[tokio::test]
async fn paths_go_through_links_of_the_image() {
    let world = World::new();
    let first =
        tar().directory("usr/lib", 0o755).symlink("lib", "usr/lib").symlink("abs", "/usr/./lib");
    let second = tar()
        .file("lib/a", "2")
        .file("abs/b", "2")
        .symlink("lib/up", "../../c")
        .file("lib/up/x", "2");
    let root = world.layers(&[first.end(), second.end()]).await.unwrap();
    assert_eq!(names(&root.join("usr/lib")), ["a", "b", "up"]);
    assert_eq!(names(&root.join("c")), ["x"]);
    assert!(fs::symlink_metadata(root.join("lib")).unwrap().is_symlink());
}

#[tokio::test]
async fn hard_links_are_one_file() {
    let world = World::new();
    let first =
        tar().file("a", "one").hard_link("b", "./a").symlink("l", "d").directory("d", 0o755);
    let second = tar().hard_link("l/c", "b").file("b", "two").hard_link("a", "a");
    let root = world.layers(&[first.end(), second.end()]).await.unwrap();
    let inode = |path: &str| fs::metadata(root.join(path)).unwrap().ino();
    assert_eq!(inode("a"), inode("d/c"));
    assert_ne!(inode("a"), inode("b"));
    assert_eq!(fs::read(root.join("a")).unwrap(), b"one");
    // A file that is there twice is counted once.
    assert_eq!(world.store.list().unwrap()[0].image.size, 6);
}

#[tokio::test]
async fn modes_owners_and_times_are_kept_and_rights_are_not() {
    let world = World::new();
    let mut owned = Tar::header(b"owned", EntryType::Regular, 0);
    owned.set_uid(1234);
    owned.set_gid(5678);
    let layer = tar()
        .directory("./", 0o750)
        .directory("read-only", 0o555)
        .file_with("read-only/x", 0o4755, b"x")
        .directory("shared", 0o3777)
        .file_with("group", 0o2711, b"x")
        .add(owned, b"")
        .pax("mtime", b"1234567890.5")
        .file("late", "")
        .symlink("link", "late");
    let root = world.layers(&[layer.end()]).await.unwrap();
    assert_eq!(mode(&root), 0o750);
    assert_eq!(mode(&root.join("read-only")), 0o555);
    assert_eq!(mode(&root.join("read-only/x")), 0o755);
    assert_eq!(mode(&root.join("shared")), 0o1777);
    assert_eq!(mode(&root.join("group")), 0o711);
    let mtime = |path: &str| fs::symlink_metadata(root.join(path)).unwrap().mtime();
    assert_eq!(
        (mtime("read-only"), mtime("link"), mtime("late")),
        (1_000_000_000, 1_000_000_000, 1_234_567_890)
    );
    assert_eq!(fs::metadata(root.join("late")).unwrap().mtime_nsec(), 500_000_000);
    if rustix::process::geteuid().is_root() {
        let owned = fs::metadata(root.join("owned")).unwrap();
        assert_eq!((owned.uid(), owned.gid()), (1234, 5678));
    }
}

#[tokio::test]
async fn long_names_are_whole() {
    let world = World::new();
    let name = "n".repeat(200);
    let path = format!("{}/{name}", "d".repeat(150));
    let other = format!("p/{name}");
    let layer = tar()
        .file(&path, "1")
        .pax("path", other.as_bytes())
        .file("short", "2")
        .pax("linkpath", other.as_bytes())
        .symlink("link", "short")
        .long(EntryType::GNULongLink, other.as_bytes())
        .hard_link("hard", "short");
    let root = world.layers(&[layer.end()]).await.unwrap();
    assert_eq!(fs::read(root.join(path)).unwrap(), b"1");
    assert_eq!(fs::read(root.join("link")).unwrap(), b"2");
    assert_eq!(fs::read(root.join("hard")).unwrap(), b"2");
}
