//! Builds the runner as a static program, which the server carries inside itself.
//!
//! It has its own target directory: the outer build holds the lock of the usual one.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let target = variable("TARGET");
    let directory = PathBuf::from(variable("OUT_DIR")).join("runner");
    println!("cargo::rerun-if-changed=runner");
    println!("cargo::rerun-if-changed=Cargo.lock");

    let status = Command::new(variable("CARGO"))
        .current_dir(&root)
        .args(["build", "--release", "--locked", "--package", "isolator-runner"])
        .args(["--bin", "isolator-runner", "--target", &target])
        .arg("--target-dir")
        .arg(&directory)
        // Sandboxes have whatever C library their image has, or none.
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .status()
        .expect("cargo can be started");
    assert!(status.success(), "the runner could not be built");

    let runner = directory.join(&target).join("release").join("isolator-runner");
    println!("cargo::rustc-env=ISOLATOR_RUNNER={}", runner.display());
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
