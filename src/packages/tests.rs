//! The sets of a server, on a scripted backend.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use isolator_pool::engine::EngineError;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::pool::pools::ExecuteError;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::build::BuildError;
use super::lock::{Lock, LockError, Locked};
use super::store::StoreError;
use super::target::{System, Target};
use super::*;
use crate::requirement::Recipe;

mod installing;
mod line;
mod room;

/// Bytes of a set whose packages have no other size.
const SIZE: u64 = 1 << 20;

const SECOND: Duration = Duration::from_secs(1);

/// A builder without tools, and a store without files, directed by the fields.
#[derive(Default)]
struct Scripted {
    /// Sets, and when they were built.
    sets: Mutex<HashMap<String, (StoredSet, SystemTime)>>,
    held: Mutex<HashMap<String, Weak<PackageSet>>>,
    /// Sets that other processes hold.
    elsewhere: Mutex<HashSet<String>>,
    /// Locks that the operator keeps.
    kept: Mutex<HashMap<String, Lock>>,
    /// Sizes by packages.
    sizes: Mutex<HashMap<String, u64>>,
    /// The calls, a line each.
    log: Mutex<Vec<String>>,
    /// Whether builds wait for `go`.
    is_slow: Mutex<bool>,
    go: Notify,
    /// The error of builds, if they fail.
    failure: Mutex<Option<String>>,
    /// Whether it refuses to withdraw sets.
    engine_is_gone: Mutex<bool>,
    /// The target and the image.
    target: Mutex<String>,
}

impl Scripted {
    fn note(&self, what: String) {
        lock(&self.log).push(what);
    }

    fn count(&self, what: &str) -> usize {
        lock(&self.log).iter().filter(|line| line.starts_with(what)).count()
    }

    fn has(&self, hash: &str) -> bool {
        lock(&self.sets).contains_key(hash)
    }
}

fn hash_of(target: &str, texts: &[String]) -> String {
    format!("{target}:{}", texts.join(","))
}

#[async_trait]
impl Backend for Scripted {
    fn image(&self, _: &str) -> Option<String> {
        Some(format!("image of {}", lock(&self.target)))
    }

    async fn target(&self, _: &Language) -> Result<Target, BuildError> {
        let packages = [("numpy", "2.3.1"), ("pandas", "2.3.0")];
        Ok(Target {
            name: lock(&self.target).clone(),
            version: "3.13.5".to_owned(),
            packages: packages.map(|(name, version)| (name.to_owned(), version.to_owned())).into(),
            system: System::Node { cpu: "x86_64".to_owned(), libc: "glibc" },
        })
    }

    fn kept_lock(&self, set: &str, _: &Recipe) -> Result<Option<Lock>, LockError> {
        Ok(lock(&self.kept).get(set).cloned())
    }

    async fn lock(
        &self,
        _: &Language,
        recipe: &Recipe,
        say: Progress<'_>,
    ) -> Result<Lock, BuildError> {
        let kept = recipe.pins.versions.iter().map(|(name, version)| format!(" {name} {version}"));
        let kept: String = kept.collect();
        let kept = if kept.is_empty() { kept } else { format!(" keeping{kept}") };
        self.note(format!("lock {}{kept}", recipe.texts().join(",")));
        say("asking the index");
        if let Some(why) = lock(&self.failure).clone() {
            return Err(BuildError::Unsolvable { target: "any".to_owned(), said: why });
        }
        let target = lock(&self.target).clone();
        let hash = hash_of(&target, &recipe.texts());
        Ok(Lock { files: Default::default(), packages: Vec::new(), target, hash })
    }

