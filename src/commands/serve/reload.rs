//! Another configuration while the server runs, when SIGHUP or an operator asks for it.
//!
//! All that can fail is done before anything changes: the file is checked, files that it names are opened, and new pools are
//! filled next to the old ones. Then requests that begin get the new configuration, and those that have begun end with theirs.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::Signal;
use serde_json::Value;

use crate::app::{PoolFill, package_store, pool_specs};
use crate::audit::Audit;
use crate::calls::Setup;
use crate::commands::describe;
use crate::commands::notify::Service;
use crate::commands::signals::HangUps;
use crate::config::Config;
use crate::log;
use crate::mcp::server::Server;
use crate::metrics::reloads::Reloads;
use crate::packages::store::Store;
use crate::transport::http::reload::{Asked, Reloaded};
use crate::transport::http::{Access, Operators};

/// How long new pools can take to fill before they are used all the same. An image that has to be built takes longer, and is
/// not waited for.
const FILL_TIMEOUT: Duration = Duration::from_secs(30);

/// Loads the configuration.
pub(super) type Load = Arc<dyn Fn() -> anyhow::Result<Config> + Send + Sync>;

/// The parts of a server that reloads change.
pub(super) struct Reloading {
    pub(super) load: Load,
    pub(super) server: Server,
    /// The clients that can call, for each listener.
    pub(super) access: Vec<Access>,
    /// The operators that can call, if there is a listener for them.
    pub(super) operators: Option<Operators>,
    /// The sets of packages on disk, if they were ever used.
    pub(super) store: Option<Store>,
    pub(super) reloads: Arc<Reloads>,
    /// The service manager, if it may have started this server.
    pub(super) service: Option<Arc<Service>>,
}

impl Reloading {
    /// Loads the configuration whenever SIGHUP comes or an operator asks. All requests that come meanwhile are answered by one more
    /// reload.
    /// Returns with the number of the signal if that came because the terminal of the server is gone.
    pub(super) async fn run(mut self, mut hang_ups: HangUps, mut asked: Asked) -> i32 {
        let had_terminal = has_terminal();
        loop {
            let mut waiting = Vec::new();
            tokio::select! {
                () = hang_ups.next() => {
                    if had_terminal && !has_terminal() {
                        return Signal::HUP.as_raw();
                    }
                }
                Some(sender) = asked.recv() => waiting.push(sender),
            }
            while let Ok(sender) = asked.try_recv() {
                waiting.push(sender);
            }
            if let Some(service) = &self.service {
                service.reloading();
            }
            let ended = self.reload().await.map_err(|error| describe(&error));
            self.reloads.ended(&ended);
            if let Some(service) = &self.service {
                service.reloaded(ended.is_ok());
            }
            let answer = match ended {
                Ok(reloaded) => {
                    let Reloaded { changed, needs_restart } = &reloaded;
                    let (changed, needs_restart) = (changed.join(", "), needs_restart.join(", "));
                    tracing::info!(changed, "the configuration was loaded again");
                    if !needs_restart.is_empty() {
                        tracing::warn!(
                            needs_restart,
                            "some keys keep their values until the server is started again"
                        );
                    }
                    Ok(reloaded)
                }
                Err(error) => {
                    tracing::error!(
                        error,
                        "the configuration was not loaded, and nothing has changed"
                    );
                    Err(error)
                }
            };
            for sender in waiting {
                // An operator that has gone away needs no answer.
                let _ = sender.send(answer.clone());
            }
        }
    }

