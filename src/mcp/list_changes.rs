//! What changes between the calls, and who is told: snippets come, go and are edited, which changes the tools'
//! schemas and the resources.
//!
//! The folder is looked at every two seconds, and only while somebody wants to know. What each has been told is
//! its own affair ([`News`]), so that one who is slow misses nothing and keeps nobody waiting.

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

use crate::mcp::resources;
use crate::request::snippets::{Listed, Snippets, Version};

/// Soon enough for somebody who has saved a file and turns to the host, and nothing for the machine.
const EVERY: Duration = Duration::from_secs(2);

/// What changes, for all who want to know.
pub(crate) struct Changes {
    snippets: Arc<Snippets>,
    known: watch::Sender<Arc<Folder>>,
    is_looking: Mutex<bool>,
    tasks: TaskTracker,
    closed: CancellationToken,
}

/// The folder of the snippets as it was seen.
#[derive(Debug, Default, PartialEq, Eq)]
struct Folder {
    versions: Vec<(String, Version)>,
    listed: Vec<Listed>,
}

/// The changes that one who wants to know has not been told yet.
pub(crate) struct News {
    folder: watch::Receiver<Arc<Folder>>,
    told: Arc<Folder>,
    closed: CancellationToken,
}

/// What has changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Whether the tools and the resources have to be listed again.
    pub lists: bool,
    /// Addresses of the resources that are not what they were.
    pub resources: BTreeSet<String>,
}

/// A session of a client that was not asked what it wants to know, as revisions before 2026-07-28 have them.
#[derive(Debug)]
pub(crate) struct Session {
    /// Addresses of the resources it wants to know of.
    wanted: Arc<Mutex<BTreeSet<String>>>,
    ended: CancellationToken,
    _end: DropGuard,
    is_told: Mutex<bool>,
}

impl Changes {
    /// What changes in a folder of snippets from now on.
    pub(crate) fn new(snippets: Arc<Snippets>) -> Arc<Self> {
        let folder = Folder { versions: snippets.versions(), listed: snippets.list() };
        Arc::new(Self {
            snippets,
            known: watch::Sender::new(Arc::new(folder)),
            is_looking: Mutex::new(false),
            tasks: TaskTracker::new(),
            closed: CancellationToken::new(),
        })
    }

    /// The changes from now on. There may be one already that nobody has looked for, which is told at once:
    /// nobody knows what the caller saw of it.
    pub(crate) fn follow(self: &Arc<Self>) -> News {
        let mut is_looking = lock(&self.is_looking);
        let folder = self.known.subscribe();
        let told = Arc::clone(&folder.borrow());
        if !*is_looking {
            *is_looking = true;
            self.tasks.spawn(keep_looking(Arc::downgrade(self), self.closed.clone()));
        }
        News { folder, told, closed: self.closed.clone() }
    }

    /// Nobody is told any more.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Whether somebody still wants to know.
    fn look(&self) -> bool {
        let mut is_looking = lock(&self.is_looking);
        *is_looking = self.known.receiver_count() > 0;
        if !*is_looking {
            return false;
        }
        drop(is_looking);
        let versions = self.snippets.versions();
        self.known.send_if_modified(|known| {
            let is_new = versions != known.versions;
            if is_new {
                *known = Arc::new(Folder { versions, listed: self.snippets.list() });
            }
            is_new
        });
        true
    }

    /// Tells one that listens what it asked for, until it has gone or the server stops.
    pub(crate) async fn tell(self: &Arc<Self>, listener: &SubscriptionContext) {
        let told = async {
            let mut news = self.follow();
            while let Some(change) = news.next().await {
                tell(listener, &change).await?;
            }
            Ok::<_, SubscriptionSendError>(())
        };
        tokio::select! {
            () = listener.cancelled() => {}
            told = told => if let Err(error) = told {
                tracing::debug!(%error, "a change could not be told");
            },
        }
    }

