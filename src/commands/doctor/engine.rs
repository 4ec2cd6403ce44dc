//! Checks of the engine: the programs that make the sandboxes, and how they are reached.

use isolator_pool::engine::Location;

use super::check::{EngineFound, Subject, Verdict};
use super::runc;

fn no_engine() -> Verdict {
    Verdict::not_known("the engine does not answer", "start it, and run this again")
}

/// The user of the server.
pub(super) fn server_user(subject: &Subject<'_>) -> Verdict {
    match &subject.engine {
        _ if !subject.is_root => {
            Verdict::fine("the server is not root, if it is started by this user")
        }
        None => no_engine(),
        Some(engine) if engine.is_embedded => Verdict::fine(
            "root, so that every sandbox has users of its own; as a service it needs few of root's capabilities",
        ),
        Some(_) => Verdict::warning(
            "the server is root, if it is started by this user, and with Docker it need not be",
            "run it as a user of its own that may use Docker's socket; such a user is as good as root, but a mistake \
             in the server is not",
        ),
    }
}

/// Parts of the names of runtimes that don't use runc. Others do: NVIDIA's, for example, starts it.
const WITHOUT_RUNC: [&str; 4] = ["runsc", "kata", "crun", "youki"];

/// Known holes of the runtime.
pub(super) fn runtime(subject: &Subject<'_>) -> Verdict {
    let Some(engine) = &subject.engine else { return no_engine() };
    if engine.is_embedded {
        return Verdict::fine("the embedded engine does not use runc");
    }
    let runtime = engine.runtime.or(engine.facts.runtime.as_deref());
    let is_other = |runtime: &&str| WITHOUT_RUNC.iter().any(|name| runtime.contains(name));
    if let Some(runtime) = runtime.filter(is_other) {
        return Verdict::fine(format!("sandboxes are made with {runtime}"));
    }
    let is_runc = |name: &str| name == "runc" || name.contains("(runc)");
    match engine.facts.components.iter().find(|component| is_runc(&component.name)) {
        Some(component) => runc::judge(&component.version),
        None => Verdict::not_known(
            "the engine does not say which version of runc it uses",
            "run: runc --version; versions with known holes are in docs/hardening.md",
        ),
    }
}

/// Whether the users in sandboxes are users of the host.
pub(super) fn remapped_users(subject: &Subject<'_>) -> Verdict {
    protection(
        subject,
        &["userns", "rootless"],
        "users in a sandbox are not users of the host",
        Verdict::warning(
            "user 1000 in a sandbox is user 1000 on the host",
            "set \"userns-remap\": \"default\" in /etc/docker/daemon.json and restart Docker, or use a Docker without \
             root",
        ),
    )
}

/// A security module, which holds where the kernel's other protections have a hole.
pub(super) fn security_module(subject: &Subject<'_>) -> Verdict {
    protection(
        subject,
        &["apparmor", "selinux"],
        "a security module (AppArmor or SELinux) restricts sandboxes",
        Verdict::warning(
            "no security module restricts sandboxes",
            "use a host with AppArmor or SELinux; for SELinux, set \"selinux-enabled\": true in \
             /etc/docker/daemon.json",
        ),
    )
}

/// Looks for one of several protections of Docker's.
fn protection(subject: &Subject<'_>, names: &[&str], fine: &str, missing: Verdict) -> Verdict {
    let Some(engine) = &subject.engine else { return no_engine() };
    let has = |name: &&str| engine.facts.protections.iter().any(|it| it == name);
    if names.iter().any(has) { Verdict::fine(fine) } else { missing }
}

/// The programs that can reach the engine.
pub(super) fn address(subject: &Subject<'_>) -> Verdict {
    match subject.engine.as_ref().map(|engine| engine.facts.location) {
        None => no_engine(),
        Some(Location::Here | Location::VirtualMachine) => {
            Verdict::fine("the engine is reached on this machine only")
        }
        Some(Location::Encrypted) => {
            Verdict::fine("the engine is reached over TLS, and both sides prove who they are")
        }
        Some(Location::Open) => Verdict::warning(
            "everybody who reaches the engine's port is root on its machine",
            "use its Unix socket, or TLS: set DOCKER_TLS_VERIFY and DOCKER_CERT_PATH",
        ),
    }
}

/// The engine's own warnings.
pub(super) fn warnings(subject: &Subject<'_>) -> Verdict {
    match &subject.engine {
        None => no_engine(),
        Some(EngineFound { warnings: 0, .. }) => Verdict::fine("the engine has no warnings"),
        Some(EngineFound { warnings, .. }) => Verdict::warning(
            format!("the engine has {warnings} warning(s), listed under \"engine\""),
            "do what they say",
        ),
    }
}

/// Networks of sandboxes.
pub(super) fn network(subject: &Subject<'_>) -> Verdict {
    if subject.with_network.is_empty() {
        return Verdict::fine("programs have no network");
    }
    Verdict::warning(
        format!(
            "programs in {} have a network, and can reach whatever the engine's machine can",
            subject.with_network.join(", ")
        ),
        "set defaultNetworkMode to \"none\", or let a firewall keep them from this machine, its neighbours and the \
         cloud's metadata (169.254.169.254)",
    )
}
