//! Sends the server anything that a runner could send, in pieces of any size. What the server keeps stays within the
//! request's limits, and the request always ends in time, whatever the runner sends or does not send.

#![no_main]

mod fuzzer;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use isolator_fuzz_inputs::seeds::KNOBS;
use isolator_pool::engine::limits::{ByteSize, CpuShare, FixedLimits, LimitKind, Resources};
use isolator_pool::engine::preload::{Interpreter, Preload};
use isolator_pool::engine::{
    Call, Channel, Engine, EngineError, Image, LabelFilter, ListedSandbox, Progress, SandboxName,
    SandboxSpec, SandboxState, Unsupported, Warning,
};
use isolator_pool::run::RunRequest;
use isolator_pool::run::outcome::{Captured, Outcome};
use isolator_pool::run::output::Watch;
use isolator_pool::run::workspace::{WorkspaceBuilder, WorkspaceLimits};
use isolator_pool::{OutputLimits, WantedFiles, fuzzing};
use isolator_runner::wire::{MAX_FILES, MAX_PATH};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

/// The longest time for a request: the calls that arm and preload, the start, the program, and its report.
const LONGEST: Duration = Duration::from_secs(2 * 20 + 20 + 20 + 10 + 5 + 2);

const WORKDIR: &str = "/workspace";

/// An engine with a single runner, which sends the input.
struct Scripted {
    output: Mutex<Option<BoxStream<'static, Result<Bytes, EngineError>>>>,
    state: SandboxState,
}

fuzz_target!(|input: &[u8]| {
    let Some((knobs, stream)) = input.split_first_chunk::<KNOBS>() else { return };
    // The runtime's clock is paused, and jumps ahead when all tasks are waiting.
    let runtime: Runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime can be made");
    let watched = Arc::new(AtomicUsize::new(0));
    let request = request(knobs, &watched);
    runtime.block_on(async {
        let began = Instant::now();
        let engine = Arc::new(scripted(knobs, stream));
        let done = fuzzing::execute(engine, Arc::new(spec(knobs)), &request).await;
        assert!(began.elapsed() <= LONGEST, "it took {:?}", began.elapsed());
        match done {
            Ok((outcome, _)) => check(&outcome, &request, watched.load(Ordering::Relaxed)),
            Err(error) => drop(error.to_string()),
        }
    });
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if size <= KNOBS || seed % 16 == 0 {
        return libfuzzer_sys::fuzzer_mutate(data, size, max_size);
    }
    let stream = &mut data[KNOBS..];
    let most = max_size - KNOBS.min(max_size);
    KNOBS
        + fuzzer::mutate(stream, size - KNOBS, most, seed, |mutator, stream| mutator.stream(stream))
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

const RESOURCES: Resources = Resources { memory: ByteSize::mib(64), cpu: CpuShare::millis(1000) };

fn spec(knobs: &[u8; KNOBS]) -> SandboxSpec {
    let preload = Preload {
        interpreter: Interpreter::Python,
        argv: vec!["program".to_owned()],
        env: BTreeMap::new(),
        modules: if knobs[2] & 16 == 0 { Vec::new() } else { vec!["numpy".to_owned()] },
        memory: ByteSize::mib(1),
        fork: true,
    };
    SandboxSpec {
        image: Image::default(),
        resources: RESOURCES,
        limits: FixedLimits {
            pids: 1,
            open_files: 1,
            workspace: ByteSize::mib(1),
            tmp: ByteSize::mib(1),
            inodes: 1,
            shm: ByteSize::mib(1),
        },
        workdir: WORKDIR.to_owned(),
        user: (1, 1),
        network: "none".to_owned(),
        cap_drop: Vec::new(),
        readonly_root: true,
        runtime: None,
        preload: (knobs[2] & 8 != 0).then_some(preload),
        allow_unlimited: false,
    }
}

fn scripted(knobs: &[u8; KNOBS], stream: &[u8]) -> Scripted {
    use SandboxState::{Ended, Gone, Paused, Running, Stopped};
    let cut = if knobs[1] == 0 { stream.len().max(1) } else { usize::from(knobs[1]) };
    let pieces: Vec<_> = stream.chunks(cut).map(|it| Ok(Bytes::copy_from_slice(it))).collect();
    let pieces = stream::iter(pieces);
    let output = match knobs[2] >> 5 & 3 {
        1 => pieces.chain(stream::pending()).boxed(),
        2 => {
            let address = String::new();
            let broken = EngineError::Unreachable { address, message: String::new() };
            pieces.chain(stream::iter([Err(broken)])).boxed()
        }
        _ => pieces.boxed(),
    };
    let state = [Running, Paused, Stopped, Ended, Gone][usize::from(knobs[2] & 7) % 5];
    Scripted { output: Mutex::new(Some(output)), state }
}

#[async_trait]
impl Engine for Scripted {
    async fn check(&self) -> Result<String, EngineError> {
        Ok(String::new())
    }

    async fn warnings(&self) -> Result<Vec<Warning>, EngineError> {
        Ok(Vec::new())
    }

    fn supports(&self, _: &SandboxSpec) -> Result<(), Unsupported> {
        Ok(())
    }

    fn unenforced(&self) -> Vec<LimitKind> {
        Vec::new()
    }

    async fn prepare(&self, _: &Image) -> Result<(), EngineError> {
        Ok(())
    }

    async fn find_image(&self, _: &str) -> Result<Option<Image>, EngineError> {
        Ok(None)
    }

    async fn pull_image(&self, _: &str, _: Progress<'_>) -> Result<(), EngineError> {
        Ok(())
    }

    async fn create(&self, _: &SandboxName, _: &SandboxSpec) -> Result<(), EngineError> {
        Ok(())
    }

    async fn arm(&self, _: &SandboxName) -> Result<Channel, EngineError> {
        let output = self.output.lock().ok().and_then(|mut output| output.take());
        let output =
            output.ok_or(EngineError::Refused { call: Call::Arm, message: String::new() })?;
        Ok(Channel { input: Box::new(tokio::io::sink()), output })
    }

    async fn pause(&self, _: &SandboxName) -> Result<(), EngineError> {
        Ok(())
    }

    async fn resume(&self, _: &SandboxName) -> Result<(), EngineError> {
        Ok(())
    }

    async fn update(&self, _: &SandboxName, _: Resources, _: u32) -> Result<(), EngineError> {
        Ok(())
    }

    async fn state(&self, _: &SandboxName) -> Result<SandboxState, EngineError> {
        Ok(self.state)
    }

    async fn remove(&self, _: &SandboxName) -> Result<(), EngineError> {
        Ok(())
    }

    async fn list(&self) -> Result<Vec<ListedSandbox>, EngineError> {
        Ok(Vec::new())
    }

    async fn sweep_shared(&self, _: LabelFilter<'_>) -> Result<usize, EngineError> {
        Ok(0)
    }
}
