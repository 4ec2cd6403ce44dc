//! Random layers.

use proptest::prelude::*;
use tar::EntryType;

use crate::store::support::{Tar, World};

/// Paths of a few names, so that entries meet.
fn path() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        4 => Just("a"), 4 => Just("b"), 2 => Just("c"), 1 => Just(".."), 1 => Just("."), 1 => Just(""),
        1 => Just(".wh.a"), 1 => Just(".wh..wh..opq"), 1 => Just(".wh..."),
    ];
    prop::collection::vec(name, 1..5).prop_map(|names| names.join("/"))
}

fn entry() -> impl Strategy<Value = (EntryType, String, String)> {
    let kind = prop_oneof![
        3 => Just(EntryType::Regular), 2 => Just(EntryType::Directory), 3 => Just(EntryType::Symlink),
        2 => Just(EntryType::Link), 1 => Just(EntryType::Fifo),
    ];
    let target = prop_oneof![
        3 => path(), 1 => path().prop_map(|path| format!("/{path}")), 1 => path().prop_map(|path| format!("../{path}")),
        1 => Just("/etc".to_owned()), 1 => Just("../../../../../../victim".to_owned()),
    ];
    (kind, path(), target)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_layer_makes_anything_outside(layers in prop::collection::vec(prop::collection::vec(entry(), 1..8), 1..4)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let world = World::new();
        let whole: Vec<_> = layers.iter().map(|layer| layer.iter().fold(Tar::default(), |tar, entry| {
            let (kind, path, target) = entry;
            match *kind {
                EntryType::Regular => tar.file(path, "x"),
                EntryType::Directory => tar.directory(path, 0o755),
                EntryType::Symlink => tar.symlink(path, target),
                EntryType::Link => tar.hard_link(path, target),
                kind => tar.special(path, kind),
            }
        }).end()).collect();
        // Most are refused for one entry, so each is tried by itself, too.
        let mut images = runtime.block_on(world.layers(&whole)).is_ok() as usize;
        world.check(images);
        if let Ok(root) = runtime.block_on(world.layers(&whole[..1])) {
            prop_assert!(root.is_dir());
            images = world.store.list().unwrap().len();
        }
        world.check(images);
    }
}
