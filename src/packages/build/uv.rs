//! Packages of Python: uv resolves and installs them, from wheels only, so nothing of them runs on this machine.
//!
//! The index goes to uv in its environment, since all users of a machine can read command lines. If the operator names
//! one, it is the only one: whatever else configures uv is left out, because a second index could have another package
//! with the name of a private one.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use isolator_pool::engine::Progress;
use isolator_pool::engine::preload::Interpreter;

use super::environment::Environment;
use super::error::{BuildError, TargetError};
use super::tool::{Call, Failed, Tools};
use crate::config::{Config, Index};
use crate::packages::lock::{CONSTRAINTS, REQUIREMENTS, WANTED};
use crate::packages::target::System;

const UV: &str = "uv";

/// Variables of uv for the way it works, but not for the origin of packages.
const SETTINGS: [&str; 17] = [
    "UV_CONCURRENT_DOWNLOADS",
    "UV_CONCURRENT_INSTALLS",
    "UV_EXCLUDE_NEWER",
    "UV_HTTP_CONNECT_TIMEOUT",
    "UV_HTTP_RETRIES",
    "UV_HTTP_TIMEOUT",
    "UV_INSECURE_HOST",
    "UV_KEYRING_PROVIDER",
    "UV_NATIVE_TLS",
    "UV_OFFLINE",
    "UV_PRERELEASE",
    "UV_PYTHON",
    "UV_PYTHON_INSTALL_DIR",
    "UV_REQUEST_TIMEOUT",
    "UV_SYSTEM_CERTS",
    "UV_TOOL_DIR",
    "UV_TORCH_BACKEND",
];

/// Variables of uv for the origin of packages.
const INDEXES: [&str; 8] = [
    "UV_CONFIG_FILE",
    "UV_CREDENTIALS_DIR",
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_INDEX",
    "UV_INDEX_STRATEGY",
    "UV_INDEX_URL",
];

/// The words of uv for a damaged file, and for one that was not received.
const DAMAGED: [&str; 3] =
    ["Failed to extract archive", "invalid package format", "Invalid zip file"];
const UNREACHABLE: [&str; 8] = [
    "Failed to fetch",
    "error sending request",
    "response body",
    "Request failed",
    "Could not connect",
    "Network connectivity",
    "operation timed out",
    "os error 111",
];

impl Tools<'_> {
    /// Resolves the requirements in the building folder, and keeps to the constraints there if there are some. Its result is
    /// there, too.
    pub(super) async fn uv_compile(
        &self,
        has_constraints: bool,
        say: Progress<'_>,
    ) -> Result<(), BuildError> {
        let mut arguments = vec![
            "pip",
            "compile",
            WANTED,
            "--output-file",
            REQUIREMENTS,
            "--generate-hashes",
            "--custom-compile-command",
            "isolator packages lock",
            "--quiet",
        ];
        if has_constraints {
            arguments.extend(["--constraints", CONSTRAINTS]);
        }
        // Quiet, or it prints the result. Its errors are printed anyway.
        self.uv(&arguments, |_| None, say).await
    }

    /// Installs the packages of the lock in the building folder below `prefix`.
    pub(super) async fn uv_install(
        &self,
        prefix: &Path,
        say: Progress<'_>,
    ) -> Result<(), BuildError> {
        let prefix = prefix.to_str().ok_or_else(|| BuildError::NotUtf8(prefix.to_owned()))?;
        let arguments = [
            "pip",
            "install",
            "--prefix",
            prefix,
            "--requirements",
            REQUIREMENTS,
            "--require-hashes",
            "--no-deps",
            "--link-mode",
            "hardlink",
        ];
        self.uv(&arguments, progress, say).await
    }

    async fn uv(
        &self,
        arguments: &[&str],
        progress: fn(&str) -> Option<String>,
        say: Progress<'_>,
    ) -> Result<(), BuildError> {
        let System::Python { platform, .. } = &self.target.system else {
            return Err(BuildError::Target {
                language: self.target.name.clone(),
                why: Box::new(TargetError::NoInterpreter),
            });
        };
        let index = self.config.packages.index(Interpreter::Python);
        let mut all: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        all.extend(["--only-binary", ":all:", "--no-progress", "--color", "never"].map(Into::into));
        all.extend(["--python-version", &self.target.version].map(Into::into));
        all.extend(["--python-platform", platform].map(Into::into));
        all.extend(["--no-python-downloads", "--cache-dir"].map(Into::into));
        all.push(self.cache.into());
        if index.is_some() {
            all.push("--no-config".into());
        }
        // Neither has credentials.
        let folder: Option<OsString> = match index {
            Some(Index::Url(url)) if is_file(url) => Some(url.into()),
            Some(Index::Folder(folder)) => Some(folder.into()),
            _ => None,
        };
        if let Some(folder) = folder {
            all.extend(["--no-index".into(), "--find-links".into(), folder]);
        }
        let mut env = environment(index);
        // Its temporary files count as well.
        env.set("TMPDIR", self.watch.building.folder());
        let tools = &self.config.packages.tools;
        let call = Call {
            tool: UV,
            program: tools.uv.clone(),
            arguments: all,
            env: env.variables,
            folder: self.watch.building.folder(),
            reserved: 0,
            watch: self.watch,
            secrets: &env.secrets,
            progress,
        };
        match call.run(self.deadline, say).await? {
            Ok(()) => Ok(()),
            Err(failed) => Err(self.uv_error(failed, index)),
        }
    }

    /// The error that a failure means, with uv's own explanation.
    fn uv_error(&self, failed: Failed, index: Option<&Index>) -> BuildError {
        let Failed { status, said } = failed;
        let said = without_noise(&said);
        if let Some(reached) = self.watch.explain(UV, status, &said) {
            return reached;
        }
        let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
        let target = self.target.name.clone();
        let shown = index.map_or_else(|| "the index of packages".to_owned(), ToString::to_string);
        if has(&["No space left on device", "os error 28", "Disk quota exceeded", "os error 122"]) {
            BuildError::Full(self.cache.to_owned())
        } else if has(&["Hash mismatch"]) {
            BuildError::Mismatch(said)
        } else if has(&DAMAGED) && !has(&UNREACHABLE) {
            let package = damaged(&said).unwrap_or("a package").to_owned();
            BuildError::Damaged { package, said }
        } else if has(&["401 Unauthorized", "403 Forbidden", "407 Proxy"])
            && !has(&["No solution found"])
        {
            BuildError::Forbidden { index: shown, said }
        } else if has(&[
            "Wheels are required",
            "has no usable wheels",
            "no wheels with a matching",
            "building from source is disabled",
            "no wheel",
        ]) {
            BuildError::OnlySource { target, said }
        } else if has(&["No solution found"]) {
            BuildError::Unsolvable { target, said }
        } else if has(&UNREACHABLE) {
            BuildError::Unreachable { index: shown, said }
        } else if has(&[
            "No interpreter found",
            "No Python",
            "No system Python",
            "Failed to inspect Python",
            "Failed to query Python",
        ]) {
            BuildError::NoPython(said)
        } else {
            BuildError::Tool { tool: UV, how: status.to_string(), said }
        }
    }
}

