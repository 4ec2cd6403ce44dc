//! `isolator config check`: what `serve` would complain about, without starting anything.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use isolator_pool::engine::images::PullPolicy;
use isolator_pool::engine::limits::ByteSize;
use isolator_pool::engine::{Call, SandboxSpec, bounded};

use crate::app::App;
use crate::audit;
use crate::commands::advice::how_to_get_snippets;
use crate::commands::doctor::missing_tools;
use crate::commands::image::how_to_fetch;
use crate::commands::{complain, isolator, say};
use crate::config::{Config, ConfigError, Index, Language, Problem, language_like};
use crate::request::snippets::Snippets;
use crate::transport::http;

/// How long the engine has to answer everything that it is asked.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(5);

/// Memory of a waiting sandbox: the runner and the kernel's tables.
const WAITING: ByteSize = ByteSize::mib(4);

/// Memory of an interpreter without modules that waits in it.
const INTERPRETER: ByteSize = ByteSize::mib(12);

/// The findings.
#[derive(Debug, Default)]
struct Report {
    /// Problems that keep a server from working as configured.
    errors: Vec<Problem>,
    /// Settings that an operator may not have meant.
    warnings: Vec<Problem>,
}

impl Report {
    fn error(&mut self, path: impl Into<String>, message: impl Into<String>) {
        let problem = Problem { path: path.into(), message: message.into() };
        // Several languages can have the same.
        if !self.errors.contains(&problem) {
            self.errors.push(problem);
        }
    }

    fn warning(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.warnings.push(Problem { path: path.into(), message: message.into() });
    }
}

/// Checks a configuration that is valid by itself against the machine.
pub(super) async fn check(config: &Config) -> anyhow::Result<ExitCode> {
    let mut report = Report::default();
    for (path, message) in http::problems_of_files(config) {
        report.error(path, message);
    }
    if let Some(problem) = audit::problem(&config.audit) {
        report.error("audit.path", problem);
    }
    snippets(config, &mut report);
    packages(config, &mut report);
    for (tool, what, fix) in missing_tools(config).await {
        report.warning(format!("packages.tools.{tool}"), format!("{what}; {fix}"));
    }
    languages(config, &mut report);
    extensions(config, &mut report);
    memory(config, machine_memory(), &mut report);
    if tokio::time::timeout(ENGINE_TIMEOUT, engine(config, &mut report)).await.is_err() {
        let message = format!("it did not answer within {ENGINE_TIMEOUT:?}, so it was not checked");
        report.warning("engine", message);
    }
    conclude(config, report)
}

fn conclude(config: &Config, report: Report) -> anyhow::Result<ExitCode> {
    for Problem { path, message } in &report.warnings {
        complain(&format!("warning: {path}: {message}"));
    }
    let file = config.file.clone();
    if !report.errors.is_empty() {
        complain(&ConfigError::Invalid { file, problems: report.errors }.to_string());
        return Ok(ExitCode::FAILURE);
    }
    let name = file.as_deref().map_or("the defaults".into(), Path::to_string_lossy);
    let languages: Vec<_> = config.languages.keys().cloned().collect();
    say(&format!("{name}: valid, with {}", languages.join(", ")))?;
    Ok(ExitCode::SUCCESS)
}

/// The folder of snippets, if the operator named one. Servers start without it.
fn snippets(config: &Config, report: &mut Report) {
    const KEY: &str = "promptsDir";
    match Snippets::new(config).left_out() {
        Ok(files) => {
            for (file, why) in files {
                report.warning(KEY, format!("{file} is not offered as a snippet: {why}"));
            }
        }
        Err(error) if !config.settings.document[KEY].is_null() => {
            let folder = config.prompts.display();
            let how = how_to_get_snippets(config);
            let message =
                format!("{folder} can't be read, so there are no snippets: {error}; {how}");
            report.warning(KEY, message);
        }
        Err(_) => {}
    }
}

/// Where packages come from.
fn packages(config: &Config, report: &mut Report) {
    for (key, index) in config.packages.indexes() {
        if let Index::Folder(folder) = index
            && !folder.is_dir()
        {
            let message =
                format!("{} is no folder; name one with wheels, or an address", folder.display());
            report.error(key, message);
        }
    }
    for (key, message) in config.packages.warnings() {
        report.warning(key, message);
    }
}

/// A language that is only switched off has to be one that there is.
fn languages(config: &Config, report: &mut Report) {
    let settings = config.settings.document["languageSettings"].as_object();
    for (name, settings) in settings.into_iter().flatten() {
        let path = format!("languageSettings.{name}");
        match language_like(name) {
            Some(near) if settings["enabled"] == false && settings["image"].is_null() => {
                let message =
                    format!("there is no such language to switch off; did you mean `{near}`?");
                report.warning(path, message);
            }
            _ => {}
        }
    }
}

/// A file's extension gives its language, so it should belong to one.
fn extensions(config: &Config, report: &mut Report) {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for language in config.languages.values() {
        for extension in &language.extensions {
            match owners.get(extension.as_str()) {
                Some(owner) => report.warning(
                    format!("languageSettings.{}.extensions", language.name),
                    format!("{owner} has {extension} too, and files with it are taken for {owner}"),
                ),
                None => {
                    owners.insert(extension, &language.name);
                }
            }
        }
    }
}

/// The memory of this machine; nothing where the kernel does not tell.
fn machine_memory() -> ByteSize {
    let lines = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = lines.lines().find_map(|line| line.strip_prefix("MemTotal:")?.strip_suffix("kB"));
    ByteSize::bytes(total.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or_default() << 10)
}

