//! `isolator tune`: what sizes pools should have for the calls that a server has seen.

mod advice;
mod curves;
mod source;
mod write;

use crate::commands::operators::OperatorArguments;
use crate::commands::options::mebibytes;
use clap::Args;
use std::collections::BTreeMap;
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use isolator_pool::pool::unmeasured_memory;
use isolator_pool::quote::escaped;
use serde::Serialize;
use serde_json::Value;

use self::advice::{Advice, Aim, Now, Seen, advise, mib, percent};
use self::curves::Curve;
use self::source::{Calls, Cost, of_server, read_logs};
use crate::commands::operators::AskedServer;
use crate::commands::{Work, complain, say};
use crate::config::Config;

/// Arguments of `isolator tune`.
#[derive(Debug, Args)]
pub struct TuneArguments {
    /// The server
    #[command(flatten)]
    pub server: OperatorArguments,
    /// An audit log with the calls; can be given several times. A server is then only asked for the memory, if the log does not
    /// tell it
    #[arg(long, value_name = "FILE")]
    pub audit: Vec<PathBuf>,
    /// The share of calls that should find a sandbox ready, from 0.5 to 0.9999
    #[arg(long, value_name = "SHARE", default_value = "0.99", value_parser = target)]
    pub target: f64,
    /// Memory that waiting sandboxes of all languages may take together, such as 800MB or 4G; a number without a unit is MiB
    /// [default: pool.memoryMB]
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    pub memory: Option<u64>,
    /// Write the sizes into the configuration, of which a backup is made
    #[arg(long)]
    pub write: bool,
    /// Draw the share of warm calls against memory into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print all of it as JSON, on one line
    #[arg(long)]
    pub json: bool,
}

/// A server that was asked for the first time measures its memory, and is asked again.
const MEMORY_PAUSE: Duration = Duration::from_millis(1500);

/// The chart goes on until this share of calls finds a sandbox ready, or further if a size is larger.
const SHARE_IN_CHART: f64 = 0.999;

/// Says what sizes pools should have.
pub fn tune(config: Config, arguments: TuneArguments) -> Work {
    Box::pin(run(config, arguments))
}

/// All that is printed as JSON.
#[derive(Serialize)]
struct Report<'a> {
    target: f64,
    memory_bytes: Option<u64>,
    pools: &'a [Advice],
    notes: &'a [String],
    /// The file that has the sizes now.
    written: Option<&'a Path>,
}

