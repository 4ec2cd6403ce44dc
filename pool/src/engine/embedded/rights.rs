//! The rights of root that sandboxes need. A container, a pod or a service may have taken some of them away.

use std::fs;

use rustix::io::Errno;
use rustix::process::pivot_root;
use rustix::thread::{CapabilitySet, capabilities};

/// A capability, its name in configurations of Kubernetes, and its use.
type Right = (CapabilitySet, &'static str, &'static str);

/// The capabilities without which there are no sandboxes.
const NEEDED: [Right; 6] = [
    (CapabilitySet::SYS_ADMIN, "SYS_ADMIN", "to make namespaces and mounts"),
    (CapabilitySet::SETUID, "SETUID", "to give sandboxes users of their own"),
    (CapabilitySet::SETGID, "SETGID", "to give up the server's groups"),
    (CapabilitySet::CHOWN, "CHOWN", "to give a sandbox its devices"),
    (CapabilitySet::DAC_OVERRIDE, "DAC_OVERRIDE", "to prepare files that other users own"),
    (CapabilitySet::KILL, "KILL", "to end programs of other users"),
];

/// The capabilities without which sandboxes lack something, and what that is.
const USEFUL: [Right; 3] = [
    (CapabilitySet::SETPCAP, "SETPCAP", "each sandbox starts its own interpreter: none is forked"),
    (
        CapabilitySet::SYS_PTRACE,
        "SYS_PTRACE",
        "each sandbox starts its own interpreter: none is forked",
    ),
    (
        CapabilitySet::MKNOD,
        "MKNOD",
        "sandboxes share the container's devices, so a program can watch others open them",
    ),
];

/// Why root has too few rights.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RightsError {
    #[error(
        "root lacks these capabilities here: {0}; in a pod, list them in securityContext.capabilities.add, with Docker \
         in --cap-add, with systemd in CapabilityBoundingSet"
    )]
    Capabilities(String),
    #[error(
        "a filter of system calls refuses pivot_root, with which a sandbox leaves the machine's files; in a pod, set \
         securityContext.seccompProfile.type to Unconfined (sandboxes get a stricter filter), with Docker \
         --security-opt seccomp=unconfined"
    )]
    Filter,
}

/// The rights of this process, which is root.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rights {
    capabilities: CapabilitySet,
    may_enter_roots: bool,
}

impl Rights {
    /// Looks which rights this process has.
    pub(super) fn find() -> Self {
        // If the kernel does not tell, the first sandbox does.
        let capabilities = capabilities(None).map_or(CapabilitySet::all(), |sets| sets.effective);
        // There are no such paths, so it fails in any case. The kernel asks for the capability before it looks for them.
        let is_refused = matches!(pivot_root(c"", c""), Err(Errno::PERM | Errno::NOSYS));
        Self { capabilities, may_enter_roots: !is_refused }
    }

    /// # Errors
    ///
    /// If a right is missing without which no sandbox can be made.
    pub(super) fn check(self) -> Result<(), RightsError> {
        let missing = self.missing(&NEEDED);
        if !missing.is_empty() {
            let named = missing.iter().map(|(_, name, why)| format!("{name} ({why})"));
            return Err(RightsError::Capabilities(named.collect::<Vec<_>>().join(", ")));
        }
        if self.may_enter_roots { Ok(()) } else { Err(RightsError::Filter) }
    }

    /// The useful capabilities that are missing: their names, and what is lost without them.
    pub(super) fn lost(self) -> Vec<(&'static str, &'static str)> {
        self.missing(&USEFUL).into_iter().map(|(_, name, lost)| (name, lost)).collect()
    }

    fn missing(self, rights: &[Right]) -> Vec<Right> {
        rights.iter().copied().filter(|(one, ..)| !self.capabilities.contains(*one)).collect()
    }
}

/// The profile of AppArmor that confines this process, if one does.
pub(super) fn confined_by() -> Option<String> {
    let profile = fs::read_to_string("/proc/self/attr/current").ok()?;
    let profile = profile.trim_matches(['\0', '\n', ' ']);
    (profile.ends_with("(enforce)")).then(|| profile.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(without: CapabilitySet) -> Rights {
        Rights { capabilities: CapabilitySet::all().difference(without), may_enter_roots: true }
    }

    #[test]
    fn each_missing_capability_is_named_with_its_use() {
        assert_eq!(rights(CapabilitySet::empty()).check(), Ok(()));
        for (capability, name, why) in NEEDED {
            let error = rights(capability).check().unwrap_err().to_string();
            assert!(error.contains(&format!("here: {name} ({why}); in a pod")), "{error}");
        }
        let both = rights(CapabilitySet::CHOWN.union(CapabilitySet::KILL)).check().unwrap_err();
        assert!(both.to_string().contains("CHOWN (to give a sandbox its devices), KILL ("));
    }

    #[test]
    fn what_is_only_useful_is_no_error() {
        let without = rights(CapabilitySet::MKNOD);
        assert_eq!(without.check(), Ok(()));
        assert_eq!(without.lost().iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["MKNOD"]);
        assert!(rights(CapabilitySet::NET_ADMIN).lost().is_empty());
    }

    #[test]
    fn a_filter_that_refuses_to_enter_a_root_is_named() {
        let filtered = Rights { may_enter_roots: false, ..rights(CapabilitySet::empty()) };
        assert!(filtered.check().unwrap_err().to_string().contains("pivot_root"));
    }
}
