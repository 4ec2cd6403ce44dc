//! What a server may send to the runner: nothing leads out of the workspace, and nothing but files is made.

#![no_main]

mod fuzzer;
// The runner is a program, not a library. Its modules are taken as they are.
#[allow(dead_code)]
#[path = "../../runner/src/changes.rs"]
mod changes;
#[allow(dead_code)]
#[path = "../../runner/src/outbox.rs"]
mod outbox;
#[allow(dead_code)]
#[path = "../../runner/src/request.rs"]
mod request;
#[allow(dead_code)]
#[path = "../../runner/src/unpack.rs"]
mod unpack;

use std::fs::{self, File};
use std::io::Seek;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::LazyLock;

use isolator_fuzz_inputs::scratch::Scratch;
use isolator_runner::wire::{HEADER_LEN, Kind, WantedFiles};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};

use outbox::Outbox;
use request::{First, receive, receive_first};

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

fuzz_target!(|stream: &[u8]| {
    let workdir = SCRATCH.work();
    let mut rest = stream;
    while let Ok(first) = receive_first(&mut rest) {
        let First::Job(mut job) = first else { continue };
        // The server's word on this one is the sandbox's own.
        workdir.to_str().expect("it is text").clone_into(&mut job.workdir);
        let files = job.files.clone();
        if let Ok(request) = receive(job, &mut rest) {
            assert!(request.stdin.len() <= stream.len());
            let wanted = files.unwrap_or_default();
            assert_eq!(sent(&workdir, &request.given, &wanted), 0, "nobody changed a file");
        }
        let bytes = look(&workdir);
        assert!(bytes <= stream.len() as u64, "there are {bytes} bytes of {}", stream.len());
        break;
    }
    SCRATCH.check();
    fs::remove_dir_all(&workdir).expect("the workspace can be removed");
    SCRATCH.renew();
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    fuzzer::mutate(data, size, max_size, seed, |mutator, stream| mutator.stream(stream))
});

/// How many bytes the runner would send about files that a program changed that did nothing.
fn sent(workdir: &Path, given: &unpack::Given, wanted: &WantedFiles) -> u64 {
    let mut sent = tempfile::tempfile().expect("a file can be made");
    let mut outbox = Outbox::new(File::try_clone(&sent).expect("a file can be cloned"));
    changes::send(workdir, given, wanted, &mut outbox).expect("a file is written");
    outbox.send_sign(Kind::Go).expect("a file is written");
    sent.stream_position().expect("a file has a position") - HEADER_LEN as u64
}

/// Looks at everything in a directory; the size of the files.
fn look(directory: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(directory).expect("a directory can be read") {
        let path = entry.expect("a directory can be read").path();
        let found = fs::symlink_metadata(&path).expect("what is there has a state");
        assert!(!found.is_symlink() && !found.file_type().is_fifo(), "{}", path.display());
        bytes += if found.is_dir() { look(&path) } else { found.len() };
    }
    bytes
}
