//! The store of images: what comes in, what is refused, and what is left afterwards.

#[path = "store/hostile.rs"]
mod hostile;
#[path = "store/layers.rs"]
mod layers;
#[path = "store/life.rs"]
mod life;
#[path = "store/random.rs"]
mod random;
#[path = "store/registry.rs"]
mod registry;
#[path = "store/sources.rs"]
mod sources;
#[path = "store/support.rs"]
mod support;
