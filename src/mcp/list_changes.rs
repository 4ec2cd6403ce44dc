//! Notifies clients when snippets change, because that changes the tools' schemas and the resources, and when a set of packages
//! comes or goes.
//!
//! The folder is polled every two seconds, but only while there are listeners. Each listener knows what it was sent
//! ([`ChangeStream`]), so that a slow one misses nothing and delays no other.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{ResourceUpdatedNotificationParam, SubscriptionFilter};
use rmcp::service::{Peer, ServiceError, SubscriptionContext, SubscriptionSendError};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use isolator_pool::lock::lock;

use crate::current::Current;
use crate::mcp::resources;
use crate::packages::{Packages, SetState, SetSummary};
use crate::request::snippets::{SnippetSummary, SnippetVersion, Snippets};

/// The interval between two looks at the folder. A user who saves a file and turns to the host sees the change, and the load is
/// negligible.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The changes of the snippets' folder, for all listeners.
pub(crate) struct Changes {
    now: Current<Watched>,
    known: watch::Sender<Arc<Folder>>,
    is_polling: Mutex<bool>,
    tasks: TaskTracker,
    closed: CancellationToken,
}

/// The folder and packages that are watched. Another configuration may have others.
struct Watched {
    snippets: Arc<Snippets>,
    packages: Packages,
}

/// The folder of the snippets as it was seen.
#[derive(Debug, Default, PartialEq, Eq)]
struct Folder {
    /// A number that differs when the lists have changed with the configuration.
    lists: u64,
    versions: Vec<(String, SnippetVersion)>,
    listed: Vec<SnippetSummary>,
}

/// The sets of packages as they were seen: their names, and their hashes if they are there, or why they are not.
type Sets = Vec<(String, Result<String, &'static str>)>;

/// The changes that one listener was not notified of yet.
pub(crate) struct ChangeStream {
    folder: watch::Receiver<Arc<Folder>>,
    sent: Arc<Folder>,
    now: Current<Watched>,
    sets_changed: watch::Receiver<u64>,
    sent_sets: Sets,
    closed: CancellationToken,
}

/// A change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Whether the tools and the resources have to be listed again.
    pub lists: bool,
    /// Addresses of the resources that are not what they were.
    pub resources: BTreeSet<String>,
}

/// A session of a client with a revision before 2026-07-28, which gets list changes without subscribing.
#[derive(Debug)]
pub(crate) struct Session {
    /// Addresses of the resources it subscribed to.
    wanted: Arc<Mutex<BTreeSet<String>>>,
    ended: CancellationToken,
    _end: DropGuard,
    is_notified: Mutex<bool>,
}

impl Changes {
    /// The changes of a folder from now on.
    pub(crate) fn new(snippets: Arc<Snippets>, packages: Packages) -> Arc<Self> {
        let folder = Folder { lists: 0, versions: snippets.versions(), listed: snippets.list() };
        Arc::new(Self {
            now: Current::new(Watched { snippets, packages }),
            known: watch::Sender::new(Arc::new(folder)),
            is_polling: Mutex::new(false),
            tasks: TaskTracker::new(),
            closed: CancellationToken::new(),
        })
    }

    /// Looks at those of another configuration from now on.
    pub(crate) fn reconfigure(
        &self,
        snippets: Arc<Snippets>,
        packages: Packages,
        has_other_lists: bool,
    ) {
        let (versions, listed) = (snippets.versions(), snippets.list());
        self.now.set(Watched { snippets, packages });
        self.known.send_modify(|known| {
            let lists = known.lists + u64::from(has_other_lists);
            *known = Arc::new(Folder { lists, versions, listed });
        });
    }

    /// The changes from now on. One that happened while no client was listening is reported at once, because the
    /// caller may not have seen it.
    pub(crate) fn follow(self: &Arc<Self>) -> ChangeStream {
        let mut is_polling = lock(&self.is_polling);
        let folder = self.known.subscribe();
        let sent = Arc::clone(&folder.borrow());
        if !*is_polling {
            *is_polling = true;
            self.tasks.spawn(poll_folder(Arc::downgrade(self), self.closed.clone()));
        }
        let now = self.now.get();
        let packages = &now.packages;
        let sets_changed = packages.changed();
        ChangeStream {
            folder,
            sent,
            sent_sets: sets(packages),
            now: self.now.clone(),
            sets_changed,
            closed: self.closed.clone(),
        }
    }

