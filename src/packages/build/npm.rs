//! Packages of Node.js: npm resolves and installs them without running their scripts.
//!
//! The index and its credentials go to npm in a file that only this user can read. If the operator names an index, it is
//! the only one: files and variables that configure npm otherwise are left out, with the registries of scopes in them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use isolator_pool::engine::Progress;
use isolator_pool::engine::preload::Interpreter;
use percent_encoding::percent_decode_str;

use super::environment::Environment;
use super::error::{BuildError, TargetError};
use super::secrets::credentials;
use super::tool::{Call, Failed, Tools};
use crate::config::Index;
use crate::packages::lock::{PACKAGE, PACKAGE_LOCK};
use crate::packages::store::{AtPath as _, remove_file};
use crate::packages::target::System;

const NPM: &str = "npm";

/// The arguments of each call. They also set what a file or variable could set otherwise.
const ARGUMENTS: [&str; 26] = [
    "--ignore-scripts",
    "--allow-git=none",
    "--allow-remote=none",
    "--allow-file=none",
    "--allow-directory=none",
    "--git=false",
    "--no-audit",
    "--no-fund",
    "--no-update-notifier",
    "--no-progress",
    "--color=false",
    "--loglevel=http",
    "--logs-max=0",
    "--location=project",
    "--install-strategy=hoisted",
    "--package-lock=true",
    "--lockfile-version=3",
    "--omit-lockfile-registry-resolved",
    "--dry-run=false",
    "--bin-links=true",
    "--include=optional",
    "--omit=dev",
    "--strict-peer-deps=false",
    // Its own pauses add up to minutes.
    "--fetch-retry-mintimeout=1000",
    "--fetch-retry-maxtimeout=5000",
    "--os=linux",
];

/// Variables of npm for the way to an index, but not for the index itself.
const SETTINGS: [&str; 10] = [
    "npm_config_ca",
    "npm_config_cafile",
    "npm_config_fetch_retries",
    "npm_config_fetch_timeout",
    "npm_config_https_proxy",
    "npm_config_maxsockets",
    "npm_config_noproxy",
    "npm_config_proxy",
    "npm_config_strict_ssl",
    "npm_config_before",
];

/// The part of its memory that npm may have for objects of JavaScript.
const HEAP: (u64, u64) = (3, 4);

/// Memory that Node.js reserves for machine code and does not use, in bytes.
const RESERVED: u64 = 512 << 20;

