//! `isolator image`: building images, importing them from files, and removing them.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::engine::Kind;
use crate::common::{Finished, config, isolator, run_command, state, write_config};
use serde_json::{Value, json};
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
fn a_root_file_system_is_imported_and_removed() {
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
fn only_the_chosen_base_is_used() {
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
fn pruning_removes_unused_images_and_names_the_others() {
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

/// The base of the builds here. Nothing listens there, so it has to be imported.
const BASE: &str = "127.0.0.1:1/base:1";

/// Makes the smallest root in which a build can run. Its shell does `$1` instead of an image's script.
const MAKE_BASE: &str = r#"
set -eu
rm -rf base && mkdir -p base/bin base/etc
for name in dash rm sleep; do cp "$(command -v $name)" base/bin/$name; done
ldd base/bin/* | grep -o '/[^ ]* (0x' | sed 's/ (0x//' | sort -u | while read -r library; do
    mkdir -p "base$(dirname "$library")"
    cp -L "$library" "base$library"
done
cat >base/bin/sh <<SHELL
#!/bin/dash
case \$1 in
/build/install.sh) $1 ;;
*) exec /bin/dash "\$@" ;;
esac
SHELL
chmod 755 base/bin/sh
tar -C base -cf base.tar .
"#;

/// A place in which the embedded engine builds Python's image from such a base.
struct Builds(Home);

impl Builds {
    fn new() -> Self {
        let builds = Self(Home::new());
        builds.configure(json!({ "base": BASE }));
        builds
    }

    fn configure(&self, images: Value) {
        let settings = json!({ "engine": { "kind": "embedded" }, "images": images });
        write_config(self.0.0.path(), &config(&["python", "javascript"], settings));
    }

    /// Builds do this from now on.
    fn script(&self, script: &str) -> &Self {
        self.script_of(BASE, script)
    }

    /// Builds from this base do this from now on.
    fn script_of(&self, base: &str, script: &str) -> &Self {
        let mut make = Command::new("sh");
        make.args(["-c", MAKE_BASE, "sh", script]).current_dir(self.0.0.path());
        let made = run_command(&mut make, "");
        assert_eq!(made.code, Some(0), "{made:?}");
        let imported = self.run(&["import", "base.tar", "--name", base]);
        assert_eq!(imported.code, Some(0), "{imported:?}");
        self
    }

    fn command(&self) -> Command {
        let mut command = isolator(self.0.0.path());
        command.env("XDG_DATA_HOME", self.0.path("data")).arg("image");
        command
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        run_command(self.command().args(arguments), "")
    }

    /// Leftovers of unfinished images.
    fn staged(&self) -> usize {
        fs::read_dir(self.0.path("data/isolator/staging")).map_or(0, Iterator::count)
    }
}

#[test]
fn an_image_is_built_again_only_if_something_has_changed() {
    let builds = Builds::new();
    builds.script("for line in 1 2 3 4 5 6 7 8 9; do echo line $line; done");
    let first = builds.run(&["build", "python"]);
    let built = digest(&first);
    // What is done now, and not each line.
    assert!(first.stderr.contains("step 2 of 2: building isolator/python"), "{first:?}");
    let shared = state(builds.0.0.path()).join("isolator/instances/embedded");
    assert_eq!(fs::read_dir(shared).map_or(0, Iterator::count), 0, "nothing is left of the build");
    assert!(!first.stderr.contains("line 5") && first.stderr.lines().count() < 6, "{first:?}");

    let began = Instant::now();
    let again = builds.run(&["build", "python"]);
    assert_eq!(
        again.stdout,
        format!("isolator/python {built} (unchanged; --force builds it again)\n")
    );
    assert!(again.stderr.is_empty() && began.elapsed() < Duration::from_secs(30), "{again:?}");

    // Another base, and all lines. The build after it fails, and the image that the first one replaced is named all the same.
    builds.script("echo another line; [ ! -e /build/package.json ]");
    let changed = builds.run(&["build", "--verbose", "python", "javascript"]);
    assert!(!changed.stdout.contains("unchanged"), "{changed:?}");
    assert!(changed.stderr.lines().any(|line| line == "another line"), "{changed:?}");
    assert_eq!(changed.code, Some(125), "{changed:?}");
    assert!(changed.stderr.contains("2 unused image(s) of former builds take "), "{changed:?}");

    // What was replaced is shown until it is removed.
    let listed = builds.run(&["ls"]);
    let unused = |listed: &Finished| listed.stdout.matches("(unused)").count();
    assert_eq!(unused(&listed), 2, "the former base and the former image: {listed:?}");
    assert!(listed.stderr.contains("2 unused image(s) of former builds take "), "{listed:?}");
    assert!(listed.stderr.contains("`isolator image prune` removes them"), "{listed:?}");
    assert_eq!(builds.run(&["prune"]).code, Some(0));
    let listed = builds.run(&["ls"]);
    assert_eq!((unused(&listed), listed.stderr.as_str()), (0, ""), "{listed:?}");

    // A base that was chosen later has to be the base, and one that is gone need not.
    let other = "127.0.0.1:1/other:1";
    builds.configure(json!({ "base": other }));
    let refused = builds.run(&["build", "python"]);
    assert_eq!(refused.code, Some(125), "{refused:?}");
    assert!(refused.stderr.contains(&format!("pulling {other}")), "{refused:?}");
    builds.configure(json!({}));
    let unchanged = builds.run(&["build", "python"]);
    assert!(unchanged.stdout.contains("unchanged"), "{unchanged:?}");
    builds.configure(json!({ "base": BASE }));

    // Anew means also with a new base, which can't be had here.
    let forced = builds.run(&["build", "--force", "python"]);
    assert_eq!(forced.code, Some(125), "{forced:?}");
    assert!(forced.stderr.contains("could not be pulled"), "{forced:?}");
}

#[test]
fn an_image_is_kept_while_its_base_exists() {
    let builds = Builds::new();
    builds.configure(json!({}));
    builds.script_of("debian:trixie-slim", "echo public").run(&["build", "python"]);
    builds.script_of("isolator/base", "echo made here");
    let unchanged = builds.run(&["build", "python"]);
    assert!(unchanged.stdout.contains("unchanged"), "{unchanged:?}");
    // Others start from what was made here.
    let other = builds.run(&["build", "--verbose", "javascript"]);
    assert!(other.stderr.lines().any(|line| line == "made here"), "{other:?}");
    builds.script_of("debian:trixie-slim", "echo a later one");
    let changed = builds.run(&["build", "python"]);
    assert!(!changed.stdout.contains("unchanged"), "{changed:?}");
}

#[test]
fn a_build_that_fails_shows_its_last_lines() {
    let builds = Builds::new();
    let failed = builds.script("echo the reason; exit 1").run(&["build", "python"]);
    assert_eq!(failed.code, Some(125), "{failed:?}");
    assert!(failed.stderr.lines().any(|line| line == "  the reason"), "{failed:?}");
    assert_eq!(builds.staged(), 0);
}

#[test]
fn an_interrupted_build_is_reported_and_leaves_nothing() {
    let builds = Builds::new();
    builds.script("echo begun; sleep 600");
    let mut build = builds.command();
    build.args(["build", "-v", "python"]).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut build = build.spawn().expect("it starts");
    let mut told = BufReader::new(build.stderr.take().expect("it is piped")).lines();
    let begun = told.find(|line| line.as_ref().is_ok_and(|line| line == "begun"));
    assert!(begun.is_some());
    let pid = rustix::process::Pid::from_child(&build);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let last: Vec<_> = told.map(|line| line.expect("text")).collect();
    assert_eq!(build.wait().expect("it ends").code(), Some(130), "{last:?}");
    assert_eq!(
        last[last.len() - 2..],
        [
            "isolator: stopped: the image isolator/python is not finished",
            "isolator: stopped; nothing unfinished is left, and the same command begins it again",
        ]
    );
    assert_eq!(builds.staged(), 0);
}

#[test]
fn a_full_disk_is_reported_with_its_folder_and_the_space_needed() {
    let builds = Builds::new();
    builds.script("sleep 600");
    let data = builds.0.path("data/isolator");
    // The store moves to a disk on which a build does not fit, and then to one on which an archive does not.
    let on_disk = |size: &str, keep: &str, arguments: &[&str]| {
        let prepare = format!(
            "mount -t tmpfs -o size={size} disk /mnt && {keep} mount --bind /mnt {} && exec \"$@\"",
            data.display()
        );
        let of_binary = builds.command();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &prepare, "sh"]).arg(of_binary.get_program());
        command.args(of_binary.get_args()).args(arguments).current_dir(builds.0.0.path());
        for (name, value) in of_binary.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let finished = run_command(&mut command, "");
        assert_eq!(finished.code, Some(125), "{finished:?}");
        finished.stderr
    };
    let built =
        on_disk("100M", &format!("cp -a {}/. /mnt &&", data.display()), &["build", "python"]);
    let room = format!("make room in {}, whose disk has ", data.display());
    for words in [room.as_str(), " MiB free: a build takes up to 2 GiB"] {
        assert!(built.contains(words), "{words}: {built}");
    }
    let imported = on_disk("2M", "", &["import", "base.tar", "--name", "a"]);
    for words in [room.as_str(), " MiB free: the image takes at least 3 MiB there"] {
        assert!(imported.contains(words), "{words}: {imported}");
    }
}
