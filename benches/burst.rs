//! Requests that come all at once: as many as the pool holds, until the last has its answer.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use futures_util::future::try_join_all;
use isolator::commands::bench::targets::Targets;
use isolator::commands::bench::workloads;
use isolator::config::Config;
use isolator_bench::BenchError;
use isolator_bench::mcp_client::IsolatorProcess;
use isolator_bench::scenario::PoolShape;
use isolator_bench::settings;
use isolator_bench::target::Target;
use isolator_bench::workload::Workload;
use tokio::runtime::Runtime;

/// As many as agents send at once, and few enough for a small machine's memory.
const POOL: PoolShape = PoolShape { size: 4, hot: 1 };

fn burst(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let config = Config::parse("{}", None, Path::new("")).expect("the defaults are valid");
    let python = ["python".to_owned()];
    let workloads = workloads::choose(&config, &python).expect("a built-in language");
    let workload = Arc::clone(&workloads[0]);
    let directory = tempfile::tempdir().expect("a directory");
    let (target, mut server) = runtime.block_on(async {
        let program = Path::new(env!("CARGO_BIN_EXE_isolator"));
        let targets = Targets::find(&config, program, &workloads).await;
        // The first is the one that a server would choose.
        let target = targets.expect("an engine with an image").found.remove(0);
        let file = settings::write(&target.settings, &python.into(), POOL, directory.path());
        let server = IsolatorProcess::spawn(program, &file.expect("writable"), POOL, 1);
        let mut server = server.expect("a server");
        server.connect(&target).await.expect("a full pool");
        (target, server)
    });

    let mut group = criterion.benchmark_group(format!("burst on a pool of {}", POOL.size));
    group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Elements(POOL.size as u64));
    group.bench_function(workload.label(), |bencher| {
        bencher.iter_custom(|times| {
            let burst = |_| runtime.block_on(all_at_once(&mut server, &target, &workload));
            (0..times).map(burst).map(|burst| burst.expect("answers")).sum()
        });
    });
    group.finish();
    runtime.block_on(server.stop()).expect("everything is removed");
}

/// Until the last answer; filling the pool again is not counted.
async fn all_at_once(
    server: &mut IsolatorProcess,
    target: &Target,
    workload: &Workload,
) -> Result<Duration, BenchError> {
    let began = Instant::now();
    try_join_all((0..POOL.size).map(|_| server.call(workload))).await?;
    let took = began.elapsed();
    server.wait_until_quiescent(target).await?;
    Ok(took)
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(25));
    targets = burst
}
criterion_main!(benches);
