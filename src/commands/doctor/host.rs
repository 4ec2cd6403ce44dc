//! The checks of a host that runs hostile programs, and what they are run on.

use isolator_pool::engine::{Facts, Location};
use rustix::thread::{CoreSchedulingScope, core_scheduling_cookie};

use super::check::{Check, EngineFound, Machine, Subject, Verdict};
use super::findings::Findings;
use super::{cpu, engine, kernel, memory};
use crate::config::Config;

/// The network of a sandbox that has none.
const NO_NETWORK: &str = "none";

/// The name of the check that is made without `--production`, too.
const CORE_DUMPS: &str = "core-dumps";

/// The checks of this machine, which must be the engine's.
const OF_MACHINE: [Check; 18] = [
    Check { name: "page-merging", judge: memory::page_merging },
    Check { name: "huge-pages", judge: memory::huge_pages },
    Check { name: "swap", judge: memory::swap },
    Check { name: CORE_DUMPS, judge: kernel::core_dumps },
    Check { name: "smt", judge: cpu::threads_of_a_core },
    Check { name: "processor-faults", judge: cpu::faults },
    Check { name: "microcode", judge: cpu::microcode },
    Check { name: "control-groups", judge: kernel::control_groups },
    Check { name: "user-namespaces", judge: kernel::user_namespaces },
    Check { name: "unprivileged-namespaces", judge: kernel::unprivileged_namespaces },
    Check { name: "ebpf", judge: kernel::bpf },
    Check { name: "performance-counters", judge: kernel::performance_counters },
    Check { name: "userfaultfd", judge: kernel::page_faults },
    Check { name: "io-uring", judge: kernel::io_uring },
    Check { name: "kernel-addresses", judge: kernel::kernel_addresses },
    Check { name: "kernel-log", judge: kernel::kernel_log },
    Check { name: "tracing", judge: kernel::tracing },
    Check { name: "random-addresses", judge: kernel::random_addresses },
];

/// The checks of the engine and of how it is used.
const OF_ENGINE: [Check; 5] = [
    Check { name: "server-user", judge: engine::server_user },
    Check { name: "runtime", judge: engine::runtime },
    Check { name: "engine-address", judge: engine::address },
    Check { name: "engine-warnings", judge: engine::warnings },
    Check { name: "network", judge: engine::network },
];

/// The checks of Docker alone.
const OF_DOCKER: [Check; 2] = [
    Check { name: "remapped-users", judge: engine::remapped_users },
    Check { name: "security-module", judge: engine::security_module },
];

/// The name of what is found instead of all checks of the machine, if it is not the engine's.
const OTHER_MACHINE: &str = "other-machine";

/// The names that an operator can accept.
pub fn names_of_checks() -> Vec<&'static str> {
    let checks = OF_MACHINE.iter().chain(&OF_ENGINE).chain(&OF_DOCKER);
    checks.map(|check| check.name).chain([OTHER_MACHINE]).collect()
}

/// The machine, the engine and the configuration, for the checks.
pub(super) struct Surroundings<'a> {
    subject: Subject<'a>,
    is_embedded: bool,
    runtime: Option<&'a str>,
}

impl<'a> Surroundings<'a> {
    /// The machine of this process. Nothing is known of the engine yet.
    pub(super) fn new(config: &'a Config, is_embedded: bool) -> Self {
        let languages = config.languages.values();
        let runtime = languages.clone().find_map(|language| language.sandbox.runtime.as_deref());
        let with_network = languages.filter(|language| language.sandbox.network != NO_NETWORK);
        let subject = Subject {
            machine: Machine::at("/"),
            is_root: rustix::process::geteuid().is_root(),
            has_core_scheduling: core_scheduling_cookie(
                rustix::process::getpid(),
                CoreSchedulingScope::Thread,
            )
            .is_ok(),
            engine: None,
            with_network: with_network.map(|language| language.name.as_str()).collect(),
        };
        Self { subject, is_embedded, runtime }
    }

    /// The engine has answered.
    pub(super) fn engine_is(&mut self, facts: Facts, warnings: usize) {
        let (is_embedded, runtime) = (self.is_embedded, self.runtime);
        self.subject.engine = Some(EngineFound { facts, is_embedded, runtime, warnings });
    }

    /// Makes the one check that every operator should know of.
    pub(super) fn check_core_dumps(&self, findings: &mut Findings) {
        match kernel::core_dumps(&self.subject) {
            _ if self.is_elsewhere() => findings.fine("not checked: the engine is elsewhere"),
            Verdict::Warning { what, fix } => findings.warn(&what, &fix),
            Verdict::Fine(what) | Verdict::NotKnown { what, .. } => findings.fine(&what),
        }
    }

    /// Makes all checks.
    pub(super) fn check_all(&self, accepted: &[String], findings: &mut Findings) {
        let is_accepted = |name: &str| accepted.iter().any(|it| it == name);
        let mut check = |checks: &[Check]| {
            for Check { name, judge } in checks {
                findings.about_host(name, judge(&self.subject), is_accepted(name));
            }
        };
        if !self.is_elsewhere() {
            check(&OF_MACHINE);
        }
        check(&OF_ENGINE);
        if !self.is_embedded {
            check(&OF_DOCKER);
        }
        if self.is_elsewhere() {
            let verdict = Verdict::not_known(
                "the engine is on another machine or in a virtual one, which was not checked",
                "run `isolator doctor --production` there, and accept this here",
            );
            findings.about_host(OTHER_MACHINE, verdict, is_accepted(OTHER_MACHINE));
        }
    }

    fn is_elsewhere(&self) -> bool {
        let engine = self.subject.engine.as_ref();
        engine.is_some_and(|engine| engine.facts.location != Location::Here)
    }
}
