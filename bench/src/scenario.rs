//! The ways in which a program is started.

use isolator_pool::pool::Start;
use serde::Serialize;

/// A kind of engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetKind {
    /// Docker, or an engine that speaks its API.
    Docker,
    /// Isolator's own engine.
    Embedded,
}

/// A way to start a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// A container made for the request: create, upload, start, wait, logs.
    DockerCold,
    /// A paused container, used the obvious way: unpause, upload, exec, inspect.
    DockerNaiveWarm,
    /// A server on Docker without a pool.
    IsolatorCold,
    /// A server on Docker whose sandboxes are all paused.
    IsolatorPaused,
    /// A server on Docker whose first sandbox is thawed.
    IsolatorHot,
    /// A server on the embedded engine without a pool.
    EmbeddedCold,
    /// A server on the embedded engine whose sandboxes are all paused.
    EmbeddedPaused,
    /// A server on the embedded engine whose first sandbox is thawed.
    EmbeddedHot,
}

/// The pool of each language on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolShape {
    /// Sandboxes that wait.
    pub size: usize,
    /// How many of them are thawed.
    pub hot: usize,
}

/// What server a scenario needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerSpec {
    /// The kind of its engine.
    pub kind: TargetKind,
    /// Its pools.
    pub pool: PoolShape,
    /// How its calls must get their sandboxes.
    pub start: Start,
}

impl Scenario {
    /// The plain Docker API.
    pub const PLAIN: [Self; 2] = [Self::DockerCold, Self::DockerNaiveWarm];

    /// Everything that is measured of a Docker engine, as it is shown.
    pub const DOCKER: [Self; 5] = [
        Self::DockerCold,
        Self::DockerNaiveWarm,
        Self::IsolatorCold,
        Self::IsolatorPaused,
        Self::IsolatorHot,
    ];

    /// Everything that is measured of the embedded engine, as it is shown.
    pub const EMBEDDED: [Self; 3] = [Self::EmbeddedCold, Self::EmbeddedPaused, Self::EmbeddedHot];

    /// What tables and errors call it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::DockerCold => "docker API, cold",
            Self::DockerNaiveWarm => "docker API, naive warm",
            Self::IsolatorCold => "isolator on docker, cold",
            Self::IsolatorPaused => "isolator on docker, paused",
            Self::IsolatorHot => "isolator on docker, hot",
            Self::EmbeddedCold => "isolator embedded, cold",
            Self::EmbeddedPaused => "isolator embedded, paused",
            Self::EmbeddedHot => "isolator embedded, hot",
        }
    }

    /// The server it needs; `None` where none takes part.
    pub const fn server(self) -> Option<ServerSpec> {
        let kind = match self {
            Self::DockerCold | Self::DockerNaiveWarm => return None,
            Self::IsolatorCold | Self::IsolatorPaused | Self::IsolatorHot => TargetKind::Docker,
            Self::EmbeddedCold | Self::EmbeddedPaused | Self::EmbeddedHot => TargetKind::Embedded,
        };
        let (size, hot, start) = match self {
            Self::IsolatorPaused | Self::EmbeddedPaused => (1, 0, Start::Warm),
            // With a paused one behind it, as the defaults have it: that the new one is paused
            // shows from outside that the refill is over.
            Self::IsolatorHot | Self::EmbeddedHot => (2, 1, Start::Hot),
            _ => (0, 0, Start::Cold),
        };
        Some(ServerSpec { kind, pool: PoolShape { size, hot }, start })
    }
}
