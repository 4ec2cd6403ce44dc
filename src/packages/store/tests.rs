use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

const HASH: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn set(bytes: u64) -> StoredSet {
    StoredSet {
        hash: HASH.to_owned(),
        interpreter: Interpreter::Python,
        target: "cpython-3.13-x86_64-manylinux_2_40".to_owned(),
        index: String::new(),
        requirements: vec!["a".to_owned()],
        locks: BTreeMap::new(),
        packages: vec![Locked {
            name: "a".to_owned(),
            version: "1".to_owned(),
            wanted_by: Vec::new(),
        }],
        modules: vec!["a".to_owned()],
        bytes,
        built: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000),
    }
}

fn begin(store: &Store) -> Building {
    store.begin(1 << 30).unwrap()
}

fn publish(store: &Store) -> StoredSet {
    let building = begin(store);
    fs::write(building.files().join("a.py"), "x = 1\n").unwrap();
    let entries = tree::entries(&building.files()).unwrap();
    let set = set(tree::bytes(&entries));
    building.publish(&set, &entries).unwrap();
    set
}

/// The number of entries in a folder of the store.
fn count(root: &Path, name: &str) -> usize {
    fs::read_dir(root.join(name)).unwrap().count()
}

#[test]
fn a_set_is_complete_until_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), None).unwrap();
    assert_eq!((store.find(HASH), store.all()), (None, Vec::new()));
    let set = publish(&store);
    assert_eq!(store.find(HASH).as_ref(), Some(&set));
    assert_eq!(count(folder.path(), "building"), 0);
    assert!(store.bytes() >= 6);

    // As another process sees it.
    let other = Store::open(folder.path(), None).unwrap();
    let held = other.hold(&set).unwrap();
    assert_eq!(fs::read_to_string(held.folder.join("a.py")).unwrap(), "x = 1\n");
    assert!(store.is_held(HASH));
    assert!(matches!(store.remove(HASH), Err(StoreError::InUse(_))));
    drop(held);
    assert!(!store.is_held(HASH));
    assert!(store.remove(HASH).unwrap());
    assert!(!store.remove(HASH).unwrap());
    assert!(matches!(other.hold(&set), Err(StoreError::NoSuchSet(_))));
    assert_eq!(count(folder.path(), "removed"), 0);
}

#[test]
fn a_second_build_of_the_same_set_uses_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), None).unwrap();
    publish(&store);
    let held = store.hold(&set(6)).unwrap();
    publish(&store);
    assert_eq!(count(folder.path(), "sets"), 1);
    assert!(held.folder.join("a.py").exists());
}

#[test]
fn a_changed_set_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), None).unwrap();
    let set = publish(&store);
    let files = folder.path().join("sets").join(HASH).join(FILES);
    let fresh = || Store::open(folder.path(), None).unwrap();
    let what = |store: &Store| match store.hold(&set) {
        Err(StoreError::Changed { what, .. }) => what,
        held => panic!("{held:?}"),
    };
    fs::write(files.join("a.py"), "x = 2\n").unwrap();
    assert_eq!(what(&fresh()), "a.py is another");
    fs::write(files.join("a.py"), "x = 1\n").unwrap();
    symlink("/etc", files.join("b")).unwrap();
    assert!(what(&fresh()).contains("outside of the set"));
    fs::remove_file(files.join("b")).unwrap();
    assert!(fresh().hold(&set).is_ok());
    fs::write(folder.path().join("sets").join(HASH).join(MANIFEST), "").unwrap();
    assert!(what(&fresh()).contains("list of files"));
    // A file without end, and a link in the place of a folder.
    let list = folder.path().join("sets").join(HASH).join(MANIFEST);
    File::create(&list).unwrap().set_len(MAX_MANIFEST + 1).unwrap();
    assert!(what(&fresh()).contains("list of files"));
    let (moved, verified) = (folder.path().join("moved"), fresh());
    fs::rename(&files, &moved).unwrap();
    symlink(&moved, &files).unwrap();
    assert!(what(&verified).contains("a link"));
    fs::remove_file(&files).unwrap();
    fs::rename(&moved, &files).unwrap();
    // Removed and built again, it is looked at again.
    assert!(store.remove(HASH).unwrap());
    publish(&store);
    assert!(fresh().hold(&set).is_ok());
}

