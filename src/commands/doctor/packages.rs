//! Whether the tools that install packages are there, if the configuration needs them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use isolator_pool::engine::preload::Interpreter;
use isolator_pool::error_chain::error_chain;
use isolator_pool::quote::escaped;

use super::findings::Findings;
use crate::config::Config;
use crate::packages::store::StoreKey;

/// How long a tool can take to say its version.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A tool that the configuration needs.
struct Tool {
    name: &'static str,
    program: PathBuf,
    fix: &'static str,
}

/// Checks the tools of the languages that can use packages.
pub(super) async fn packages(config: &Config, findings: &mut Findings) {
    if !config.packages.is_used() {
        return;
    }
    findings.part("packages");
    for (key, message) in config.packages.warnings() {
        findings.warn(&format!("{key}: {message}"), "use https, or a folder");
    }
    if let Some(path) = &config.packages.store.key_file {
        match StoreKey::read(path) {
            Ok(_) => {
                findings.fine(&format!("packages.store.keyFile: {} has a key", path.display()))
            }
            Err(error) => findings.missing(
                &error_chain(&error),
                "make one key, and give it to all nodes that have the store",
            ),
        }
    }
    for tool in tools(config) {
        match version(&tool.program).await {
            Ok(version) => findings.fine(&format!("{} is there: {version}", tool.name)),
            Err(why) => findings.missing(&tool.missing(&why), tool.fix),
        }
    }
}

/// The tools that are needed and not there: the name of each, what is wrong, and what to do about it.
pub(in crate::commands) async fn missing_tools(
    config: &Config,
) -> Vec<(&'static str, String, &'static str)> {
    let mut missing = Vec::new();
    for tool in tools(config).into_iter().filter(|_| config.packages.is_used()) {
        if let Err(why) = version(&tool.program).await {
            missing.push((tool.name, tool.missing(&why), tool.fix));
        }
    }
    missing
}

impl Tool {
    fn missing(&self, why: &str) -> String {
        format!("{}, which installs packages: {}: {why}", self.name, self.program.display())
    }
}

fn tools(config: &Config) -> Vec<Tool> {
    let needs = |interpreter: Interpreter| {
        config.languages.values().any(|language| language.sandbox.packages == Some(interpreter))
    };
    let tools = &config.packages.tools;
    let uv = Tool {
        name: "uv",
        program: tools.uv.clone(),
        fix: "install it (its documentation says how), or name it in packages.tools.uv",
    };
    let npm = Tool {
        name: "npm",
        program: tools.npm.clone(),
        fix: "install it (Debian: apt-get install npm), or name it in packages.tools.npm",
    };
    [(Interpreter::Python, uv), (Interpreter::Node, npm)]
        .into_iter()
        .filter(|(interpreter, _)| needs(*interpreter))
        .map(|(_, tool)| tool)
        .collect()
}

/// The version of a tool, in its own words.
async fn version(program: &Path) -> Result<String, String> {
    let asked = tokio::process::Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let answer = tokio::time::timeout(TIMEOUT, asked).await;
    let answer = answer.map_err(|_| format!("it says nothing for {TIMEOUT:?}"))?;
    let answer = answer.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such program".to_owned(),
        _ => error.to_string(),
    })?;
    if !answer.status.success() {
        return Err(format!("it ends with {}", answer.status));
    }
    let text = String::from_utf8_lossy(&answer.stdout);
    Ok(escaped(text.lines().next().unwrap_or_default()).chars().take(80).collect())
}
