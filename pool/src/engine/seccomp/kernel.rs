//! The profile as a BPF program for this machine's kernel.

use std::collections::{BTreeMap, BTreeSet};

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, sock_filter,
};
use syscalls::Sysno;

use super::profile::PROFILE;
use super::{Check, Comparison, Rule, Verdict};

/// The instructions that end a program and that skip some instructions.
const RETURN: u16 = 0x06;
const JUMP: u16 = 0x05;

/// As many instructions as the kernel takes.
const MOST_INSTRUCTIONS: usize = 4096;

/// The profile as BPF programs that a process must install.
///
/// There is only one. Each would cost time in every call whose arguments matter, and the first one would
/// already refuse the installing of the next. Calls of another architecture kill the process.
///
/// # Errors
///
/// The compiler's, and for a machine that the profile is not for.
pub(crate) fn kernel_programs() -> Result<Vec<BpfProgram>, BackendError> {
    let rules = PROFILE.rules();
    let unlisted = Verdict::Refuse(PROFILE.default_errno());
    // What is refused as if it were not listed is left out.
    let verdicts = rules.iter().map(|rule| rule.verdict).filter(|verdict| *verdict != unlisted);
    let verdicts: BTreeSet<_> = verdicts.collect();
    // The compiler knows one action for the calls that match and one for all others. So it compiles one part
    // for each errno, which come before the one for what is allowed.
    let mut program = BpfProgram::new();
    for verdict in verdicts {
        program = followed_by(part(&rules, verdict)?, program);
    }
    match program.len() {
        length if length > MOST_INSTRUCTIONS => Err(BackendError::FilterTooLarge(length)),
        _ => Ok(vec![program]),
    }
}

/// Asks the next part, if there is one, about the calls that a part does not refuse.
fn followed_by(mut part: BpfProgram, next: BpfProgram) -> BpfProgram {
    let allow = u32::from(kernel_action(Verdict::Allow));
    let length = part.len();
    if !next.is_empty() {
        for (at, instruction) in part.iter_mut().enumerate() {
            if instruction.code == RETURN && instruction.k == allow {
                *instruction =
                    sock_filter { code: JUMP, jt: 0, jf: 0, k: (length - at - 1) as u32 };
            }
        }
    }
    part.extend(next);
    part
}

fn part(rules: &[Rule<'_>], verdict: Verdict) -> Result<BpfProgram, BackendError> {
    let mut calls: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for rule in rules.iter().filter(|rule| rule.verdict == verdict) {
        let checks = rule.checks.iter().map(kernel_check).collect::<Result<Vec<_>, _>>()?;
        for number in rule.syscalls.iter().filter_map(|name| number(name)) {
            let alternatives = calls.entry(number).or_default();
            if !checks.is_empty() {
                alternatives.push(SeccompRule::new(checks.clone())?);
            }
        }
    }
    let otherwise = match verdict {
        Verdict::Allow => Verdict::Refuse(PROFILE.default_errno()),
        Verdict::Refuse(_) => Verdict::Allow,
    };
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(calls, kernel_action(otherwise), kernel_action(verdict), architecture)?
        .try_into()
}

/// The number of a call on this machine, if it has such a call. A call that the list of numbers is too old
/// for gets the default answer.
pub(super) fn number(name: &str) -> Option<i64> {
    // For aarch64 the list has the C library's name of this one.
    let names = [name, if name == "newfstatat" { "fstatat" } else { name }];
    names.iter().find_map(|name| name.parse::<Sysno>().ok()).map(|call| call.id().into())
}

fn kernel_action(verdict: Verdict) -> SeccompAction {
    match verdict {
        Verdict::Allow => SeccompAction::Allow,
        Verdict::Refuse(errno) => SeccompAction::Errno(errno.number()),
    }
}

fn kernel_check(check: &Check) -> Result<SeccompCondition, BackendError> {
    let (operator, value) = match check.comparison {
        Comparison::Equal(value) => (SeccompCmpOp::Eq, value),
        Comparison::NotEqual(value) => (SeccompCmpOp::Ne, value),
        Comparison::Above(value) => (SeccompCmpOp::Gt, value),
        Comparison::Masked { mask, value } => (SeccompCmpOp::MaskedEq(mask), value),
    };
    // Half of the instructions, where the mask leaves out the high half.
    let length = match check.comparison {
        Comparison::Masked { mask, .. } if mask <= u32::MAX.into() => SeccompCmpArgLen::Dword,
        _ => SeccompCmpArgLen::Qword,
    };
    let arg = u8::try_from(check.arg).unwrap_or(u8::MAX);
    SeccompCondition::new(arg, length, operator, value)
}
