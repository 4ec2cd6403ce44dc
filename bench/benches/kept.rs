//! Warm starts against figures that are kept beside this file, so that no version is slower than the one before without anybody
//! seeing it.
//!
//! Machines differ, and so do hours on one machine. So what is kept is a ratio: the time of a call over that of ten starts of
//! `true`, measured in turns. This fails if a ratio is 30 % above the kept one. After a change that is meant,
//! `ISOLATOR_KEEP=1 cargo bench -p isolator-bench --bench kept` keeps the new ones.
#![expect(clippy::print_stdout, reason = "it is a command")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use isolator::config::Config;
use isolator_bench::scenario::Scenario;
use isolator_bench::session::Session;
use isolator_bench::target::Targets;
use isolator_bench::{isolator_program, workload};
use tokio::runtime::Runtime;

/// Samples of each.
const TURNS: usize = 15;

/// How much slower than what is kept is too much.
const TOLERANCE: f64 = 1.3;

/// The kept figures: for each line a name, a tab and a ratio.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/kept.tsv");

fn main() -> ExitCode {
    let runtime = Runtime::new().expect("a runtime");
    let measured = runtime.block_on(measure());
    if std::env::var_os("ISOLATOR_KEEP").is_some() {
        let mut text = String::new();
        for (name, ratio) in &measured {
            writeln!(text, "{name}\t{ratio:.3}").expect("a string takes all");
        }
        fs::write(KEPT, text).expect("the file can be written");
        println!("kept {} figures in {KEPT}", measured.len());
        return ExitCode::SUCCESS;
    }
    let text = fs::read_to_string(KEPT).expect("the kept figures");
    let kept: BTreeMap<_, f64> = text
        .lines()
        .map(|line| line.split_once('\t').expect("a name and a figure"))
        .map(|(name, ratio)| (name, ratio.parse().expect("a figure")))
        .collect();
    let mut code = ExitCode::SUCCESS;
    for (name, ratio) in &measured {
        let Some(kept) = kept.get(name.as_str()) else {
            println!("{name}: {ratio:.3}, and nothing is kept");
            continue;
        };
        let change = ratio / kept;
        println!("{name}: {ratio:.3}, kept {kept:.3}, {change:.2} times");
        if change > TOLERANCE {
            println!("{name} is slower than {TOLERANCE} times what is kept");
            code = ExitCode::FAILURE;
        }
    }
    code
}

/// The ratios of all warm starts, by name.
async fn measure() -> BTreeMap<String, f64> {
    let config = Config::parse("{}", None, Path::new("")).expect("the defaults are valid");
    let workloads = workload::choose(&config, &[]).expect("the built-in languages");
    let program = &isolator_program().expect("the program");
    let Targets { found, left_out } =
        Targets::find(&config, program, &workloads).await.expect("an engine with images");
    for what in left_out {
        println!("left out: {what}");
    }
    let mut session = Session::open(found, program).await.expect("a session");
    session.connect().await.expect("full pools");
    let mut ratios = BTreeMap::new();
    for (workload, scenario) in session.cells() {
        if !is_warm(scenario) {
            continue;
        }
        let (mut calls, mut starts) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            calls.push(session.sample(&workload, scenario).await.expect("a sample").took);
            starts.push(ten_starts());
        }
        let ratio = median(calls).as_secs_f64() / median(starts).as_secs_f64();
        ratios.insert(format!("{}, {}", workload.label(), scenario.label()), ratio);
    }
    session.close().await.expect("everything is removed");
    ratios
}

fn is_warm(scenario: Scenario) -> bool {
    use Scenario::{EmbeddedHot, EmbeddedPaused, IsolatorHot, IsolatorPaused};
    matches!(scenario, EmbeddedHot | EmbeddedPaused | IsolatorHot | IsolatorPaused)
}

fn ten_starts() -> Duration {
    let began = Instant::now();
    for _ in 0..10 {
        let ended = Command::new("true").status().expect("every system has `true`");
        assert!(ended.success());
    }
    began.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
