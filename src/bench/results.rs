//! What was measured, for tables, charts and other programs.

use std::time::Duration;

use serde::Serialize;

use super::flow::Flow;
use super::machine::Machine;
use super::schedule::Cell;
use super::statistics::Summary;
use crate::report::ms;

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// On what.
    pub machine: Machine,
    /// One for each program and flow, program by program.
    pub rows: Vec<Row>,
}

/// One program in one flow.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The program and its language.
    pub program: String,
    /// How it was started.
    pub flow: Flow,
    /// The samples in numbers.
    #[serde(flatten)]
    pub summary: Summary,
    /// How many times faster the median is than that of the plain Docker API's cold start.
    pub times_faster: f64,
    /// Calls that did not start as they had to and are not among the samples.
    pub discarded: usize,
    /// The samples in milliseconds, in the order in which they were taken.
    pub samples_ms: Vec<f64>,
}

impl Results {
    /// Sums up what was measured. Cells without a sample are left out.
    pub fn new(machine: Machine, cells: &[Cell]) -> Self {
        let mut rows: Vec<Row> = Vec::new();
        let mut cold = Duration::ZERO;
        for cell in cells {
            let Some(summary) = Summary::of(&cell.samples) else { continue };
            if cell.flow == Flow::DockerCold {
                cold = summary.p50;
            }
            rows.push(Row {
                program: cell.subject.label(),
                flow: cell.flow,
                summary,
                times_faster: cold.as_secs_f64() / summary.p50.as_secs_f64(),
                discarded: cell.discarded,
                samples_ms: cell.samples.iter().map(|sample| ms(*sample)).collect(),
            });
        }
        Self { machine, rows }
    }

    /// The rows of each program.
    pub fn programs(&self) -> impl Iterator<Item = &[Row]> {
        self.rows.chunk_by(|a, b| a.program == b.program)
    }
}

/// Results for the tests of what shows them.
#[cfg(test)]
pub(super) fn example() -> Results {
    let row = |program: &str, flow, ms: u64, times_faster| Row {
        program: program.to_owned(),
        flow,
        summary: Summary::of(&[ms, ms + ms / 10].map(Duration::from_millis)).unwrap(),
        times_faster,
        discarded: 0,
        samples_ms: vec![ms as f64, (ms + ms / 10) as f64],
    };
    let mut machine = Machine::here("Docker Engine 20.10, API 1.41");
    machine.cpu = "CPU <of & for> tests".to_owned();
    Results {
        machine,
        rows: vec![
            row("python, hello", Flow::DockerCold, 200, 1.0),
            row("python, hello", Flow::IsolatorHot, 16, 12.5),
            row("go, hello", Flow::DockerCold, 1280, 1.0),
            row("go, hello", Flow::IsolatorHot, 110, 11.6),
        ],
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::bench::programs::Subject;
    use crate::bench::schedule::Schedule;
    use crate::config::Config;

    #[test]
    fn every_flow_is_compared_with_the_cold_start_of_its_own_program() {
        let config = Config::parse("{}", None, Path::new("/")).unwrap();
        let mut schedule = Schedule::new(&Subject::choose(&config, &[]).unwrap());
        while let Some(cell) = schedule.next(Duration::ZERO) {
            let cold = if cell.subject.language.name == "go" { 400 } else { 200 };
            let took = if cell.flow == Flow::DockerCold { cold } else { 20 };
            cell.samples.push(Duration::from_millis(took));
        }
        let results = Results::new(Machine::here(""), &schedule.into_cells());
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
}
