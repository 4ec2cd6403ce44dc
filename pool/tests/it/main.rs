//! Tests of the pools on a scripted engine, of the image store, and of the runner.

mod fake;

mod admission;
mod agents;
mod cancellation;
mod close;
mod forks;
mod hanging;
mod images;
mod installs;
mod interleavings;
mod kernels;
mod packages;
mod parked;
mod preload;
mod reconfigure;
mod refill;
mod runner;
mod sessions;
mod sizing;
mod starts;
mod store;
