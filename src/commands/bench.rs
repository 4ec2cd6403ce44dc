//! `isolator bench`: starts and throughput on this machine, beside the plain Docker API.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, anyhow};

use crate::bench::chart;
use crate::bench::engines::{Engines, Side};
use crate::bench::machine::{CpuTimes, Machine};
use crate::bench::programs::Workload;
use crate::bench::results::Results;
use crate::bench::schedule::Schedule;
use crate::bench::session::Session;
use crate::bench::table::table;
use crate::bench::throughput::Throughput;
use crate::commands::cli::BenchArguments;
use crate::commands::signals::stop_signal;
use crate::commands::{complain, say};
use crate::config::Config;

/// How long each part goes on.
#[derive(Debug, Clone, Copy)]
struct Until {
    starts: Instant,
    throughput: Instant,
}

/// Measures and shows what was measured.
pub async fn bench(config: Config, arguments: BenchArguments) -> anyhow::Result<ExitCode> {
    match measure_and_show(&config, &arguments).await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            complain(&format!("isolator: {error:#}"));
            Ok(ExitCode::FAILURE)
        }
    }
}

async fn measure_and_show(config: &Config, arguments: &BenchArguments) -> anyhow::Result<()> {
    let began = Instant::now();
    let until = Until {
        starts: began + arguments.duration * 2 / 3,
        throughput: began + arguments.duration,
    };
    for file in [&arguments.svg, &arguments.json].into_iter().flatten() {
        refuse_unless_writable(file)?;
    }
    let subjects = Workload::choose(config, &arguments.languages)?;
    let program = std::env::current_exe().context("this program does not find itself")?;
    let Engines { sides, left_out } = Engines::find(config, &program, &subjects).await?;
    tell_left_out(&left_out);

    let before = CpuTimes::now();
    let machine = Machine::here(sides.iter().map(|side| side.described.as_str()));
    let mut results = measure(config, sides, &program, until, machine).await?;
    results.machine.stolen = before.stolen_until(CpuTimes::now());
    say(&table(&results));
    if let Some(file) = &arguments.svg {
        write(file, &chart::svg(&results)?)?;
    }
    if let Some(file) = &arguments.json {
        write(file, &serde_json::to_string_pretty(&results)?)?;
    }
    Ok(())
}

fn tell_left_out(left_out: &[String]) {
    for what in left_out {
        complain(&format!("left out: {what}"));
    }
}

/// It would be a pity to find that out afterwards. What is there is kept until there is better.
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

/// Whatever becomes of it, what was made on the engines is removed.
async fn measure(
    config: &Config,
    sides: Vec<Side>,
    program: &Path,
    until: Until,
    machine: Machine,
) -> anyhow::Result<Results> {
    let mut session = Session::open(config, sides, program).await?;
    let stop_signal = stop_signal()?;
    let ended = tokio::select! {
        ended = run(&mut session, config, until) => ended,
        signal = stop_signal => {
            Err(anyhow!("stopped by signal {signal} before there were results"))
        }
    };
    let closed = session.close().await;
    let (schedule, throughput) = ended?;
    closed?;
    Ok(Results::new(machine, &schedule.into_cells(), throughput))
}

async fn run(
    session: &mut Session,
    config: &Config,
    until: Until,
) -> anyhow::Result<(Schedule, Option<Throughput>)> {
    let left = until.throughput.saturating_duration_since(Instant::now());
    let ways = session.cells().len();
    complain(&format!("measuring {ways} ways to start a program, and throughput, for {left:.0?}"));
    session.connect().await?;
    tell_left_out(&session.try_all().await?);
    let mut schedule = Schedule::new(session.cells());
    session.measure(&mut schedule, until.starts).await?;
    let throughput = session.throughput(config, until.throughput).await?;
    Ok((schedule, throughput))
}
