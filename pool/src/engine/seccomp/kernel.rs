//! The profile as a BPF program for this machine's kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

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
pub(crate) fn kernel_programs(filtered: Filtered) -> Result<Vec<BpfProgram>, BackendError> {
    let rules = rules(filtered);
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

/// What a filter is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filtered {
    /// A program.
    Program,
    /// A template, which enters sandboxes. Its forks have the filter, too, but have given up the right to.
    Template,
}

/// The rules of a filter.
pub(super) fn rules(filtered: Filtered) -> Vec<Rule<'static>> {
    let rules = PROFILE.rules();
    match filtered {
        Filtered::Program => rules,
        Filtered::Template => rules.into_iter().flat_map(let_templates_enter).collect(),
    }
}

/// All namespaces of a sandbox (`CLONE_NEW*` in `linux/sched.h`): user, process, mount, network, IPC, host name, groups.
const NAMESPACES: u64 =
    0x1000_0000 | 0x2000_0000 | 0x0002_0000 | 0x4000_0000 | 0x0800_0000 | 0x0400_0000 | 0x0200_0000;

/// Lets `setns` pass with all namespaces of a sandbox together, and only so.
fn let_templates_enter(rule: Rule<'_>) -> Vec<Rule<'_>> {
    static SETNS: LazyLock<[String; 1]> = LazyLock::new(|| ["setns".to_owned()]);
    let Some(at) = rule.syscalls.iter().position(|name| *name == SETNS[0]) else {
        return vec![rule];
    };
    let (before, after) = (&rule.syscalls[..at], &rule.syscalls[at + 1..]);
    let with = |syscalls, verdict, comparison: Option<Comparison>| Rule {
        syscalls,
        verdict,
        checks: comparison.map(|comparison| Check { arg: 1, comparison }).into_iter().collect(),
        comment: rule.comment,
    };
    vec![
        with(before, rule.verdict, None),
        with(after, rule.verdict, None),
        with(&*SETNS, rule.verdict, Some(Comparison::NotEqual(NAMESPACES))),
        with(&*SETNS, Verdict::Allow, Some(Comparison::Equal(NAMESPACES))),
    ]
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
