//! The image store: what it accepts, what it refuses, and what is left afterwards.

mod hostile;
mod hostile_registry;
mod layers;
mod life;
mod mountpoints;
mod random;
mod registry;
mod sources;
mod support;
