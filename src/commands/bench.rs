//! `isolator bench`: starts on this machine, beside the plain Docker API.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail};
use isolator_pool::engine::{Call, bounded};

use crate::app::App;
use crate::bench::chart;
use crate::bench::flow::Flow;
use crate::bench::machine::{CpuTimes, Machine};
use crate::bench::programs::Subject;
use crate::bench::results::Results;
use crate::bench::schedule::Schedule;
use crate::bench::session::Session;
use crate::bench::table::table;
use crate::cli::BenchArguments;
use crate::commands::signals::stop_signal;
use crate::commands::{complain, say};
use crate::config::Config;

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
    let until = Instant::now() + arguments.duration;
    for file in [&arguments.svg, &arguments.json].into_iter().flatten() {
        refuse_unless_writable(file)?;
    }
    let subjects = Subject::choose(config, &arguments.languages)?;
    let app = App::new(config).await?;
    let checked = bounded(Call::Check, app.engine.check()).await;
    let engine = checked.context("nothing can be measured; isolator doctor says what to do")?;
    require_images(&app, &subjects).await?;

    let before = CpuTimes::now();
    let mut results = measure(config, app, subjects, until, Machine::here(&engine)).await?;
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

async fn require_images(app: &App, subjects: &[Arc<Subject>]) -> anyhow::Result<()> {
    for subject in subjects {
        let language = &subject.language;
        let image = &language.sandbox.image.name;
        if app.images.find(image).await?.is_none() {
            let how = if app.images.is_built(image) { "build" } else { "pull" };
            bail!("image {image} is missing: isolator image {how} {}", language.name);
        }
    }
    Ok(())
}

/// Whatever becomes of it, what was made on the engine is removed.
async fn measure(
    config: &Config,
    app: App,
    subjects: Vec<Arc<Subject>>,
    until: Instant,
    machine: Machine,
) -> anyhow::Result<Results> {
    let program = std::env::current_exe().context("this program does not find itself")?;
    let mut session = Session::open(config, app, &program, &subjects).await?;
    let ended = tokio::select! {
        schedule = run(&mut session, subjects, until) => schedule,
        signal = stop_signal() => signal
            .map_err(Into::into)
            .and_then(|signal| bail!("stopped by signal {signal} before there were results")),
    };
    let closed = session.close().await;
    let schedule = ended?;
    closed?;
    Ok(Results::new(machine, &schedule.into_cells()))
}

async fn run(
    session: &mut Session,
    subjects: Vec<Arc<Subject>>,
    until: Instant,
) -> anyhow::Result<Schedule> {
    let left = until.saturating_duration_since(Instant::now());
    complain(&format!(
        "measuring {} programs in {} ways each for {left:.0?}",
        subjects.len(),
        Flow::ALL.len()
    ));
    session.connect().await?;
    let (subjects, left_out) = session.try_all(subjects).await?;
    for error in left_out {
        complain(&format!("left out: {error}"));
    }
    let mut schedule = Schedule::new(&subjects);
    session.measure(&mut schedule, until).await?;
    Ok(schedule)
}