    async fn build(
        &self,
        _: &Language,
        recipe: &Recipe,
        lock_: &Lock,
        say: Progress<'_>,
    ) -> Result<StoredSet, BuildError> {
        self.note(format!("build {}", lock_.hash));
        say("installing");
        if *lock(&self.is_slow) {
            self.go.notified().await;
        }
        let packages = recipe.requirements.iter().map(|requirement| Locked {
            name: requirement.name.clone(),
            version: "1".to_owned(),
            wanted_by: Vec::new(),
        });
        let sizes = lock(&self.sizes).clone();
        let set = StoredSet {
            hash: lock_.hash.clone(),
            interpreter: recipe.interpreter,
            target: lock_.target.clone(),
            index: String::new(),
            requirements: recipe.texts(),
            locks: recipe.pins.locks.clone(),
            packages: packages.collect(),
            modules: recipe.requirements.iter().map(|it| it.name.clone()).collect(),
            bytes: recipe
                .requirements
                .iter()
                .filter_map(|it| sizes.get(&it.name))
                .sum::<u64>()
                .max(SIZE),
            built: SystemTime::now(),
        };
        lock(&self.sets).insert(set.hash.clone(), (set.clone(), SystemTime::now()));
        self.note(format!("built {}", set.hash));
        Ok(set)
    }

    async fn provide(&self, _: &str, set: &PackageSet) -> Result<(), ExecuteError> {
        self.note(format!("provide {}", set.hash));
        Ok(())
    }

    async fn withdraw(&self, hash: &str) -> Result<(), EngineError> {
        self.note(format!("withdraw {hash}"));
        match *lock(&self.engine_is_gone) {
            true => Err(EngineError::Unusable("the engine does not answer".into())),
            false => Ok(()),
        }
    }

    fn find(&self, hash: &str) -> Option<StoredSet> {
        lock(&self.sets).get(hash).map(|(set, _)| set.clone())
    }

    fn is_there(&self, hash: &str) -> bool {
        self.has(hash)
    }

    fn all(&self) -> Vec<(StoredSet, SystemTime)> {
        lock(&self.sets).values().cloned().collect()
    }

    fn hold(&self, set: &StoredSet) -> Result<Arc<PackageSet>, StoreError> {
        if !self.has(&set.hash) {
            return Err(StoreError::NoSuchSet(set.hash.clone()));
        }
        let held = Arc::new(PackageSet {
            hash: set.hash.clone(),
            folder: "/nowhere".into(),
            interpreter: set.interpreter,
            modules: set.modules.clone(),
            held: File::open("/dev/null").unwrap(),
        });
        lock(&self.held).insert(set.hash.clone(), Arc::downgrade(&held));
        Ok(held)
    }

    fn remove(&self, hash: &str) -> Result<bool, StoreError> {
        let is_held = lock(&self.held).get(hash).is_some_and(|set| set.strong_count() > 0);
        if is_held || lock(&self.elsewhere).contains(hash) {
            return Err(StoreError::InUse(hash.to_owned()));
        }
        self.note(format!("remove {hash}"));
        Ok(lock(&self.sets).remove(hash).is_some())
    }

    fn remove_changed(&self, hash: &str) -> Result<(), StoreError> {
        self.remove(hash).map(drop)
    }

    // Like the store, which does not note every use.
    fn used(&self, _: &str) {}

    fn bytes(&self) -> u64 {
        lock(&self.sets).values().map(|(set, _)| set.bytes).sum()
    }
}

/// A server with two sets, and other keys of `packages` in the configuration.
struct Server {
    packages: Packages,
    script: Arc<Scripted>,
    python: Arc<Language>,
}

impl Server {
    fn new(more: Value) -> Self {
        let mut section = json!({ "sets": {
            "text": { "language": "python", "requirements": ["humanize", "rapidfuzz>=3"] },
            "web": { "language": "python", "requirements": ["httpx"] },
            "js": { "language": "javascript", "requirements": ["lodash@4"] }
        } });
        for (key, value) in more.as_object().unwrap() {
            section[key] = value.clone();
        }
        let text = json!({ "packages": section }).to_string();
        let config = Arc::new(Config::parse(&text, None, Path::new("/conf")).unwrap());
        let script = Arc::new(Scripted::default());
        *lock(&script.target) = "py".to_owned();
        let python = Arc::clone(&config.languages["python"]);
        let backend = Arc::clone(&script) as Arc<dyn Backend>;
        Self { packages: Packages::with(config, Some(backend), false), script, python }
    }