impl Tools<'_> {
    /// Resolves what `package.json` in the building folder asks for. Its result is there, too.
    pub(super) async fn npm_resolve(&self, say: Progress<'_>) -> Result<(), BuildError> {
        self.npm(self.watch.building.folder(), &["install", "--package-lock-only"], |_| None, say)
            .await
    }

    /// Installs what `package-lock.json` in `folder` has.
    pub(super) async fn npm_install(
        &self,
        folder: &Path,
        say: Progress<'_>,
    ) -> Result<(), BuildError> {
        self.npm(folder, &["ci", "--prefer-offline"], progress, say).await?;
        for name in [PACKAGE, PACKAGE_LOCK, "node_modules/.package-lock.json"] {
            remove_file(&folder.join(name))?;
        }
        // Without packages there is none.
        let modules = folder.join("node_modules");
        Ok(fs::create_dir_all(&modules).at(&modules)?)
    }

    async fn npm(
        &self,
        folder: &Path,
        command: &[&str],
        progress: fn(&str) -> Option<String>,
        say: Progress<'_>,
    ) -> Result<(), BuildError> {
        let System::Node { cpu, libc } = &self.target.system else {
            return Err(BuildError::Target {
                language: self.target.name.clone(),
                why: Box::new(TargetError::NoInterpreter),
            });
        };
        let index = self.config.packages.index(Interpreter::Node);
        let mut arguments: Vec<OsString> =
            command.iter().chain(&ARGUMENTS).map(OsString::from).collect();
        arguments.extend([format!("--cpu={cpu}"), format!("--libc={libc}")].map(Into::into));
        let mut cache = OsString::from("--cache=");
        cache.push(self.cache);
        arguments.push(cache);
        let mut env = Environment::with(|name| {
            let lower = name.to_ascii_lowercase();
            SETTINGS.contains(&lower.as_str())
                || (index.is_none() && (lower.starts_with("npm_config_") || lower == "npm_token"))
        });
        // Its temporary files count as well.
        env.set("TMPDIR", self.watch.building.folder());
        // It collects its garbage before it reaches its bound.
        let heap = self.config.packages.build_memory.as_mib() / HEAP.1 * HEAP.0;
        env.set("NODE_OPTIONS", format!("--max-old-space-size={heap}"));
        let _settings = match index {
            Some(index) => Some(self.npm_settings(index, &mut env)?),
            None => None,
        };
        let tools = &self.config.packages.tools;
        let call = Call {
            tool: NPM,
            program: tools.npm.clone(),
            arguments,
            env: env.variables,
            folder,
            reserved: RESERVED,
            watch: self.watch,
            secrets: &env.secrets,
            progress,
        };
        match call.run(self.deadline, say).await? {
            Ok(()) => Ok(()),
            Err(failed) => Err(self.npm_error(failed, index)),
        }
    }

    /// Writes the files that configure npm for one index. They are removed when the guard is dropped.
    fn npm_settings(&self, index: &Index, env: &mut Environment) -> Result<Settings, BuildError> {
        let url = index.with_credentials().unwrap_or_default();
        env.secrets.add_address(url);
        let text = npmrc(url);
        for line in text.lines().filter(|line| line.contains(":_")) {
            if let Some((_, secret)) = line.split_once('=') {
                env.secrets.add(secret);
            }
        }
        let settings = Settings([
            self.watch.building.folder().join("user.npmrc"),
            self.watch.building.folder().join("global.npmrc"),
        ]);
        let [user, global] = &settings.0;
        for (path, text) in [(user, text.as_str()), (global, "")] {
            let file =
                File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
            file.and_then(|mut file| file.write_all(text.as_bytes())).at(path)?;
        }
        env.set("npm_config_userconfig", user);
        env.set("npm_config_globalconfig", global);
        Ok(settings)
    }

    /// The error that a failure means, with npm's own explanation.
    fn npm_error(&self, failed: Failed, index: Option<&Index>) -> BuildError {
        let Failed { status, said } = failed;
        let package = damaged(&said).unwrap_or_else(|| "a package".to_owned());
        let said = without_noise(&said);
        if let Some(reached) = self.watch.explain(NPM, status, &said) {
            return reached;
        }
        let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
        let target = self.target.name.clone();
        let shown =
            index.map_or_else(|| "the registry of packages".to_owned(), ToString::to_string);
        if has(&["ENOSPC", "EDQUOT"]) {
            BuildError::Full(self.cache.to_owned())
        } else if has(&["EINTEGRITY"]) {
            BuildError::Mismatch(format!("{package}: {said}"))
        } else if has(&["TAR_BAD_ARCHIVE", "Z_BUF_ERROR", "Z_DATA_ERROR"]) {
            BuildError::Damaged { package, said }
        } else if has(&["code E401", "code E403", "code E407", "ENEEDAUTH"]) {
            BuildError::Forbidden { index: shown, said }
        } else if has(&[
            "code EALLOW",
            "allow-git",
            "allow-remote",
            "allow-file",
            "allow-directory",
            "code EUNSUPPORTEDPROTOCOL",
        ]) {
            BuildError::Refused(format!(
                "it asks for something that is not in the index (a repository, address, file or folder):\n{said}"
            ))
        } else if has(&[
            "code ETARGET",
            "code E404",
            "code ERESOLVE",
            "code ENOVERSIONS",
            "code EBADPLATFORM",
            "code EINVALIDTAGNAME",
            "code EUSAGE",
            "code ENOMATCHING",
        ]) {
            BuildError::Unsolvable { target, said }
        } else if has(&[
            "ENOTFOUND",
            "ECONNREFUSED",
            "ECONNRESET",
            "ETIMEDOUT",
            "EAI_AGAIN",
            "EHOSTUNREACH",
            "ENETUNREACH",
            "ERR_SOCKET_TIMEOUT",
            "EIDLETIMEOUT",
            "code E5",
            "certificate",
            "socket hang up",
        ]) {
            BuildError::Unreachable { index: shown, said }
        } else {
            BuildError::Tool { tool: NPM, how: status.to_string(), said }
        }
    }
}

/// Files with credentials, which go when they are not needed anymore.
struct Settings([PathBuf; 2]);

impl Drop for Settings {
    fn drop(&mut self) {
        for error in self.0.iter().filter_map(|path| remove_file(path).err()) {
            tracing::warn!(%error, "a file with the credentials of an index could not be removed");
        }
    }
}

