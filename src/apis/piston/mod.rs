//! The API of Piston, which trainers use to compute rewards: a program in a request.

mod execute;
mod runtimes;
mod version;

use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};

pub(super) use self::runtimes::Versions;
use super::programs::{ProgramsApi, Unread, Unserved, gone, retry_after};
use super::{Apis, Protocol};
use crate::request::arguments::InvalidArgument;
use crate::result::context::ArgumentNames;
use crate::web::{Refused, set_outcome};

const API: ProgramsApi =
    ProgramsApi { names: &NAMES, settings: |config| config.apis.piston.as_ref() };

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
    let (execute, runtimes) = (post(execute::execute), get(runtimes::runtimes));
    Router::new()
        .route("/api/v2/execute", execute::EXECUTE.observed(apis, execute))
        .route("/api/v2/runtimes", runtimes::RUNTIMES.observed(apis, runtimes))
        .with_state(apis.clone())
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

/// The answer to a request that has no result.
fn failed(error: Unserved) -> Response {
    let outcome = error.outcome();
    let mut response = match error {
        Unserved::Invalid(error) => invalid(&error),
        Unserved::Busy(message, seconds, _) => {
            retry_after(Protocol::Piston.error(StatusCode::GATEWAY_TIMEOUT, &message), seconds)
        }
        Unserved::Failed(message, _) => {
            Protocol::Piston.error(StatusCode::INTERNAL_SERVER_ERROR, &message)
        }
        Unserved::Gone => gone(Protocol::Piston),
    };
    set_outcome(&mut response, outcome);
    response
}

/// The answer to a request that was not read.
fn unread(error: Unread) -> Response {
    match error {
        Unread::Invalid(error) => failed(error.into()),
        Unread::Refused(refused @ (Refused::ShuttingDown | Refused::TooMuchInMemory)) => {
            failed(Unserved::busy(refused.to_string()))
        }
        Unread::Refused(refused) => Protocol::Piston.refusal(&refused),
    }
}

fn invalid(error: &InvalidArgument) -> Response {
    Protocol::Piston.error(StatusCode::BAD_REQUEST, &error.to_string())
}
