//! The API of SandboxFusion, which trainers use to compute rewards: a program in a request, or cells that run one after the other.

mod jupyter;
mod languages;
mod run_code;

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::Response;
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use isolator_pool::quote::{first_of, quoted};
use isolator_pool::run::outcome::ChangedFile;
use isolator_pool::run::workspace::below;
use serde::Serialize;
use serde_json::json;

use super::programs::{ProgramsApi, busy_status};
use super::unserved::Unserved;
use super::{Apis, Protocol, answer};
use crate::request::arguments::{AdditionalFile, Encoding, InvalidArgument};
use crate::request::wanted_files::MAX_GLOBS;
use crate::result::context::ArgumentNames;

const API: ProgramsApi = ProgramsApi {
    protocol: Protocol::SandboxFusion,
    names: &NAMES,
    settings: |config| config.apis.sandbox_fusion.as_ref(),
    invalid,
    broken,
};

const NAMES: ArgumentNames = ArgumentNames {
    code: "code",
    file_name: "language",
    files: "files",
    files_from: 0,
    output_files: "fetch_files",
    timeout: "run_timeout",
    memory: Some("memory_limit_MB"),
};

/// How much longer than its program's limits a client waits, if it is the one of a trainer.
const CLIENT_GRACE: Duration = Duration::from_secs(10);

/// Its paths.
pub(super) fn route(apis: &Apis) -> Router {
    let run_code = post(run_code::run_code).layer(from_fn(busy_status));
    let run_jupyter = post(jupyter::run_jupyter).layer(from_fn(busy_status));
    Router::new()
        .route("/run_code", run_code::RUN_CODE.observed(apis, run_code))
        .route("/run_jupyter", jupyter::RUN_JUPYTER.observed(apis, run_jupyter))
        .with_state(apis.clone())
        .method_not_allowed_fallback(async || {
            let message = "send POST to /run_code and /run_jupyter";
            Protocol::SandboxFusion.error(StatusCode::METHOD_NOT_ALLOWED, message)
        })
}

/// The answer to a path of SandboxFusion's that is not offered.
pub(super) fn nothing_here() -> Response {
    let message = "there is no such path: use /run_code and /run_jupyter";
    Protocol::SandboxFusion.error(StatusCode::NOT_FOUND, message)
}

/// The status of a whole request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum RunStatus {
    Success,
    /// The program is why.
    Failed,
    /// The sandbox is why.
    SandboxError,
}

/// The status of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum CommandStatus {
    Finished,
    TimeLimitExceeded,
}

/// The end of a command.
#[derive(Debug, Clone, Serialize)]
struct CommandResult {
    status: CommandStatus,
    execution_time: f64,
    return_code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// The files of a request: their contents in base64, or nothing for one that is only named.
type Files = BTreeMap<String, Option<String>>;

/// The files for a job, and their names in the same order.
fn sent(files: Option<Files>) -> (Vec<AdditionalFile>, Vec<String>) {
    let files = files.into_iter().flatten();
    let files = files.filter_map(|(filename, content)| {
        Some(AdditionalFile {
            filename,
            content: content?,
            encoding: Encoding::Base64,
            append: false,
        })
    });
    let files: Vec<_> = files.collect();
    let names = files.iter().map(|file| file.filename.clone()).collect();
    (files, names)
}

/// A time in seconds.
fn seconds(
    field: &str,
    seconds: Option<f64>,
    usual: Duration,
) -> Result<Duration, InvalidArgument> {
    let Some(seconds) = seconds else { return Ok(usual) };
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => {
            let message = format!("{seconds} is not allowed: use a number of seconds above zero");
            Err(InvalidArgument::new(field, message))
        }
    }
}

/// Checks how many files are asked for.
fn check_wanted(wanted: &[String]) -> Result<(), InvalidArgument> {
    if wanted.len() > MAX_GLOBS {
        let message = format!("are more than {MAX_GLOBS}");
        return Err(InvalidArgument::new("fetch_files", message));
    }
    Ok(())
}