/// The package whose file uv could not use, in its words.
fn damaged(said: &str) -> Option<&str> {
    if let Some((_, rest)) = said.split_once("Failed to download `") {
        return rest.split('`').next();
    }
    said.split_once(" has an invalid package format")
        .and_then(|(before, _)| before.rsplit(' ').next())
}

/// Lines that say nothing about a failure.
fn without_noise(said: &str) -> String {
    let is_noise = |line: &str| {
        let line = line.trim_start();
        ["Using CPython", "Downloading ", "Downloaded ", "Prepared ", "Resolved "]
            .iter()
            .any(|begin| line.starts_with(begin))
            || (line.starts_with("warning: The requested Python version")
                && line.contains("build dependencies"))
    };
    said.lines().filter(|line| !is_noise(line)).collect::<Vec<_>>().join("\n")
}

/// The progress that a line of uv means.
fn progress(line: &str) -> Option<String> {
    let line = line.trim();
    if let Some(what) = line.strip_prefix("Downloading ") {
        return Some(format!("downloading {what}"));
    }
    if let Some(rest) = line.strip_prefix("Installed ") {
        return Some(format!("installed {rest}"));
    }
    line.strip_prefix("Prepared ").map(|rest| format!("downloaded {rest}"))
}

/// The variables of uv for an index, or as the operator has set them.
fn environment(index: Option<&Index>) -> Environment {
    let is_index = |name: &str| {
        INDEXES.contains(&name)
            || (name.starts_with("UV_INDEX_")
                && (name.ends_with("_USERNAME") || name.ends_with("_PASSWORD")))
    };
    let mut env =
        Environment::with(|name| SETTINGS.contains(&name) || (index.is_none() && is_index(name)));
    match index {
        Some(Index::Url(url)) if !is_file(url) => {
            env.secrets.add_address(url);
            env.set("UV_DEFAULT_INDEX", url);
        }
        Some(_) => {}
        None => {
            let has_own = env.variables.keys().any(|name| INDEXES.contains(&name.as_str()));
            // uv does not read pip's variables.
            if let Some(url) = env::var("PIP_INDEX_URL").ok().filter(|_| !has_own) {
                env.secrets.add_address(&url);
                env.set("UV_DEFAULT_INDEX", url);
            }
        }
    }
    env
}

fn is_file(url: &str) -> bool {
    url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:"))
}

/// Whether there is a folder where the operator says that the wheels are.
pub(super) fn check_folder(config: &Config) -> Result<(), BuildError> {
    let Some(Index::Folder(folder)) = config.packages.index(Interpreter::Python) else {
        return Ok(());
    };
    match fs::metadata(folder) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(BuildError::Unreachable {
            index: folder.display().to_string(),
            said: "it is not a folder".to_owned(),
        }),
        Err(error) => Err(BuildError::Unreachable {
            index: folder.display().to_string(),
            said: error.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_of_a_damaged_file_is_found() {
        for (said, package) in [
            (
                "error: Failed to download `short==1.0`\n  cause: Failed to extract archive: x",
                "short==1.0",
            ),
            ("  cause: Because odd==2 has an invalid package format and only odd==2 is", "odd==2"),
        ] {
            assert!(DAMAGED.iter().any(|words| said.contains(words)));
            assert_eq!(damaged(said), Some(package));
        }
    }

    #[test]
    fn a_named_index_is_the_only_one() {
        let index = Index::Url("https://robot:secret@index.example/simple".to_owned());
        let env = environment(Some(&index));
        let about = |name: &&String| {
            name.contains("INDEX") || name.contains("LINKS") || name.contains("PIP")
        };
        assert_eq!(env.variables.keys().filter(about).collect::<Vec<_>>(), ["UV_DEFAULT_INDEX"]);
        assert_eq!(env.secrets.hide("robot has secret"), "robot has ***");
        let env = environment(Some(&Index::Folder("/srv/wheels".into())));
        assert_eq!(env.variables.keys().filter(about).count(), 0);
        assert!(!env.variables.keys().any(|name| name.starts_with("ISOLATOR")));
    }
}
