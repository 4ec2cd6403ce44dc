//! Results as a table for a terminal.

use std::time::Duration;

use crate::load::{Burst, Waiting};
use crate::results::{Results, Row};
use crate::scenario::Scenario;
use crate::statistics::ms;
use crate::throughput::Throughput;

/// Width of the first column: the longest scenario, indented.
const LABEL_WIDTH: usize = 29;

/// Below this many samples, 95 and 99 of 100 of them are all but the slowest.
const FEW_SAMPLES: usize = 20;

/// The table, and what has to be known about it.
pub fn table(results: &Results) -> String {
    let mut lines = Vec::new();
    for rows in results.programs() {
        let program = rows.first().map(|row| row.program.as_str()).unwrap_or_default();
        lines.push(format!(
            "{program:<LABEL_WIDTH$}{:>9}{:>9}{:>9}{:>6}   × faster than cold",
            "p50 ms", "p95 ms", "p99 ms", "n"
        ));
        for row in rows {
            let summary = &row.summary;
            lines.push(format!(
                "{:<LABEL_WIDTH$}{:>9}{:>9}{:>9}{:>6}{:>21.1}",
                format!("  {}", row.scenario.label()),
                digits(summary.p50),
                digits(summary.p95),
                digits(summary.p99),
                summary.n,
                row.times_faster,
            ));
        }
        lines.push(String::new());
    }
    let load = &results.load;
    for throughput in [&load.throughput, &load.mixed].into_iter().flatten() {
        lines.extend(throughput_lines(throughput));
        lines.push(String::new());
    }
    for bursts in load.bursts.chunk_by(|a, b| a.program == b.program) {
        lines.extend(burst_lines(bursts));
        lines.push(String::new());
    }
    for Waiting { contender, sandboxes, bytes, templates_bytes } in &load.waiting {
        lines.push(format!(
            "{}: {sandboxes} sandboxes that wait take {} MiB (PSS), and their templates {} MiB.",
            contender.label(),
            bytes >> 20,
            templates_bytes >> 20
        ));
    }
    for row in results.programs().filter_map(<[Row]>::first) {
        if row.compared_with != Scenario::DockerCold {
            lines.push(format!(
                "{}: Docker was not measured; × faster is than {}.",
                row.program,
                row.compared_with.label()
            ));
        }
    }
    if results.rows.iter().any(|row| row.summary.n < FEW_SAMPLES) {
        lines.push(format!(
            "Of fewer than {FEW_SAMPLES} samples, p95 and p99 are all but the slowest: a longer --duration \
             takes more."
        ));
    }
    for row in results.rows.iter().filter(|row| row.discarded > 0) {
        lines.push(format!(
            "{} ({}): {} more did not find the pool as it should be and do not count.",
            row.program,
            row.scenario.label(),
            row.discarded
        ));
    }
    lines.push(results.machine.to_string());
    lines.join("\n")
}

/// Its columns end where those above it do.
fn throughput_lines(throughput: &Throughput) -> Vec<String> {
    let Throughput { program, clients, rows } = throughput;
    let mut lines = vec![
        format!("{program}, {clients} requests at a time"),
        format!("{:<LABEL_WIDTH$}{:>12}{:>21}{:>21}", "", "requests/s", "n", "× more than first"),
    ];
    for rate in rows {
        lines.push(format!(
            "{:<LABEL_WIDTH$}{:>12}{:>21}{:>21.1}",
            format!("  {}", rate.contender.label()),
            three_digits(rate.per_second),
            rate.n,
            rate.times_more,
        ));
    }
    lines
}

fn burst_lines(bursts: &[Burst]) -> Vec<String> {
    let program = bursts.first().map(|burst| burst.program.as_str()).unwrap_or_default();
    let head = format!("{program}, requests at once");
    let mut lines = vec![format!(
        "{head:<LABEL_WIDTH$}{:>9}{:>9}{:>9}{:>6}",
        "p50 ms", "p99 ms", "last ms", "n"
    )];
    for Burst { contender, summary, .. } in bursts {
        lines.push(format!(
            "{:<LABEL_WIDTH$}{:>9}{:>9}{:>9}{:>6}",
            format!("  {}", contender.label()),
            digits(summary.p50),
            digits(summary.p99),
            digits(summary.max),
            summary.n,
        ));
    }
    lines
}

