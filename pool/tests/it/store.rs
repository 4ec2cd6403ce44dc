//! The store of images: what comes in, what is refused, and what is left afterwards.

mod hostile;
mod layers;
mod life;
mod random;
mod registry;
mod sources;
mod support;
