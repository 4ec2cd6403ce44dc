//! Protocols of other servers, which clients already speak. Each only translates to and from the calls that all use.

pub(crate) mod e2b;
