//! The ways in which a program is started.

use isolator_pool::pool::Start;
use serde::Serialize;

/// A way to start a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Flow {
    /// A container made for the request: create, upload, start, wait, logs.
    DockerCold,
    /// A paused container, used the obvious way: unpause, upload, exec, inspect.
    DockerNaiveWarm,
    /// A server without a pool.
    IsolatorCold,
    /// A server whose sandboxes are all paused.
    IsolatorPaused,
    /// A server whose first sandbox is thawed.
    IsolatorHot,
}

/// The pool of each language on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolShape {
    /// Sandboxes at rest.
    pub size: usize,
    /// How many of them are thawed.
    pub hot: usize,
}

impl Flow {
    /// All of them, as they are shown.
    pub const ALL: [Self; 5] = [
        Self::DockerCold,
        Self::DockerNaiveWarm,
        Self::IsolatorCold,
        Self::IsolatorPaused,
        Self::IsolatorHot,
    ];

    /// What tables and errors call it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::DockerCold => "docker API, cold",
            Self::DockerNaiveWarm => "docker API, naive warm",
            Self::IsolatorCold => "isolator, cold",
            Self::IsolatorPaused => "isolator, paused",
            Self::IsolatorHot => "isolator, hot",
        }
    }

    /// The pools of the server that serves it, and how its calls have to start; `None` where no
    /// server takes part.
    pub const fn server(self) -> Option<(PoolShape, Start)> {
        match self {
            Self::DockerCold | Self::DockerNaiveWarm => None,
            Self::IsolatorCold => Some((PoolShape { size: 0, hot: 0 }, Start::Cold)),
            Self::IsolatorPaused => Some((PoolShape { size: 1, hot: 0 }, Start::Warm)),
            // With a paused one behind it, as the defaults have it: that the new one is paused
            // shows from outside that the refill is over.
            Self::IsolatorHot => Some((PoolShape { size: 2, hot: 1 }, Start::Hot)),
        }
    }
}
