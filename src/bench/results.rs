//! What was measured, for tables, charts and other programs.

use std::time::Duration;

use serde::Serialize;

use super::machine::Machine;
use super::scenario::Scenario;
use super::schedule::Cell;
use super::statistics::Summary;
use super::throughput::Throughput;
use crate::result::report::ms;

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// On what.
    pub machine: Machine,
    /// One for each program and flow, program by program.
    pub rows: Vec<Row>,
    /// Several requests at once, where they were measured.
    pub throughput: Option<Throughput>,
}

/// One program in one flow.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The program and its language.
    pub program: String,
    /// How it was started.
    pub flow: Scenario,
    /// The samples in numbers.
    #[serde(flatten)]
    pub summary: Summary,
    /// How many times faster the median is than that of `compared_with`.
    pub times_faster: f64,
    /// The program's first flow: the plain Docker API's cold start, and without Docker the embedded
    /// engine's.
    pub compared_with: Scenario,
    /// Calls that did not start as they had to and are not among the samples.
    pub discarded: usize,
    /// The samples in milliseconds, in the order in which they were taken.
    pub samples_ms: Vec<f64>,
}

impl Results {
    /// Sums up what was measured. Cells without a sample are left out.
    pub fn new(machine: Machine, cells: &[Cell], throughput: Option<Throughput>) -> Self {
        let mut rows: Vec<Row> = Vec::new();
        let mut first: Option<(String, Scenario, Duration)> = None;
        for cell in cells {
            let Some(summary) = Summary::of(&cell.samples) else { continue };
            let program = cell.subject.label();
            let of_program = first.take().filter(|(name, ..)| *name == program);
            let (_, compared_with, cold) =
                first.insert(of_program.unwrap_or((program.clone(), cell.flow, summary.p50)));
            rows.push(Row {
                program,
                flow: cell.flow,
                summary,
                times_faster: cold.as_secs_f64() / summary.p50.as_secs_f64(),
                compared_with: *compared_with,
                discarded: cell.discarded,
                samples_ms: cell.samples.iter().map(|sample| ms(*sample)).collect(),
            });
        }
        Self { machine, rows, throughput }
    }

    /// The rows of each program.
    pub fn programs(&self) -> impl Iterator<Item = &[Row]> {
        self.rows.chunk_by(|a, b| a.program == b.program)
    }
}

/// Results for the tests of what shows them.
#[cfg(test)]
pub(super) fn example() -> Results {
    use super::throughput::{Contender, Rate};
    let row = |program: &str, flow, ms: u64, times_faster| Row {
        program: program.to_owned(),
        flow,
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
        throughput: Some(Throughput {
            program: "python, hello".to_owned(),
            clients: 4,
            rows: vec![
                rate(Contender::DockerCold, 5.25, 1.0),
                rate(Contender::Embedded, 84.0, 16.0),
            ],
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::bench::programs::Workload;
    use crate::bench::schedule::Schedule;
    use crate::config::Config;

    #[test]
    fn every_flow_is_compared_with_the_cold_start_of_its_own_program() {
        let config = Config::parse("{}", None, Path::new("/")).unwrap();
        let subjects = Workload::choose(&config, &[]).unwrap();
        let flows = |s: &Arc<Workload>| {
            let subject = Arc::clone(s);
            Scenario::DOCKER.map(move |flow| (Arc::clone(&subject), flow))
        };
        let mut schedule = Schedule::new(subjects.iter().flat_map(flows));
        while let Some(cell) = schedule.next(Duration::ZERO) {
            let cold = if cell.subject.language.name == "go" { 400 } else { 200 };
            let took = if cell.flow == Scenario::DockerCold { cold } else { 20 };
            cell.samples.push(Duration::from_millis(took));
        }
        let results = Results::new(Machine::here([]), &schedule.into_cells(), None);
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
    fn without_docker_flows_are_compared_with_the_embedded_engine_s_cold_start() {
        let config = Config::parse("{}", None, Path::new("/")).unwrap();
        let subjects = Workload::choose(&config, &["go".to_owned()]).unwrap();
        let cells = Scenario::EMBEDDED.map(|flow| (Arc::clone(&subjects[0]), flow));
        let mut schedule = Schedule::new(cells);
        while let Some(cell) = schedule.next(Duration::ZERO) {
            let took = if cell.flow == Scenario::EmbeddedCold { 100 } else { 10 };
            cell.samples.push(Duration::from_millis(took));
        }
        let rows = Results::new(Machine::here([]), &schedule.into_cells(), None).rows;
        assert!(rows.iter().all(|row| row.compared_with == Scenario::EmbeddedCold), "{rows:?}");
        assert_eq!((rows[0].times_faster, rows[2].times_faster), (1.0, 10.0));
    }
}