    /// Ends all notifications.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Compares the folder with what is known. Returns whether there still are listeners.
    fn poll(&self) -> bool {
        let mut is_polling = lock(&self.is_polling);
        *is_polling = self.known.receiver_count() > 0;
        if !*is_polling {
            return false;
        }
        drop(is_polling);
        let now = self.now.get();
        let snippets = &now.snippets;
        let versions = snippets.versions();
        self.known.send_if_modified(|known| {
            let is_new = versions != known.versions;
            if is_new {
                let lists = known.lists;
                *known = Arc::new(Folder { lists, versions, listed: snippets.list() });
            }
            is_new
        });
        true
    }

    /// Notifies a listener of what it subscribed to, until it disconnects or the server stops.
    pub(crate) async fn tell(self: &Arc<Self>, listener: &SubscriptionContext) {
        let notified = async {
            let mut news = self.follow();
            while let Some(change) = news.next().await {
                tell(listener, &change).await?;
            }
            Ok::<_, SubscriptionSendError>(())
        };
        tokio::select! {
            () = listener.cancelled() => {}
            sent = notified => if let Err(error) = sent {
                tracing::debug!(%error, "a change notification could not be sent");
            },
        }
    }

    /// Notifies a session of all changes of the lists, and of the resources it subscribed to, until it ends.
    pub(crate) fn tell_session(self: &Arc<Self>, session: &Session, peer: Peer<RoleServer>) {
        if std::mem::replace(&mut *lock(&session.is_notified), true) {
            return;
        }
        let mut news = self.follow();
        let wanted = Arc::clone(&session.wanted);
        let ended = session.ended.clone();
        self.tasks.spawn(async move {
            let notified = async {
                while let Some(change) = news.next().await {
                    tell_session(&peer, &wanted, &change).await?;
                }
                Ok::<_, ServiceError>(())
            };
            tokio::select! {
                () = ended.cancelled() => {}
                sent = notified => if let Err(error) = sent {
                    tracing::debug!(%error, "a change notification could not be sent");
                },
            }
        });
    }
}

