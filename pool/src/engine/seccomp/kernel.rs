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

/// Instructions: end the program, skip some instructions, load a word, skip instructions if it is equal, or not below.
const RETURN: u16 = 0x06;
const JUMP: u16 = 0x05;
const LOAD: u16 = 0x20;
const IF_EQUAL: u16 = 0x15;
const IF_NOT_BELOW: u16 = 0x35;

/// Where a call's number and architecture are in what a program looks at.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// The architecture as the kernel names it (`linux/audit.h`).
const THIS_ARCHITECTURE: u32 =
    if cfg!(target_arch = "aarch64") { 0xc000_00b7 } else { 0xc000_003e };

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
    let verdicts = verdicts(&rules);
    let by_arguments: Vec<_> = rules.iter().filter(|rule| !is_decided(rule, &verdicts)).collect();
    // The compiler knows one action for the calls that match and one for all others. So it compiles one part
    // for each errno, which come before the one for what is allowed.
    let kinds: BTreeSet<_> = by_arguments.iter().map(|rule| rule.verdict).collect();
    let mut program = BpfProgram::new();
    for verdict in kinds.into_iter().filter(|verdict| *verdict != unlisted) {
        program = followed_by(part(&by_arguments, verdict)?, program);
    }
    let program = numbers_before(&verdicts, unlisted, program);
    match program.len() {
        length if length > MOST_INSTRUCTIONS => Err(BackendError::FilterTooLarge(length)),
        _ => Ok(vec![program]),
    }
}

/// The processes that a filter is for.
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

/// The verdict for each number that is named, `None` if it depends on the arguments.
fn verdicts(rules: &[Rule<'_>]) -> BTreeMap<u32, Option<Verdict>> {
    let mut verdicts = BTreeMap::new();
    for rule in rules {
        for number in rule.syscalls.iter().filter_map(|name| number(name)) {
            let verdict = Some(rule.verdict).filter(|_| rule.checks.is_empty());
            let named = verdicts.entry(number as u32);
            named.and_modify(|before| *before = None).or_insert(verdict);
        }
    }
    verdicts
}

/// Whether the numbers of a rule decide it.
fn is_decided(rule: &Rule<'_>, verdicts: &BTreeMap<u32, Option<Verdict>>) -> bool {
    let mut numbers = rule.syscalls.iter().filter_map(|name| number(name));
    numbers.all(|number| verdicts[&(number as u32)].is_some())
}

/// A program that decides by numbers, and asks another one if the arguments matter.
///
/// The kernel asks a filter about each number when it is installed, and compiles it, for each sandbox. So numbers in a
/// row that get the same verdict are one range, and the range is found by halving.
fn numbers_before(
    verdicts: &BTreeMap<u32, Option<Verdict>>,
    unlisted: Verdict,
    by_arguments: BpfProgram,
) -> BpfProgram {
    let mut ranges = vec![(0, Some(unlisted))];
    for (number, verdict) in verdicts {
        ranges.push((*number, *verdict));
        ranges.push((number + 1, Some(unlisted)));
    }
    // Of two that begin at the same number, the second is meant.
    let last: BTreeMap<_, _> = ranges.into_iter().collect();
    let mut ranges: Vec<_> = last.into_iter().collect();
    ranges.dedup_by_key(|(_, verdict)| *verdict);

    let kill = u32::from(SeccompAction::KillProcess);
    let mut program = vec![
        instruction(LOAD, 0, 0, ARCHITECTURE),
        instruction(IF_EQUAL, 1, 0, THIS_ARCHITECTURE),
        instruction(RETURN, 0, 0, kill),
        instruction(LOAD, 0, 0, NUMBER),
    ];
    let mut to_arguments = Vec::new();
    halve(&ranges, &mut program, &mut to_arguments);
    for at in to_arguments {
        program[at].k = (program.len() - at - 1) as u32;
    }
    program.extend(by_arguments);
    program
}
/// Writes down the search for a range, each of which ends where the next begins. Notes where the program behind is asked.
fn halve(
    ranges: &[(u32, Option<Verdict>)],
    program: &mut BpfProgram,
    to_arguments: &mut Vec<usize>,
) {
    match ranges {
        [(_, Some(verdict))] => {
            program.push(instruction(RETURN, 0, 0, u32::from(kernel_action(*verdict))));
        }
        [(_, None)] => {
            to_arguments.push(program.len());
            program.push(instruction(JUMP, 0, 0, 0));
        }
        _ => {
            let (low, high) = ranges.split_at(ranges.len() / 2);
            let first_of_high = high.first().map_or(0, |(first, _)| *first);
            program.push(instruction(IF_NOT_BELOW, 0, 1, first_of_high));
            let at = program.len();
            program.push(instruction(JUMP, 0, 0, 0));
            halve(low, program, to_arguments);
            program[at].k = (program.len() - at - 1) as u32;
            halve(high, program, to_arguments);
        }
    }
}

const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Asks the next part, if there is one, about the calls that a part does not refuse.
fn followed_by(mut part: BpfProgram, next: BpfProgram) -> BpfProgram {
    let allow = u32::from(kernel_action(Verdict::Allow));
    let length = part.len();
    if !next.is_empty() {
        for (at, instruction) in part.iter_mut().enumerate() {
            if instruction.code == RETURN && instruction.k == allow {
                *instruction = self::instruction(JUMP, 0, 0, (length - at - 1) as u32);
            }
        }
    }
    part.extend(next);
    part
}

fn part(rules: &[&Rule<'_>], verdict: Verdict) -> Result<BpfProgram, BackendError> {
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