async fn run(config: Config, arguments: TuneArguments) -> anyhow::Result<ExitCode> {
    let mut notes = Vec::new();
    let (mut calls, costs) = gather(&config, &arguments, &mut notes).await?;
    let all = calls.values().map(|of| of.depths.total()).sum::<f64>();
    let is_unknown = |(name, of): &(&String, &Calls)| {
        !config.languages.contains_key(*name) && of.depths.total() > 0.0
    };
    let unknown: Vec<_> = calls.iter().filter(is_unknown).collect();
    tell_unknown(&config, &unknown, all, &mut notes)?;
    if all == 0.0 {
        bail!(
            "no calls were seen yet; run this again when the server has done its usual work for a while"
        );
    }
    let aim = Aim {
        target: arguments.target,
        memory: arguments
            .memory
            .map(|mib| mib << 20)
            .or(config.pool.memory.map(|it| it.as_bytes())),
        refills: config.requests.refills,
    };
    let seen: Vec<_> = config
        .languages
        .values()
        .map(|language| {
            let of = calls.remove(&language.name).unwrap_or_default();
            let cost = costs.get(&language.name).copied().unwrap_or_default();
            Seen {
                language: language.name.clone(),
                depths: of.depths,
                busiest_minute: of.busiest_minute,
                lead: cost.lead,
                each: cost
                    .each
                    .unwrap_or_else(|| unmeasured_memory(language.sandbox.preload.as_ref())),
                is_measured: cost.each.is_some(),
                now: language.pool.size,
            }
        })
        .collect();
    let advice = advise(&seen, aim);
    let written = match arguments.write {
        true => put(&config, &advice, &mut notes)?,
        false => None,
    };
    if let Some(file) = &arguments.svg {
        let curves: Vec<_> = advice.iter().filter_map(curve).collect();
        let drawn = curves::svg(&curves, &legend(&aim));
        std::fs::write(file, drawn).with_context(|| file.display().to_string())?;
    }
    if arguments.json {
        let report = Report {
            target: aim.target,
            memory_bytes: aim.memory,
            pools: &advice,
            notes: &notes,
            written,
        };
        say(&serde_json::to_string(&report)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in lines(&advice) {
        say(&line)?;
    }
    for note in &notes {
        complain(note);
    }
    Ok(ExitCode::SUCCESS)
}

type Gathered = (BTreeMap<String, Calls>, BTreeMap<String, Cost>);

/// The calls and costs, from where the arguments say.
async fn gather(
    config: &Config,
    arguments: &TuneArguments,
    notes: &mut Vec<String>,
) -> anyhow::Result<Gathered> {
    let server = AskedServer::find(&arguments.server, || Ok(config), "tune");
    if arguments.audit.is_empty() {
        let Some(server) = server? else {
            bail!(
                "it is not known which calls came: give the address of `serve --admin`, such as `isolator tune 9464`, \
                 or an audit log with --audit"
            );
        };
        return Ok(of_server(&state(&server).await?));
    }
    let mut logs = read_logs(&arguments.audit)?;
    notes.append(&mut logs.notes);
    let (calls, mut costs) = logs.found();
    if costs.values().all(|cost| cost.each.is_some()) {
        return Ok((calls, costs));
    }
    // The server measures it when it is asked. Without one it is estimated.
    let asked = match server {
        Ok(Some(server)) => state(&server).await.map(|status| of_server(&status).1),
        Ok(None) => return Ok((calls, costs)),
        Err(error) => Err(error),
    };
    match asked {
        Ok(known) => {
            for (name, cost) in &mut costs {
                cost.each = cost.each.or_else(|| known.get(name)?.each);
            }
        }
        Err(error) => notes.push(format!("the server does not tell the memory: {error:#}")),
    }
    Ok((calls, costs))
}

/// The state of a server, with its memory if it can tell.
async fn state(server: &AskedServer) -> anyhow::Result<Value> {
    let status = server.status().await?;
    let mut pools = status["pools"].as_object().into_iter().flatten();
    if pools.any(|(_, pool)| !pool["sandbox_bytes"].is_null()) {
        return Ok(status);
    }
    tokio::time::sleep(MEMORY_PAUSE).await;
    server.status().await
}

/// Tells of calls in languages that the configuration does not have.
fn tell_unknown(
    config: &Config,
    unknown: &[(&String, &Calls)],
    all: f64,
    notes: &mut Vec<String>,
) -> anyhow::Result<()> {
    let calls: f64 = unknown.iter().map(|(_, of)| of.depths.total()).sum();
    if unknown.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = unknown.iter().map(|(name, _)| escaped(name).into_owned()).collect();
    let names = names.join(", ");
    if calls >= all {
        let known: Vec<_> = config.languages.keys().map(String::as_str).collect();
        bail!(
            "all calls are of {names}, and the configuration has {}; name the right one with --config",
            known.join(", ")
        );
    }
    notes.push(format!(
        "{calls:.0} call(s) of {names} are left out: the configuration has no such language"
    ));
    Ok(())
}

/// Puts the sizes into the configuration, if it does not have them.
fn put<'a>(
    config: &'a Config,
    advice: &[Advice],
    notes: &mut Vec<String>,
) -> anyhow::Result<Option<&'a Path>> {
    let Some(file) = &config.file else {
        bail!("there is no configuration to write to; `isolator config init` makes one");
    };
    let mut sizes = Vec::new();
    for one in advice {
        let variable = ["size", "hot"].iter().find_map(|key| {
            let key = format!("languageSettings.{}.pool.{key}", one.language);
            config.settings.variables.get(&key)
        });
        match (one.now, variable) {
            (Now::Fixed(now), _) if now == one.size => {}
            (Now::Fixed(_), _) if one.is_guess => notes.push(format!(
                "{} is left as it is, because this is a guess. Let the server serve more calls, or set \
                 languageSettings.{}.pool.size yourself",
                one.language, one.language
            )),
            (Now::Adaptive { .. }, _) => {
                notes.push(format!("{} follows the calls by itself, and is left so", one.language));
            }
            (Now::Fixed(_), Some(variable)) => notes.push(format!(
                "{} is left: {variable} sets it, whatever the file says",
                one.language
            )),
            (Now::Fixed(_), None) => sizes.push((one.language.clone(), one.size)),
        }
    }
    if sizes.is_empty() {
        let is_same = |one: &Advice| one.now == Now::Fixed(one.size);
        let why =
            if advice.iter().all(is_same) { "has these sizes already" } else { "is unchanged" };
        notes.push(format!("{} {why}", file.display()));
        return Ok(None);
    }
    let backup = write::write(file, &sizes)?;
    let backup =
        backup.map_or_else(String::new, |it| format!("; the former one is {}", it.display()));
    notes.push(format!(
        "{} has these sizes now{backup}. A server uses them after `isolator reload`",
        file.display()
    ));
    Ok(Some(file))
}

