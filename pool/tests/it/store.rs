//! The image store: what it accepts, what it refuses, and what is left afterwards.

mod hostile;
mod layers;
mod life;
mod random;
mod registry;
mod sources;
mod support;