/// The files that can come back.
#[derive(Debug, Clone, Copy)]
struct Fetchable<'a> {
    workdir: &'a str,
    /// Whether only files come back that the program has created or changed.
    only_changed: bool,
}

/// The contents of the files that were asked for, in base64, by the names by which they were, and a remark on those that are not
/// there. A file that has several names counts for each of them in the `most` bytes of all.
fn fetched(
    wanted: &[String],
    files: &[ChangedFile],
    source: Fetchable<'_>,
    most: u64,
) -> (BTreeMap<String, String>, Option<String>) {
    let mut found = BTreeMap::new();
    let mut left = most;
    let mut missing = Vec::new();
    for name in wanted {
        if found.contains_key(name) {
            continue;
        }
        let path = normalized(name, source.workdir);
        let file = files.iter().find(|file| file.path == path);
        let content = file.and_then(|file| file.content.as_ref());
        let room = content.and_then(|content| left.checked_sub(content.len() as u64));
        match content.zip(room) {
            Some((content, room)) => {
                left = room;
                found.insert(name.clone(), BASE64.encode(content));
            }
            None if file.is_some() => missing.push(format!("{} (too large)", quoted(name))),
            None => missing.push(quoted(name)),
        }
    }
    let remark = (!missing.is_empty()).then(|| {
        format!(
            "of fetch_files, {} did not come back: a file does if {} {}, and all together are not larger than the operator \
             allows (results.maxFilesKB)",
            first_of(missing.into_iter(), 10),
            if source.only_changed { "the program has created or changed it in" } else { "it is in" },
            source.workdir,
        )
    });
    (found, remark)
}

/// The path of a file below the working directory.
fn normalized<'p>(name: &'p str, workdir: &str) -> &'p str {
    let mut path = below(workdir, name);
    while let Some(rest) = path.strip_prefix("./") {
        path = rest.trim_start_matches('/');
    }
    path
}

/// The answer when the sandbox failed.
fn broken(message: &str) -> Response {
    answer(
        StatusCode::OK,
        &json!({
            "status": RunStatus::SandboxError, "message": message, "compile_result": null, "run_result": null,
            "driver": null, "cells": [], "executor_pod_name": null, "files": {},
        }),
    )
}

/// The answer to a field that can't be used, in the form that the original has.
fn invalid(error: &InvalidArgument) -> Response {
    let detail =
        json!({ "loc": ["body", error.field], "msg": error.message, "type": "value_error" });
    answer(StatusCode::UNPROCESSABLE_ENTITY, &json!({ "detail": [detail] }))
}

/// The answer to a request that has no result. `files` are the names of the files that came, which have numbers inside of the server.
fn failed(error: Unserved, files: &[String]) -> Response {
    API.failed(match error {
        Unserved::Invalid(error) => {
            let field = named_file(&error.field, files).unwrap_or(error.field);
            Unserved::Invalid(InvalidArgument::new(field, error.message))
        }
        error => error,
    })
}

/// The field of a file by its name instead of its number.
fn named_file(field: &str, files: &[String]) -> Option<String> {
    let (number, _) = field.strip_prefix("files[")?.split_once(']')?;
    let name = files.get(number.parse::<usize>().ok()?)?;
    Some(format!("files.{}", name.chars().take(100).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_several_names_counts_for_each_of_them() {
        let file = |path: &str, size: usize| ChangedFile {
            path: path.to_owned(),
            size: size as u64,
            content: Some(vec![b'x'; size]),
        };
        let files = [file("a", 40), file("b", 10)];
        let names = ["a", "./a", "a", "/w/a", ".//a", "b"].map(str::to_owned);
        let source = Fetchable { workdir: "/w", only_changed: false };
        let (found, remark) = fetched(&names, &files, source, 100);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["./a", "a", "b"]);
        let remark = remark.unwrap();
        assert!(remark.contains("\"/w/a\" (too large), \".//a\" (too large) did"), "{remark}");
        assert!(check_wanted(&vec!["a".to_owned(); MAX_GLOBS]).is_ok());
        let error = check_wanted(&vec!["a".to_owned(); MAX_GLOBS + 1]).unwrap_err();
        assert_eq!(error.field, "fetch_files");
    }
}
