//! The messages of the services, as clients send and expect them. Fields that a client sends and that are not here are ignored, as the
//! protocol demands; each field can be missing or null.

pub(super) mod filesystem;
pub(super) mod process;

use serde::Serialize;

use crate::apis::e2b::error::E2bError;

/// A field of a message has a value that can't be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{field} {problem}")]
pub(super) struct InvalidField {
    field: &'static str,
    problem: &'static str,
}

impl InvalidField {
    pub(super) const fn new(field: &'static str, problem: &'static str) -> Self {
        Self { field, problem }
    }
}

/// An answer without fields.
#[derive(Debug, Serialize)]
pub(super) struct Empty {}

impl From<InvalidField> for E2bError {
    fn from(error: InvalidField) -> Self {
        Self::invalid(error.field, error.problem)
    }
}
