//! Sends the runner anything that a server could send. Nothing is created outside of the workspace, and nothing in it
//! except files and directories.

#![no_main]

mod fuzzer;
// These modules of the runner are not part of its library, so they are included by their paths.
#[allow(dead_code)]
#[path = "../../runner/src/changes.rs"]
mod changes;
#[allow(dead_code)]
#[path = "../../runner/src/frame_writer.rs"]
mod frame_writer;
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

use frame_writer::FrameWriter;
use request::{First, receive, receive_first};

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

fuzz_target!(|stream: &[u8]| {
    let workdir = SCRATCH.work();
    let mut rest = stream;
    while let Ok(first) = receive_first(&mut rest) {
        let First::Job(mut job) = first else { continue };
        // A real server sends the sandbox's own workspace here.
        workdir.to_str().expect("it is text").clone_into(&mut job.workdir);
        let files = job.bounds.files.clone();
        if let Ok(mut request) = receive(job, &mut rest) {
            assert!(request.stdin.len() <= stream.len());
            let wanted = files.unwrap_or_default();
            assert_eq!(sent(&workdir, &mut request.given, &wanted), 0, "no file was changed");
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

/// How many bytes the runner would send about changed files, after a program that did nothing.
fn sent(workdir: &Path, given: &mut unpack::Given, wanted: &WantedFiles) -> u64 {
    let mut sent = tempfile::tempfile().expect("a file can be made");
    let mut frame_writer = FrameWriter::new(File::try_clone(&sent).expect("a file can be cloned"));
    changes::send(workdir, given, wanted, &mut frame_writer).expect("a file is written");
    frame_writer.send_empty(Kind::Go).expect("a file is written");
    sent.stream_position().expect("a file has a position") - HEADER_LEN as u64
}

/// Checks everything in a directory, and returns the total size of the files.
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
