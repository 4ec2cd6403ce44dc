//! The processes and files of a sandbox, as E2B's clients use them: two services of Connect's protocol, and files over HTTP.
//!
//! Everything here only translates: the sandbox's [agent](isolator_pool::pool::session::agent) does the work, and waits when a client does
//! not read. [`call`] lets a request in; [`connect`] has the protocol and [`messages`] its messages; [`process`] and [`filesystem`] have the
//! methods, and [`files`] the transfers.

mod call;
mod connect;
mod files;
mod filesystem;
mod gzip;
mod messages;
mod process;

use axum::Router;

use super::E2b;
use crate::apis::Apis;

/// The paths.
pub(super) fn route(apis: &Apis, e2b: &E2b) -> Router {
    process::route(apis, e2b).merge(filesystem::route(apis, e2b)).merge(files::route(apis, e2b))
}
