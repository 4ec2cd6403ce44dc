//! A container engine that exists only in memory, and a server's pools on top of it.
//!
//! The engine records exactly what it was asked for. When something breaks the rules of a sandbox's life, the engine
//! notes it at once and the test fails at its end. (A panic inside a task of the pools would go unnoticed.) The
//! runners inside its sandboxes speak the real wire protocol.

// Each test binary uses a part of this.
#![allow(dead_code)]

mod agent;
mod calls;
mod engine;
mod forks;
mod runner;
mod session;
mod world;

use std::time::Duration;

use isolator_pool::engine::Call;

pub(crate) use self::agent::PID;
use self::calls::*;
pub(crate) use self::engine::*;
pub(crate) use self::forks::*;
use self::runner::*;
pub(crate) use self::world::*;

/// The image that is there from the start.
pub(crate) const IMAGE: &str = "language:1";

/// The pool that a [`World`] has by default.
pub(crate) const POOL: &str = "language";

const CALLS: usize = Call::Bind as usize + 1;

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
