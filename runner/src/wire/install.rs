//! Packages that a program asks for while it runs: the commands `pip` and `npm` of a sandbox connect to a socket of the runner, and
//! the runner passes their requests on to the server.
//!
//! ```text
//! program                  runner                                server
//!   a line of JSON   ──▶     Install {number, line}    ──────▶
//!                    ◀──     a line of JSON            ◀──────  InstallProgress {number, text}, any number of them
//!   (or it goes)     ──▶     InstallEnded {number}     ──────▶    no answer is needed
//!                    ◀──     a line of JSON            ◀──────  Installed {number, the set, the answer}
//! ```
//!
//! A request is `{"language": "python", "requirements": ["humanize>=4"], "upgrade": false}`. Lines about the progress are
//! `{"progress": "text"}`. An answer is `{"bound": {"packages": [{"name": "humanize", "version": "4.12"}], "new": ["humanize"]}}`
//! or `{"refused": {"kind": "off", "reason": "text"}}`, and it is the last line. The runner understands none of these: a request comes from
//! a hostile program, and an answer may repeat parts of it.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Kind, Packages, WireError};

/// Requests of one sandbox that can be under way.
pub const MAX_INSTALLS: usize = 4;

/// Longest request, in bytes.
pub const MAX_INSTALL_REQUEST: usize = 64 * 1024;

/// Longest text about the progress of a request, in bytes.
pub const MAX_PROGRESS: usize = 1024;

/// The answer to a request for packages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// The number of the request.
    pub install: u32,
    /// The set that the sandbox has from now on, if it was given another one.
    pub packages: Option<Packages>,
    /// The line for the program, without its end.
    pub answer: String,
}

/// The line that refuses a request.
pub fn refused(kind: &str, reason: &str) -> String {
    json!({ "refused": { "kind": kind, "reason": reason } }).to_string()
}

/// The number in the first four bytes of a payload, and the rest.
///
/// # Errors
///
/// When the payload is shorter.
pub fn numbered(kind: Kind, payload: &[u8]) -> Result<(u32, &[u8]), WireError> {
    let parts = payload.split_first_chunk::<4>();
    let (number, rest) = parts.ok_or(WireError::Unexpected(kind))?;
    Ok((u32::from_be_bytes(*number), rest))
}
