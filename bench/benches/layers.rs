//! What the server adds before and after a sandbox is touched, without an engine: packing files, and
//! the protocol's frames.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use isolator_pool::OutputLimits;
use isolator_pool::run::workspace::{Workspace, WorkspaceBuilder, WorkspaceLimits};
use isolator_runner::wire::{self, Bounds, FrameDecoder, Job, Kind, Wanted};

const KIB: usize = 1 << 10;

fn workspace(files: Vec<Vec<u8>>) -> Workspace {
    let limits = WorkspaceLimits { files: files.len(), total: 16 << 20 };
    let mut workspace = WorkspaceBuilder::new(limits);
    for (index, content) in files.into_iter().enumerate() {
        workspace.add(&format!("dir/file{index}"), content).expect("a good name");
    }
    workspace.build()
}

/// A request's files, checked and packed.
fn workspaces(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("workspace");
    for (name, files, size) in [
        ("1 file of 1 KiB", 1, KIB),
        ("1 file of 1 MiB", 1, KIB * KIB),
        ("200 files of 1 KiB", 200, KIB),
    ] {
        group.throughput(Throughput::Bytes((files * size) as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            let contents = || vec![vec![b'x'; size]; files];
            bencher.iter_batched(contents, workspace, BatchSize::SmallInput);
        });
    }
    group.finish();
}

fn job() -> Job {
    Job {
        argv: vec!["python3".to_owned(), "main.py".to_owned()],
        env: BTreeMap::from([("HOME".to_owned(), "/tmp".to_owned())]),
        workdir: "/workspace".to_owned(),
        bounds: Bounds {
            deadline: Duration::from_secs(60),
            output: OutputLimits { head: 32 * KIB, tail: 32 * KIB, kill: 64 << 20 },
            disks: vec!["/workspace".to_owned(), "/tmp".to_owned()],
            files: None,
        },
        cpu_time: None,
        interpreter: Wanted::Bare,
        packages: None,
    }
}

fn encode(job: &Job, tar: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(tar.len() + 4 * KIB);
    wire::push_message(&mut message, Kind::Job, job).expect("it is short");
    wire::push_bytes(&mut message, Kind::Tar, tar);
    message.extend_from_slice(&wire::header(Kind::Go, 0));
    message
}

/// A job with its files: written as the server does, read as the runner does.
fn jobs(criterion: &mut Criterion) {
    let job = job();
    let workspace = workspace(vec![vec![b'x'; 100 * KIB]]);
    let message = encode(&job, workspace.tar());
    let mut group = criterion.benchmark_group("job with a tar of 100 KiB");
    group.throughput(Throughput::Bytes(message.len() as u64));
    group.bench_function("encode", |bencher| {
        bencher.iter(|| encode(black_box(&job), black_box(workspace.tar())));
    });
    group.bench_function("decode", |bencher| {
        bencher.iter(|| {
            let mut stream = black_box(message.as_slice());
            let mut bytes = 0;
            while let Some((kind, payload)) = wire::read_frame(&mut stream).expect("whole frames") {
                if kind == Kind::Job {
                    let read: Job = wire::parse_message(kind, &payload).expect("a job");
                    assert_eq!(read.argv.len(), job.argv.len());
                }
                bytes += payload.len();
            }
            bytes
        });
    });
    group.finish();
}

/// A program that prints without end: its frames, as they come out of the engine's stream.
fn floods(criterion: &mut Criterion) {
    const FRAMES: usize = 512;
    /// Pieces end where the engine's buffers end, not where frames do.
    const PIECE: usize = 32 * KIB - 7;
    let mut group = criterion.benchmark_group("flood of output");
    for (name, payload) in [("frames of 64 B", 64), ("frames of 8 KiB", 8 * KIB)] {
        let mut stream = Vec::new();
        for _ in 0..FRAMES {
            wire::push_bytes(&mut stream, Kind::Stdout, &vec![b'x'; payload]);
        }
        group.throughput(Throughput::Bytes(stream.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                let mut decoder = FrameDecoder::default();
                let mut frames = 0;
                for piece in black_box(&stream).chunks(PIECE) {
                    decoder.feed(piece);
                    while let Some(frame) = decoder.next_frame().expect("good frames") {
                        black_box(frame);
                        frames += 1;
                    }
                }
                assert_eq!(frames, FRAMES);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, workspaces, jobs, floods);
criterion_main!(benches);