/// npm's settings for an index. npm takes no credentials in an address, so they get a line of their own.
fn npmrc(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let authority_end = rest.find('/').unwrap_or(rest.len());
    let host = rest[..authority_end].rsplit_once('@').map_or(0, |(user, _)| user.len() + 1);
    let mut place = rest[host..].to_owned();
    if !place.ends_with('/') {
        place.push('/');
    }
    let mut text = format!("registry={scheme}://{place}\n");
    // A value in a file of npm may name variables, and would end at a line break.
    let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().replace(['\n', '\r'], "");
    match credentials(url) {
        None => {}
        Some((user, Some(password))) => {
            let both = STANDARD.encode(format!("{}:{}", plain(&user), plain(&password)));
            text.push_str(&format!("//{place}:_auth={both}\n"));
        }
        Some((token, None)) => {
            let token = plain(&token).replace("${", "$\\{");
            text.push_str(&format!("//{place}:_authToken={token}\n"));
        }
    }
    text
}

/// The package whose file could not be used, or the last ones before the error: npm does not always name it.
fn damaged(said: &str) -> Option<String> {
    const MOST: usize = 5;
    let named = said.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once("tarball data for ")?;
        rest.contains("seems to be corrupted").then(|| rest.split(' ').next())?
    });
    if let Some(named) = named {
        return Some(named.to_owned());
    }
    let before = said.lines().take_while(|line| !line.starts_with("npm warn tar "));
    let came = before.filter_map(|line| file_of(line)?.strip_suffix(".tgz"));
    let mut came: Vec<_> = came.collect();
    came.reverse();
    came.truncate(MOST);
    (!came.is_empty()).then(|| came.join(" or "))
}

/// npm's output about a failure, without lines and words that say nothing about it.
fn without_noise(said: &str) -> String {
    let is_noise = |line: &&str| {
        line.starts_with("npm http ")
            || line.starts_with("npm warn ")
            || line.starts_with("npm notice")
            || line.contains("complete log of this run")
            || line.contains("Log files were not written")
            || line.contains("--force")
            || line.starts_with("npm error     at ")
    };
    let lines = said.lines().filter(|line| !is_noise(line));
    let lines = lines.map(|line| line.strip_prefix("npm error ").unwrap_or(line).trim_end());
    lines.filter(|line| *line != "npm error").collect::<Vec<_>>().join("\n")
}

/// The progress that a line of npm means.
fn progress(line: &str) -> Option<String> {
    file_of(line)?.strip_suffix(".tgz").map(|name| format!("downloaded {name}"))
}

/// The name of the file that npm says it has fetched.
fn file_of(line: &str) -> Option<&str> {
    let url = line.strip_prefix("npm http fetch GET 200 ")?.split(' ').next()?;
    url.rsplit('/').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_separate_from_the_address() {
        for (url, expected) in [
            ("https://index.example", "registry=https://index.example/\n"),
            (
                "https://me:p%40ss@index.example:8443/npm/",
                "registry=https://index.example:8443/npm/\n//index.example:8443/npm/:_auth=bWU6cEBzcw==\n",
            ),
            (
                "http://token@index.example/npm",
                "registry=http://index.example/npm/\n//index.example/npm/:_authToken=token\n",
            ),
            ("https://index.example/@scope/", "registry=https://index.example/@scope/\n"),
        ] {
            assert_eq!(npmrc(url), expected);
        }
    }

    #[test]
    fn the_package_of_a_damaged_file_is_found() {
        let fetched = |name: &str| {
            format!("npm http fetch GET 200 http://i.example/{name}/-/{name}-1.0.0.tgz 5ms\n")
        };
        let corrupted = "npm warn tarball tarball data for @a/b@1.0.0 (sha512-AA==) seems to be corrupted. Trying again.\n";
        let mismatch = [&fetched("x"), corrupted, "npm error code EINTEGRITY\n"].concat();
        assert_eq!(damaged(&mismatch).as_deref(), Some("@a/b@1.0.0"));
        let archive =
            fetched("x") + &fetched("y") + "npm warn tar TAR_BAD_ARCHIVE: x\n" + &fetched("z");
        assert_eq!(damaged(&archive).as_deref(), Some("y-1.0.0 or x-1.0.0"));
        assert_eq!(damaged("npm error code TAR_BAD_ARCHIVE"), None);
    }

    #[test]
    fn people_see_which_files_came() {
        let line = "npm http fetch GET 200 https://index.example/lodash/-/lodash-4.17.21.tgz 31ms (cache miss)";
        assert_eq!(progress(line).as_deref(), Some("downloaded lodash-4.17.21"));
        assert_eq!(progress("npm http fetch GET 200 https://index.example/lodash 9ms"), None);
    }
}