/// Milliseconds as far as they are no noise.
pub(crate) fn digits(duration: Duration) -> String {
    three_digits(ms(duration))
}

/// Three digits of a number: more would be noise.
fn three_digits(number: f64) -> String {
    let places = if number < 9.995 {
        2
    } else if number < 99.95 {
        1
    } else {
        0
    };
    format!("{number:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;

    #[test]
    fn numbers_have_three_digits() {
        for (us, shown) in [
            (1_234, "1.23"),
            (9_994, "9.99"),
            (9_996, "10.0"),
            (16_840, "16.8"),
            (99_960, "100"),
            (207_400, "207"),
            (1_380_000, "1380"),
        ] {
            assert_eq!(digits(Duration::from_micros(us)), shown);
        }
    }

    #[test]
    fn columns_are_aligned_below_their_heads() {
        let table = table(&example());
        let lines: Vec<Vec<char>> = table.lines().map(|line| line.chars().collect()).collect();
        let head: String = lines[0].iter().collect();
        assert!(head.starts_with("python, hello"), "{table}");
        for column in ["p50 ms", "p95 ms", "p99 ms", " n "] {
            let end = head.find(column).unwrap() + column.trim_end().len();
            for line in &lines[1..3] {
                assert!(line[end - 1].is_ascii_digit() && line[end] == ' ', "{column}:\n{table}");
            }
        }
        assert_eq!(lines[0].len(), lines[1].len(), "{table}");
    }

    #[test]
    fn a_table_names_programs_scenarios_ratios_and_the_machine() {
        let table = table(&example());
        for part in ["go, hello", "docker API, cold", "isolator on docker, hot", "12.5", "1344"] {
            assert!(table.contains(part), "no {part}:\n{table}");
        }
        for engine in ["Docker Engine 20.10", "embedded engine"] {
            assert!(table.lines().last().unwrap().contains(engine), "{table}");
        }
        assert!(table.contains("--duration"), "two samples are few:\n{table}");
    }

    #[test]
    fn throughput_is_below_the_starts_with_its_columns_below_theirs() {
        let mut results = example();
        let shown = table(&results);
        let head = shown.lines().next().unwrap().chars().count();
        let rates = shown.split("requests/s").nth(1).unwrap();
        let embedded = rates.lines().find(|line| line.contains("isolator embedded")).unwrap();
        assert!(embedded.ends_with("16.0") && embedded.contains("84.0"), "{shown}");
        assert_eq!(embedded.chars().count(), head, "{shown}");
        results.load.throughput = None;
        assert!(!table(&results).contains("requests/s"));
    }

    #[test]
    fn bursts_are_shown_with_their_size_below_its_head() {
        let shown = table(&example());
        let bursts = shown.split("python, hello, requests at once").nth(1).unwrap();
        let embedded = bursts.lines().nth(1).unwrap();
        assert!(
            embedded.contains("isolator embedded") && embedded.ends_with("44.0     8"),
            "{shown}"
        );
    }

    #[test]
    fn what_is_compared_with_something_else_than_docker_says_so() {
        let mut results = example();
        assert!(!table(&results).contains("was not measured"));
        results.rows[3].compared_with = Scenario::EmbeddedCold;
        let table = table(&results);
        assert!(table.contains("go, hello: Docker was not measured"), "{table}");
        assert!(table.contains("than isolator embedded, cold"), "{table}");
    }

    #[test]
    fn what_was_discarded_is_told() {
        let mut results = example();
        assert!(!table(&results).contains("do not count"));
        results.rows[1].discarded = 3;
        let table = table(&results);
        assert!(table.contains("python, hello (isolator on docker, hot): 3 more"), "{table}");
    }
}
