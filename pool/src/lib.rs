//! Pools of pre-created, paused, single-use sandboxes.
//!
//! # Theory of operation
//!
//! Making a sandbox takes hundreds of milliseconds, thawing one takes few. So sandboxes are made
//! ahead of the requests, up to the point where a program could start, and wait there frozen. Each
//! serves one request and is removed.
//!
//! A sandbox lives like this; at each step somebody owns it:
//!
//! | step | owner | if the owner's process dies there |
//! |---|---|---|
//! | named, then created and started | the task that makes it | the next start sweeps it by its labels |
//! | armed: the runner inside is parked, waiting for a job | the same task | the same |
//! | paused, on the shelf of its pool | the shelf | the same |
//! | taken, thawed, running a job | the request | the same |
//! | given up | the reaper, until the engine says that it is gone | the same |
//!
//! Ownership is a [`Lease`](reaper::Lease) on the sandbox's name, taken out before the engine is
//! asked for anything. Dropping the lease, by whatever way, hands the name to the reaper. So there
//! is no path, not a panic and not a cancelled request, on which a sandbox is forgotten; and what a
//! killed server leaves behind is found by the labels that its next start proves to be a dead
//! instance's.
//!
//! Cold, warm and hot starts are one path that is walked to different points ahead of time.
//!
//! # Layout
//!
//! - [`engine`]: what is asked of the software that makes sandboxes; [`docker`] answers it.
//! - [`pools`]: the door for requests. Behind it [`admission`], [`pool`], the shelf, the reaper.
//! - [`workspace`] → [`run`] → [`outcome`]: one request's way through one sandbox; [`output`] is what comes
//!   meanwhile.
//! - [`owner`], [`sweep`]: whose a sandbox is, and what becomes of the dead's.
//! - [`preload`]: interpreters that are started ahead of their program.
//! - [`images`]: how images come to be on an engine. [`store`]: images without a container engine. [`limits`]: what a sandbox may use.

pub mod engine;
mod error_chain;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod lock;
pub mod pool;
pub mod quote;
pub mod run;
pub mod sandbox;

pub use isolator_runner::wire::{OutputLimits, WantedFiles};
pub use sandbox::SandboxError;
pub use sandbox::connection::ConnectionError;