/// Whether the sandboxes that wait have room. They take far less than the programs in them may.
fn memory(config: &Config, machine: ByteSize, report: &mut Report) {
    let of_one = |language: &Language| match &language.sandbox.preload {
        Some(preload) if !preload.modules.is_empty() => preload.memory.as_bytes(),
        Some(_) => INTERPRETER.as_bytes(),
        None => 0,
    };
    let of_pool = |language: &Language| {
        (language.pool.size.most() as u64).saturating_mul(WAITING.as_bytes() + of_one(language))
    };
    let needed: u64 = config.languages.values().map(|language| of_pool(language)).sum();
    let bound = config.pool.memory.map_or(u64::MAX, ByteSize::as_bytes);
    let needed = ByteSize::bytes(needed.min(bound));
    // A number of KiB would be hard to read.
    let machine = ByteSize::mib(machine.as_mib());
    if machine.as_bytes() > 0 && needed > machine {
        let count: usize =
            config.languages.values().map(|language| language.pool.size.most()).sum();
        report.error(
            "pool.size",
            format!(
                "{count} waiting sandboxes can take {needed}, and this machine has {machine}; keep fewer ready"
            ),
        );
    }
}

/// Asks the engine. Nothing is made with it.
async fn engine(config: &Config, report: &mut Report) {
    let app = match App::new(config).await {
        Ok(app) => app,
        Err(error) => return report.error("engine", format!("{error:#}")),
    };
    let doctor = format!("`{} doctor` says what to do", isolator(config, app.kind));
    if let Err(error) = bounded(Call::Check, app.engine.check()).await {
        return report.warning("engine", format!("{error}; {doctor}"));
    }
    for language in config.languages.values() {
        // An engine names the first thing that it can't do.
        let with_runtime = SandboxSpec { network: "none".to_owned(), ..language.sandbox.clone() };
        let plain = SandboxSpec { runtime: None, ..with_runtime.clone() };
        for sandbox in [&language.sandbox, &with_runtime, &plain] {
            if let Err(error) = app.engine.supports(sandbox) {
                report.error("engine", error.to_string());
            }
        }
    }
    match bounded(Call::Check, app.engine.warnings()).await {
        Ok(warnings) => {
            for warning in warnings {
                report.warning("engine", format!("{}; {}", warning.what, warning.fix));
            }
        }
        Err(error) => report.warning("engine", format!("{error}; {doctor}")),
    }
    for language in config.languages.values() {
        image(config, &app, language, report).await;
    }
}

/// Whether the image of a language is there, or a server can get it.
async fn image(config: &Config, app: &App, language: &Language, report: &mut Report) {
    let path = format!("languageSettings.{}.image", language.name);
    let image = &language.sandbox.image.name;
    match app.images.find(image).await {
        Ok(Some(_)) => {}
        Ok(None) => {
            let fix = how_to_fetch(config, app, language).await;
            let how = if app.images.is_built(image) { "builds" } else { "pulls" };
            match (fix, config.images.policy) {
                (Ok(fix), PullPolicy::Never) => report.error(
                    path,
                    format!("{image} is missing, and images.policy is \"never\"; run `{fix}`"),
                ),
                (Ok(fix), _) => {
                    let message =
                        format!("{image} is missing; run `{fix}`, or the server {how} it");
                    report.warning(path, message);
                }
                (Err(why), PullPolicy::Never) => {
                    report.error(path, format!("{image} is missing: {why}"))
                }
                (Err(why), _) => report.warning(path, format!("{image} is missing: {why}")),
            }
        }
        Err(error) => report.warning(path, format!("{image} can't be looked up: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, judge: impl Fn(&Config, &mut Report)) -> Vec<String> {
        let config = Config::parse(text, None, Path::new("/nowhere")).unwrap();
        let mut report = Report::default();
        judge(&config, &mut report);
        let all = report.errors.into_iter().chain(report.warnings);
        all.map(|problem| format!("{}: {}", problem.path, problem.message)).collect()
    }

    #[test]
    fn pools_that_memory_can_not_hold_are_told() {
        let judge = |config: &Config, report: &mut Report| {
            memory(config, ByteSize::mib(1024), report);
        };
        assert_eq!(found("{}", judge), [""; 0]);
        assert_eq!(
            found(r#"{"pool": {"size": 10}}"#, judge),
            [
                "pool.size: 30 waiting sandboxes can take 1520 MiB, and this machine has 1 GiB; keep fewer ready"
            ]
        );
    }

    #[test]
    fn an_extension_of_two_languages_is_reported() {
        let two = r#"{"languageSettings": {"ts": {"image": "ts", "extensions": [".ts"],
            "command": ["ts", "{file}"]}}}"#;
        assert_eq!(
            found(two, extensions),
            [
                "languageSettings.ts.extensions: javascript has .ts too, and files with it are taken for \
                 javascript"
            ]
        );
    }

    #[test]
    fn an_index_that_is_not_there_or_not_encrypted_is_reported_without_its_password() {
        let index = r#"{"packages": {"index": {"python": "wheels", "javascript": "http://me:pass@npm.example/"}}}"#;
        assert_eq!(
            found(index, packages),
            [
                "packages.index.python: /nowhere/wheels is no folder; name one with wheels, or an address",
                "packages.index.javascript: http://***@npm.example/ is asked without encryption, so anyone between it and \
                 this machine can see credentials and replace packages; use https"
            ]
        );
    }

    #[test]
    fn a_folder_of_snippets_is_missed_only_if_it_was_named() {
        assert_eq!(found("{}", snippets), [""; 0]);
        let described = found(r#"{"promptsDir": "mine"}"#, snippets);
        assert!(
            described[0].starts_with("promptsDir: /nowhere/mine can't be read"),
            "{described:?}"
        );
    }
}
