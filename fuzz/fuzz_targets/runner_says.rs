//! Sends the server anything that a runner could send, in pieces of any size. What the server keeps stays within the
//! request's limits, and the request always ends in time, whatever the runner sends or does not send.

#![no_main]

mod fuzzer;
mod knobs;
mod scripted;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use isolator_fuzz_inputs::seeds::KNOBS;
use isolator_pool::run::RunRequest;
use isolator_pool::run::outcome::{Captured, Outcome};
use isolator_pool::run::output::Watch;
use isolator_pool::run::workspace::{WorkspaceBuilder, WorkspaceLimits};
use isolator_pool::{OutputLimits, WantedFiles, fuzzing};
use isolator_runner::wire::{MAX_FILES, MAX_IN_TMP, MAX_PATH};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use tokio::time::Instant;

use scripted::{RESOURCES, WORKDIR, paused_runtime, scripted, spec};

/// The longest time for a request: the calls that arm and preload, the start, the program, and its report.
const LONGEST: Duration = Duration::from_secs(2 * 20 + 20 + 20 + 10 + 5 + 2);

/// Bytes of the longest text about what went wrong.
const LONGEST_ERROR: usize = 2000;

fuzz_target!(|input: &[u8]| {
    let Some((knobs, stream)) = input.split_first_chunk::<KNOBS>() else { return };
    let watched = Arc::new(AtomicUsize::new(0));
    let request = request(knobs, &watched);
    paused_runtime().block_on(async {
        let began = Instant::now();
        let engine = Arc::new(scripted(knobs, stream));
        let done = fuzzing::execute(engine, Arc::new(spec(knobs)), &request).await;
        assert!(began.elapsed() <= LONGEST, "it took {:?}", began.elapsed());
        match done {
            Ok((outcome, _)) => check(&outcome, &request, watched.load(Ordering::Relaxed)),
            Err(error) => assert!(error.to_string().len() <= LONGEST_ERROR, "{error}"),
        }
    });
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    knobs::mutate(data, size, max_size, seed)
});

fn check(outcome: &Outcome, request: &RunRequest, watched: usize) {
    let OutputLimits { head, tail, .. } = request.output;
    for stream in [&outcome.stdout, &outcome.stderr] {
        assert!(stream.head.len() <= head && stream.tail.len() <= tail);
        check_words(stream);
    }
    assert_eq!(watched, outcome.stdout.head.len() + outcome.stderr.head.len());

    let most_files = request.files.as_ref().map_or(0, |_| MAX_FILES);
    assert!(outcome.files.len() <= most_files);
    let contents = outcome.files.iter().filter_map(|file| file.content.as_ref());
    let bytes: usize = contents.map(Vec::len).sum();
    assert!(bytes as u64 <= request.files.as_ref().map_or(0, |wanted| wanted.most));
    assert!(outcome.files.iter().all(|file| file.path.len() <= MAX_PATH));

    let asked = [WORKDIR, "/tmp", "/dev/shm"];
    assert!(outcome.full_disks.iter().all(|disk| asked.contains(&disk.as_str())));
    assert!(outcome.in_tmp.len() <= MAX_IN_TMP);
}

/// The text that is made from a stream is not longer than the stream, apart from a note.
fn check_words(stream: &Captured) {
    const NOTE: usize = 100;
    let length = stream.head.len() + stream.tail.len();
    assert!(stream.to_bytes().len() <= length + NOTE);
    assert_eq!(stream.clone().into_bytes(), stream.to_bytes());
    let short = stream.shortened(5, 7);
    assert!(short.head.len() <= 5 && short.tail.len() <= 7 || stream.dropped == 0 && length <= 12);
    assert_eq!(short.total(), stream.total());
    assert!(short.to_bytes().len() <= 12 + NOTE);
}

fn request(knobs: &[u8; KNOBS], watched: &Arc<AtomicUsize>) -> RunRequest {
    const SIZES: [usize; 4] = [0, 3, 64, 4096];
    let size = |shift: u8| SIZES[usize::from(knobs[0] >> shift & 3)];
    let files = [None, Some(0), Some(10), Some(10_000)][usize::from(knobs[0] >> 4 & 3)];
    let watched = Arc::clone(watched);
    let workspace = WorkspaceBuilder::new(WorkspaceLimits { files: 0, total: 0 }).build();
    let output = OutputLimits { head: size(0), tail: size(2), kill: 1 << 20 };
    let timeout = Duration::from_secs(10);
    RunRequest {
        files: files.map(|most| WantedFiles { globs: Vec::new(), pictures: true, most }),
        watch: Some(Watch::new(move |_, bytes| {
            watched.fetch_add(bytes.len(), Ordering::Relaxed);
        })),
        ..RunRequest::new(vec!["program".to_owned()], workspace, timeout, RESOURCES, output)
    }
}
