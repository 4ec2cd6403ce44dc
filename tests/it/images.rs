//! `isolator image`: importing images from files, and removing them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::engine::Kind;
use crate::common::{Finished, config, isolator, run_command, write_config};
use serde_json::json;
use tempfile::TempDir;

/// A place for one test's configuration, state and images.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        write_config(home.path(), &config(&["python"], json!({})));
        Self(home)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn image(&self, arguments: &[&str]) -> Finished {
        let mut command = isolator(self.0.path());
        command.env("XDG_DATA_HOME", self.path("data")).args(["--engine", Kind::chosen().name()]);
        run_command(command.arg("image").args(arguments), "")
    }

    /// An archive of a root file system with one file.
    fn root(&self, file: &str) -> String {
        let path = self.path("root.tar");
        let mut archive = tar::Builder::new(File::create(&path).expect("writable"));
        let mut header = tar::Header::new_gnu();
        // Written by hand, because a builder refuses what is hostile.
        header.as_old_mut().name[..file.len()].copy_from_slice(file.as_bytes());
        header.set_size(2);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        archive.append(&header, &b"hi"[..]).expect("writable");
        archive.finish().expect("writable");
        text(&path)
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("text").to_owned()
}

/// A name that no other test uses.
fn name(test: &str) -> String {
    format!("isolator-test/{test}-{}", std::process::id())
}

fn digest(finished: &Finished) -> String {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let digest = finished.stdout.split_whitespace().find(|word| word.starts_with("sha256:"));
    digest.unwrap_or_else(|| panic!("no digest: {finished:?}")).to_owned()
}

#[test]
fn a_root_file_system_becomes_an_image_and_goes_again() {
    let home = Home::new();
    let (root, name) = (home.root("./etc/hello"), name("root"));
    let imported = home.image(&["import", &root, "--name", &name]);
    assert!(imported.stdout.contains(&name), "{imported:?}");
    let known = digest(&imported);
    if Kind::chosen() == Kind::Embedded {
        assert_eq!(digest(&home.image(&["import", &root, "--name", &name])), known);
        let listed = home.image(&["ls"]);
        let line = listed.stdout.lines().find(|line| line.contains(&name));
        assert!(line.is_some_and(|line| line.contains(&known[..19])), "{listed:?}");
    }
    let removed = home.image(&["rm", &name]);
    assert_eq!(removed.code, Some(0), "{removed:?}");
    let again = home.image(&["rm", &name]);
    assert_eq!(again.code, Some(125), "{again:?}");
    assert!(again.stderr.contains(&name), "{again:?}");
}

#[test]
fn an_archive_can_come_from_a_pipe() {
    let home = Home::new();
    let (root, name) = (home.root("./etc/hello"), name("pipe"));
    let plain = fs::read(&root).expect("readable");
    let packed = Command::new("gzip").args(["-c", &root]).output().expect("it ends").stdout;
    for archive in [plain, packed] {
        let mut command = isolator(home.0.path());
        command.env("XDG_DATA_HOME", home.path("data")).args(["--engine", Kind::chosen().name()]);
        let imported =
            run_command(command.args(["image", "import", "-", "--name", &name]), archive);
        assert!(imported.stdout.contains(&name), "{imported:?}");
        digest(&imported);
    }
    let removed = home.image(&["rm", &name]);
    assert_eq!(removed.code, Some(0), "{removed:?}");
}

#[test]
fn a_chosen_base_is_the_only_one() {
    // Nothing listens there, so a build can only go on from another base.
    let base = format!("127.0.0.1:1/debian@sha256:{}", "a".repeat(64));
    let home = Home::new();
    let settings = json!({ "images": { "base": base } });
    write_config(home.0.path(), &config(&["python"], settings));
    let refused = home.image(&["build", "python"]);
    assert_eq!(refused.code, Some(125), "{refused:?}");
    assert!(refused.stderr.contains(&format!("pulling {base}")), "{refused:?}");
    assert!(!refused.stderr.contains("building"), "{refused:?}");
}