    fn on_demand(more: Value) -> Self {
        let mut on_demand = json!({ "enabled": true, "allow": ["*"], "maxSets": 2 });
        for (key, value) in more.as_object().unwrap() {
            on_demand[key] = value.clone();
        }
        Self::new(json!({ "onDemand": on_demand, "maxStoreMB": 6 }))
    }

    async fn get(&self, asked: &[&str]) -> Result<Arc<PackageSet>, Refusal> {
        self.get_for("one", asked).await
    }

    async fn get_for(&self, client: &str, asked: &[&str]) -> Result<Arc<PackageSet>, Refusal> {
        let asked: Vec<_> = asked.iter().map(|text| (*text).to_owned()).collect();
        self.packages.get(&self.python, &asked, &Client::named(client), None).await
    }

    fn slow(&self, is_slow: bool) {
        *lock(&self.script.is_slow) = is_slow;
        if !is_slow {
            self.script.go.notify_waiters();
            self.script.go.notify_one();
        }
    }

    fn fail(&self, why: Option<&str>) {
        *lock(&self.script.failure) = why.map(str::to_owned);
    }

    /// Waits until this was done.
    async fn until(&self, what: &str) {
        let done = async {
            while self.script.count(what) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(10 * SECOND, done)
            .await
            .unwrap_or_else(|_| panic!("no {what}: {:?}", lock(&self.script.log)));
    }
}

#[tokio::test]
async fn requests_at_the_same_time_build_a_set_once() {
    let server = Server::new(json!({}));
    server.slow(true);
    let asking =
        async { futures_util::future::join_all((0..20).map(|_| server.get(&["text"]))).await };
    let (sets, ()) = tokio::join!(asking, async {
        server.until("build").await;
        server.slow(false);
    });
    assert!(sets.iter().all(|set| set.as_ref().unwrap().hash == "py:humanize,rapidfuzz>=3"));
    assert_eq!((server.script.count("lock"), server.script.count("build ")), (1, 1));
    server.get(&["text"]).await.unwrap();
    assert_eq!(server.script.count("lock"), 1, "afterwards nothing is looked up anymore");
    let counts = server.packages.counts();
    assert_eq!((counts.built, counts.failed), (1, 0));
}

#[tokio::test]
async fn a_build_goes_on_without_requests_and_reports_its_steps() {
    let server = Server::new(json!({}));
    server.slow(true);
    let steps = Mutex::new(Vec::new());
    let asked = ["web".to_owned()];
    let client = Client::named("one");
    let say = |line: &str| lock(&steps).push(line.to_owned());
    let asking = server.packages.get(&server.python, &asked, &client, Some(&say));
    tokio::select! {
        _ = asking => panic!("it is not built yet"),
        () = server.until("build") => {}
    }
    let steps = lock(&steps).clone();
    let is_step = |line: &String| line == "asking the index" || line == "installing";
    assert!(steps.iter().any(is_step), "{steps:?}");
    server.slow(false);
    server.until("built").await;
    server.get(&["web"]).await.unwrap();
    assert_eq!(server.script.count("build "), 1);
}

#[tokio::test]
async fn the_end_of_the_server_ends_builds() {
    let server = Server::new(json!({}));
    server.slow(true);
    let (refused, ()) = tokio::join!(server.get(&["text"]), async {
        server.until("build").await;
        timeout(SECOND, server.packages.close()).await.expect("nothing goes on");
    });
    assert!(matches!(refused, Err(Refusal::Stopping)), "{refused:?}");
    assert_eq!(server.script.count("built"), 0);
}

#[tokio::test]
async fn several_sets_become_one_and_sets_of_another_language_are_refused() {
    let server = Server::new(json!({}));
    let set = server.get(&["web", "text", "web"]).await.unwrap();
    assert_eq!(set.hash, "py:httpx,humanize,rapidfuzz>=3");
    for (asked, expected) in [
        (vec!["js"], "is for javascript"),
        (vec!["texts"], "the sets for python are text, web"),
        (vec!["humanize"], "there is no set of packages \"humanize\""),
        (vec![], "0 packages are asked for"),
    ] {
        let refusal = server.get(&asked).await.unwrap_err();
        assert!(refusal.is_of_arguments() && refusal.to_string().contains(expected), "{refusal}");
    }
}

#[tokio::test]
async fn requests_get_only_packages_that_the_operator_allows() {
    let server = Server::on_demand(json!({ "allow": ["humanize", "types-*"] }));
    let set = server.get(&["humanize==4.*", "Types_PyYAML"]).await.unwrap();
    assert_eq!(set.hash, "py:humanize==4.*,types-pyyaml");
    // A set's own packages need no permission.
    server.get(&["web", "humanize"]).await.unwrap();
    let refusal = server.get(&["humanize", "requests", "rich"]).await.unwrap_err().to_string();
    assert!(refusal.contains("does not allow \"requests\", \"rich\""), "{refusal}");
    assert!(refusal.contains("humanize, types-*; the sets for python are text, web"), "{refusal}");
    let refusal = server.get(&["git+https://x"]).await.unwrap_err();
    assert!(matches!(refusal, Refusal::Bad { .. }), "{refusal}");
}

#[tokio::test]
async fn a_failure_is_remembered_and_tried_again_later() {
    let server = Server::new(json!({}));
    server.fail(Some("no such version"));
    let first = server.get(&["text"]).await.unwrap_err();
    assert!(first.to_string().contains("no such version"), "{first}");
    server.fail(None);
    let second = server.get(&["text"]).await.unwrap_err();
    let Refusal::FailedBefore { first: same, .. } = second else { panic!("{second}") };
    assert_eq!(same.to_string(), first.to_string());
    assert_eq!(server.script.count("lock"), 1, "the index is left alone");
    assert!(matches!(server.packages.listed()[1].state, SetState::Failed(_)));
    // An operator who builds it has changed something.
    server.packages.build("text", &|_| ()).await.unwrap();
    server.get(&["text"]).await.unwrap();
    let counts = server.packages.counts();
    assert_eq!((counts.built, counts.failed), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn missing_sets_are_built_again_until_the_index_is_back() {
    let server = Server::new(json!({}));
    server.fail(Some("the index does not answer"));
    let mut changed = server.packages.changed();
    server.packages.build_missing();
    tokio::time::sleep(600 * SECOND).await;
    let tried = server.script.count("lock httpx");
    assert!((3..15).contains(&tried), "{tried} tries in ten minutes");
    assert!(changed.has_changed().unwrap());
    server.fail(None);
    tokio::time::sleep(200 * SECOND).await;
    assert!(server.packages.listed().iter().all(|set| set.state == SetState::Ready));
    changed.mark_unchanged();

    *lock(&server.script.target) = "py2".to_owned();
    tokio::time::sleep(60 * SECOND).await;
    assert!(server.script.has("py2:httpx"), "an image that was updated needs other packages");
    assert_eq!(server.get(&["web"]).await.unwrap().hash, "py2:httpx");
    assert!(changed.has_changed().unwrap());
}

#[tokio::test]
async fn a_removed_set_is_built_again() {
    let server = Server::new(json!({}));
    drop(server.get(&["web"]).await.unwrap());
    lock(&server.script.sets).clear();
    assert_eq!(server.get(&["web"]).await.unwrap().hash, "py:httpx");
    assert_eq!(server.script.count("built"), 2);
}

#[tokio::test(start_paused = true)]
async fn sets_that_another_process_removes_are_withdrawn_from_the_engine() {
    let server = Server::on_demand(json!({}));
    server.packages.build_missing();
    let held = server.get(&["web"]).await.unwrap();
    drop(server.get(&["a"]).await.unwrap());
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(server.script.count("withdraw"), 0, "they are still there");
    lock(&server.script.sets).retain(|hash, _| hash != "py:a" && hash != "py:httpx");
    *lock(&server.script.engine_is_gone) = true;
    tokio::time::sleep(30 * SECOND).await;
    assert!(server.script.count("withdraw py:a") > 1, "it is tried again");
    *lock(&server.script.engine_is_gone) = false;
    tokio::time::sleep(30 * SECOND).await;
    let withdrawn = server.script.count("withdraw py:a");
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(server.script.count("withdraw py:a"), withdrawn, "it is gone");
    assert_eq!(server.script.count("withdraw py:httpx"), 0, "a program uses it");
    drop(held);
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(server.script.count("withdraw py:httpx"), 1);
    // The configuration names it, so it comes back by itself, and the other when it is asked for.
    assert!(server.script.has("py:httpx") && !server.script.has("py:a"));
    server.get(&["a"]).await.unwrap();
    assert_eq!(server.script.count("provide py:a"), 2);
}

#[tokio::test]
async fn a_lock_of_the_operator_is_used_and_has_to_fit_the_image() {
    let server = Server::new(json!({}));
    let lock_of = |target: &str| Lock {
        files: Default::default(),
        packages: Vec::new(),
        target: target.to_owned(),
        hash: "locked".to_owned(),
    };
    lock(&server.script.kept).insert("web".to_owned(), lock_of("py"));
    assert_eq!(server.get(&["web"]).await.unwrap().hash, "locked");
    assert_eq!(server.script.count("lock"), 0, "nothing is resolved");
    lock(&server.script.kept).insert("text".to_owned(), lock_of("old"));
    let refusal = server.get(&["text"]).await.unwrap_err().to_string();
    assert!(
        refusal.contains("was made for old") && refusal.contains("packages lock text"),
        "{refusal}"
    );
}

#[tokio::test]
async fn packages_of_the_image_are_known() {
    let server = Server::new(json!({}));
    for (wanted, expected) in [
        (&["numpy"][..], true),
        (&["NumPy>=2", "pandas==2.3.*"], true),
        (&["numpy<2"], false),
        (&["numpy", "httpx"], false),
        (&["pandas[excel]"], false),
    ] {
        let parse = |text: &&str| requirement::parse(Interpreter::Python, text).unwrap();
        let wanted: Vec<_> = wanted.iter().map(parse).collect();
        assert_eq!(server.packages.in_image(&server.python, &wanted).await, expected, "{wanted:?}");
    }
}

#[tokio::test]
async fn sets_are_found_by_their_modules_and_packages() {
    let server = Server::new(json!({}));
    assert_eq!(server.packages.sets_with("python", "httpx"), [""; 0]);
    server.packages.build("web", &|_| ()).await.unwrap();
    server.packages.build("text", &|_| ()).await.unwrap();
    assert_eq!(server.packages.sets_with("python", "httpx.client"), ["web"]);
    assert_eq!(server.packages.sets_with("javascript", "httpx"), [""; 0]);
    let wanted = |texts: &[&str]| {
        let parse = |text: &&str| requirement::parse(Interpreter::Python, text).unwrap();
        server.packages.satisfying("python", &texts.iter().map(parse).collect::<Vec<_>>())
    };
    assert_eq!(wanted(&["httpx"]).as_deref(), Some("web"));
    assert_eq!(wanted(&["httpx", "humanize"]), None);
    assert_eq!(wanted(&["httpx>1"]), None);
}
