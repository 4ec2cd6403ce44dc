//! Folders and files that a careless or hostile program leaves.

use super::*;

#[test]
fn folders_that_a_cell_has_closed_are_opened_again() {
    let mut world = World::new();
    world.write("folder/deep/file", "old");
    world.write("closed/file", "x");
    fs::set_permissions(world.path("closed"), fs::Permissions::from_mode(0o0)).unwrap();
    world.cell(|world| {
        world.write("folder/deep/file", "new");
        for name in ["folder/deep/file", "folder/deep", "folder"] {
            fs::set_permissions(world.path(name), fs::Permissions::from_mode(0o0)).unwrap();
        }
    });
    let _ = world.undo(1);
    assert_eq!(world.read("folder/deep/file"), "old");
    let mode = |name| fs::metadata(world.path(name)).unwrap().mode() & 0o777;
    assert_eq!((mode("folder"), mode("folder/deep"), mode("closed")), (0o755, 0o755, 0));
    fs::set_permissions(world.path("closed"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn folders_that_were_closed_are_closed_again_also_after_the_client_has_written() {
    let mut world = World::new();
    world.write("closed/file", "x");
    let close = |world: &World, mode| {
        fs::set_permissions(world.path("closed"), fs::Permissions::from_mode(mode)).unwrap();
    };
    close(&world, 0);
    world.cell(|world| world.write("made", "x"));
    world.versions.rest(None);
    world.versions.note_written();
    world.write("sent", "x");
    let _ = world.undo(1);
    assert!(world.path("sent").exists() && !world.path("made").exists());
    assert_eq!(fs::metadata(world.path("closed")).unwrap().mode() & 0o777, 0);
    close(&world, 0o755);
}

#[test]
fn a_sparse_file_comes_back_as_one() {
    let mut world = World::new();
    let file = File::create(world.path("sparse")).unwrap();
    file.set_len(4 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"middle", 3 << 20).unwrap();
    drop(file);
    let before = fs::metadata(world.path("sparse")).unwrap().blocks();
    world.cell(|world| fs::remove_file(world.path("sparse")).unwrap());
    world.undo_all(1);
    let content = fs::read(world.path("sparse")).unwrap();
    assert_eq!((content.len(), &content[3 << 20..][..6]), (4 << 20, &b"middle"[..]));
    assert!(fs::metadata(world.path("sparse")).unwrap().blocks() <= before);
}

#[test]
fn what_is_known_of_files_is_bounded() {
    let mut world = World::new();
    for round in 0..3 {
        world.cell(|world| {
            for number in 0..=MAX_ENTRIES {
                let _ = fs::remove_file(world.path(&format!("{number}-{}", round - 1)));
                world.write(&format!("{number}-{round}"), "");
            }
        });
        world.versions.rest(None);
        assert!(world.versions.now.len() <= 2 * MAX_ENTRIES);
    }
}

#[test]
fn a_file_that_was_not_seen_is_not_replaced_by_one_that_comes_back() {
    let world = World::new();
    world.write(".undo-0", "big");
    world.write("big", "the client's");
    let seen = Entry {
        stamp: Stamp::of(&statat(CWD, world.path("big"), AtFlags::empty()).unwrap()),
        content: None,
    };
    let put = |there: Option<&Entry>| {
        let (name, from) = (OsString::from(".undo-0"), PathBuf::from("old"));
        let mut origin = moved::Origin::Waiting { name, from, is_placed: false };
        origin.put(world.folder.path(), Path::new("big"), there)
    };
    put(None).unwrap_err();
    assert_eq!(world.read("big"), "the client's");
    put(Some(&seen)).unwrap();
    assert_eq!((world.read("big"), world.names()), ("big".into(), vec!["big".to_owned()]));
}

#[test]
fn many_names_of_one_file_come_back_quickly() {
    let mut world = without_copies(&["big"]);
    for number in 0..MAX_ENTRIES / 2 {
        fs::hard_link(world.path("big"), world.path(&number.to_string())).unwrap();
    }
    let began = Instant::now();
    world.cell(|world| {
        for number in 0..MAX_ENTRIES / 2 {
            fs::rename(world.path(&number.to_string()), world.path(&format!("moved-{number}")))
                .unwrap();
        }
    });
    world.undo_all(1);
    assert!(world.path("0").exists() && !world.path("moved-0").exists());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn folders_that_a_cell_has_moved_come_back_whole() {
    let mut world = World::new();
    world.write("data/deep/file", "old");
    world.versions.rest(None);
    // They are older than the cell.
    std::thread::sleep(2 * CLOCK_STEP);
    world.cell(|world| {
        fs::rename(world.path("data"), world.path("archive")).unwrap();
        world.write("data/deep/other", "new");
    });
    world.undo_all(1);
    assert_eq!(world.names(), ["data", "data/deep", "data/deep/file"]);
}

#[test]
fn folders_that_are_too_deep_hide_only_what_is_in_them() {
    let mut world = World::new();
    world.write("a", "old");
    world.write("z", "old");
    world.cell(|world| {
        fs::create_dir_all(world.path(&"q/".repeat(60))).unwrap();
        world.write("a", "new");
        fs::remove_file(world.path("z")).unwrap();
        world.write("new", "x");
    });
    let files = world.undo(1);
    assert!(files.has_unknown && files.left.iter().all(|path| path.starts_with('q')), "{files:?}");
    assert_eq!((world.read("a"), world.read("z")), ("old".into(), "old".into()));
    assert!(!world.path("new").exists());
    fs::remove_dir_all(world.path("q")).unwrap();
}

#[test]
fn the_mode_of_a_file_without_a_copy_comes_back() {
    let mut world = without_copies(&["big"]);
    fs::set_permissions(world.path("big"), fs::Permissions::from_mode(0o640)).unwrap();
    world.versions.rest(None);
    world.cell(|world| {
        fs::set_permissions(world.path("big"), fs::Permissions::from_mode(0o0)).unwrap();
    });
    world.undo_all(1);
    assert_eq!(fs::metadata(world.path("big")).unwrap().mode() & 0o777, 0o640);
}
