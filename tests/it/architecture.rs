//! The structure that ARCHITECTURE.md describes: which folder may use which library, and that the folders depend on
//! each other in one direction only.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders that may use a library. All others use our own types.
const LIBRARIES: [(&str, &[&str]); 16] = [
    ("rmcp", &["src/mcp/", "src/transport/", "src/commands/serve/"]),
    ("axum", &["src/transport/http/", "src/apis/", "src/web/"]),
    ("tower_http", &["src/transport/http/"]),
    ("multer", &["src/apis/e2b/data/files/"]),
    ("deadpool", &["src/policy/checker/"]),
    ("toml_edit", &["src/commands/hosts/edit/"]),
    ("bollard", &["pool/src/engine/docker/", "bench/src/"]),
    ("plotters", &["bench/src/"]),
    ("prometheus_client", &["src/metrics/"]),
    ("redis", &["src/sessions/journals/valkey.rs"]),
    ("ring", &["src/sessions/journals/seal.rs", "src/packages/store/seal.rs"]),
    ("rustyline", &["src/commands/session/prompt.rs", "src/commands/session/prompt/"]),
    (
        "reqwest",
        &[
            "pool/src/engine/store/registry/",
            "src/traces/",
            "src/commands/operators.rs",
            "src/commands/server/",
        ],
    ),
    ("opentelemetry", &["src/traces/"]),
    ("opentelemetry_sdk", &["src/traces/"]),
    ("opentelemetry_otlp", &["src/traces/"]),
];

/// The folders of each crate from the top down: a folder may use those after it, and none before it.
const FOLDERS: [(&str, &[&str]); 2] = [
    (
        "src",
        &[
            "commands",
            "transport",
            "mcp",
            "apis",
            "web",
            "calls",
            "metrics",
            "traces",
            "audit",
            "result",
            "request",
            "sessions",
            "local_socket",
            "app",
            "packages",
            "images",
            "descriptors",
            "config",
            "requirement",
            "policy",
            "address",
            "notice",
            "current",
            "duration",
            "reread",
            "node",
            "hex",
            "nodes_key",
            "log",
            "pattern",
        ],
    ),
    (
        "pool/src",
        &[
            "pool",
            "run",
            "sandbox",
            "engine",
            "packages",
            "counts",
            "error_chain",
            "quote",
            "folders",
            "lock",
        ],
    ),
];

/// Folders on the same level, of which the first does not use the second.
const SEPARATE: [(&str, &str); 1] = [("mcp", "apis")];

/// The folders with code of our own.
pub(crate) const CRATES: [&str; 5] = ["src", "pool/src", "runner/src", "bench/src", "template/src"];

/// Lines of a source file at most, before it wants to be two.
const MAX_LINES: usize = 500;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The source files below a folder, by their paths from the root.
pub(crate) fn sources(folder: &str) -> Vec<(String, String)> {
    let mut folders: Vec<PathBuf> = vec![root().join(folder)];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                sources.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!sources.is_empty(), "{folder} has no source files");
    sources
}

/// A line without its comment and its texts, in which anything may be named.
pub(crate) fn code(line: &str) -> String {
    let line = line.split("//").next().unwrap_or_default();
    line.split('"').step_by(2).collect()
}

/// The first segments of the paths in a line that begin with `start::`.
fn segments<'a>(line: &'a str, start: &str) -> Vec<&'a str> {
    let start = format!("{start}::");
    let follows = |at: usize| {
        let before = line[..at].chars().next_back();
        let is_path = before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':');
        let rest = &line[at + start.len()..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        is_path.then_some(&rest[..end])
    };
    line.match_indices(&start).filter_map(|(at, _)| follows(at)).collect()
}

#[test]
fn libraries_are_used_only_where_they_belong() {
    for (name, source) in CRATES.into_iter().flat_map(sources) {
        for (library, allowed) in LIBRARIES {
            let is_named = source.lines().any(|line| !segments(&code(line), library).is_empty());
            let is_allowed = allowed.iter().any(|place| name.starts_with(place));
            assert!(is_allowed || !is_named, "{name} names {library}, which is for {allowed:?}");
        }
    }
}

/// Libraries that would start threads in a process that forks without an exec, or allocate memory in a process of an interpreter.
const FORBIDDEN: [(&str, &[&str]); 2] = [
    ("pool/src/engine/embedded/launcher/", &["tokio", "tokio_util", "std::thread"]),
    ("template/src/", &["std", "alloc"]),
];

#[test]
fn processes_that_fork_have_one_thread() {
    for (folder, forbidden) in FORBIDDEN {
        for (name, source) in
            sources(folder).into_iter().filter(|(name, _)| !name.ends_with("tests.rs"))
        {
            for line in source.split("#[cfg(test)]").next().unwrap().lines() {
                let line = code(line);
                for library in forbidden {
                    let is_named = !segments(&line, library).is_empty();
                    assert!(!is_named, "{name} names {library}, which does not fit its process");
                }
            }
        }
    }
}

#[test]
fn folders_depend_on_each_other_in_one_direction() {
    for (root, folders) in FOLDERS {
        let place = |folder: &str| folders.iter().position(|it| *it == folder);
        let mut seen = BTreeSet::new();
        for (name, source) in sources(root) {
            let inside = name.strip_prefix(root).unwrap().trim_start_matches('/');
            let folder = inside.split('/').next().unwrap().trim_end_matches(".rs");
            if ["lib", "main", "fuzzing"].contains(&folder) {
                continue;
            }
            let from = place(folder);
            let from = from.unwrap_or_else(|| panic!("{name}: {folder} is not in FOLDERS"));
            seen.insert(folder.to_owned());
            // Tests at the end of a file may put together what they like.
            let own = source.split("#[cfg(test)]").next().unwrap();
            if name.ends_with("tests.rs") {
                continue;
            }
            for line in own.lines() {
                for used in segments(&code(line), "crate") {
                    let to = place(used);
                    let to = to.unwrap_or_else(|| panic!("{name}: {used} is not in FOLDERS"));
                    assert!(to >= from, "{name} uses {used}, which is above it:\n{line}");
                    let is_apart = SEPARATE.contains(&(folder, used));
                    assert!(!is_apart, "{name} uses {used}, which is next to it:\n{line}");
                }
            }
        }
        assert_eq!(seen.len(), folders.len(), "a folder of {root} is empty: {seen:?}");
    }
}

#[test]
fn source_files_are_short_enough_to_read() {
    for (name, source) in CRATES.into_iter().flat_map(sources) {
        let lines = source.lines().count();
        assert!(lines <= MAX_LINES, "{name} has {lines} lines: split it along its concepts");
    }
}
