//! The API of Piston, which trainers use to compute rewards: a program in a request.

mod execute;
mod runtimes;
mod version;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::Response;
use axum::routing::{get, post};

pub(super) use self::runtimes::Versions;
use super::programs::{ProgramsApi, busy_status};
use super::{Apis, Protocol};
use crate::result::context::ArgumentNames;

const API: ProgramsApi = ProgramsApi {
    protocol: Protocol::Piston,
    names: &NAMES,
    settings: |config| config.apis.piston.as_ref(),
    invalid: |error| Protocol::Piston.error(StatusCode::BAD_REQUEST, &error.to_string()),
    broken: |message| Protocol::Piston.error(StatusCode::INTERNAL_SERVER_ERROR, message),
};

const NAMES: ArgumentNames = ArgumentNames {
    code: "files[0].content",
    file_name: "files[0].name",
    files: "files",
    // The program is the first.
    files_from: 1,
    output_files: "output_files",
    timeout: "run_timeout",
    memory: Some("run_memory_limit"),
};

/// Its paths.
pub(super) fn route(apis: &Apis) -> Router {
    let execute = post(execute::execute).layer(from_fn(busy_status));
    let runtimes = get(runtimes::runtimes).layer(from_fn(busy_status));
    Router::new()
        .route("/api/v2/execute", execute::EXECUTE.observed(apis, execute))
        .route("/api/v2/runtimes", runtimes::RUNTIMES.observed(apis, runtimes))
        .with_state(apis.clone())
        .method_not_allowed_fallback(async || {
            let message = "send GET to /api/v2/runtimes, and POST to /api/v2/execute";
            Protocol::Piston.error(StatusCode::METHOD_NOT_ALLOWED, message)
        })
}

/// The answer to a path of Piston's that is not offered.
pub(super) fn nothing_here(path: &str) -> Response {
    let (status, message) = if path.starts_with("/api/v2/packages") {
        let message =
            "no runtimes can be installed: the operator of this server configures its languages";
        (StatusCode::NOT_IMPLEMENTED, message)
    } else if path.starts_with("/api/v2/connect") {
        (
            StatusCode::NOT_IMPLEMENTED,
            "programs can't be followed while they run: use /api/v2/execute",
        )
    } else {
        (StatusCode::NOT_FOUND, "there is no such path: use /api/v2/runtimes and /api/v2/execute")
    };
    Protocol::Piston.error(status, message)
}
