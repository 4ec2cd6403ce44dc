//! The kernel's limits of processes (`ulimit`), in addition to those that the operator sets: of programs, and of the server
//! itself. Without them a sandbox would inherit those of the server or the engine.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A limit, soft and hard. `None` is no limit.
#[derive(Clone, Copy)]
pub(super) struct ProcessLimit {
    resource: Resource,
    /// Name in the Docker API. `RLIMIT_` before it in capitals makes the kernel's.
    pub(super) name: &'static str,
    pub(super) soft: Option<u64>,
    pub(super) hard: Option<u64>,
}

const fn limited(resource: Resource, name: &'static str, limit: u64) -> ProcessLimit {
    ProcessLimit { resource, name, soft: Some(limit), hard: Some(limit) }
}

const fn unlimited(resource: Resource, name: &'static str) -> ProcessLimit {
    ProcessLimit { resource, name, soft: None, hard: None }
}

/// The limits of each process that do not depend on the engine. Open files are the operator's limit, and what the kernel
/// counts by user depends on whose user it is.
pub(super) const PROCESS_LIMITS: [ProcessLimit; 11] = [
    // A file of more than one byte is not written. And one is the number with which the kernel marks programs
    // that handle core dumps, so for it alone it starts no such program, which would be root on the host. With
    // zero it would.
    limited(Resource::Core, "core", 1),
    // Bytes that can't be swapped: what the kernel gave by default until 5.16.
    limited(Resource::Memlock, "memlock", 64 << 10),
    // No priority can be raised.
    limited(Resource::Nice, "nice", 0),
    limited(Resource::Rtprio, "rtprio", 0),
    // The kernel's own default. It also says where the kernel puts mappings.
    ProcessLimit { resource: Resource::Stack, name: "stack", soft: Some(STACK), hard: None },
    // A sandbox as a whole has limits of time, memory and disks.
    unlimited(Resource::Cpu, "cpu"),
    unlimited(Resource::Data, "data"),
    unlimited(Resource::Fsize, "fsize"),
    unlimited(Resource::Locks, "locks"),
    unlimited(Resource::Rss, "rss"),
    unlimited(Resource::Rttime, "rttime"),
];

/// The size of the address space, which the Docker API can't set. With little of it, no engine starts.
pub(super) const ADDRESS_SPACE: ProcessLimit = unlimited(Resource::As, "as");

const STACK: u64 = 8 << 20;

/// Open files of the server, for connections and sandboxes, and the maximum that an operator may need for programs.
const FILES_OF_SERVER: u64 = 1 << 16;
const MANY_FILES: u64 = 1 << 20;

/// The limits of what the kernel counts by user, for sandboxes that have users of their own.
pub(super) const USER_LIMITS: [ProcessLimit; 2] = [
    // Bytes in POSIX message queues: two of the default size, a quarter of what the kernel gives by default. All
    // sandboxes together have no more than that if `raise_own` may not raise it.
    limited(Resource::Msgqueue, "msgqueue", 200 << 10),
    // Signals that wait, and timers. The kernel's default depends on the machine's memory and is higher.
    limited(Resource::Sigpending, "sigpending", 1024),
];

/// The same where all sandboxes have the same user: a low limit would make it easier for one to leave nothing to the
/// others. They are low enough for every service to set.
pub(super) const SHARED_USER_LIMITS: [ProcessLimit; 2] = [
    limited(Resource::Msgqueue, "msgqueue", 800 << 10),
    limited(Resource::Sigpending, "sigpending", 7000),
];

/// Processes of a user, where a sandbox has a limit of its own, which is far lower: never reached, and low enough for
/// every service to set. Without it, Podman would set one that it may not.
const USER_PROCESSES: u64 = 30_000;

/// Processes of a user without which no server works: with its threads, and those of all sandboxes together.
const FEW_PROCESSES: u64 = 4096;

impl ProcessLimit {
    /// The limit of open files.
    pub(super) const fn open_files(limit: u64) -> Self {
        limited(Resource::Nofile, "nofile", limit)
    }

    /// The limit of the length of a file.
    pub(super) const fn length_of_files(limit: u64) -> Self {
        limited(Resource::Fsize, "fsize", limit)
    }

    /// The limit of a user's processes, as the only limit of a sandbox's.
    pub(super) const fn processes(limit: u64) -> Self {
        limited(Resource::Nproc, "nproc", limit)
    }

    /// The limit of a user's processes, in addition to a sandbox's own.
    pub(super) fn processes_outside(own: u64) -> Self {
        Self::processes(own.max(USER_PROCESSES))
    }

