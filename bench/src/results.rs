//! What was measured, for tables, charts and other programs.

use std::time::Duration;

use serde::Serialize;

use crate::load::Load;
use crate::machine::Machine;
use crate::scenario::Scenario;
use crate::schedule::Cell;
use crate::statistics::{Summary, ms};

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// What it was measured on.
    pub machine: Machine,
    /// One for each program and scenario, program by program.
    pub rows: Vec<Row>,
    /// Many requests, where they were measured.
    #[serde(flatten)]
    pub load: Load,
}

/// One program in one scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The program and its language.
    pub program: String,
    /// How it was started.
    #[serde(rename = "flow")]
    pub scenario: Scenario,
    /// The samples in numbers.
    #[serde(flatten)]
    pub summary: Summary,
    /// How many times faster the median is than that of `compared_with`.
    pub times_faster: f64,
    /// The program's first scenario: the plain Docker API's cold start, and without Docker the embedded
    /// engine's.
    pub compared_with: Scenario,
    /// Calls that did not start as they should and are not among the samples.
    pub discarded: usize,
    /// The samples in milliseconds, in the order in which they were taken.
    pub samples_ms: Vec<f64>,
}

impl Results {
    /// Sums up what was measured. Cells without a sample are left out.
    pub fn new(machine: Machine, cells: &[Cell], load: Load) -> Self {
        let mut rows: Vec<Row> = Vec::new();
        let mut first: Option<(String, Scenario, Duration)> = None;
        for cell in cells {
            let Some(summary) = Summary::of(&cell.samples) else { continue };
            let program = cell.workload.label();
            let of_program = first.take().filter(|(name, ..)| *name == program);
            let (_, compared_with, cold) =
                first.insert(of_program.unwrap_or((program.clone(), cell.scenario, summary.p50)));
            rows.push(Row {
                program,
                scenario: cell.scenario,
                summary,
                times_faster: cold.as_secs_f64() / summary.p50.as_secs_f64(),
                compared_with: *compared_with,
                discarded: cell.discarded,
                samples_ms: cell.samples.iter().map(|sample| ms(*sample)).collect(),
            });
        }
        Self { machine, rows, load }
    }

    /// The rows of each program.
    pub fn programs(&self) -> impl Iterator<Item = &[Row]> {
        self.rows.chunk_by(|a, b| a.program == b.program)
    }
}

/// Results for the tests of what shows them.
#[cfg(test)]
pub(crate) fn example() -> Results {
    use crate::load::Burst;
    use crate::throughput::{Contender, Rate, Throughput};
    let row = |program: &str, scenario, ms: u64, times_faster| Row {
        program: program.to_owned(),
        scenario,
        summary: Summary::of(&[ms, ms + ms / 10].map(Duration::from_millis)).unwrap(),
        times_faster,
        compared_with: Scenario::DockerCold,
        discarded: 0,
        samples_ms: vec![ms as f64, (ms + ms / 10) as f64],
    };
    let rate = |contender, per_second: f64, times_more| Rate {
        contender,
        n: 42,
        per_second,
        slices_per_second: vec![per_second, per_second],
        times_more,
    };
    let engines = ["Docker Engine 20.10, API 1.41", "embedded engine on Linux 6.1, as root"];
    let mut machine = Machine::here(engines);
    machine.cpu = "CPU <of & for> tests".to_owned();
    Results {
        machine,
        rows: vec![
            row("python, hello", Scenario::DockerCold, 200, 1.0),
            row("python, hello", Scenario::IsolatorHot, 16, 12.5),
            row("python, hello", Scenario::EmbeddedHot, 15, 13.3),
            row("go, hello", Scenario::DockerCold, 1280, 1.0),
            row("go, hello", Scenario::IsolatorHot, 110, 11.6),
        ],
        load: Load {
            throughput: Some(Throughput {
                program: "python, hello".to_owned(),
                clients: 4,
                rows: vec![
                    rate(Contender::DockerCold, 5.25, 1.0),
                    rate(Contender::Embedded, 84.0, 16.0),
                ],
            }),
            mixed: None,
            bursts: vec![Burst {
                program: "python, hello".to_owned(),
                contender: Contender::Embedded,
                summary: Summary::of(&[Duration::from_millis(44); 8]).unwrap(),
            }],
            waiting: Vec::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::schedule::Schedule;
    use crate::workload::{Workload, examples};

    #[test]
    fn every_scenario_is_compared_with_the_cold_start_of_its_own_program() {
        let workloads = examples();
        let scenarios = |s: &Arc<Workload>| {
            let workload = Arc::clone(s);
            Scenario::DOCKER.map(move |scenario| (Arc::clone(&workload), scenario))
        };
        let mut schedule = Schedule::new(workloads.iter().flat_map(scenarios));
        while let Some(cell) = schedule.next(Duration::ZERO) {
            let cold = if cell.workload.program.language == "go" { 400 } else { 200 };
            let took = if cell.scenario == Scenario::DockerCold { cold } else { 20 };
            cell.samples.push(Duration::from_millis(took));
        }
        let results = Results::new(Machine::here([]), &schedule.into_cells(), Load::default());
        let programs: Vec<_> = results.programs().collect();
        assert_eq!(programs.len(), 4);
        for rows in programs {
            let expected = if rows[0].program == "go, hello" { 20.0 } else { 10.0 };
            assert_eq!((rows[0].times_faster, rows[4].times_faster), (1.0, expected), "{rows:?}");
        }
        let json = serde_json::to_value(&results).unwrap();
        assert_eq!(json["rows"][0]["flow"], "docker_cold");
        assert_eq!(json["rows"][0]["samples_ms"], serde_json::json!([200.0]));
        assert_eq!(json["rows"][0]["p50_ms"], 200.0);
    }

    #[test]
    fn without_docker_scenarios_are_compared_with_the_embedded_engine_s_cold_start() {
        let workloads = examples();
        let cells = Scenario::EMBEDDED.map(|scenario| (Arc::clone(&workloads[0]), scenario));
        let mut schedule = Schedule::new(cells);
        while let Some(cell) = schedule.next(Duration::ZERO) {
            let took = if cell.scenario == Scenario::EmbeddedCold { 100 } else { 10 };
            cell.samples.push(Duration::from_millis(took));
        }
        let rows = Results::new(Machine::here([]), &schedule.into_cells(), Load::default()).rows;
        assert!(rows.iter().all(|row| row.compared_with == Scenario::EmbeddedCold), "{rows:?}");
        assert_eq!((rows[0].times_faster, rows[2].times_faster), (1.0, 10.0));
    }
}
