//! Cold and warm starts, side by side in one run: the plain Docker API, and Isolator on every engine that
//! is there, through MCP over standard input and output, as a host sees it.
//!
//! A shared machine is noisy, so what counts is the ratio of two lines, not a line alone.
//! `isolator-bench` measures the same in turns, on the operator's configuration; this is for
//! comparing one version of the code with another.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode, criterion_group, criterion_main};
use isolator::config::Config;
use isolator_bench::session::Session;
use isolator_bench::target::Targets;
use isolator_bench::{isolator_program, workload};
use tokio::runtime::Runtime;

fn starts(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let config = Config::parse("{}", None, Path::new("")).expect("the defaults are valid");
    let workloads = workload::choose(&config, &[]).expect("the built-in languages");
    let mut session = runtime.block_on(async {
        let program = &isolator_program().expect("the program");
        let Targets { found, left_out } =
            Targets::find(&config, program, &workloads).await.expect("an engine with images");
        #[expect(clippy::print_stderr, reason = "whoever reads the figures should know")]
        for what in left_out {
            eprintln!("left out: {what}");
        }
        let mut session = Session::open(found, program).await.expect("a session");
        session.connect().await.expect("full pools");
        session
    });
    for cells in session.cells().chunk_by(|(a, _), (b, _)| Arc::ptr_eq(a, b)) {
        let mut group = criterion.benchmark_group(cells[0].0.label());
        // An iteration takes as long as a refill, whatever is counted of it.
        group.sampling_mode(SamplingMode::Flat);
        for (workload, scenario) in cells {
            group.bench_function(BenchmarkId::from_parameter(scenario.label()), |bencher| {
                bencher.iter_custom(|times| {
                    let sample = |_| runtime.block_on(session.sample(workload, *scenario));
                    (0..times).map(sample).map(|sample| sample.expect("a sample").took).sum()
                });
            });
        }
        group.finish();
    }
    runtime.block_on(session.close()).expect("everything is removed");
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(6));
    targets = starts
}
criterion_main!(benches);