#[test]
fn builds_of_dead_processes_are_removed_and_others_stay() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), None).unwrap();
    let alive = begin(&store);
    // Killed before and after it had its lock, and while it removed a set.
    fs::create_dir_all(folder.path().join("building/1-dead")).unwrap();
    fs::create_dir_all(folder.path().join("building/2-dead/set/files")).unwrap();
    fs::write(folder.path().join("building/2-dead/lock"), "").unwrap();
    fs::create_dir_all(folder.path().join("removed/3-dead/files")).unwrap();
    // It can't be seen whether this one is alive.
    fs::create_dir_all(folder.path().join("building/4-unknown/lock")).unwrap();
    drop(Store::open(folder.path(), None).unwrap());
    assert_eq!((count(folder.path(), "building"), count(folder.path(), "removed")), (2, 0));
    fs::remove_dir_all(folder.path().join("building/4-unknown")).unwrap();
    drop(alive);
    assert_eq!((count(folder.path(), "building"), count(folder.path(), "removed")), (0, 0));
}

/// Writes a download into a cache.
fn fill(cache: &Path, bytes: usize) -> PathBuf {
    fs::create_dir_all(cache).unwrap();
    let wheel = cache.join("wheel");
    fs::write(&wheel, vec![0; bytes]).unwrap();
    wheel
}

#[test]
fn caches_are_removed_only_when_no_build_uses_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), None).unwrap();
    let (building, other) = (begin(&store), begin(&store));
    let wheel = fill(&building.cache("uv"), 100);
    assert_eq!(store.clear_cache().unwrap(), Cleared { bytes: 0, is_all: false });
    fill(&other.cache("npm"), 7);
    drop(other);
    assert_eq!(store.clear_cache().unwrap(), Cleared { bytes: 7, is_all: false });
    // Files that are also in a set are not freed.
    fs::hard_link(wheel, building.files().join("a.so")).unwrap();
    fs::write(building.cache("uv").join("other"), [0; 10]).unwrap();
    let entries = tree::entries(&building.files()).unwrap();
    building.publish(&set(100), &entries).unwrap();
    assert_eq!(store.clear_cache().unwrap(), Cleared { bytes: 10, is_all: true });
    assert!(store.hold(&set(100)).is_ok());
}

#[test]
fn caches_are_bounded_whenever_a_build_begins_or_ends() {
    let folder = tempfile::tempdir().unwrap();
    let cache = |slot: &str| folder.path().join("cache").join(slot).join("uv");
    // Of earlier versions.
    fill(&folder.path().join("cache/uv"), 10);
    let store = Store::open(folder.path(), None).unwrap();
    assert_eq!(count(folder.path(), "cache"), 0);
    // Caches of a server that was killed.
    let [wheel, other_wheel] = [fill(&cache("0"), 51), fill(&cache("1"), 20)];
    let building = store.begin(50).unwrap();
    assert!(!wheel.exists() && other_wheel.exists());
    fill(&building.cache("uv"), 50);
    drop(building);
    assert!(wheel.exists() && !other_wheel.exists(), "all together are bounded");
    let [building, other] = [(), ()].map(|()| store.begin(50).unwrap());
    fill(&building.cache("uv"), 51);
    fill(&other.cache("uv"), 50);
    drop(other);
    assert!(wheel.exists(), "a build uses it");
    assert!(other_wheel.exists(), "it is not too large");
    drop(building);
    assert!(!wheel.exists() && other_wheel.exists());
}

#[test]
fn only_a_build_s_own_files_count_towards_its_limits() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), None).unwrap();
    fill(&begin(&store).cache("uv"), 5);
    let (bomb, other) = (begin(&store), begin(&store));
    assert_eq!(bomb.growth().measure().bytes, 0, "earlier files are not its own");
    let (wheel, other_wheel) = (bomb.cache("uv").join("bomb"), fill(&other.cache("uv"), 7));
    fs::write(&wheel, [0; 501]).unwrap();
    assert_eq!([&bomb, &other].map(|it| it.growth().measure().bytes), [501, 7]);
    bomb.spoil_cache();
    drop(bomb);
    assert!(!wheel.exists() && other_wheel.exists());
    drop(other);
    assert!(other_wheel.exists());
}