    /// Loads the configuration and puts it into effect. If that fails, or the future is dropped, nothing has changed.
    async fn reload(&mut self) -> anyhow::Result<Reloaded> {
        let Setup { config: old, pools: old_pools, packages, audit, traces, journals } =
            self.server.setup();
        // Even if the rest fails: its file may have been moved away.
        audit.reopen();
        let load = Arc::clone(&self.load);
        let mut config = tokio::task::spawn_blocking(move || load()).await??;
        same_file(old.file.as_deref(), config.file.as_deref())?;
        let needs_restart = keep_what_needs_a_restart(&old, &mut config);
        let rules = self.access.iter().map(|access| access.rules(&config));
        let rules = rules.collect::<anyhow::Result<Vec<_>>>()?;
        let guard = self.operators.as_ref().map(|it| it.guard(&config)).transpose()?;
        let audit = match config.audit == old.audit {
            true => audit,
            false => Audit::open(&config.audit)?,
        };
        if self.store.is_none() && config.packages.is_used() {
            self.store = store(&config).await?;
        }
        let specs = pool_specs(&config, PoolFill::AsConfigured);
        let pools = old_pools.reconfigured(config.pools_limits(), specs)?;
        let filled = tokio::time::timeout(FILL_TIMEOUT, pools.filled()).await;
        match filled {
            Ok(true) => {}
            Ok(false) => bail!("the server is shutting down"),
            Err(_) => tracing::warn!("new pools are not full yet; requests may have to wait"),
        }
        let (config, pools) = (Arc::new(config), Arc::new(pools));
        let store = self.store.clone().filter(|_| config.packages.is_used());
        let packages = packages.reconfigured(Arc::clone(&config), Arc::clone(&pools), store);
        let changed = differences(&old.settings.document, &config.settings.document);

        let setup = Setup {
            config: Arc::clone(&config),
            pools: Arc::clone(&pools),
            packages: packages.clone(),
            audit,
            traces,
            journals,
        };
        self.server.reconfigure(setup);
        pools.take_over(&old_pools);
        for (access, rules) in self.access.iter().zip(rules) {
            access.set(rules, &config);
        }
        if let (Some(operators), Some(guard)) = (&self.operators, guard) {
            operators.set(guard);
        }
        if config.packages.is_used() {
            packages.build_missing();
        }
        log::set_level(config.log.level.as_str());
        let changed = changed.into_iter().filter(|key| !is_in(key, &needs_restart)).collect();
        Ok(Reloaded { changed, needs_restart })
    }
}

/// Refuses a configuration from another place: the file of this server may be gone for a moment, and without it every client could
/// call. A server that had none can get one.
fn same_file(old: Option<&Path>, new: Option<&Path>) -> anyhow::Result<()> {
    match (old, new) {
        (Some(old), None) => {
            bail!("{}: this configuration file is not there anymore: put it back", old.display())
        }
        (Some(old), Some(new)) if old != new => bail!(
            "{} would take the place of {}, with which the server was started: remove one of them, or start the server with \
             --config",
            new.display(),
            old.display()
        ),
        _ => Ok(()),
    }
}

/// Whether the process has a terminal from which it is controlled.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

/// Whether a key is, or has, one of those.
fn is_in(key: &str, keys: &[String]) -> bool {
    keys.iter().any(|other| other == key)
}

/// Sets back the keys that a server can't change while it runs. Returns those that would have changed.
fn keep_what_needs_a_restart(old: &Config, new: &mut Config) -> Vec<String> {
    let mut kept = Vec::new();
    macro_rules! keep {
        ($($key:literal => $($field:ident).+),+ $(,)?) => {
            $(if old.$($field).+ != new.$($field).+ {
                new.$($field).+ = Clone::clone(&old.$($field).+);
                kept.push($key.to_owned());
            })+
        };
    }
    keep! {
        "engine.kind" => engine.kind,
        "engine.host" => engine.host,
        "engine.favordynmods" => engine.favordynmods,
        "images.policy" => images.policy,
        "images.base" => images.base,
        "admin.address" => admin.address,
        "node.agentCheck" => node.agent_check,
        "http.tls" => http.tls,
        "http.maxConnections" => http.max_connections,
        "http.maxConnectionsPerAddress" => http.max_connections_per_address,
        "http.writeTimeout" => http.write_timeout,
        "http.idleTimeout" => http.idle_timeout,
        "http.keepAlive" => http.keep_alive,
        "limits.maxFiles" => limits.max_files,
        "sessions.journals" => sessions.journals,
        "packages.store" => packages.store,
    }
    if old.node != new.node {
        // Handles that clients have would lead to another node.
        new.node = old.node.clone();
        kept.push("node.name".to_owned());
        // Its default is that of the name.
        if old.sessions.when_full != new.sessions.when_full {
            new.sessions.when_full = old.sessions.when_full;
            kept.push("sessions.whenFull".to_owned());
        }
    }
    kept
}

