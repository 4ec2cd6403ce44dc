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
        account.all = counter.used(&counter.mount);
        for group in counter.groups_of(server) {
            let name = group.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let used = counter.used(&group);
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
