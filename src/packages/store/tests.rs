use std::os::unix::fs::symlink;

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
    store.begin(CacheRoom { idle: 1 << 30, shared: 1 << 30 }).unwrap().unwrap()
}

fn publish(store: &Store) -> StoredSet {
    let building = begin(store);
    fs::write(building.files().join("a.py"), "x = 1\n").unwrap();
    let entries = tree::entries(&building.files()).unwrap();
    let set = set(tree::bytes(&entries));
    building.publish(&set, &entries).unwrap();
    set
}

/// What is in a folder of the store.
fn count(root: &Path, name: &str) -> usize {
    fs::read_dir(root.join(name)).unwrap().count()
}

#[test]
fn a_set_is_there_as_a_whole_until_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    assert_eq!((store.find(HASH), store.all()), (None, Vec::new()));
    let set = publish(&store);
    assert_eq!(store.find(HASH).as_ref(), Some(&set));
    assert_eq!(count(folder.path(), "building"), 0);
    assert!(store.bytes() >= 6);

    // As another process sees it.
    let other = Store::open(folder.path()).unwrap();
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
fn the_second_of_two_that_build_the_same_uses_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    publish(&store);
    let held = store.hold(&set(6)).unwrap();
    publish(&store);
    assert_eq!(count(folder.path(), "sets"), 1);
    assert!(held.folder.join("a.py").exists());
}

#[test]
fn a_changed_set_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let set = publish(&store);
    let files = folder.path().join("sets").join(HASH).join(FILES);
    let fresh = || Store::open(folder.path()).unwrap();
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
    // Removed and built again, it is looked at again.
    assert!(store.remove(HASH).unwrap());
    publish(&store);
    assert!(fresh().hold(&set).is_ok());
}

#[test]
fn what_the_dead_were_building_goes_and_what_lives_stays() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let alive = begin(&store);
    // Killed before and after it had its lock, and while it removed a set.
    fs::create_dir_all(folder.path().join("building/1-dead")).unwrap();
    fs::create_dir_all(folder.path().join("building/2-dead/set/files")).unwrap();
    fs::write(folder.path().join("building/2-dead/lock"), "").unwrap();
    fs::create_dir_all(folder.path().join("removed/3-dead/files")).unwrap();
    drop(Store::open(folder.path()).unwrap());
    assert_eq!((count(folder.path(), "building"), count(folder.path(), "removed")), (1, 0));
    drop(alive);
    assert_eq!((count(folder.path(), "building"), count(folder.path(), "removed")), (0, 0));
}

#[test]
fn caches_are_removed_only_when_nobody_builds() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    fs::create_dir_all(store.cache("uv")).unwrap();
    fs::write(store.cache("uv").join("wheel"), [0; 100]).unwrap();
    let building = begin(&store);
    assert_eq!(store.clear_cache().unwrap(), None);
    // What a set has, too, is not freed.
    fs::hard_link(store.cache("uv").join("wheel"), building.files().join("a.so")).unwrap();
    let entries = tree::entries(&building.files()).unwrap();
    building.publish(&set(100), &entries).unwrap();
    fs::write(store.cache("uv").join("other"), [0; 10]).unwrap();
    assert_eq!(store.clear_cache().unwrap(), Some(10));
    assert!(store.hold(&set(100)).is_ok());
}

#[test]
fn caches_are_bounded_whenever_a_build_begins_or_ends() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let room = CacheRoom { idle: 50, shared: 500 };
    let fill = |bytes: usize| {
        fs::create_dir_all(store.cache("uv")).unwrap();
        fs::write(store.cache("uv").join("wheel"), vec![0; bytes]).unwrap();
    };
    let is_there = || store.cache("uv").join("wheel").exists();
    // What a server that was killed has left.
    fill(51);
    let building = store.begin(room).unwrap().unwrap();
    assert!(!is_there());
    fill(501);
    assert!(building.growth().measure().bytes >= 501);
    assert!(store.begin(room).unwrap().is_none(), "another build has to wait");
    fill(499);
    let other = store.begin(room).unwrap().unwrap();
    drop(building);
    assert!(is_there(), "another build uses it");
    drop(other);
    assert!(!is_there());
    let building = store.begin(room).unwrap().unwrap();
    fill(50);
    drop(building);
    assert!(is_there());
    let building = store.begin(room).unwrap().unwrap();
    let other = store.begin(room).unwrap().unwrap();
    building.spoil_cache();
    drop(building);
    assert!(is_there());
    drop(other);
    assert!(!is_there());
}

#[test]
fn uses_are_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    publish(&store);
    let used = folder.path().join("sets").join(HASH).join(USED);
    let past = SystemTime::now() - Duration::from_secs(3600);
    File::options().write(true).open(used).unwrap().set_modified(past).unwrap();
    let before = store.all()[0].1;
    store.used(HASH);
    assert!(store.all()[0].1 > before + Duration::from_secs(3500));
    store.used("../../etc");
}
