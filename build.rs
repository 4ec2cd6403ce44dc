//! Builds what the server carries inside itself: the runner, a static program, and what a template of Python loads.
//!
//! Each has its own target directory: the outer build holds the lock of the usual one.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let target = variable("TARGET");
    println!("cargo::rerun-if-changed=Cargo.lock");

    // Sandboxes have whatever C library their image has, or none.
    let package = ["--package", "isolator-runner", "--bin", "isolator-runner"];
    let runner = build("runner", &package, "+");
    println!("cargo::rustc-env=ISOLATOR_RUNNER={}", runner.join("isolator-runner").display());

    let manifest = ["--manifest-path", "template/Cargo.toml"];
    let template = build("template", &manifest, if target.contains("musl") { "-" } else { "" });
    let library = template.join("libisolator_template.so");
    println!("cargo::rustc-env=ISOLATOR_TEMPLATE={}", library.display());
}

/// Builds a part for the target, with or without a static C library. Returns the folder with what was built.
fn build(name: &str, arguments: &[&str], crt_static: &str) -> PathBuf {
    let target = variable("TARGET");
    let directory = PathBuf::from(variable("OUT_DIR")).join(name);
    println!("cargo::rerun-if-changed={name}");
    let flags = match crt_static {
        "" => String::new(),
        sign => format!("-Ctarget-feature={sign}crt-static"),
    };
    let status = Command::new(variable("CARGO"))
        .current_dir(variable("CARGO_MANIFEST_DIR"))
        .args(["build", "--release", "--locked", "--target", &target])
        .args(arguments)
        .arg("--target-dir")
        .arg(&directory)
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .status()
        .expect("cargo can be started");
    assert!(status.success(), "the {name} could not be built");
    directory.join(&target).join("release")
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
