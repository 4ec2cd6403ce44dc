//! Cold and warm starts, side by side in one run: the raw Docker API, and Isolator through MCP over
//! standard input and output, as a host sees it.
//!
//! A shared machine is noisy, so what counts is the ratio of two lines, not a line alone.

mod docker_api;
mod mcp_client;

use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use tokio::runtime::Runtime;

use self::docker_api::RawDocker;
use self::mcp_client::IsolatorProcess;

/// A program in one language, and how it is started without Isolator.
pub(crate) struct Program {
    language: &'static str,
    image: &'static str,
    file: &'static str,
    code: &'static str,
    start: &'static [&'static str],
    /// The limits that Isolator gives the language, so that both sides have the same.
    memory_mib: i64,
    nano_cpus: i64,
    prints: &'static str,
}

const PROGRAMS: [Program; 3] = [
    Program {
        language: "python",
        image: "isolator/python",
        file: "main.py",
        code: "print('hi')",
        start: &["python3", "main.py"],
        memory_mib: 256,
        nano_cpus: 500_000_000,
        prints: "hi\n",
    },
    Program {
        language: "javascript",
        image: "isolator/javascript",
        file: "main.js",
        code: "console.log('hi')",
        start: &["node", "main.js"],
        memory_mib: 256,
        nano_cpus: 500_000_000,
        prints: "hi\n",
    },
    Program {
        language: "go",
        image: "isolator/go",
        file: "main.go",
        code: "package main\n\nfunc main() { println(\"hi\") }\n",
        start: &["go", "run", "main.go"],
        memory_mib: 512,
        nano_cpus: 1_000_000_000,
        prints: "hi\n",
    },
];

impl Program {
    fn command(&self) -> Vec<String> {
        self.start.iter().map(ToString::to_string).collect()
    }

    fn tar(&self) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(self.code.len() as u64);
        let mut archive = tar::Builder::new(Vec::new());
        archive
            .append_data(&mut header, self.file, self.code.as_bytes())
            .and_then(|()| archive.into_inner())
            .expect("writing to a vector can't fail")
    }
}

fn starts(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let docker = runtime.block_on(RawDocker::connect());
    for program in &PROGRAMS {
        let mut group = criterion.benchmark_group(program.language);
        group.bench_function(BenchmarkId::from_parameter("docker API, cold"), |bencher| {
            bencher.iter_custom(|n| sum(n, || runtime.block_on(docker.cold(program))));
        });
        group.bench_function(BenchmarkId::from_parameter("docker API, naive warm"), |bencher| {
            bencher.iter_custom(|n| sum(n, || runtime.block_on(docker.naive_warm(program))));
        });
        for (name, pool, start) in [
            ("isolator, cold", r#"{"size": 0}"#, "cold"),
            ("isolator, paused", r#"{"size": 2, "hot": 0}"#, "warm"),
            ("isolator, hot", r#"{"size": 2, "hot": 1}"#, "hot"),
        ] {
            let isolator = runtime.block_on(IsolatorProcess::start(program.language, pool));
            group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                bencher.iter_custom(|n| sum(n, || runtime.block_on(isolator.call(program, start))));
            });
            runtime.block_on(isolator.stop());
        }
        group.finish();
    }
}

fn sum(times: u64, mut measure: impl FnMut() -> Duration) -> Duration {
    (0..times).map(|_| measure()).sum()
}

/// What the server adds before a sandbox is touched: checking and packing a request's files.
fn layers(criterion: &mut Criterion) {
    use isolator_pool::workspace::{WorkspaceBuilder, WorkspaceLimits};

    let mut group = criterion.benchmark_group("layers");
    for files in [1_usize, 100] {
        let name = BenchmarkId::new("tar of 1 KiB files", files);
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || vec![vec![b'x'; 1024]; files],
                |contents| {
                    let limits = WorkspaceLimits { files, total: 1 << 20 };
                    let mut workspace = WorkspaceBuilder::new(limits);
                    for (index, content) in contents.into_iter().enumerate() {
                        workspace.add(&format!("dir/file{index}"), content).expect("a good name");
                    }
                    workspace.build()
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(4));
    targets = layers, starts
}
criterion_main!(benches);
