//! A set is visible only to programs that ask for it, and no program can change it.

use std::time::Duration;

use super::World;
use crate::common::engine::Kind;

/// Looks for modules of sets wherever a program may look.
const SEARCH: &str = "import os\n\
    for folder, folders, files in os.walk('/.isolator', onerror=lambda error: print(error.filename, error.strerror)):\n    \
        print([os.path.join(folder, name) for name in files if 'secret' in name])\n\
    print([path for path in open('/proc/self/mountinfo') if 'secret' in path])";

#[tokio::test]
async fn a_sandbox_sees_no_set_but_its_own() {
    let world = World::python().await;
    let secret = world.module("secret", "value = 'nobody knows'");
    let another = world.module("another", "");
    assert_eq!(
        world.run_code("import secret; print(secret.value)", Some(&secret)).await,
        "nobody knows\n"
    );
    for set in [None, Some(&another)] {
        let found = world.run_code(SEARCH, set).await;
        assert!(!found.contains("secret.py"), "{found}");
        let imported = world.run_code("import secret", set).await;
        assert!(imported.contains("No module named 'secret'"), "{imported}");
    }
    world.stop().await;
}

#[tokio::test]
async fn a_set_can_t_be_changed_from_inside() {
    let world = World::python().await;
    let set = world.module("parcel", "weight = 3");
    let code = "import os, parcel\n\
        folder = os.path.dirname(parcel.__file__)\n\
        for attempt in [\n    \
            lambda: open(parcel.__file__, 'w'),\n    \
            lambda: open(folder + '/new.py', 'w'),\n    \
            lambda: os.unlink(parcel.__file__),\n    \
            lambda: os.rename(folder, folder + 'x'),\n    \
            lambda: os.chmod(parcel.__file__, 0o777),\n    \
            lambda: os.chmod('/.isolator/packages', 0o777),\n\
        ]:\n    \
            try:\n        \
                attempt()\n        \
                print('done')\n    \
            except OSError as error:\n        \
                print(error.strerror)\n";
    let said = world.run_code(code, Some(&set)).await;
    assert_eq!(said.lines().count(), 6, "{said}");
    assert!(!said.contains("done"), "{said}");
    let weight = world.run_code("import parcel; print(parcel.weight)", Some(&set)).await;
    assert_eq!(weight, "3\n");
    world.stop().await;
}

/// Locks a file of the set, and tells whether that could be done at once. Then it waits for events of the file, as long as
/// another one may cause some.
const MEETS: &str = "import fcntl, os, ctypes, select, sys, parcel\n\
    file = open(parcel.__file__)\n\
    try:\n    \
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    \
        print('locked')\n\
    except OSError:\n    \
        print('met')\n\
    libc = ctypes.CDLL(None)\n\
    watch = libc.inotify_init()\n\
    libc.inotify_add_watch(watch, parcel.__file__.encode(), 0xfff)\n\
    print('seen' if select.select([watch], [], [], 3)[0] else 'alone')";

#[tokio::test]
async fn sandboxes_with_the_same_set_can_not_signal_through_it() {
    // With Docker they do, as SECURITY.md says.
    let world = World::start(Kind::Embedded, "python").await;
    let set = world.module("parcel", "");
    let later = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        world.run_code(MEETS, Some(&set)).await
    };
    let (first, second) = tokio::join!(world.run_code(MEETS, Some(&set)), later);
    assert_eq!((first.as_str(), second.as_str()), ("locked\nalone\n", "locked\nalone\n"));
    world.stop().await;
}

#[tokio::test]
async fn many_requests_at_once_see_their_own_sets() {
    let world = World::python().await;
    let sets: Vec<_> =
        (0..6).map(|number| world.module("which", &format!("number = {number}"))).collect();
    for _ in 0..3 {
        let runs =
            sets.iter().map(|set| world.run_code("import which; print(which.number)", Some(set)));
        let printed = futures_util::future::join_all(runs).await;
        for (number, printed) in printed.iter().enumerate() {
            assert_eq!(*printed, format!("{number}\n"));
        }
    }
    world.stop().await;
}
