//! CPU time by process, from the counters of the kernel that miss nothing: those of living processes, of the children that
//! they have waited for, and of control groups, which keep what was used by sandboxes that are gone.
//!
//! An [`Account`] is what was used so far. The difference of two, over the runs between them, is a [`Cost`].

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The unit of `/proc/PID/stat`, the same on every machine.
const TICK: Duration = Duration::from_millis(10);

/// How deep below the mount of the control groups a server's are, at most.
const DEPTH: usize = 6;

/// What a server and everything that it started have used so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Account {
    /// Everything on the machine, threads of the kernel included.
    all: Duration,
    /// This process.
    bench: Duration,
    server: Duration,
    /// Processes that make sandboxes, alone.
    launchers: Duration,
    /// All that launchers have started and waited for: what makes sandboxes, and what was in them.
    reaped: Duration,
    /// The control groups of sandboxes.
    sandboxes: Duration,
    /// Those of templates, in which forks are until they are in a sandbox.
    of_templates: Duration,
    /// The templates alone.
    templates: Duration,
}

/// CPU milliseconds of one run, by the process that used them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// The server.
    pub server: f64,
    /// The launchers: making and removing sandboxes. `None` where another engine does that.
    pub launchers: Option<f64>,
    /// Processes that launchers start to make a sandbox, as long as they are outside of it.
    pub makers: Option<f64>,
    /// Process 1 of the sandbox: the rest of its making, then the runner; and interpreters that no program used.
    pub first: Option<f64>,
    /// The program, with its interpreter from the start or fork on.
    pub program: f64,
    /// Templates, for forking.
    pub templates: Option<f64>,
    /// The sum of these.
    pub sum: f64,
    /// Everything else on the machine: threads of the kernel, and on Docker the engine's processes.
    pub others: f64,
    /// All of the machine, as it has counted by itself. This process is not part of it.
    pub all: f64,
}

impl Account {
    /// What was used until now by the server with this number.
    pub fn now(server: u32) -> Self {
        let of = |process: u32| Usage::of(process).unwrap_or_default();
        let mut account =
            Self { bench: of(std::process::id()).own, server: of(server).own, ..Self::default() };
        let Some(counter) = Counter::find() else { return account };
        account.all = Counter::used(&counter.mount);
        for group in counter.groups_of(server) {
            let name = group.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let used = Counter::used(&group);
            if name.ends_with("+template") {
                account.of_templates += used;
            } else {
                account.sandboxes += used;
            }
        }
        let launchers: Vec<_> = children(server)
            .into_iter()
            .filter(|child| command(*child).ends_with("launcher"))
            .flat_map(|outer| [vec![outer], children(outer)].concat())
            .collect();
        for launcher in launchers {
            let usage = of(launcher);
            account.launchers += usage.own;
            account.reaped += usage.reaped;
            for child in children(launcher).into_iter().filter(|child| is_template(*child)) {
                account.templates += of(child).own;
            }
        }
        account
    }

    /// What each of `runs` has cost since `before`. Their programs, by the servers' receipts, took `programs` together.
    pub fn cost_since(&self, before: &Self, runs: usize, programs: Duration) -> Cost {
        let since = |of: fn(&Self) -> Duration| of(self).saturating_sub(of(before));
        let per_run = |time: Duration| time.as_secs_f64() * 1000.0 / runs as f64;
        let all = since(|it| it.all).saturating_sub(since(|it| it.bench));
        let server = since(|it| it.server);
        let is_embedded = self.launchers > Duration::ZERO;
        let launchers = since(|it| it.launchers);
        let templates = since(|it| it.templates);
        // Forks work for their template's group first, and are waited for in their sandbox.
        let forks = since(|it| it.of_templates).saturating_sub(templates);
        let inside = since(|it| it.sandboxes) + forks;
        let first = inside.saturating_sub(programs);
        let makers = since(|it| it.reaped).saturating_sub(inside);
        let known = if is_embedded {
            server + launchers + templates + makers + first + programs
        } else {
            server + programs
        };
        let embedded = |time| is_embedded.then(|| per_run(time));
        Cost {
            server: per_run(server),
            launchers: embedded(launchers),
            makers: embedded(makers),
            first: embedded(first),
            program: per_run(programs),
            templates: embedded(templates),
            sum: per_run(known),
            others: per_run(all.saturating_sub(known)),
            all: per_run(all),
        }
    }
}

impl Cost {
    /// The rows of a table.
    pub fn rows(&self) -> Vec<(&'static str, f64)> {
        let rows = [
            ("server", Some(self.server)),
            ("launcher", self.launchers),
            ("makers of the sandbox", self.makers),
            ("process 1, unused interpreters", self.first),
            ("program", Some(self.program)),
            ("templates", self.templates),
            ("all of these", Some(self.sum)),
            ("kernel and all others", Some(self.others)),
            ("the whole machine", Some(self.all)),
        ];
        rows.into_iter().filter_map(|(name, ms)| Some((name, ms?))).collect()
    }
}