#[test]
fn a_set_that_is_removed_meanwhile_does_not_hide_the_size_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), None).unwrap();
    let deep = folder.path().join("sets/going/a").join("d/".repeat(500));
    let removed = folder.path().join("removed/going");
    for number in 0..20 {
        fill(&folder.path().join(format!("sets/{number}")), 100);
    }
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                fs::create_dir_all(&deep).unwrap();
                fs::rename(folder.path().join("sets/going"), &removed).unwrap();
                isolator_pool::folders::remove(&removed).unwrap();
            }
        });
        let counted: Vec<_> = (0..100).map(|_| store.bytes()).collect();
        is_over.store(true, Ordering::Relaxed);
        moving.join().unwrap();
        assert!(counted.iter().all(|bytes| *bytes == 2000), "{counted:?}");
    });
}

#[test]
fn uses_are_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), None).unwrap();
    publish(&store);
    let used = folder.path().join("sets").join(HASH).join(USED);
    let past = SystemTime::now() - Duration::from_secs(3600);
    File::options().write(true).open(used).unwrap().set_modified(past).unwrap();
    let before = store.all()[0].1;
    store.used(HASH);
    assert!(store.all()[0].1 > before + Duration::from_secs(3500));
    store.used("../../etc");
}

#[test]
fn with_a_key_only_sets_of_nodes_that_have_it_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let open = |key: Option<u8>| {
        let key = key.map(|key| StoreKey::from_bytes(&[key; 32]));
        Store::open(folder.path(), key).unwrap()
    };
    let place = folder.path().join("sets").join(HASH);
    let what = |store: &Store, set: &StoredSet| match store.hold(set) {
        Err(StoreError::Changed { what, .. }) => what,
        held => panic!("{held:?}"),
    };
    let set = publish(&open(Some(1)));
    assert!(open(Some(1)).hold(&set).is_ok() && open(None).hold(&set).is_ok());
    assert!(what(&open(Some(2)), &set).contains("no seal"));
    // A set that agrees with itself, as one who can write to the volume makes it.
    fs::write(place.join(FILES).join("a.py"), "x = 'planted'\n").unwrap();
    let entries = tree::entries(&place.join(FILES)).unwrap();
    let manifest = tree::manifest(&place.join(FILES), &entries).unwrap();
    fs::write(place.join(MANIFEST), &manifest).unwrap();
    fs::write(place.join(SET_FILE), text_of(&set, &manifest)).unwrap();
    assert!(open(None).hold(&set).is_ok());
    assert!(what(&open(Some(1)), &set).contains("no seal"));
    for seal in ["", "no digits", &"0".repeat(64), &"0".repeat(10_000)] {
        fs::write(place.join("seal"), seal).unwrap();
        assert!(what(&open(Some(1)), &set).contains("no seal"));
    }
    assert!(open(Some(1)).remove(HASH).unwrap());
    let other = publish(&open(Some(1)));
    assert!(open(Some(1)).hold(&other).is_ok());
    // What the caller has read of it is what was sealed.
    let planted = StoredSet { modules: vec!["os".to_owned()], ..other };
    assert!(what(&open(Some(1)), &planted).contains("description"));
}

#[test]
fn a_set_that_another_node_has_built_again_is_verified_again() {
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = [(); 2].map(|()| Store::open(folder.path(), None).unwrap());
    let set = publish(&here);
    drop(here.hold(&set).unwrap());
    there.remove(HASH).unwrap();
    publish(&there);
    let file = folder.path().join("sets").join(HASH).join(FILES).join("a.py");
    fs::write(file, "x = 2\n").unwrap();
    assert!(matches!(here.hold(&set), Err(StoreError::Changed { .. })));
}

#[test]
fn one_process_has_the_right_to_build_a_set() {
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = [(); 2].map(|()| Store::open(folder.path(), None).unwrap());
    let alone = here.alone(HASH).unwrap();
    assert!(alone.is_some() && there.alone(HASH).unwrap().is_none());
    assert!(there.alone(&HASH.replace('0', "f")).unwrap().is_some());
    drop(alone);
    assert!(there.alone(HASH).unwrap().is_some());
    assert!(matches!(here.alone("../x"), Err(StoreError::NoSuchSet(_))));
    let locks = fs::read_dir(folder.path()).unwrap().flatten();
    assert_eq!(
        locks.filter(|it| it.file_name().to_string_lossy().starts_with("build.")).count(),
        0
    );
}