/// The output.
fn lines(advice: &[Advice]) -> Vec<String> {
    let mut lines = Vec::new();
    for one in advice {
        lines.push(format!("{}: {}", one.language, one.reason));
        lines.extend(one.notes.iter().map(|note| format!("  {note}")));
    }
    let sum = |of: fn(&Advice) -> u64| advice.iter().map(of).sum::<u64>();
    let warm = |of: fn(&Advice) -> Option<f64>| {
        // Calls of pools that follow them by themselves are in neither.
        let fixed = || advice.iter().filter(|one| one.calls > 0 && one.warm_now.is_some());
        let calls: u64 = fixed().map(|one| one.calls).sum();
        let warm: f64 = fixed().filter_map(|one| Some(of(one)? * one.calls as f64)).sum();
        (calls > 0).then(|| warm / calls as f64)
    };
    lines.push(format!(
        "all: {} instead of {} while they wait; {} of the calls warm instead of {}",
        mib(sum(|one| one.bytes)),
        mib(sum(|one| one.bytes_now)),
        percent(warm(|one| one.warm)),
        percent(warm(|one| one.warm_now)),
    ));
    lines
}

/// The curve of a language that was called.
fn curve(advice: &Advice) -> Option<Curve> {
    if advice.calls == 0 {
        return None;
    }
    let now = match advice.now {
        Now::Fixed(size) => Some(size),
        Now::Adaptive { .. } => None,
    };
    let enough = advice.depths.size_for(SHARE_IN_CHART);
    let most = enough.max(advice.size).max(now.unwrap_or(0)) + 1;
    let share = |size: usize| advice.depths.share(size).unwrap_or_default();
    Some(Curve {
        language: advice.language.clone(),
        each: advice.sandbox_bytes as f64 / f64::from(1 << 20),
        shares: (0..=most).map(share).collect(),
        now,
        chosen: advice.size,
    })
}

fn legend(aim: &Aim) -> String {
    let target = percent(Some(aim.target));
    let memory = aim.memory.map_or_else(String::new, |bytes| format!(" within {}", mib(bytes)));
    format!(
        "Large point: the size that keeps {target} of calls warm{memory}. Ring: the size as it is."
    )
}

/// Reads the share of calls that should find a sandbox ready.
pub(crate) fn target(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse().map(|percent: f64| percent / 100.0),
        None => text.parse(),
    };
    let is_share = |share: &f64| (0.5..=0.9999).contains(share);
    share
        .ok()
        .filter(is_share)
        .ok_or_else(|| "expected a share from 0.5 to 0.9999, such as 0.99".to_owned())
}
