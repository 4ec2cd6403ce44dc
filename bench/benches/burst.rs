//! Requests that come all at once, until the last has its answer: through the plain Docker API, and on each engine.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{
    BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};
use futures_util::future::try_join_all;
use isolator::config::Config;
use isolator_bench::docker_api::RawDocker;
use isolator_bench::load::BURSTS;
use isolator_bench::mcp_client::IsolatorProcess;
use isolator_bench::scenario::PoolShape;
use isolator_bench::settings;
use isolator_bench::target::{Target, Targets};
use isolator_bench::workload::{self, Workload};
use isolator_bench::{BenchError, isolator_program};
use tokio::runtime::Runtime;

/// Few enough for a small machine's memory.
const POOL: PoolShape = PoolShape { size: 4, hot: 1 };

/// Docker makes some sandboxes a second, so a sample of more would take minutes.
const MOST_ON_DOCKER: usize = 8;

/// A way to start programs.
enum Contender {
    Plain(RawDocker),
    Server(Box<(IsolatorProcess, Target)>),
}

fn burst(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let config = Config::parse("{}", None, Path::new("")).expect("the defaults are valid");
    let workloads = workload::choose(&config, &[]).expect("built-in languages");
    let names = workloads.iter().map(|workload| workload.program.language.to_owned());
    let languages: BTreeSet<_> = names.collect();
    let directory = tempfile::tempdir().expect("a directory");
    let program = &isolator_program().expect("the program");
    let mut contenders = runtime.block_on(async {
        let targets = Targets::find(&config, program, &workloads).await;
        let mut contenders = Vec::new();
        for target in targets.expect("an engine with its images").found {
            if let Some(address) = &target.docker {
                let docker = RawDocker::connect(address, &target).await.expect("an engine");
                contenders.push(("docker API".to_owned(), Contender::Plain(docker)));
            }
            let file = settings::write(&target.settings, &languages, POOL, directory.path());
            let file = file.expect("writable");
            let server = IsolatorProcess::spawn(program, &file, POOL, languages.len());
            let mut server = server.expect("a server");
            server.connect(&target).await.expect("full pools");
            let name = format!("isolator, {:?}", target.kind).to_lowercase();
            contenders.push((name, Contender::Server(Box::new((server, target)))));
        }
        contenders
    });

    let of_python = workloads.iter().filter(|workload| workload.program.language == "python");
    let mut loads: Vec<_> =
        of_python.map(|workload| (workload.label(), vec![Arc::clone(workload)])).collect();
    loads.push(("all programs in turn".to_owned(), workloads.clone()));
    for (label, mix) in &loads {
        let mut group = criterion.benchmark_group(format!("burst of {label}"));
        group.sampling_mode(SamplingMode::Flat);
        for size in BURSTS {
            group.throughput(Throughput::Elements(size as u64));
            for (name, contender) in &mut contenders {
                let is_docker = !name.contains("embedded");
                if is_docker && size > MOST_ON_DOCKER {
                    continue;
                }
                group.bench_function(BenchmarkId::new(&*name, size), |bencher| {
                    bencher.iter_custom(|times| {
                        let burst = |_| runtime.block_on(all_at_once(contender, mix, size));
                        (0..times).map(burst).map(|burst| burst.expect("answers")).sum()
                    });
                });
            }
        }
        group.finish();
    }
    for (_, contender) in contenders {
        match contender {
            Contender::Plain(docker) => runtime.block_on(docker.finish()),
            Contender::Server(server) => {
                runtime.block_on(server.0.stop()).expect("everything is removed");
            }
        }
    }
}

/// Until the last answer; filling the pools again is not counted.
async fn all_at_once(
    contender: &mut Contender,
    mix: &[Arc<Workload>],
    size: usize,
) -> Result<Duration, BenchError> {
    let programs = mix.iter().cycle().take(size);
    let began = Instant::now();
    match contender {
        Contender::Plain(docker) => {
            try_join_all(programs.map(|program| docker.cold(program))).await?;
            Ok(began.elapsed())
        }
        Contender::Server(server) => {
            let (server, target) = &mut **server;
            try_join_all(programs.map(|program| server.call(program))).await?;
            let took = began.elapsed();
            server.wait_until_quiescent(target).await?;
            Ok(took)
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(25));
    targets = burst
}
criterion_main!(benches);
