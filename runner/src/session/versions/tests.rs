#![expect(clippy::disallowed_methods, reason = "the folders of these tests are not deep")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use rustix::fs::mknodat;
use tempfile::TempDir;

use super::*;

mod odd;

/// A workspace with versions of its files.
struct World {
    folder: TempDir,
    versions: Versions,
    cells: u32,
}

impl World {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let versions = Versions::new(folder.path().to_owned(), 8, None);
        Self { folder, versions, cells: 0 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Runs a cell that does something.
    fn cell(&mut self, does: impl FnOnce(&Self)) {
        self.versions.rest(None);
        self.versions.begin(0, self.cells);
        self.cells += 1;
        does(self);
    }

    /// Undoes cells, and returns which files are not as before.
    fn undo(&mut self, cells: u32) -> UndoneFiles {
        self.cells -= cells;
        self.versions.undo(0, self.cells, |_, _| {}).unwrap()
    }

    fn undo_all(&mut self, cells: u32) {
        let files = self.undo(cells);
        assert!(files.is_all(), "{files:?}");
    }

    fn names(&self) -> Vec<String> {
        let look = Look::at(self.folder.path(), Closed::Leave);
        look.found.into_keys().map(|path| path.to_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn what_a_cell_has_changed_made_and_removed_is_undone() {
    let mut world = World::new();
    world.write("changed", "old");
    world.write("removed/deep/file", "there");
    world.write("run.sh", "#!/bin/sh");
    fs::set_permissions(world.path("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("changed", world.path("link")).unwrap();
    symlink("/etc", world.path("to-etc")).unwrap();
    let before = world.names();
    let modified = fs::metadata(world.path("changed")).unwrap().modified().unwrap();
    world.cell(|world| {
        world.write("changed", "new and longer");
        fs::remove_dir_all(world.path("removed")).unwrap();
        world.write("new/deep/file", "new");
        fs::set_permissions(world.path("run.sh"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::remove_file(world.path("link")).unwrap();
        symlink("elsewhere", world.path("link")).unwrap();
        fs::remove_file(world.path("to-etc")).unwrap();
    });
    world.undo_all(1);
    assert_eq!(world.names(), before);
    assert_eq!(
        (world.read("changed"), world.read("removed/deep/file")),
        ("old".into(), "there".into())
    );
    assert_eq!(fs::metadata(world.path("changed")).unwrap().modified().unwrap(), modified);
    assert_eq!(fs::metadata(world.path("run.sh")).unwrap().mode() & 0o777, 0o755);
    assert_eq!(fs::read_link(world.path("link")).unwrap(), Path::new("changed"));
    assert_eq!(fs::read_link(world.path("to-etc")).unwrap(), Path::new("/etc"));
    // And again, from there.
    world.cell(|world| world.write("changed", "third"));
    world.undo_all(1);
    assert_eq!(world.read("changed"), "old");
}

#[test]
fn several_cells_are_undone_together() {
    let mut world = World::new();
    world.write("a", "0");
    for number in 1..=3 {
        world.cell(|world| {
            world.write("a", number.to_string());
            world.write(&format!("of-{number}"), "x");
        });
    }
    world.undo_all(2);
    assert_eq!(
        (world.read("a"), world.names()),
        ("1".into(), vec!["a".to_owned(), "of-1".to_owned()])
    );
    world.undo_all(1);
    assert_eq!((world.read("a"), world.names()), ("0".into(), vec!["a".to_owned()]));
    assert_eq!(world.versions.undo(0, 0, |_, _| {}), None, "that is not known anymore");
}

#[test]
fn kinds_that_have_changed_change_back() {
    let mut world = World::new();
    world.write("file", "content");
    world.write("folder/inside", "content");
    symlink("x", world.path("link")).unwrap();
    let outside = TempDir::new().unwrap();
    fs::write(outside.path().join("inside"), "not to be touched").unwrap();
    world.cell(|world| {
        fs::remove_file(world.path("file")).unwrap();
        world.write("file/now/a-folder", "x");
        // A link that leads out of the workspace has taken the place of a folder.
        fs::remove_dir_all(world.path("folder")).unwrap();
        symlink(outside.path(), world.path("folder")).unwrap();
        fs::remove_file(world.path("link")).unwrap();
        mknodat(CWD, world.path("link"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        mknodat(CWD, world.path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    });
    world.undo_all(1);
    assert_eq!(world.names(), ["file", "folder", "folder/inside", "link"]);
    assert_eq!(
        (world.read("file"), world.read("folder/inside")),
        ("content".into(), "content".into())
    );
    assert_eq!(fs::read_to_string(outside.path().join("inside")).unwrap(), "not to be touched");
}

#[test]
fn a_file_that_a_process_has_open_and_one_with_two_names_stay_the_same_files() {
    let mut world = World::new();
    world.write("log", "one\n");
    fs::hard_link(world.path("log"), world.path("second")).unwrap();
    let inode = fs::metadata(world.path("log")).unwrap().ino();
    let mut log = fs::OpenOptions::new().append(true).open(world.path("log")).unwrap();
    world.cell(|world| world.write("log", "two\n"));
    world.undo_all(1);
    assert_eq!((world.read("log"), world.read("second")), ("one\n".into(), "one\n".into()));
    io::Write::write_all(&mut log, b"three\n").unwrap();
    assert_eq!(world.read("log"), "one\nthree\n");
    assert_eq!(fs::metadata(world.path("second")).unwrap().ino(), inode);
}

#[test]
fn what_is_too_large_is_named() {
    let mut world = World::new();
    world.versions.limit = 64 << 10;
    world.write("small", "old");
    world.write("large", vec![1; 40 << 10]);
    File::create(world.path("sparse")).unwrap().set_len(1 << 40).unwrap();
    world.cell(|world| {
        for name in ["small", "large", "sparse"] {
            world.write(name, "new");
        }
    });
    let files = world.undo(1);
    assert_eq!(
        (files.left, files.more, files.has_unknown),
        (vec!["large".into(), "sparse".into()], 0, false)
    );
    assert_eq!((world.read("small"), world.read("large")), ("old".into(), "new".into()));
    assert!(world.versions.total.load(Ordering::Relaxed) <= world.versions.limit);
    // Only a change of such a file is a loss, and that of its mode is none.
    world.write("large", vec![2; 40 << 10]);
    world.cell(|world| {
        fs::set_permissions(world.path("large"), fs::Permissions::from_mode(0o600)).unwrap();
    });
    world.undo_all(1);
    assert_eq!(fs::metadata(world.path("large")).unwrap().mode() & 0o777, 0o644);
}

#[test]
fn copies_have_a_limit_and_older_cells_are_given_up_for_newer_ones() {
    let mut world = World::new();
    world.versions.limit = 100 << 10;
    for number in 0..50_u8 {
        world.cell(|world| world.write("a", vec![number; 20 << 10]));
        assert!(world.versions.total.load(Ordering::Relaxed) <= world.versions.limit);
    }
    assert!(world.versions.marks.len() < 8);
    world.undo_all(1);
    assert_eq!(fs::read(world.path("a")).unwrap()[0], 48);
    assert!(world.versions.give_up());
    assert_eq!(world.versions.total.load(Ordering::Relaxed), 0);
    assert!(!world.versions.give_up());
    assert_eq!(world.versions.undo(0, 40, |_, _| {}), None);
    // Without memory for copies, new files are removed, and others are named.
    world.versions.rest(Some(0));
    world.versions.begin(0, 50);
    world.write("a", "changed");
    world.write("b", "new");
    let files = world.versions.undo(0, 50, |_, _| {}).unwrap();
    assert_eq!((files.left, world.names()), (vec!["a".to_owned()], vec!["a".to_owned()]));
}

#[test]
fn files_that_the_client_writes_between_cells_stay() {
    let mut world = World::new();
    world.write("mine", "old");
    world.cell(|world| world.write("mine", "of the first cell"));
    world.versions.rest(None);
    world.versions.note_written();
    world.write("mine", "the client's");
    world.write("sent", "x");
    world.cell(|world| {
        world.write("mine", "of the second cell");
        fs::remove_file(world.path("sent")).unwrap();
    });
    world.undo_all(1);
    assert_eq!((world.read("mine"), world.read("sent")), ("the client's".into(), "x".into()));
    world.undo_all(1);
    assert_eq!((world.read("mine"), world.read("sent")), ("the client's".into(), "x".into()));
}

#[test]
fn hostile_names_and_many_files_are_undone_or_said_to_be_unknown() {
    let mut world = World::new();
    let names: Vec<_> = [&b"\xff\n"[..], b"-rf", b"a b", b"\\x41", b"..."].map(os_string).into();
    for name in &names {
        fs::write(world.folder.path().join(name), "old").unwrap();
    }
    world.cell(|world| {
        for name in &names {
            fs::write(world.folder.path().join(name), "new").unwrap();
        }
    });
    world.undo_all(1);
    assert!(names.iter().all(|name| fs::read(world.folder.path().join(name)).unwrap() == b"old"));
    world.cell(|world| {
        for number in 0..MAX_ENTRIES {
            fs::write(world.path(&number.to_string()), "").unwrap();
        }
        fs::write(world.folder.path().join(&names[0]), "new").unwrap();
    });
    assert!(world.undo(1).has_unknown);
    // What was known is looked at by its name.
    assert!(names.iter().all(|name| fs::read(world.folder.path().join(name)).unwrap() == b"old"));
    // What was there, but was not seen, is not taken for new when it is seen.
    let mut world = World::new();
    let most = MAX_ENTRIES + 1000;
    (0..most).for_each(|number| world.write(&number.to_string(), ""));
    world.cell(|world| {
        (0..2000).for_each(|number| fs::remove_file(world.path(&number.to_string())).unwrap());
    });
    assert!(world.undo(1).has_unknown);
    assert!(fs::read_dir(world.folder.path()).unwrap().count() >= most - 2000);
}

#[test]
fn a_folder_and_a_file_without_rights_come_back_as_they_were() {
    let mut world = World::new();
    world.write("closed/file", "old");
    fs::set_permissions(world.path("closed/file"), fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(world.path("closed"), fs::Permissions::from_mode(0o555)).unwrap();
    world.cell(|world| {
        fs::set_permissions(world.path("closed"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::remove_file(world.path("closed/file")).unwrap();
    });
    world.undo_all(1);
    assert_eq!(world.read("closed/file"), "old");
    assert_eq!(fs::metadata(world.path("closed/file")).unwrap().mode() & 0o777, 0o444);
    assert_eq!(fs::metadata(world.path("closed")).unwrap().mode() & 0o777, 0o555);
    fs::set_permissions(world.path("closed"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// A world with files of which there are no copies.
fn without_copies(names: &[&str]) -> World {
    let mut world = World::new();
    world.versions.limit = 0;
    for name in names {
        world.write(name, *name);
    }
    world.versions.rest(None);
    world
}

#[test]
fn files_without_copies_that_a_cell_has_moved_come_back() {
    type Does = fn(&dyn Fn(&str) -> PathBuf);
    let cells: [Does; 8] = [
        |at| fs::rename(at("big"), at("old")).unwrap(),
        |at| {
            fs::create_dir_all(at("archive/deep")).unwrap();
            fs::rename(at("big"), at("archive/deep/big")).unwrap();
        },
        |at| fs::rename(at("folder"), at("renamed")).unwrap(),
        // Another file has its name.
        |at| {
            fs::rename(at("big"), at("old")).unwrap();
            fs::write(at("big"), "new").unwrap();
        },
        |at| {
            fs::rename(at("big"), at("x")).unwrap();
            fs::rename(at("folder/inner"), at("big")).unwrap();
            fs::rename(at("x"), at("folder/inner")).unwrap();
        },
        // A folder with the file has its name.
        |at| {
            fs::rename(at("big"), at("x")).unwrap();
            fs::create_dir(at("big")).unwrap();
            fs::rename(at("x"), at("big/x")).unwrap();
        },
        |at| fs::hard_link(at("big"), at("second")).unwrap(),
        |at| {
            fs::hard_link(at("big"), at("second")).unwrap();
            fs::hard_link(at("big"), at("third")).unwrap();
            fs::remove_file(at("big")).unwrap();
        },
    ];
    for (number, does) in cells.iter().enumerate() {
        let mut world = without_copies(&["big", "folder/inner"]);
        world.cell(|world| does(&|name| world.path(name)));
        world.undo_all(1);
        assert_eq!(world.names(), ["big", "folder", "folder/inner"], "{number}");
        assert_eq!(
            (world.read("big"), world.read("folder/inner")),
            ("big".into(), "folder/inner".into()),
            "{number}"
        );
    }
}

#[test]
fn of_a_file_with_two_names_the_one_that_a_cell_has_removed_comes_back() {
    let mut world = without_copies(&["big"]);
    fs::hard_link(world.path("big"), world.path("second")).unwrap();
    world.cell(|world| fs::remove_file(world.path("big")).unwrap());
    world.undo_all(1);
    assert_eq!((world.read("big"), world.read("second")), ("big".into(), "big".into()));
    let inode = |name| fs::metadata(world.path(name)).unwrap().ino();
    assert_eq!(inode("big"), inode("second"));
}

#[test]
fn a_file_without_a_copy_that_was_moved_and_changed_stays_and_is_named() {
    let mut world = without_copies(&["big", "other"]);
    world.cell(|world| {
        fs::rename(world.path("big"), world.path("old")).unwrap();
        world.write("old", "changed");
    });
    let files = world.undo(1);
    assert_eq!(files.left, ["big", "old"]);
    assert_eq!((world.read("old"), world.read("other")), ("changed".into(), "other".into()));
}

#[test]
fn cells_of_other_contexts_keep_their_files() {
    let mut world = World::new();
    world.write("a", "0");
    world.write("both", "0");
    world.cell(|world| {
        world.write("a", "first");
        world.write("both", "first");
        world.write("of-first", "x");
    });
    world.versions.rest(None);
    world.versions.begin(1, 0);
    world.write("both", "other");
    world.write("of-other", "x");
    world.write("later", "other");
    world.cell(|world| {
        world.write("a", "second");
        world.write("later", "second");
    });
    let files = world.undo(2);
    assert_eq!(files.left, ["both"]);
    assert_eq!(
        (world.read("a"), world.read("both"), world.read("later")),
        ("0".into(), "other".into(), "other".into())
    );
    assert_eq!(world.names(), ["a", "both", "later", "of-other"]);
    // The other cell can still be undone.
    assert!(world.versions.undo(1, 0, |_, _| {}).unwrap().is_all());
    assert_eq!(world.names(), ["a", "both"]);
}

#[test]
fn files_that_the_client_writes_while_a_cell_runs_stay_and_are_named() {
    let mut world = World::new();
    world.write("replaced", "old");
    world.write("changed", "old");
    world.cell(|world| {
        world.write("changed", "by the cell");
        world.write("sent", "x");
        world.write("sent-too", "the client's");
        fs::rename(world.path("sent-too"), world.path("replaced")).unwrap();
    });
    world.versions.note_shared();
    let files = world.undo(1);
    assert_eq!(files.left, ["replaced", "sent"]);
    assert_eq!(
        (world.read("replaced"), world.read("sent"), world.read("changed")),
        ("the client's".into(), "x".into(), "old".into())
    );
}

#[test]
fn files_that_the_client_writes_right_before_an_undo_stay() {
    let mut world = World::new();
    world.write("mine", "old");
    world.cell(|world| world.write("made", "x"));
    world.versions.rest(None);
    world.versions.note_written();
    world.write("mine", "the client's");
    world.write("sent", "x");
    world.undo_all(1);
    assert_eq!(
        (world.read("mine"), world.names()),
        ("the client's".into(), vec!["mine".to_owned(), "sent".to_owned()])
    );
}

#[test]
fn a_file_that_is_older_than_a_cell_is_not_taken_for_new() {
    let mut world = World::new();
    world.versions.rest(None);
    world.write("missed", "x");
    std::thread::sleep(Duration::from_millis(100));
    world.versions.begin(0, 0);
    world.write("new", "x");
    let files = world.versions.undo(0, 0, |_, _| {}).unwrap();
    assert_eq!((files.left, world.names()), (vec!["missed".to_owned()], vec!["missed".to_owned()]));
}
