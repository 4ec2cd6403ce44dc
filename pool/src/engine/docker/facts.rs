//! What a Docker engine says about itself, in our own words.

use bollard::models::{SystemInfo, SystemVersion};

use super::EngineAddress;
use crate::engine::{Component, Facts, Location};

/// Reads an engine's answers.
pub(super) fn facts(address: &EngineAddress, info: SystemInfo, version: SystemVersion) -> Facts {
    let location = match address {
        EngineAddress::Unix(_) => Location::Here,
        EngineAddress::Tls { .. } => Location::Encrypted,
        EngineAddress::Tcp(_) => Location::Open,
    };
    let components = version.components.unwrap_or_default().into_iter();
    let components =
        components.map(|found| Component { name: found.name, version: found.version }).collect();
    let options = info.security_options.unwrap_or_default();
    Facts { location, components, protections: options.iter().map(|it| name(it)).collect() }
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

    #[test]
    fn an_engine_is_described_in_our_words() {
        let runc = SystemVersionComponents {
            name: "runc".to_owned(),
            version: "1.3.3".to_owned(),
            ..SystemVersionComponents::default()
        };
        let version = SystemVersion { components: Some(vec![runc]), ..SystemVersion::default() };
        let options = ["name=seccomp,profile=default", "name=userns", "apparmor"];
        let info = SystemInfo {
            security_options: Some(options.map(str::to_owned).to_vec()),
            ..SystemInfo::default()
        };
        let address = EngineAddress::Tcp("engine.example:2375".to_owned());
        let facts = facts(&address, info, version);
        assert_eq!(facts.location, Location::Open);
        assert_eq!(facts.components.len(), 1);
        assert_eq!(facts.components[0].version, "1.3.3");
        assert_eq!(facts.protections, ["seccomp", "userns", "apparmor"]);
    }
}