/// The keys under which two documents differ: two words, such as `limits.maxCpus` or `languageSettings.python`.
fn differences(old: &Value, new: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for (key, old, new) in pairs(old, new) {
        if old == new {
            continue;
        }
        let inner = pairs(old, new);
        if inner.is_empty() {
            found.push(key.to_owned());
        }
        let inner = inner.into_iter().filter(|(_, old, new)| old != new);
        found.extend(inner.map(|(name, ..)| format!("{key}.{name}")));
    }
    found
}

/// The values of both for each key that one of them has.
fn pairs<'a>(old: &'a Value, new: &'a Value) -> Vec<(&'a str, &'a Value, &'a Value)> {
    let keys = |value: &'a Value| value.as_object().into_iter().flat_map(|it| it.keys());
    let mut all: Vec<&str> = keys(old).chain(keys(new)).map(String::as_str).collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(|key| (key, &old[key], &new[key])).collect()
}

/// The store of sets of packages, if the configuration uses any.
pub(super) async fn store(config: &Config) -> anyhow::Result<Option<Store>> {
    if !config.packages.is_used() {
        return Ok(None);
    }
    let (most, place) = (config.packages.max_cache(), config.packages.store.clone());
    // What killed builds have left is removed, which may take a while.
    let opened = tokio::task::spawn_blocking(move || {
        let store = package_store(&place)?;
        store.bound_cache(most);
        anyhow::Ok(store)
    });
    opened.await?.context("packages").map(Some)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(document: &Value) -> Config {
        Config::parse(&document.to_string(), None, Path::new("/etc/isolator")).unwrap()
    }

    #[test]
    fn a_file_can_come_and_neither_go_nor_become_another() {
        let [old, other] = ["/etc/isolator/a.json", "/tmp/b.json"].map(Path::new);
        assert!(same_file(None, Some(old)).is_ok() && same_file(None, None).is_ok());
        assert!(same_file(Some(old), Some(old)).is_ok());
        let gone = same_file(Some(old), None).unwrap_err().to_string();
        assert!(gone.contains("a.json") && gone.contains("not there"), "{gone}");
        let another = same_file(Some(old), Some(other)).unwrap_err().to_string();
        assert!(another.contains("a.json") && another.contains("b.json"), "{another}");
    }

    #[test]
    fn keys_that_need_a_restart_keep_their_values_and_are_named() {
        let old = parse(&json!({ "limits": { "maxFiles": 7, "maxCpus": 2 } }));
        let mut new = parse(&json!({
            "engine": { "kind": "embedded", "host": "unix:///x" },
            "admin": { "address": "127.0.0.1:1" },
            "http": { "idleTimeout": "7s", "drain": "7s" },
            "limits": { "maxFiles": 8, "maxCpus": 3 },
        }));
        let kept = keep_what_needs_a_restart(&old, &mut new);
        let expected =
            ["engine.kind", "engine.host", "admin.address", "http.idleTimeout", "limits.maxFiles"];
        assert_eq!(kept, expected);
        assert_eq!(new.limits.max_files, 7);
        assert_eq!(new.http.drain, Duration::from_secs(7));
        assert!(new.admin.address.is_none() && new.engine.host.is_none());
        assert!(keep_what_needs_a_restart(&old, &mut new).is_empty());
    }

    #[test]
    fn differences_have_their_keys() {
        let old = json!({
            "pool": { "size": 1, "hot": 1 },
            "promptsDir": "a",
            "languageSettings": { "go": { "enabled": false }, "python": { "cpus": 1 } },
        });
        let new = json!({
            "pool": { "size": 2, "hot": 1 },
            "promptsDir": "b",
            "languageSettings": { "python": { "cpus": 2 } },
            "audit": { "path": "x" },
        });
        let expected = [
            "audit.path",
            "languageSettings.go",
            "languageSettings.python",
            "pool.size",
            "promptsDir",
        ];
        assert_eq!(differences(&old, &new), expected);
        assert!(differences(&old, &old).is_empty());
    }
}