    /// The limit, lowered to what this process may set.
    pub(super) fn within_own(self) -> Self {
        let own = getrlimit(self.resource).maximum;
        let least = |limit: Option<u64>| limit.into_iter().chain(own).min();
        Self { soft: least(self.soft), hard: least(self.hard), ..self }
    }

    /// The resource and its limits, soft and hard, as the kernel has them.
    pub(super) fn numbers(self) -> (u32, u64, u64) {
        let value = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        (self.resource as u32, value(self.soft), value(self.hard))
    }

    /// The problem with this process's own limit, if it is lower than needed.
    fn problem(self) -> Option<String> {
        let own = getrlimit(self.resource).maximum?;
        let Self { name, soft: needed, .. } = self;
        if needed.is_some_and(|needed| own >= needed) {
            return None;
        }
        let needed = needed.map_or("unlimited".to_owned(), |needed| needed.to_string());
        let capitals = name.to_uppercase();
        let what = match self.resource {
            Resource::As => "the size of a process in memory",
            Resource::Core => "core dumps",
            Resource::Cpu => "the CPU time of a process",
            Resource::Data => "the data of a process",
            Resource::Fsize => "the length of a file",
            Resource::Memlock => "locked memory",
            Resource::Msgqueue => "message queues",
            Resource::Nofile => "open files",
            Resource::Nproc => "the processes of a user",
            Resource::Rttime => "real-time CPU time",
            Resource::Sigpending => "pending signals",
            Resource::Stack => "the stack of a process",
            // The first two do nothing on any kernel of today, and programs must not have the other two.
            Resource::Locks | Resource::Rss | Resource::Nice | Resource::Rtprio => return None,
            _ => "a resource",
        };
        Some(format!(
            "the limit of {what} (RLIMIT_{capitals}) is {own} for this server and what it starts, and should be \
             {needed}; this user may not raise it: set Limit{capitals}= in the service that starts the server, or \
             {name} in /etc/security/limits.conf"
        ))
    }
}

/// Raises this process's own limits as far as it may: what it starts can't have more. And the kernel counts what the
/// users of all sandboxes have towards the limits of the process that made their namespaces, so with
/// ordinary limits one sandbox could leave nothing to the others.
pub fn raise_own() {
    let limits = PROCESS_LIMITS.into_iter().chain(USER_LIMITS).chain([ADDRESS_SPACE]);
    for resource in limits.map(|limit| limit.resource).chain([Resource::Nofile, Resource::Nproc]) {
        let own = getrlimit(resource);
        // The kernel has no unlimited number of open files.
        let highest = match resource {
            Resource::Nofile => own.maximum.map(|own| own.max(MANY_FILES)),
            _ => None,
        };
        // Without the right to raise the hard limit, the soft one is raised up to it.
        for maximum in [highest, own.maximum] {
            let at_least =
                |least: u64| own.current.map(|own| own.max(least).min(maximum.unwrap_or(u64::MAX)));
            let current = match resource {
                // This process's own core dumps stay as its starter wanted them.
                Resource::Core => own.current,
                // Some threads get as much as this is.
                Resource::Stack => at_least(STACK),
                // Some programs close as many files as they may have.
                Resource::Nofile => at_least(FILES_OF_SERVER),
                _ => maximum,
            };
            if setrlimit(resource, Rlimit { current, maximum }).is_ok() {
                break;
            }
        }
    }
}

/// Problems with the limits of this process, which it may not raise. `open_files` is the limit of a program.
pub fn problems(open_files: u32) -> Vec<String> {
    let others = [
        ADDRESS_SPACE,
        ProcessLimit::open_files(open_files.into()),
        ProcessLimit::processes(FEW_PROCESSES),
    ];
    let all = PROCESS_LIMITS.into_iter().chain(USER_LIMITS).chain(others);
    all.filter_map(ProcessLimit::problem).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_no_higher_than_this_process_s() {
        let own = getrlimit(Resource::Nofile).maximum.unwrap();
        let within = |limit| ProcessLimit::open_files(limit).within_own();
        assert_eq!(within(own - 1).hard, Some(own - 1));
        let lowered = within(own + 1);
        assert_eq!((lowered.soft, lowered.hard), (Some(own), Some(own)));
        assert!(ProcessLimit::open_files(own).problem().is_none());
        let problem = ProcessLimit::open_files(own + 1).problem().unwrap();
        assert!(
            problem.contains("LimitNOFILE=") && problem.contains(&own.to_string()),
            "{problem}"
        );
    }
}
