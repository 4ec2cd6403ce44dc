//! Locks of Python: `requirements.txt` with hashes, as uv and pip-tools write it.

use std::fmt::Write as _;
use std::sync::LazyLock;

use isolator_pool::quote::quoted;
use regex::Regex;

use super::file::{LockError, Locked, WANTED};
use crate::pattern::pattern;
use crate::requirement::{Pins, Recipe, normalised_python};

/// The beginning of the line with the target of a lock.
const TARGET: &str = "# Target: ";

/// A package with its hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::packages) struct Pinned {
    pub package: Locked,
    /// The SHA-256 of its files, sorted.
    pub hashes: Vec<String>,
}

impl Pinned {
    /// As a line that uv reads.
    pub(in crate::packages) fn line(&self) -> String {
        let Self { package: Locked { name, version, .. }, hashes } = self;
        let mut line = format!("{name}=={version}");
        for hash in hashes {
            // Writing to a string can't fail.
            let _ = write!(line, " --hash=sha256:{hash}");
        }
        line
    }
}

/// The requirements that uv has to resolve.
pub(in crate::packages) fn wanted(recipe: &Recipe) -> String {
    recipe.requirements.iter().map(|requirement| format!("{}\n", requirement.text)).collect()
}

/// The constraints of uv.
pub(in crate::packages) fn constraints(pins: &Pins) -> String {
    pins.versions.iter().map(|(name, version)| format!("{name}=={version}\n")).collect()
}

/// The packages as uv reads them.
pub(in crate::packages) fn text(pinned: &[Pinned]) -> String {
    pinned.iter().map(|it| format!("{}\n", it.line())).collect()
}

/// The packages as a lock has them, each with those that want it.
pub(super) fn locked(pinned: &[Pinned]) -> String {
    let one = |Pinned { package, hashes }: &Pinned| {
        let hashes = hashes.iter().map(|hash| format!(" \\\n    --hash=sha256:{hash}"));
        let wanted_by = package.wanted_by.iter().map(|name| format!("    #   {name}\n"));
        let via = if package.wanted_by.is_empty() { "" } else { "    # via\n" };
        let (hashes, wanted_by) = (hashes.collect::<String>(), wanted_by.collect::<String>());
        format!("{}=={}{hashes}\n{via}{wanted_by}", package.name, package.version)
    };
    pinned.iter().map(one).collect()
}

/// The packages that uv has resolved, after a line with the target.
pub(in crate::packages) fn with_target(target: &str, resolved: &str) -> String {
    format!("{TARGET}{target}\n{resolved}")
}

static PACKAGE: LazyLock<Regex> = pattern!(
    r"^(?<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?<version>[A-Za-z0-9][A-Za-z0-9.+!_-]*)\s*(?<more>\\?)$"
);
static HASH: LazyLock<Regex> = pattern!(r"^\s+--hash=sha256:(?<hash>[0-9a-f]{64})\s*(?<more>\\?)$");
static VIA: LazyLock<Regex> = pattern!(r"^\s+#\s+(?:via(?:\s+|$))?(?<name>.*)$");

/// The target of a lock, and its packages with their hashes.
pub(in crate::packages) fn parse(text: &str) -> Result<(String, Vec<Pinned>), LockError> {
    let mut target = None;
    let mut packages: Vec<Pinned> = Vec::new();
    let mut goes_on = false;
    for (number, line) in text.lines().enumerate() {
        if let Some(name) = line.strip_prefix(TARGET) {
            target.get_or_insert_with(|| name.trim().to_owned());
        } else if line.trim().is_empty() || line.starts_with('#') {
        } else if let Some(found) = PACKAGE.captures(line).filter(|_| !goes_on) {
            goes_on = !found["more"].is_empty();
            let package = Locked {
                name: normalised_python(&found["name"]),
                version: found["version"].to_owned(),
                wanted_by: Vec::new(),
            };
            packages.push(Pinned { package, hashes: Vec::new() });
        } else if let Some((found, last)) = HASH.captures(line).zip(packages.last_mut())
            && goes_on
        {
            goes_on = !found["more"].is_empty();
            last.hashes.push(found["hash"].to_owned());
        } else if let Some((found, last)) = VIA.captures(line).zip(packages.last_mut()) {
            goes_on = false;
            let name = found["name"].trim();
            // An option names the file of the requirements.
            if !name.is_empty() && !name.starts_with('-') && name != WANTED {
                let name = name.split('[').next().unwrap_or_default();
                last.package.wanted_by.push(normalised_python(name));
            }
        } else {
            return Err(LockError::new(format!(
                "line {} is not a package with hashes: {}",
                number + 1,
                quoted(line)
            )));
        }
    }
    for Pinned { package, hashes } in &mut packages {
        if hashes.is_empty() {
            return Err(LockError::new(format!("{} has no hash", package.name)));
        }
        hashes.sort_unstable();
        hashes.dedup();
        package.wanted_by.sort_unstable();
        package.wanted_by.dedup();
    }
    packages.sort_unstable_by(|a, b| a.package.name.cmp(&b.package.name));
    if let Some(twice) = packages.windows(2).find(|two| two[0].package.name == two[1].package.name)
    {
        return Err(LockError::new(format!("{} is there twice", twice[0].package.name)));
    }
    let target = target.ok_or_else(|| LockError::new("it does not say for what it was made"))?;
    Ok((target, packages))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASHES: [&str; 2] = [
        "1111111111111111111111111111111111111111111111111111111111111111",
        "2222222222222222222222222222222222222222222222222222222222222222",
    ];

    fn text() -> String {
        let [one, two] = HASHES;
        format!(
            "# Target: cpython-3.13-x86_64-manylinux_2_40\n# This file was autogenerated by uv\n#    isolator packages lock\n\
             numpy==2.3.0 \\\n    --hash=sha256:{two} \\\n    --hash=sha256:{one}\n    # via\n    #   -r requirements.in\n    \
             #   Pandas\npandas==2.2.0+local \\\n    --hash=sha256:{one}\n    # via -r requirements.in\n"
        )
    }

    #[test]
    fn packages_have_their_hashes_and_dependents() {
        let (target, packages) = parse(&text()).unwrap();
        assert_eq!(target, "cpython-3.13-x86_64-manylinux_2_40");
        let [numpy, pandas] = packages.as_slice() else { panic!("{packages:?}") };
        assert_eq!(
            (&numpy.hashes[..], &numpy.package.wanted_by[..]),
            (&HASHES.map(str::to_owned)[..], &["pandas".to_owned()][..])
        );
        assert_eq!(pandas.line(), format!("pandas==2.2.0+local --hash=sha256:{}", HASHES[0]));
        assert!(pandas.package.wanted_by.is_empty());
    }

    #[test]
    fn written_locks_are_read_again() {
        let (target, packages) = parse(&text()).unwrap();
        let again = parse(&with_target(&target, &locked(&packages))).unwrap();
        assert_eq!(again, (target, packages));
    }

    #[test]
    fn nothing_but_packages_with_hashes_is_read() {
        for line in [
            "evil @ https://index.example/evil.whl",
            "https://index.example/evil.whl",
            "-e .",
            "--index-url https://index.example",
            "  --hash=sha256:123",
            "evil>=1",
            "evil==1 --hash=sha256:0",
            "-r other.txt",
            "evil==1 ; python_version > '3'",
            "evil==1",
        ] {
            let text = format!("{}{line}\n", text());
            assert!(parse(&text).is_err(), "{line}");
        }
        assert!(parse(&format!("{0}{0}", text())).is_err());
        assert!(parse(&text().replacen(TARGET, "# ", 1)).is_err());
    }
}
