//! Cold and warm starts, side by side in one run: the plain Docker API, and Isolator through MCP over
//! standard input and output, as a host sees it.
//!
//! A shared machine is noisy, so what counts is the ratio of two lines, not a line alone.
//! `isolator bench` measures the same in turns, on the operator's configuration; this is for
//! comparing one version of the code with another.

use std::path::Path;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode, criterion_group, criterion_main};
use isolator::app::App;
use isolator::bench::flow::Flow;
use isolator::bench::programs::Subject;
use isolator::bench::session::Session;
use isolator::config::Config;
use tokio::runtime::Runtime;

/// The program whose launcher the embedded engine needs.
const LAUNCHER: &str = env!("CARGO_BIN_EXE_isolator");

fn starts(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let config = Config::parse("{}", None, Path::new("")).expect("the defaults are valid");
    let subjects = Subject::choose(&config, &[]).expect("the built-in languages");
    let mut session = runtime.block_on(async {
        let app = App::with_launcher(&config, LAUNCHER).await.expect("an engine");
        let program = Path::new(env!("CARGO_BIN_EXE_isolator"));
        let mut session = Session::open(&config, app, program, &subjects).await.expect("a session");
        session.connect().await.expect("full pools");
        session
    });
    for subject in &subjects {
        let mut group = criterion.benchmark_group(subject.label());
        // An iteration takes as long as a refill, whatever is counted of it.
        group.sampling_mode(SamplingMode::Flat);
        for flow in Flow::ALL {
            group.bench_function(BenchmarkId::from_parameter(flow.label()), |bencher| {
                bencher.iter_custom(|times| {
                    let sample = |_| runtime.block_on(session.sample(subject, flow));
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
