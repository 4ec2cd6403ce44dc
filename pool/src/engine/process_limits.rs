//! Limits of each process of a sandbox, beside those that the operator sets. Without them a sandbox would have
//! whatever the engine was started with.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A limit, soft and hard.
pub(super) struct ProcessLimit {
    resource: Resource,
    /// Name in the Docker API. `RLIMIT_` before it in capitals makes the kernel's.
    pub(super) name: &'static str,
    pub(super) limit: u32,
}

/// The limits of each process, low enough for every engine to set.
pub(super) const PROCESS_LIMITS: [ProcessLimit; 4] = [
    // A file of more than one byte is not written. And one is the number with which the kernel marks programs
    // that handle core dumps, so for it alone it starts no such program, which would be root on the host. With
    // zero it would.
    ProcessLimit { resource: Resource::Core, name: "core", limit: 1 },
    // Bytes that can't be swapped: what the kernel gave by default until 5.16.
    ProcessLimit { resource: Resource::Memlock, name: "memlock", limit: 64 << 10 },
    // No priority can be raised.
    ProcessLimit { resource: Resource::Nice, name: "nice", limit: 0 },
    ProcessLimit { resource: Resource::Rtprio, name: "rtprio", limit: 0 },
];

/// The limits of what the kernel counts by user, for sandboxes that have users of their own. Where all have the same
/// user, a low limit would make it easier for one to leave nothing to the others.
pub(super) const USER_LIMITS: [ProcessLimit; 2] = [
    // Bytes in POSIX message queues: two of the default size, a quarter of what the kernel gives by default. All
    // sandboxes together have no more than that if `raise_own` may not raise it.
    ProcessLimit { resource: Resource::Msgqueue, name: "msgqueue", limit: 200 << 10 },
    // Signals that wait, and timers. The kernel's default depends on the machine's memory and is higher.
    ProcessLimit { resource: Resource::Sigpending, name: "sigpending", limit: 1024 },
];

impl ProcessLimit {
    /// The limit, or less if that is all this process may give.
    pub(super) fn within_own(&self) -> u32 {
        let own = getrlimit(self.resource).maximum.and_then(|own| u32::try_from(own).ok());
        own.map_or(self.limit, |own| own.min(self.limit))
    }
}

/// Raises this process's own limits of what is counted by user, as far as it may. The kernel counts what the
/// users of all sandboxes have towards the limits of the process that made their namespaces, so with
/// ordinary limits one sandbox could leave nothing to the others.
pub(super) fn raise_own() {
    for ProcessLimit { resource, .. } in PROCESS_LIMITS.into_iter().chain(USER_LIMITS) {
        // This process's own core dumps stay as its starter wanted them.
        let current = if resource == Resource::Core { getrlimit(resource).current } else { None };
        // Without the right to, limits stay as they are.
        let _ = setrlimit(resource, Rlimit { current, maximum: None });
    }
}