/// CPU time of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Usage {
    own: Duration,
    /// Of its children that have ended and that it waited for, with theirs.
    reaped: Duration,
}

impl Usage {
    fn of(process: u32) -> Option<Self> {
        Self::read(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    fn read(stat: &str) -> Option<Self> {
        // The name can contain anything.
        let (_, fields) = stat.rsplit_once(')')?;
        let ticks: Vec<u32> = fields
            .split_whitespace()
            .skip(11)
            .take(4)
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        let [user, system, reaped_user, reaped_system] = ticks[..] else { return None };
        Some(Self { own: TICK * (user + system), reaped: TICK * (reaped_user + reaped_system) })
    }
}

/// Control groups that count CPU time.
struct Counter {
    mount: PathBuf,
}

impl Counter {
    /// The hierarchy of version 2, or else that of version 1 that counts: sandboxes join it only where it also limits.
    fn find() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let found = |is_it: fn(&str) -> bool| {
            let mut lines = mounts.lines();
            let line = lines.find(|line| line.split_once(" - ").is_some_and(|it| is_it(it.1)))?;
            Some(Self { mount: line.split(' ').nth(4)?.into() })
        };
        found(|system| system.starts_with("cgroup2 "))
            .or_else(|| found(|system| system.starts_with("cgroup ") && system.contains("cpuacct")))
    }

    /// What a group and all groups that were ever below it have used.
    fn used(group: &Path) -> Duration {
        if let Ok(nanoseconds) = fs::read_to_string(group.join("cpuacct.usage")) {
            return Duration::from_nanos(nanoseconds.trim().parse().unwrap_or_default());
        }
        let stat = fs::read_to_string(group.join("cpu.stat")).unwrap_or_default();
        let usage = stat.lines().find_map(|line| line.strip_prefix("usage_usec "));
        Duration::from_micros(usage.and_then(|usage| usage.parse().ok()).unwrap_or_default())
    }

    /// The groups of a server on the embedded engine, whose names have the number of its process.
    fn groups_of(&self, server: u32) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![(self.mount.clone(), 0)];
        while let Some((folder, depth)) = folders.pop() {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                match name.split('+').nth(2) {
                    Some(number) if number.parse() == Ok(server) => found.push(entry.path()),
                    None if depth < DEPTH => folders.push((entry.path(), depth + 1)),
                    _ => {}
                }
            }
        }
        found
    }
}

fn command(process: u32) -> String {
    let command = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&command).trim_end_matches('\0').replace('\0', " ")
}

fn is_template(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/cgroup")).is_ok_and(|it| it.contains("+template/"))
}

/// The children of all threads of a process.
fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let numbers = |list: String| list.split_whitespace().flat_map(str::parse).collect::<Vec<_>>();
    lists.flat_map(numbers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_a_process_and_its_children_are_read_behind_any_name() {
        let stat = "7 (a) (b c) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 20 10 20 0 1 0 5";
        let usage = Usage::read(stat).unwrap();
        assert_eq!(usage.own, Duration::from_secs(2));
        assert_eq!(usage.reaped, Duration::from_millis(300));
        assert_eq!(Usage::read("7 (a) S 1"), None);
    }

    #[test]
    fn the_parts_of_a_run_add_up_to_what_the_machine_counts() {
        let ms = Duration::from_millis;
        let after = Account {
            all: ms(2000),
            bench: ms(100),
            server: ms(200),
            launchers: ms(150),
            reaped: ms(1200),
            sandboxes: ms(700),
            of_templates: ms(120),
            templates: ms(20),
        };
        let cost = after.cost_since(&Account::default(), 100, ms(500));
        let rows = cost.rows().into_iter().map(|(name, time)| format!("{name} {time:.1}"));
        assert_eq!(
            rows.collect::<Vec<_>>(),
            [
                "server 2.0",
                "launcher 1.5",
                "makers of the sandbox 4.0",
                "process 1, unused interpreters 3.0",
                "program 5.0",
                "templates 0.2",
                "all of these 15.7",
                "kernel and all others 3.3",
                "the whole machine 19.0",
            ]
        );
    }

    #[test]
    fn another_engine_s_processes_are_among_the_others() {
        let ms = Duration::from_millis;
        let after = Account { all: ms(900), server: ms(300), ..Account::default() };
        let cost = after.cost_since(&Account::default(), 3, ms(150));
        let rows = [
            ("server", 100.0),
            ("program", 50.0),
            ("all of these", 150.0),
            ("kernel and all others", 150.0),
            ("the whole machine", 300.0),
        ];
        assert_eq!(cost.rows(), rows);
    }

    #[test]
    fn this_machine_counts_what_a_process_uses() {
        let before = Account::now(std::process::id());
        let until = std::time::Instant::now() + ms_of_work();
        while std::time::Instant::now() < until {}
        let after = Account::now(std::process::id());
        assert!(after.server > before.server);
        assert!(after.all > before.all, "{before:?} {after:?}");
    }

    fn ms_of_work() -> Duration {
        TICK * 10
    }
}
