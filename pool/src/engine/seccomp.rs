//! The system calls a sandbox may make.
//!
//! The policy is an allow-list in groups, each with its reason: `seccomp/profile.json` has the calls that
//! are decided as a whole, `seccomp/arguments.json` and `seccomp/sockets.json` those that depend on
//! arguments. `docs/system-calls.md` explains them. This module owns the rules that the policy comes down
//! to, in a form that any engine can take; `profile` reads it, `docker` and `kernel` write it.
//!
//! Three properties of the engines explain the form of the rules:
//!
//! - Docker 20.10 ignores the default errno and answers EPERM to every call without a rule. A call
//!   that needs another errno is therefore named, even if it is only refused. runc itself answers
//!   ENOSYS to numbers above all the calls that its libseccomp knows.
//! - A rule holds when all of its checks hold, and runc reads two checks of one argument as
//!   alternatives. So one rule never checks an argument twice, and alternatives are rules.
//! - Of an argument that the kernel reads as 32 bits, a rule must not look at the others: a forbidden
//!   number with a stray high bit would be another number to the rule, but not to the kernel.

mod docker;
mod kernel;
mod profile;

pub use docker::docker_profile;
pub(crate) use kernel::{Filtered, kernel_programs};

use serde::Deserialize;

/// One rule of a filter, in a form that does not depend on the engine.
#[derive(Debug)]
struct Rule<'a> {
    syscalls: &'a [String],
    verdict: Verdict,
    /// Each of another argument; the rule holds when all of them do.
    checks: Vec<Check>,
    comment: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// The first in order: `kernel` puts what is refused before it.
    Allow,
    Refuse(Errno),
}

/// The errors a refused call can be answered with.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
enum Errno {
    /// Success is reported, and nothing is done.
    #[serde(rename = "none")]
    None,
    #[serde(rename = "EPERM")]
    Perm,
    #[serde(rename = "EINVAL")]
    Inval,
    #[serde(rename = "ENOSYS")]
    NoSys,
    #[serde(rename = "EPROTONOSUPPORT")]
    ProtoNoSupport,
    #[serde(rename = "EAFNOSUPPORT")]
    AfNoSupport,
}

impl Errno {
    /// The number, the same on every architecture of the profile.
    fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Perm => 1,
            Self::Inval => 22,
            Self::NoSys => 38,
            Self::ProtoNoSupport => 93,
            Self::AfNoSupport => 97,
        }
    }
}

/// One comparison of an argument.
#[derive(Clone, Copy, Debug)]
struct Check {
    arg: u32,
    comparison: Comparison,
}

/// All of them compare 64 bits, and a mask says which of them matter.
#[derive(Clone, Copy, Debug)]
enum Comparison {
    Equal(u64),
    NotEqual(u64),
    Above(u64),
    Masked { mask: u64, value: u64 },
}

#[cfg(test)]
mod tests;
