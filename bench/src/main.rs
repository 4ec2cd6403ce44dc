//! `isolator-bench`: measures starts and throughput on this machine, and the plain Docker API to compare.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;
use isolator::commands::global::{FAILED, GlobalOptions, exit_code};
use isolator::commands::options::duration;
use isolator::commands::signals::{stop_signal, stopped_by};
use isolator::commands::{complain, print_usage, say};
use isolator::config::Config;
use isolator::log;
use isolator_bench::load::{Load, LoadDeadlines};
use isolator_bench::machine::{CpuTimes, Machine};
use isolator_bench::results::Results;
use isolator_bench::schedule::Schedule;
use isolator_bench::session::Session;
use isolator_bench::table::table;
use isolator_bench::target::{Target, Targets};
use isolator_bench::{chart, isolator_program, workload};
use tokio::runtime::Runtime;

/// Measures starts and throughput on this machine: on each available engine, and with the plain Docker API to compare
#[derive(Debug, Parser)]
#[command(name = "isolator-bench", version, about)]
struct Cli {
    #[command(flatten)]
    global: GlobalOptions,
    /// The languages to measure; if none is given, all that have a benchmark program
    #[arg(value_name = "LANGUAGE")]
    languages: Vec<String>,
    /// How long to measure, including startup; longer if one start of each way takes longer. A third of it
    /// is for throughput. More time gives more samples
    #[arg(long, value_name = "TIME", default_value = "45s", value_parser = duration)]
    duration: Duration,
    /// Draw a chart of the results into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write the results and all samples to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The end of each part.
#[derive(Debug, Clone, Copy)]
struct Deadlines {
    starts: Instant,
    load: LoadDeadlines,
}

/// A signal ended the measurement.
#[derive(Debug, thiserror::Error)]
#[error("stopped by signal {0} before there were results")]
struct Stopped(i32);

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Wrong usage, or a text such as that of --help.
        Err(error) => {
            let code = if error.use_stderr() { FAILED.into() } else { ExitCode::SUCCESS };
            return exit_code(print_usage(&error).map(|()| code));
        }
    };
    log::to_stderr("warn", cli.global.log_format);
    cli.global.remember();
    let runtime = Runtime::new().context("can't start the threads");
    exit_code(runtime.and_then(|runtime| runtime.block_on(bench(&cli))))
}

/// Measures and shows the results.
async fn bench(cli: &Cli) -> anyhow::Result<ExitCode> {
    match measure_and_write(&cli.global.load()?, cli).await {
        Ok(table) => say(&table).map(|()| ExitCode::SUCCESS),
        Err(error) => {
            let Some(Stopped(signal)) = error.downcast_ref() else { return Err(error) };
            complain(&format!("isolator: {error}"));
            Ok(stopped_by(*signal))
        }
    }
}

/// Measures, writes the files that were asked for, and returns the table.
async fn measure_and_write(config: &Config, arguments: &Cli) -> anyhow::Result<String> {
    let began = Instant::now();
    let sixths = |count| began + arguments.duration * count / 6;
    let load = LoadDeadlines { throughput: sixths(4), mixed: sixths(5), bursts: sixths(6) };
    let deadlines = Deadlines { starts: sixths(3), load };
    for file in [&arguments.svg, &arguments.json].into_iter().flatten() {
        refuse_unless_writable(file)?;
    }
    let workloads = workload::choose(config, &arguments.languages)?;
    let program = isolator_program()?;
    let Targets { found: targets, left_out } = Targets::find(config, &program, &workloads).await?;
    report_left_out(&left_out);

    let before = CpuTimes::now();
    let machine = Machine::here(targets.iter().map(|target| target.description.as_str()));
    let mut results = measure(targets, &program, deadlines, machine).await?;
    results.machine.stolen = before.stolen_until(CpuTimes::now());
    report_longer(began.elapsed(), arguments.duration);
    if let Some(file) = &arguments.svg {
        write(file, &chart::svg(&results)?)?;
    }
    if let Some(file) = &arguments.json {
        write(file, &serde_json::to_string_pretty(&results)?)?;
    }
    Ok(table(&results))
}

/// Explains why it took longer than wanted: each way is measured at least once.
fn report_longer(took: Duration, wanted: Duration) {
    // What has begun is completed, which takes a moment more.
    if took > wanted * 3 / 2 {
        complain(&format!(
            "it took {took:.0?} instead of {wanted:.0?}: starting the servers and measuring each way at \
             least once takes that long on this machine"
        ));
    }
}

fn report_left_out(left_out: &[String]) {
    for what in left_out {
        complain(&format!("left out: {what}"));
    }
}

/// Checks this before anything is measured. The file keeps its content until there are results.
fn refuse_unless_writable(file: &Path) -> anyhow::Result<()> {
    let was_there = file.exists();
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
    opened.with_context(|| format!("{} can't be written", file.display()))?;
    if !was_there {
        std::fs::remove_file(file)?;
    }
    Ok(())
}

fn write(file: &Path, content: &str) -> anyhow::Result<()> {
    std::fs::write(file, content).with_context(|| file.display().to_string())
}

/// Measures, and removes what was created on the engines, even after an error.
async fn measure(
    targets: Vec<Target>,
    program: &Path,
    deadlines: Deadlines,
    machine: Machine,
) -> anyhow::Result<Results> {
    let mut session = Session::open(targets, program).await?;
    let stop_signal = stop_signal()?;
    let ended = tokio::select! {
        ended = run(&mut session, deadlines) => ended,
        signal = stop_signal => Err(Stopped(signal).into()),
    };
    let closed = session.close().await;
    let (schedule, load) = ended?;
    closed?;
    Ok(Results::new(machine, &schedule.into_cells(), load))
}

async fn run(session: &mut Session, deadlines: Deadlines) -> anyhow::Result<(Schedule, Load)> {
    let left = deadlines.load.bursts.saturating_duration_since(Instant::now());
    let ways = session.cells().len();
    complain(&format!(
        "measuring {ways} ways to start a program, each at least once, throughput and bursts, for {left:.0?}"
    ));
    session.connect().await?;
    report_left_out(&session.try_all().await?);
    let mut schedule = Schedule::new(session.cells());
    session.measure(&mut schedule, deadlines.starts).await?;
    let load = session.load(deadlines.load).await?;
    Ok((schedule, load))
}
