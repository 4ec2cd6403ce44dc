//! Imports a file as an image. Either the image is imported completely, or nothing is left of it. Nothing outside of
//! the store is touched.

#![no_main]

mod fuzzer;

use std::fs;
use std::sync::LazyLock;
use std::time::Duration;

use isolator_fuzz_inputs::scratch::Scratch;
use isolator_pool::engine::store::{Limits, Store, Stored};
use isolator_pool::fuzzing;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use tokio::runtime::{Builder, Runtime};

const LIMITS: Limits = Limits {
    bytes: 1 << 16,
    entries: 64,
    path: 400,
    description: 1 << 12,
    layers: 4,
    patience: Duration::from_secs(1),
};

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().build().expect("a runtime can be made"));

fuzz_target!(|archive: &[u8]| {
    let directory = SCRATCH.work();
    let file = directory.join("archive");
    fs::write(&file, archive).expect("a file can be written");
    let store = Store::new(directory.join("store")).with_limits(LIMITS);
    // An archive of images contains their names. A root file system needs one.
    for name in [None, Some("fuzzed")] {
        match RUNTIME.block_on(store.import(&file, name, &|_| {})) {
            Ok(images) => {
                assert!(!images.is_empty());
                let root = |image: &Stored| store.images().join(image.relative_root());
                assert!(images.iter().all(|image| root(image).is_dir()));
            }
            Err(error) => drop(error.to_string()),
        }
        SCRATCH.check();
        let staging = fs::read_dir(directory.join("store").join("staging"));
        assert!(staging.is_ok_and(|mut left| left.next().is_none()), "something is left");
    }
    for listed in store.list().expect("the store can be read") {
        for name in &listed.names {
            let found = store.find(name).expect("the name of an image is one");
            assert!(found.is_some_and(|found| found.digest == listed.image.digest));
        }
        let description = &listed.image.description;
        assert!(description.volumes.iter().all(|volume| volume.starts_with('/')));
    }
    fuzzing::clear(&directory).expect("whatever is there can be removed");
    SCRATCH.renew();
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    fuzzer::mutate(data, size, max_size, seed, |mutator, archive| mutator.archive(archive))
});