    /// Tells a session of all changes of the lists, and of the resources it wants to know of, until it ends.
    pub(crate) fn tell_session(self: &Arc<Self>, session: &Session, peer: Peer<RoleServer>) {
        if std::mem::replace(&mut *lock(&session.is_told), true) {
            return;
        }
        let mut news = self.follow();
        let wanted = Arc::clone(&session.wanted);
        let ended = session.ended.clone();
        self.tasks.spawn(async move {
            let told = async {
                while let Some(change) = news.next().await {
                    tell_session(&peer, &wanted, &change).await?;
                }
                Ok::<_, ServiceError>(())
            };
            tokio::select! {
                () = ended.cancelled() => {}
                told = told => if let Err(error) = told {
                    tracing::debug!(%error, "a change could not be told");
                },
            }
        });
    }
}

/// Looks at the folder for as long as somebody wants to know.
async fn keep_looking(changes: Weak<Changes>, closed: CancellationToken) {
    // At once, because nobody may have looked for long.
    while changes.upgrade().is_some_and(|changes| changes.look()) {
        tokio::select! {
            () = closed.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

impl News {
    /// The next change; `None` when there are none any more.
    async fn next(&mut self) -> Option<Change> {
        loop {
            tokio::select! {
                () = self.closed.cancelled() => return None,
                changed = self.folder.changed() => changed.ok()?,
            }
            let now = Arc::clone(&self.folder.borrow_and_update());
            let before = std::mem::replace(&mut self.told, now);
            let change = Change::between(&before, &self.told);
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
        let resources = only_in(before, now).into_iter().chain(only_in(now, before)).collect();
        Self { lists: before.listed != now.listed, resources }
    }
}

impl Session {
    /// Notes that its client wants to know of a resource.
    pub(crate) fn want(&self, uri: String) {
        lock(&self.wanted).insert(uri);
    }

    /// Notes that it does not want to know of it any more.
    pub(crate) fn forget(&self, uri: &str) {
        lock(&self.wanted).remove(uri);
    }
}

impl Default for Session {
    fn default() -> Self {
        let ended = CancellationToken::new();
        let _end = ended.clone().drop_guard();
        Self { wanted: Arc::default(), ended, _end, is_told: Mutex::default() }
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
        let changes = Changes::new(Arc::new(Snippets::new(&config)));
        (folder, changes)
    }

    fn write(folder: &Path, name: &str, code: &str) {
        fs::write(folder.join("prompts").join(name), code).unwrap();
    }

    fn change(lists: bool, resources: &[&str]) -> Change {
        Change { lists, resources: resources.iter().map(|uri| (*uri).to_owned()).collect() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_told_once_and_to_everybody() {
        let (folder, changes) = folder();
        let (mut one, mut two) = (changes.follow(), changes.follow());
        write(folder.path(), "b.js", "");
        let expected = change(true, &["snippet://b"]);
        assert_eq!(one.next().await, Some(expected));
        write(folder.path(), "a.py", "# One.\nprint()\n");
        assert_eq!(one.next().await, Some(change(false, &["snippet://a"])));
        // Who was slow is told both at once.
        assert_eq!(two.next().await, Some(change(true, &["snippet://a", "snippet://b"])));
        let nothing = tokio::time::timeout(EVERY * 3, two.next()).await;
        assert!(nothing.is_err(), "{nothing:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_looked_for_is_told_to_the_first_who_wants_to_know() {
        let (folder, changes) = folder();
        fs::remove_file(folder.path().join("prompts/a.py")).unwrap();
        let expected = change(true, &["snippet://a"]);
        assert_eq!(changes.follow().next().await, Some(expected));
    }

    #[tokio::test(start_paused = true)]
    async fn the_folder_is_looked_at_only_while_somebody_wants_to_know() {
        let (_folder, changes) = folder();
        let is_looking = || *lock(&changes.is_looking);
        for _ in 0..2 {
            assert!(!is_looking());
            let news = changes.follow();
            tokio::time::sleep(EVERY * 2).await;
            assert!(is_looking());
            drop(news);
            tokio::time::sleep(EVERY * 2).await;
        }
        assert!(!is_looking() && changes.tasks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_is_told() {
        let (_folder, changes) = folder();
        let mut news = changes.follow();
        changes.close();
        assert_eq!(news.next().await, None);
        assert_eq!(changes.follow().next().await, None);
    }
}
