//! LabelFilter turn it is.
//!
//! All flows take turns from the first second to the last, so that whatever else the machine does
//! meanwhile hits all alike. Each gets the same time in all, so the slow ones get fewer samples.

use std::sync::Arc;
use std::time::Duration;

use super::programs::Workload;
use super::scenario::Scenario;

/// One program in one flow, and what was measured of it.
#[derive(Debug)]
pub struct Cell {
    /// The program.
    pub subject: Arc<Workload>,
    /// The flow.
    pub flow: Scenario,
    /// What counts.
    pub samples: Vec<Duration>,
    /// How many calls did not start as they had to.
    pub discarded: usize,
    /// Time that the samples took with everything around them.
    pub spent: Duration,
}

/// So many samples that one can be spared.
const SEVERAL: usize = 3;

/// All that is to be measured.
#[derive(Debug)]
pub struct Schedule {
    cells: Vec<Cell>,
}

impl Schedule {
    /// These programs, each in a flow.
    pub fn new(cells: impl IntoIterator<Item = (Arc<Workload>, Scenario)>) -> Self {
        let cell = |(subject, flow)| Cell {
            subject,
            flow,
            samples: Vec::new(),
            discarded: 0,
            spent: Duration::ZERO,
        };
        Self { cells: cells.into_iter().map(cell).collect() }
    }

    /// The cell that has had the least time. When no time is left, one that has no sample yet;
    /// `None` if all have one.
    pub fn next(&mut self, left: Duration) -> Option<&mut Cell> {
        let is_due = |cell: &&mut Cell| !left.is_zero() || cell.samples.is_empty();
        self.cells.iter_mut().filter(is_due).min_by_key(|cell| cell.spent)
    }

    /// What was measured, program by program. The first of several samples is left out, on all sides: it
    /// has paid for what all have found in memory since.
    pub fn into_cells(mut self) -> Vec<Cell> {
        for cell in &mut self.cells {
            if cell.samples.len() >= SEVERAL {
                cell.samples.remove(0);
            }
        }
        self.cells
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    const SECOND: Duration = Duration::from_secs(1);

    fn schedule() -> Schedule {
        let config = Config::parse("{}", None, Path::new("/")).unwrap();
        let subjects = Workload::choose(&config, &["go".to_owned()]).unwrap();
        Schedule::new(Scenario::DOCKER.map(|flow| (Arc::clone(&subjects[0]), flow)))
    }

    fn measure(cell: &mut Cell, took: Duration) -> Scenario {
        cell.samples.push(took);
        cell.spent += took;
        cell.flow
    }

    #[test]
    fn all_flows_have_their_turn_before_one_has_a_second() {
        let mut schedule = schedule();
        let turns: Vec<_> =
            (0..5).map(|_| measure(schedule.next(SECOND).unwrap(), SECOND)).collect();
        assert_eq!(turns, Scenario::DOCKER);
    }

    #[test]
    fn a_slow_flow_has_fewer_turns_and_as_much_time() {
        let mut schedule = schedule();
        for _ in 0..200 {
            let cell = schedule.next(SECOND).unwrap();
            let slow = if cell.flow == Scenario::DockerCold { 10 } else { 1 };
            measure(cell, SECOND * slow);
        }
        let cells = schedule.into_cells();
        assert!(cells[0].samples.len() * 5 < cells[1].samples.len(), "{cells:?}");
        assert!(cells[0].spent.abs_diff(cells[1].spent) <= 10 * SECOND, "{cells:?}");
    }

    #[test]
    fn the_first_of_several_samples_does_not_count() {
        let mut schedule = schedule();
        let turns = Scenario::DOCKER.len() * (SEVERAL - 1) + 1;
        for turn in 0..turns {
            let took = if turn < Scenario::DOCKER.len() { 2 * SECOND } else { SECOND };
            let cell = schedule.next(SECOND).unwrap();
            cell.samples.push(took);
            cell.spent += SECOND;
        }
        let cells = schedule.into_cells();
        assert_eq!(cells[0].samples, [SECOND, SECOND]);
        assert_eq!(cells[1].samples, [2 * SECOND, SECOND], "one of two can't be spared");
    }

    #[test]
    fn without_time_each_flow_has_one_sample() {
        let mut schedule = schedule();
        while let Some(cell) = schedule.next(Duration::ZERO) {
            measure(cell, SECOND);
        }
        assert!(schedule.into_cells().iter().all(|cell| cell.samples.len() == 1));
    }
}
