//! The engine as an outside observer sees it. The tests must not trust the server, so they read the state from the
//! engine itself or from the kernel.

pub(crate) mod docker;
pub(crate) mod embedded;

use std::env::{self, VarError};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use serde_json::Value;

use super::eventually;

/// The variable that chooses the engine of the tests that run on either.
const CHOICE: &str = "ISOLATOR_TEST_ENGINE";

/// An engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Docker,
    Embedded,
}

impl Kind {
    /// The engine that the tests run on.
    pub(crate) fn chosen() -> Self {
        match env::var(CHOICE) {
            Err(VarError::NotPresent) => Self::Docker,
            Ok(name) => Self::named(&name),
            Err(error) => panic!("{CHOICE}: {error}"),
        }
    }

    /// The engine of a configuration.
    pub(crate) fn of(config: &Value) -> Self {
        Self::named(config["engine"]["kind"].as_str().expect("the configuration names its engine"))
    }

    fn named(name: &str) -> Self {
        let known = [Self::Docker, Self::Embedded].into_iter().find(|kind| kind.name() == name);
        known.unwrap_or_else(|| panic!("{name:?} is no engine"))
    }

    /// Its name in a configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Embedded => "embedded",
        }
    }

    /// A look at it. `state` is where those that are looked at keep their state.
    pub(crate) async fn look(self, state: &Path) -> Box<dyn Engine> {
        match self {
            Self::Docker => Box::new(docker::Bystander::new().await),
            Self::Embedded => Box::new(embedded::Bystander::new(state)),
        }
    }
}

/// The state of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Running,
    Paused,
    /// It exists, and nothing runs in it.
    Stopped,
}

/// A sandbox that exists.
#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) state: State,
}

/// The limits of a sandbox.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) memory: u64,
    pub(crate) processes: u64,
}

/// An engine as the tests see it, without the server.
#[async_trait]
pub(crate) trait Engine: Send + Sync {
    fn kind(&self) -> Kind;

    /// All sandboxes of an instance.
    async fn sandboxes(&self, instance: &str) -> Vec<Sandbox>;

    /// Digest of the image that a sandbox was made from.
    async fn image_of(&self, sandbox: &str) -> String;

    /// Digest of an image.
    async fn digest(&self, image: &str) -> String;

    /// Gives an image another name.
    async fn tag(&self, image: &str, name: &str);

    /// Takes such a name away again.
    async fn untag(&self, name: &str);

    /// All regular files of an image, read as root: the path of each, and its mode.
    async fn files(&self, image: &str) -> Vec<(PathBuf, u32)>;

    async fn limits(&self, sandbox: &str) -> Limits;

    /// The command lines of what runs in a sandbox.
    async fn commands(&self, sandbox: &str) -> Vec<String>;

    /// Removes a sandbox by force. One that has gone by itself is removed.
    async fn remove(&self, sandbox: &str);

    /// Tries to pause a sandbox.
    async fn pause(&self, sandbox: &str) -> bool;

    async fn unpause(&self, sandbox: &str);

    /// Everything of an instance that is there, in words.
    async fn left(&self, instance: &str) -> Vec<String>;

    /// Everything that an instance in this process, which has ended, has left.
    async fn left_of_process(&self, process: u32) -> Vec<String>;
}

impl dyn Engine {
    /// An instance's sandboxes in a state.
    pub(crate) async fn in_state(&self, instance: &str, state: State) -> Vec<String> {
        let all = self.sandboxes(instance).await;
        all.into_iter().filter(|found| found.state == state).map(|found| found.id).collect()
    }

    /// Waits until exactly `count` sandboxes of an instance exist and all are paused.
    pub(crate) async fn until_paused(&self, instance: &str, count: usize) -> Vec<String> {
        let mut found = Vec::new();
        eventually(&format!("{count} paused sandboxes"), async || {
            found = self.sandboxes(instance).await;
            found.len() == count && found.iter().all(|sandbox| sandbox.state == State::Paused)
        })
        .await;
        found.into_iter().map(|sandbox| sandbox.id).collect()
    }

    /// Asserts that an instance has nothing on the engine any more.
    pub(crate) async fn assert_nothing_left(&self, instance: &str) {
        let left = self.left(instance).await;
        assert!(left.is_empty(), "left: {left:#?}");
    }

    /// Asserts that a process that has ended has nothing on the engine any more.
    pub(crate) async fn assert_nothing_left_of(&self, process: u32) {
        let left = self.left_of_process(process).await;
        assert!(left.is_empty(), "left: {left:#?}");
    }
}
