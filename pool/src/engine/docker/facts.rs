//! Facts that a Docker engine reports about itself, in our own terms.

use bollard::models::{SystemInfo, SystemVersion};

use super::EngineAddress;
use crate::engine::{Component, Facts, Location};

/// Reads an engine's answers. `kernel` is the release of this machine's.
pub(super) fn facts(
    address: &EngineAddress,
    info: SystemInfo,
    version: SystemVersion,
    kernel: &str,
) -> Facts {
    let has_other_kernel = info.kernel_version.is_some_and(|theirs| theirs != kernel);
    let location = match address {
        EngineAddress::Unix(_) if has_other_kernel => Location::VirtualMachine,
        EngineAddress::Unix(_) => Location::Here,
        EngineAddress::Tls { .. } => Location::Encrypted,
        EngineAddress::Tcp(_) => Location::Open,
    };
    let components = version.components.unwrap_or_default().into_iter();
    let components =
        components.map(|found| Component { name: found.name, version: found.version }).collect();
    let options = info.security_options.unwrap_or_default();
    let protections = options.iter().map(|it| name(it)).collect();
    Facts { location, runtime: info.default_runtime, components, protections }
}

/// The name in an option such as `name=seccomp,profile=builtin`.
fn name(option: &str) -> String {
    let first = option.split(',').next().unwrap_or_default();
    first.trim_start_matches("name=").to_owned()
}

#[cfg(test)]
mod tests {
    use bollard::models::SystemVersionComponents;

    use super::*;

    fn info() -> SystemInfo {
        let options = ["name=seccomp,profile=default", "name=userns", "apparmor"];
        SystemInfo {
            security_options: Some(options.map(str::to_owned).to_vec()),
            default_runtime: Some("runc".to_owned()),
            kernel_version: Some("6.18.1".to_owned()),
            ..SystemInfo::default()
        }
    }

    fn version() -> SystemVersion {
        let runc = SystemVersionComponents {
            name: "runc".to_owned(),
            version: "1.3.3".to_owned(),
            ..SystemVersionComponents::default()
        };
        SystemVersion { components: Some(vec![runc]), ..SystemVersion::default() }
    }

    #[test]
    fn an_engine_is_described_in_our_words() {
        let address = EngineAddress::Unix("/run/docker.sock".into());
        let facts = facts(&address, info(), version(), "6.18.1");
        assert_eq!(facts.runtime.as_deref(), Some("runc"));
        assert_eq!(facts.components.len(), 1);
        assert_eq!(facts.components[0].version, "1.3.3");
        assert_eq!(facts.protections, ["seccomp", "userns", "apparmor"]);
    }

    #[test]
    fn an_engine_is_here_if_its_socket_and_its_kernel_are() {
        let unix = EngineAddress::Unix("/run/docker.sock".into());
        let port = EngineAddress::Tcp("engine.example:2375".to_owned());
        for (address, kernel, location) in [
            (&unix, "6.18.1", Location::Here),
            (&unix, "6.12.0", Location::VirtualMachine),
            (&port, "6.18.1", Location::Open),
        ] {
            assert_eq!(facts(address, info(), version(), kernel).location, location);
        }
        let silent = SystemInfo { kernel_version: None, ..info() };
        assert_eq!(facts(&unix, silent, version(), "6.18.1").location, Location::Here);
    }
}
