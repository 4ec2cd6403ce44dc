//! The target of a set: the interpreter of an image, as it describes itself in a sandbox.
//!
//! The answer comes from a program in a sandbox and ends up in arguments of tools and in scripts, so all of it is checked.

use std::collections::BTreeMap;

use isolator_pool::engine::preload::Interpreter;
use isolator_pool::quote::quoted;
use serde::Deserialize;

use crate::requirement::{Machine, normalised_python};

/// The program that asks an interpreter of Python.
pub(super) const PYTHON_PROGRAM: &str = r#"import importlib.metadata, json, os, platform, sys
packages = {}
for found in importlib.metadata.distributions():
    try:
        name, version = found.metadata["Name"], found.version
    except Exception:
        continue
    if isinstance(name, str) and isinstance(version, str) and len(name) + len(version) < 100 and len(packages) < 500:
        # The first one of a name is the one that is imported.
        packages.setdefault(name, version)
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
except (AttributeError, OSError, ValueError):
    libc = ""
print(json.dumps({
    "implementation": sys.implementation.name,
    "version": ".".join(map(str, sys.version_info[:3])),
    "final": sys.version_info[3] == "final",
    "threads": "t" in getattr(sys, "abiflags", ""),
    "tag": sys.implementation.cache_tag or "",
    "machine": platform.machine(),
    "libc": libc,
    "executable": sys.executable or "",
    "packages": packages,
}))
"#;

/// The program that asks Node.js.
pub(super) const NODE_PROGRAM: &str = r#"process.report.excludeNetwork = true;
console.log(JSON.stringify({
  version: process.versions.node,
  os: process.platform,
  cpu: process.arch,
  glibc: process.report.getReport().header.glibcVersionRuntime ?? "",
}));
"#;

/// An interpreter, and the system that it runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// Its identity: sets with the same one can be used with each other's interpreters.
    pub name: String,
    /// The version of the interpreter, with three numbers.
    pub version: String,
    /// The packages that the image has for it, by their normalised names, with their versions.
    pub packages: BTreeMap<String, String>,
    /// Facts for the tools.
    pub(super) system: System,
}

/// The facts that the tool of an ecosystem needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum System {
    /// For uv.
    Python {
        /// The platform in uv's words.
        platform: String,
        minor: String,
        /// The part of it in the names of files with bytecode.
        tag: String,
        /// The interpreter's path in the image.
        executable: String,
    },
    /// For npm.
    Node {
        /// The processor in the words of Node.js.
        cpu: String,
        /// `glibc` or `musl`.
        libc: &'static str,
    },
}

/// An interpreter for which no packages can be installed, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UnfitTarget(String);

/// The description that [`PYTHON_PROGRAM`] prints.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PythonDescription {
    implementation: String,
    version: String,
    #[serde(rename = "final")]
    is_final: bool,
    threads: bool,
    tag: String,
    machine: String,
    libc: String,
    executable: String,
    packages: BTreeMap<String, String>,
}

/// The description that [`NODE_PROGRAM`] prints.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeDescription {
    version: String,
    os: String,
    cpu: String,
    glibc: String,
}

/// The versions of glibc for which uv has platforms, from the newest one.
const GLIBC: [u32; 12] = [40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 28, 17];

impl Target {
    /// Reads the output of [`PYTHON_PROGRAM`] or [`NODE_PROGRAM`].
    ///
    /// # Errors
    ///
    /// When it can't be read, or no packages can be installed for such an interpreter.
    pub(super) fn read(interpreter: Interpreter, answer: &[u8]) -> Result<Self, UnfitTarget> {
        match interpreter {
            Interpreter::Python => Self::python(&parsed(answer)?),
            Interpreter::Node => Self::node(&parsed(answer)?),
        }
    }

    /// The values for markers.
    pub(crate) fn machine(&self) -> Machine {
        let processor = match &self.system {
            System::Python { platform, .. } => platform.split('-').next().unwrap_or_default(),
            System::Node { cpu, .. } => cpu,
        };
        Machine { python: Some(self.version.clone()), processor: Some(processor.to_owned()) }
    }

