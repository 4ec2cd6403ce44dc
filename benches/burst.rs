//! Requests that come all at once: as many as the pool holds, until the last has its answer.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use futures_util::future::try_join_all;
use isolator::app::App;
use isolator::bench::BenchError;
use isolator::bench::mcp_client::IsolatorProcess;
use isolator::bench::programs::Workload;
use isolator::bench::scenario::PoolShape;
use isolator::bench::settings::{self, Server};
use isolator::config::{Config, EngineKind};
use tokio::runtime::Runtime;

/// As many as agents send at once, and few enough for a small machine's memory.
const POOL: PoolShape = PoolShape { size: 4, hot: 1 };

/// The program whose launcher the embedded engine needs.
const LAUNCHER: &str = env!("CARGO_BIN_EXE_isolator");

fn burst(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let config = Config::parse("{}", None, Path::new("")).expect("the defaults are valid");
    let python = ["python".to_owned()];
    let subjects = Workload::choose(&config, &python).expect("a built-in language");
    let subject = Arc::clone(&subjects[0]);
    let directory = tempfile::tempdir().expect("a directory");
    let (app, mut server) = runtime.block_on(async {
        let app = App::with_launcher(&config, LAUNCHER).await.expect("an engine");
        let languages = &python.into();
        // The server has the choice as this process had it.
        let server = Server { engine: EngineKind::Auto, languages, pool: POOL };
        let file = settings::write(&config, server, directory.path());
        let program = Path::new(env!("CARGO_BIN_EXE_isolator"));
        let server = IsolatorProcess::spawn(program, &file.expect("writable"), POOL, 1);
        let mut server = server.expect("a server");
        server.connect(&app).await.expect("a full pool");
        (app, server)
    });

    let mut group = criterion.benchmark_group(format!("burst on a pool of {}", POOL.size));
    group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Elements(POOL.size as u64));
    group.bench_function(subject.label(), |bencher| {
        bencher.iter_custom(|times| {
            let burst = |_| runtime.block_on(all_at_once(&mut server, &app, &subject));
            (0..times).map(burst).map(|burst| burst.expect("answers")).sum()
        });
    });
    group.finish();
    runtime.block_on(server.stop()).expect("everything is removed");
}

/// Until the last answer; filling the pool again is not counted.
async fn all_at_once(
    server: &mut IsolatorProcess,
    app: &App,
    subject: &Workload,
) -> Result<Duration, BenchError> {
    let began = Instant::now();
    try_join_all((0..POOL.size).map(|_| server.call(subject))).await?;
    let took = began.elapsed();
    server.until_at_rest(app).await?;
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
