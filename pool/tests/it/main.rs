//! The pools' interleavings on a scripted engine, the store of images, and the runner.

mod fake;

mod admission;
mod cancellation;
mod close;
mod hanging;
mod images;
mod interleavings;
mod parked;
mod preload;
mod refill;
mod runner;
mod starts;
mod store;