    fn python(answer: &PythonDescription) -> Result<Self, UnfitTarget> {
        let PythonDescription { implementation, version, executable, tag, .. } = answer;
        if implementation != "cpython" || answer.threads {
            return Err(UnfitTarget(format!(
                "packages can be installed for the usual CPython only, and the image has {}{}",
                quoted(implementation),
                if answer.threads { " without a global lock" } else { "" }
            )));
        }
        let [major, minor, _] = numbers(version)?;
        let minor = format!("{major}.{minor}");
        let is_tag = tag == &format!("cpython-{}", minor.replace('.', ""));
        let is_path = executable.starts_with('/')
            && executable.len() < 120
            && executable
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte));
        if !is_tag || !is_path {
            let what = quoted(&format!("{tag} {executable}"));
            return Err(UnfitTarget(format!(
                "the image's Python describes itself in an unexpected way: {what}"
            )));
        }
        let machine = match answer.machine.as_str() {
            "x86_64" => "x86_64",
            "aarch64" | "arm64" => "aarch64",
            other => {
                return Err(UnfitTarget(format!(
                    "there is no platform of uv for Linux on {}",
                    quoted(other)
                )));
            }
        };
        let platform = match answer.libc.strip_prefix("glibc ") {
            None => format!("{machine}-unknown-linux-musl"),
            Some(version) => {
                let has = version.strip_prefix("2.").and_then(|minor| {
                    minor.split('.').next().and_then(|minor| minor.parse::<u32>().ok())
                });
                let newest = GLIBC.into_iter().find(|known| has.is_some_and(|has| *known <= has));
                let newest = newest.ok_or_else(|| {
                    let version = quoted(version);
                    UnfitTarget(format!(
                        "packages need at least glibc 2.17, and the image has {version}"
                    ))
                })?;
                format!("{machine}-manylinux_2_{newest}")
            }
        };
        // A version before its release has bytecode and an interface of its own.
        let version_name = if answer.is_final { &minor } else { version };
        Ok(Self {
            name: format!("cpython-{version_name}-{platform}"),
            version: version.clone(),
            packages: answer
                .packages
                .iter()
                .map(|(name, version)| (normalised_python(name), version.clone()))
                .collect(),
            system: System::Python {
                platform,
                minor,
                tag: tag.clone(),
                executable: executable.clone(),
            },
        })
    }

    fn node(answer: &NodeDescription) -> Result<Self, UnfitTarget> {
        let [major, ..] = numbers(&answer.version)?;
        let is_word = |word: &str| {
            (1..20).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        if answer.os != "linux" || !is_word(&answer.cpu) {
            let what = quoted(&format!("{} {}", answer.os, answer.cpu));
            return Err(UnfitTarget(format!(
                "packages can be installed for Linux only, and the image says {what}"
            )));
        }
        let libc = if answer.glibc.is_empty() { "musl" } else { "glibc" };
        Ok(Self {
            name: format!("node-{major}-linux-{}-{libc}", answer.cpu),
            version: answer.version.clone(),
            packages: BTreeMap::new(),
            system: System::Node { cpu: answer.cpu.clone(), libc },
        })
    }
}

fn parsed<'a, A: Deserialize<'a>>(answer: &'a [u8]) -> Result<A, UnfitTarget> {
    serde_json::from_slice(answer).map_err(|_| {
        UnfitTarget(format!("the answer is {}", quoted(&String::from_utf8_lossy(answer))))
    })
}

/// The three numbers of a version.
fn numbers(version: &str) -> Result<[u32; 3], UnfitTarget> {
    let mut numbers = version.splitn(3, '.').map(|number| {
        number.parse::<u32>().ok().filter(|_| number.len() < 6 && !number.starts_with('+'))
    });
    match [numbers.next(), numbers.next(), numbers.next()] {
        [Some(Some(major)), Some(Some(minor)), Some(Some(patch))] => Ok([major, minor, patch]),
        _ => Err(UnfitTarget(format!("{} is not a version", quoted(version)))),
    }
}

/// The built-in language that runs in an interpreter. Commands and lists call it so where no language of the configuration is known.
pub(crate) const fn usual_language(interpreter: Interpreter) -> &'static str {
    match interpreter {
        Interpreter::Python => "python",
        Interpreter::Node => "javascript",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(changed: &str, value: &str) -> Result<Target, UnfitTarget> {
        let answer = r#"{"implementation":"cpython","version":"3.13.7","final":true,"threads":false,
            "tag":"cpython-313","machine":"x86_64","libc":"glibc 2.41","executable":"/usr/bin/python3",
            "packages":{"Typing_Extensions":"4.13.0"}}"#;
        let mut answer: serde_json::Value = serde_json::from_str(answer).unwrap();
        if !changed.is_empty() {
            answer[changed] = serde_json::from_str(value).unwrap();
        }
        Target::read(Interpreter::Python, answer.to_string().as_bytes())
    }

    #[test]
    fn the_platform_is_the_newest_that_the_image_has() {
        for (libc, platform) in [
            ("glibc 2.41", "x86_64-manylinux_2_40"),
            ("glibc 2.36", "x86_64-manylinux_2_36"),
            ("glibc 2.30", "x86_64-manylinux_2_28"),
            ("glibc 2.17.9", "x86_64-manylinux_2_17"),
            ("", "x86_64-unknown-linux-musl"),
        ] {
            let target = python("libc", &format!("{libc:?}")).unwrap();
            assert_eq!(target.name, format!("cpython-3.13-{platform}"));
        }
        assert_eq!(python("", "").unwrap().packages["typing-extensions"], "4.13.0");
        assert!(python("libc", r#""glibc 2.12""#).unwrap_err().to_string().contains("2.17"));
        assert_eq!(python("final", "false").unwrap().name, "cpython-3.13.7-x86_64-manylinux_2_40");
    }

    #[test]
    fn an_answer_that_could_do_something_else_is_refused() {
        for (key, value) in [
            ("implementation", r#""pypy""#),
            ("threads", "true"),
            ("version", r#""3.13; rm""#),
            ("version", r#""3.13""#),
            ("machine", r#""--index-url""#),
            ("executable", r#""/bin/sh\n""#),
            ("executable", r#""python3""#),
            ("tag", r#""../x""#),
            ("more", "1"),
        ] {
            assert!(python(key, value).is_err(), "{key} {value}");
        }
        assert!(Target::read(Interpreter::Python, b"Traceback").is_err());
        assert!(Target::read(Interpreter::Node, b"{}").is_err());
    }

    #[test]
    fn node_has_its_version_processor_and_libc() {
        let answer = br#"{"version":"22.14.0","os":"linux","cpu":"arm64","glibc":""}"#;
        let target = Target::read(Interpreter::Node, answer).unwrap();
        assert_eq!(target.name, "node-22-linux-arm64-musl");
    }
}