#[test]
fn unreadable_images_are_rejected_by_name() {
    let home = Home::new();
    let root = home.root("./etc/hello");
    let nameless = home.image(&["import", &root]);
    assert_eq!(nameless.code, Some(125), "{nameless:?}");
    assert!(nameless.stderr.contains("give it one"), "{nameless:?}");
    let missing = home.image(&["import", "/nowhere/image.tar", "--name", "a"]);
    assert_eq!(missing.code, Some(125), "{missing:?}");
    assert!(missing.stderr.contains("/nowhere/image.tar"), "{missing:?}");
}

#[test]
fn pruning_names_what_stays_and_removes_the_rest() {
    let home = Home::new();
    let pruned = home.image(&["prune"]);
    assert_eq!(pruned.code, Some(0), "nothing to prune is fine: {pruned:?}");
    if Kind::chosen() != Kind::Embedded {
        return;
    }
    let mounted = home.path("data/isolator/staging/a/mounted");
    let other = home.path("data/isolator/staging/b/image");
    for folder in [&mounted, &other] {
        fs::create_dir_all(folder).expect("writable");
    }
    let system = |command: &str, arguments: &[&str]| {
        let done = Command::new(command).args(arguments).arg(&mounted).output().expect("it ends");
        assert!(done.status.success(), "{done:?}");
    };
    system("mount", &["-t", "tmpfs", "isolator-test"]);
    let failed = home.image(&["prune"]);
    system("umount", &[]);
    assert_eq!(failed.code, Some(125), "{failed:?}");
    assert!(failed.stderr.contains("staging/a: something is mounted"), "{failed:?}");
    assert!(mounted.exists() && !other.exists());
    assert_eq!(home.image(&["prune"]).code, Some(0));
    assert!(!mounted.exists());
}

#[test]
fn a_hostile_layer_leaves_nothing_in_the_store() {
    let home = Home::new();
    for entry in ["../outside", "/absolute", "a/../../outside"] {
        let root = home.root(entry);
        let mut command = isolator(home.0.path());
        command.env("XDG_DATA_HOME", home.path("data")).args(["--engine", "embedded", "image"]);
        let refused = run_command(command.args(["import", &root, "--name", "hostile"]), "");
        assert_eq!(refused.code, Some(125), "{entry}: {refused:?}");
        assert!(refused.stderr.contains(entry), "{entry}: {refused:?}");
    }
    for place in ["images", "staging"] {
        let found = fs::read_dir(home.path("data/isolator").join(place));
        let found: Vec<_> = found.into_iter().flatten().collect();
        assert!(found.is_empty(), "{place}: {found:?}");
    }
}

#[test]
fn the_embedded_engine_imports_archives_of_docker_save() {
    let home = Home::new();
    let (root, image) = (home.root("./etc/hello"), name("saved"));
    let docker = |arguments: &[&str]| {
        let mut docker = std::process::Command::new("docker");
        run_command(docker.args(arguments), "")
    };
    let file = text(&home.path("saved.tar"));
    let made = docker(&["import", "--change", "ENV HELLO=there", &root, &image]);
    let saved = docker(&["save", "--output", &file, &image]);
    let removed = docker(&["image", "rm", &image]);
    for done in [made, saved, removed] {
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    let mut command = isolator(home.0.path());
    command.env("XDG_DATA_HOME", home.path("data")).args(["--engine", "embedded", "image"]);
    let imported = run_command(command.args(["import", &file]), "");
    let hex = digest(&imported).trim_start_matches("sha256:").to_owned();
    let image = home.path("data/isolator/images").join(hex);
    assert_eq!(fs::read(image.join("root/etc/hello")).expect("unpacked"), b"hi");
    let description = fs::read_to_string(image.join("image.json")).expect("a description");
    assert!(description.contains("HELLO=there"), "{description}");
}
