//! CPU time of a run by process: what clients that never stop asking cost the machine.
//!
//! `cargo bench -p isolator-bench --bench cpu -- --runs 400 --clients 4` measures the same programs as `isolator-bench`. With
//! `--perf` it also shows the processes by name, from samples that `perf` takes meanwhile. What else runs on the machine is in the
//! last two rows of the table, and slows the others down a little.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;
use futures_util::future::try_join_all;
use isolator::commands::{complain, say};
use isolator::config::{Config, EngineKind};
use isolator_bench::accounting::{Account, Cost};
use isolator_bench::machine::{CpuTimes, Machine};
use isolator_bench::mcp_client::IsolatorProcess;
use isolator_bench::target::{Target, Targets};
use isolator_bench::workload::{self, Workload};
use isolator_bench::{BenchError, isolator_program, settings};

/// Names of processes that are shown of what `perf` has seen.
const NAMES: usize = 12;

#[derive(Debug, Parser)]
struct Arguments {
    /// The languages to measure; if none is given, Python
    #[arg(default_value = "python")]
    languages: Vec<String>,
    /// Runs of each program that count
    #[arg(long, default_value_t = 300)]
    runs: usize,
    /// Clients that ask at the same time
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Show the processes by name, from samples of `perf`
    #[arg(long)]
    perf: bool,
    /// The engine
    #[arg(long, default_value = "embedded")]
    engine: EngineKind,
    /// Cargo passes this to every bench
    #[arg(long, hide = true)]
    bench: bool,
}

/// What the runs of a program have cost.
struct Measured {
    cost: Cost,
    per_second: f64,
    stolen: f64,
    names: Vec<String>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut config = Config::parse("{}", None, Path::new("")).expect("the defaults are valid");
    config.engine.kind = arguments.engine;
    let workloads = workload::choose(&config, &arguments.languages)?;
    let program = isolator_program()?;
    let Targets { mut found, left_out } = Targets::find(&config, &program, &workloads).await?;
    for what in left_out {
        complain(&format!("left out: {what}"));
    }
    // With the embedded engine, the plain Docker API is found, too.
    found.retain(|target| target.scenarios.iter().any(|scenario| scenario.server().is_some()));
    let directory = tempfile::tempdir()?;
    for target in &found {
        for workload in &target.workloads {
            let languages = BTreeSet::from([workload.program.language.to_owned()]);
            let file =
                settings::write(&target.settings, &languages, workload.pool, directory.path())?;
            let mut server = IsolatorProcess::spawn(&program, &file, workload.pool, 1)?;
            let measured = measure(&mut server, target, workload, &arguments).await;
            server.stop().await?;
            say(&table(target, workload, &arguments, &measured?))?;
        }
    }
    say(&Machine::here(found.iter().map(|target| target.description.as_str())).to_string())?;
    Ok(())
}

/// Runs a program while its cost is counted: from a full pool to a full pool.
async fn measure(
    server: &mut IsolatorProcess,
    target: &Target,
    workload: &Workload,
    arguments: &Arguments,
) -> anyhow::Result<Measured> {
    server.connect(target).await?;
    // Templates are made, and what the first runs read is in memory.
    call(server, workload, arguments.clients, arguments.clients * 8).await?;
    server.wait_until_quiescent(target).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;

    let perf = arguments.perf.then(Perf::start).transpose()?;
    let (times, before) = (CpuTimes::now(), Account::now(server.process()));
    let began = Instant::now();
    let programs = call(server, workload, arguments.clients, arguments.runs).await?;
    let took = began.elapsed();
    server.wait_until_quiescent(target).await?;
    let cost = Account::now(server.process()).cost_since(&before, arguments.runs, programs);
    Ok(Measured {
        cost,
        per_second: arguments.runs as f64 / took.as_secs_f64(),
        stolen: times.stolen_until(CpuTimes::now()),
        names: perf.map(|perf| perf.names(&cost)).transpose()?.unwrap_or_default(),
    })
}

/// Runs the program so often. Returns the CPU time of all programs together.
async fn call(
    server: &IsolatorProcess,
    workload: &Workload,
    clients: usize,
    runs: usize,
) -> Result<Duration, BenchError> {
    let asked = AtomicUsize::new(0);
    let client = async || {
        let mut used = Duration::ZERO;
        while asked.fetch_add(1, Ordering::Relaxed) < runs {
            used += server.call(workload).await?.cpu;
        }
        Ok::<_, BenchError>(used)
    };
    Ok(try_join_all((0..clients).map(|_| client())).await?.into_iter().sum())
}

fn table(
    target: &Target,
    workload: &Workload,
    arguments: &Arguments,
    measured: &Measured,
) -> String {
    let Measured { cost, per_second, stolen, names } = measured;
    let mut lines = vec![format!(
        "{}, {:?}: {} runs, {} clients, {per_second:.1} answers a second{}",
        workload.label(),
        target.kind,
        arguments.runs,
        arguments.clients,
        if *stolen >= 0.005 { format!(", {:.0} % stolen", stolen * 100.0) } else { String::new() },
    )];
    lines.push(format!("  {:<30}{:>10}", "", "CPU ms"));
    lines.extend(cost.rows().into_iter().map(|(name, ms)| format!("  {name:<30}{ms:>10.2}")));
    lines.extend(names.iter().map(|line| format!("  {line}")));
    lines.push(String::new());
    lines.join("\n")
}

/// `perf`, which takes samples of the whole machine.
struct Perf {
    process: std::process::Child,
    folder: tempfile::TempDir,
}

impl Perf {
    fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let process = Command::new("perf")
            .args([
                "record",
                "--all-cpus",
                "--quiet",
                "--freq",
                "997",
                "--event",
                "cpu-clock",
                "--output",
            ])
            .arg(folder.path().join("data"))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("perf can't be started: install it, or leave --perf out")?;
        Ok(Self { process, folder })
    }

    /// The names of the processes with the most samples, each with its share of what a run costs.
    fn names(mut self, cost: &Cost) -> anyhow::Result<Vec<String>> {
        let interrupt =
            Command::new("kill").args(["-INT", &self.process.id().to_string()]).status();
        interrupt.context("perf can't be stopped")?;
        self.process.wait()?;
        let samples = Command::new("perf")
            .args(["script", "--fields", "comm", "--input"])
            .arg(self.folder.path().join("data"))
            .stderr(Stdio::null())
            .output()?;
        let mut counted = BTreeMap::<String, usize>::new();
        for name in String::from_utf8_lossy(&samples.stdout).lines().map(str::trim) {
            // Idle CPUs, `perf` and this process are no part of the cost.
            if !name.is_empty() && !["swapper", "perf", "cpu"].iter().any(|it| name.starts_with(it))
            {
                *counted.entry(name.to_owned()).or_default() += 1;
            }
        }
        let all = counted.values().sum::<usize>().max(1);
        let mut counted: Vec<_> = counted.into_iter().collect();
        counted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let line = |(name, count): (String, usize)| {
            format!("{name:<30}{:>10.2}  by samples", cost.all * count as f64 / all as f64)
        };
        Ok(counted.into_iter().take(NAMES).map(line).collect())
    }
}