/// Polls the folder while there are listeners.
async fn poll_folder(changes: Weak<Changes>, closed: CancellationToken) {
    // At once, because the last poll may be long ago.
    while changes.upgrade().is_some_and(|changes| changes.poll()) {
        tokio::select! {
            () = closed.cancelled() => return,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
}

impl ChangeStream {
    /// The next change; `None` after the end.
    async fn next(&mut self) -> Option<Change> {
        loop {
            tokio::select! {
                () = self.closed.cancelled() => return None,
                changed = self.folder.changed() => changed.ok()?,
                changed = self.sets_changed.changed() => changed.ok()?,
            }
            let now = Arc::clone(&self.folder.borrow_and_update());
            let before = std::mem::replace(&mut self.sent, now);
            let mut change = Change::between(&before, &self.sent);
            self.sets_changed.mark_unchanged();
            let before = std::mem::replace(&mut self.sent_sets, sets(&self.now.get().packages));
            change.add(&before, &self.sent_sets);
            if change.lists || !change.resources.is_empty() {
                return Some(change);
            }
        }
    }
}

impl Change {
    fn between(before: &Folder, now: &Folder) -> Self {
        let only_in = |a: &Folder, b: &Folder| -> Vec<String> {
            let gone = a.versions.iter().filter(|version| !b.versions.contains(version));
            gone.map(|(name, _)| resources::of_snippet(name)).collect()
        };
        let mut resources: BTreeSet<_> =
            only_in(before, now).into_iter().chain(only_in(now, before)).collect();
        let is_reconfigured = before.lists != now.lists;
        if is_reconfigured {
            resources.insert(resources::OF_LANGUAGES.to_owned());
        }
        Self { lists: is_reconfigured || before.listed != now.listed, resources }
    }

    /// Adds what has changed about sets of packages.
    fn add(&mut self, before: &Sets, now: &Sets) {
        let changed = now.iter().filter(|set| !before.contains(set));
        let changed: Vec<_> = changed.map(|(name, _)| resources::of_package_set(name)).collect();
        if !changed.is_empty() {
            self.resources.extend(changed);
            self.resources.insert(resources::OF_LANGUAGES.to_owned());
        }
        let there = |sets: &Sets| -> BTreeSet<(String, String)> {
            let there = sets.iter().filter_map(|(name, hash)| Some((name, hash.as_ref().ok()?)));
            there.map(|(name, hash)| (name.clone(), hash.clone())).collect()
        };
        self.lists |= there(before) != there(now);
    }
}

/// The sets of packages as they are now.
fn sets(packages: &Packages) -> Sets {
    let state = |listed: SetSummary| {
        let state = match (listed.state, listed.set) {
            (SetState::Ready, Some(set)) => Ok(set.hash),
            (SetState::Ready | SetState::Waiting, _) => Err("waiting"),
            (SetState::Building(_), _) => Err("building"),
            (SetState::Failed(_), _) => Err("failed"),
        };
        (listed.name, state)
    };
    packages.listed().into_iter().map(state).collect()
}

impl Session {
    pub(crate) fn subscribe(&self, uri: String) {
        lock(&self.wanted).insert(uri);
    }

    pub(crate) fn unsubscribe(&self, uri: &str) {
        lock(&self.wanted).remove(uri);
    }
}

impl Default for Session {
    fn default() -> Self {
        let ended = CancellationToken::new();
        let _end = ended.clone().drop_guard();
        Self { wanted: Arc::default(), ended, _end, is_notified: Mutex::default() }
    }
}

async fn tell(
    listener: &SubscriptionContext,
    change: &Change,
) -> Result<(), SubscriptionSendError> {
    let SubscriptionFilter { tools_list_changed, resources_list_changed, .. } = listener.accepted();
    let sink = listener.sink();
    if change.lists && *tools_list_changed == Some(true) {
        sink.notify_tool_list_changed().await?;
    }
    if change.lists && *resources_list_changed == Some(true) {
        sink.notify_resource_list_changed().await?;
    }
    for uri in listener.accepted().resource_subscriptions.iter().flatten() {
        if change.resources.contains(uri) {
            sink.notify_resource_updated(uri).await?;
        }
    }
    Ok(())
}

async fn tell_session(
    peer: &Peer<RoleServer>,
    wanted: &Mutex<BTreeSet<String>>,
    change: &Change,
) -> Result<(), ServiceError> {
    if change.lists {
        peer.notify_tool_list_changed().await?;
        peer.notify_resource_list_changed().await?;
    }
    let wanted: Vec<_> = lock(wanted).intersection(&change.resources).cloned().collect();
    for uri in wanted {
        peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn folder() -> (tempfile::TempDir, Arc<Changes>) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("prompts")).unwrap();
        write(folder.path(), "a.py", "# One.\n");
        let config = Config::parse("{}", None, folder.path()).unwrap();
        let snippets = Arc::new(Snippets::new(&config));
        let changes = Changes::new(snippets, Packages::unused(Arc::new(config), true));
        (folder, changes)
    }

    fn write(folder: &Path, name: &str, code: &str) {
        fs::write(folder.join("prompts").join(name), code).unwrap();
    }

    fn change(lists: bool, resources: &[&str]) -> Change {
        Change { lists, resources: resources.iter().map(|uri| (*uri).to_owned()).collect() }
    }

    #[tokio::test(start_paused = true)]
    async fn each_change_is_sent_once_to_every_listener() {
        let (folder, changes) = folder();
        let (mut one, mut two) = (changes.follow(), changes.follow());
        write(folder.path(), "b.js", "");
        let expected = change(true, &["snippet://b"]);
        assert_eq!(one.next().await, Some(expected));
        write(folder.path(), "a.py", "# One.\nprint()\n");
        assert_eq!(one.next().await, Some(change(false, &["snippet://a"])));
        // A slow listener is notified of both at once.
        assert_eq!(two.next().await, Some(change(true, &["snippet://a", "snippet://b"])));
        let nothing = tokio::time::timeout(POLL_INTERVAL * 3, two.next()).await;
        assert!(nothing.is_err(), "{nothing:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_without_listeners_is_sent_to_the_first_one() {
        let (folder, changes) = folder();
        fs::remove_file(folder.path().join("prompts/a.py")).unwrap();
        let expected = change(true, &["snippet://a"]);
        assert_eq!(changes.follow().next().await, Some(expected));
    }

    #[tokio::test(start_paused = true)]
    async fn the_folder_is_polled_only_while_there_are_listeners() {
        let (_folder, changes) = folder();
        let is_polling = || *lock(&changes.is_polling);
        for _ in 0..2 {
            assert!(!is_polling());
            let news = changes.follow();
            tokio::time::sleep(POLL_INTERVAL * 2).await;
            assert!(is_polling());
            drop(news);
            tokio::time::sleep(POLL_INTERVAL * 2).await;
        }
        assert!(!is_polling() && changes.tasks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_is_reported() {
        let (_folder, changes) = folder();
        let mut news = changes.follow();
        changes.close();
        assert_eq!(news.next().await, None);
        assert_eq!(changes.follow().next().await, None);
    }
}
