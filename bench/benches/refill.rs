//! How fast an empty pool fills again, by how many sandboxes are made at the same time, with and without
//! the modules that are imported ahead.
//!
//! From outside only the calls would tell, which disturb what they measure. So the pools run inside
//! this process, which asks them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{
    BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};
use futures_util::future::join_all;
use isolator::app::{App, PoolFill};
use isolator::config::Config;
use isolator_bench::isolator_program;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::Pools;
use isolator_pool::run::RunRequest;
use isolator_pool::run::workspace::{WorkspaceBuilder, WorkspaceLimits};
use tokio::runtime::Runtime;

/// As many requests as run at the same time by default, so that all sandboxes are taken at once.
const POOL_SIZE: usize = 8;

const LANGUAGE: &str = "python";

/// Longest time to fill the pool.
const FILL_TIMEOUT: Duration = Duration::from_secs(60);

/// How often the pool is asked, which costs nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

fn refill(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let mut group = criterion.benchmark_group("refill");
    // Each element is a sandbox: what is shown is sandboxes a second.
    group.sampling_mode(SamplingMode::Flat).throughput(Throughput::Elements(POOL_SIZE as u64));
    let without = (1..=4).map(|refills| (refills, "without modules", Some("[]")));
    let with = (1..=4).map(|refills| (refills, "with modules", None));
    for (refills, name, modules) in without.chain(with) {
        let config = config(refills, modules);
        let request = request(&config);
        let pools = runtime.block_on(async {
            let program = isolator_program().expect("the program");
            let pools = App::on(config.engine.kind, &config, program)
                .await
                .expect("an engine")
                .start_pools(&config, PoolFill::AsConfigured)
                .expect("an engine that can do it");
            until_full(&pools).await;
            pools
        });
        group.bench_function(BenchmarkId::new(name, format!("{refills} at once")), |bencher| {
            bencher.iter_custom(|times| {
                (0..times).map(|_| runtime.block_on(empty_and_fill(&pools, &request))).sum()
            });
        });
        runtime.block_on(pools.close(Duration::ZERO)).expect("everything is removed");
    }
    group.finish();
}

/// One language with paused sandboxes only: a thawed one behind which another moves up would be
/// counted out of turn.
fn config(refills: usize, modules: Option<&str>) -> Config {
    let preload = modules.map(|modules| format!(r#""modules": {modules}"#)).unwrap_or_default();
    let text = format!(
        r#"{{
            "languageSettings": {{
                "{LANGUAGE}": {{ "preload": {{ {preload} }} }},
                "javascript": {{ "enabled": false }}, "go": {{ "enabled": false }}
            }},
            "pool": {{ "size": {POOL_SIZE}, "hot": 0 }},
            "requests": {{ "maxRunning": {POOL_SIZE}, "refills": {refills} }}
        }}"#
    );
    Config::parse(&text, None, Path::new("")).expect("a valid configuration")
}

/// A program that is over at once: the refill is measured, not what it makes room for.
fn request(config: &Config) -> RunRequest {
    let language = Arc::clone(&config.languages[LANGUAGE]);
    RunRequest::new(
        vec!["true".to_owned()],
        WorkspaceBuilder::new(WorkspaceLimits { files: 0, total: 0 }).build(),
        config.limits.default_timeout,
        language.sandbox.resources,
        config.limits.output(),
    )
}

/// From taking all sandboxes to having as many again.
async fn empty_and_fill(pools: &Pools, request: &RunRequest) -> Duration {
    let began = Instant::now();
    let client = Client::Host;
    for executed in
        join_all((0..POOL_SIZE).map(|_| pools.execute(LANGUAGE, &client, request))).await
    {
        executed.expect("an outcome");
    }
    until_full(pools).await;
    began.elapsed()
}

async fn until_full(pools: &Pools) {
    let began = Instant::now();
    loop {
        let status = &pools.status()[LANGUAGE];
        if status.paused == POOL_SIZE && status.making == 0 {
            return;
        }
        assert!(began.elapsed() < FILL_TIMEOUT, "the pool does not fill: {status:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(25));
    targets = refill
}
criterion_main!(benches);
