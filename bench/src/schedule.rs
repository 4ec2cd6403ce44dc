//! What is sampled next.
//!
//! All scenarios take turns from the first second to the last, so that whatever else the machine does
//! meanwhile hits all alike. Each gets the same time in all, so the slow ones get fewer samples.

use std::sync::Arc;
use std::time::Duration;

use crate::scenario::Scenario;
use crate::workload::Workload;

/// One program in one scenario, and what was measured of it.
#[derive(Debug)]
pub struct Cell {
    /// The program.
    pub workload: Arc<Workload>,
    /// The scenario.
    pub scenario: Scenario,
    /// What counts.
    pub samples: Vec<Duration>,
    /// How many calls did not start as they should.
    pub discarded: usize,
    /// Time that the samples took with everything around them.
    pub spent: Duration,
}

/// The first of at least so many samples is left out.
const MIN_SAMPLES_TO_DROP_FIRST: usize = 3;

/// Everything to measure.
#[derive(Debug)]
pub struct Schedule {
    cells: Vec<Cell>,
}

impl Schedule {
    /// These programs, each in a scenario.
    pub fn new(cells: impl IntoIterator<Item = (Arc<Workload>, Scenario)>) -> Self {
        let cell = |(workload, scenario)| Cell {
            workload,
            scenario,
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

    /// What was measured, program by program. The first of several samples is left out, on all targets: it
    /// was slower, because it also brought things from disk into memory.
    pub fn into_cells(mut self) -> Vec<Cell> {
        for cell in &mut self.cells {
            if cell.samples.len() >= MIN_SAMPLES_TO_DROP_FIRST {
                cell.samples.remove(0);
            }
        }
        self.cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::examples;

    const SECOND: Duration = Duration::from_secs(1);

    fn schedule() -> Schedule {
        let workloads = examples();
        Schedule::new(Scenario::DOCKER.map(|scenario| (Arc::clone(&workloads[0]), scenario)))
    }

    fn measure(cell: &mut Cell, took: Duration) -> Scenario {
        cell.samples.push(took);
        cell.spent += took;
        cell.scenario
    }

    #[test]
    fn all_scenarios_have_their_turn_before_one_has_a_second() {
        let mut schedule = schedule();
        let turns: Vec<_> =
            (0..5).map(|_| measure(schedule.next(SECOND).unwrap(), SECOND)).collect();
        assert_eq!(turns, Scenario::DOCKER);
    }

    #[test]
    fn a_slow_scenario_has_fewer_turns_and_as_much_time() {
        let mut schedule = schedule();
        for _ in 0..200 {
            let cell = schedule.next(SECOND).unwrap();
            let slow = if cell.scenario == Scenario::DockerCold { 10 } else { 1 };
            measure(cell, SECOND * slow);
        }
        let cells = schedule.into_cells();
        assert!(cells[0].samples.len() * 5 < cells[1].samples.len(), "{cells:?}");
        assert!(cells[0].spent.abs_diff(cells[1].spent) <= 10 * SECOND, "{cells:?}");
    }

    #[test]
    fn the_first_of_several_samples_does_not_count() {
        let mut schedule = schedule();
        let turns = Scenario::DOCKER.len() * (MIN_SAMPLES_TO_DROP_FIRST - 1) + 1;
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
    fn without_time_each_scenario_has_one_sample() {
        let mut schedule = schedule();
        while let Some(cell) = schedule.next(Duration::ZERO) {
            measure(cell, SECOND);
        }
        assert!(schedule.into_cells().iter().all(|cell| cell.samples.len() == 1));
    }
}
