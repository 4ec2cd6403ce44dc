//! The system calls a sandbox may make.
//!
//! `seccomp/profile.json` is the policy: an allow-list in groups, each with its reason.
//! This module owns reading it, spelling it out as plain rules that any engine can take, and
//! writing those rules in the form the Docker API takes.
//!
//! Two properties of the engines explain the form of the rules:
//!
//! - Docker 20.10 ignores the default errno and answers EPERM to every call without a rule. A call
//!   that needs another errno is therefore named, even if it is only refused. runc itself answers
//!   ENOSYS to numbers above all the calls that its libseccomp knows.
//! - A rule holds when all of its checks hold, and runc reads two checks of one argument as
//!   alternatives. So one rule never checks an argument twice, and alternatives are rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use serde::Deserialize;
use serde_json::{Value, json};
use syscalls::Sysno;

/// The profile as the Docker API takes it, after `seccomp=` in the security options.
pub(crate) fn docker_profile() -> &'static str {
    static DOCKER: LazyLock<String> = LazyLock::new(|| docker(&PROFILE).to_string());
    &DOCKER
}

/// The embedded policy. It is part of the build, so a bad one fails the unit tests first.
static PROFILE: LazyLock<Profile> = LazyLock::new(|| {
    serde_json::from_str(include_str!("seccomp/profile.json"))
        .expect("the embedded profile is well formed")
});

/// The policy file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    default: DefaultAnswer,
    architectures: Architectures,
    allow: Vec<Group>,
    allow_when: Vec<Conditional>,
    refuse: Vec<Refusal>,
    refuse_when: Vec<ConditionalRefusal>,
}

/// The answer to a call that no rule covers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DefaultAnswer {
    errno: Errno,
    // For the reader of the file; no engine has a place for it.
    #[serde(rename = "reason")]
    _reason: String,
}

/// The machines the profile is for. Calls of any other kind kill the program.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Architectures {
    names: Vec<Architecture>,
    // As above.
    #[serde(rename = "reason")]
    _reason: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum Architecture {
    #[serde(rename = "x86_64")]
    X86_64,
    #[serde(rename = "aarch64")]
    Aarch64,
}

/// Calls allowed with any arguments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    // As above.
    #[serde(rename = "group")]
    _group: String,
    reason: String,
    syscalls: Vec<String>,
}

/// Calls allowed when every condition holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Conditional {
    syscalls: Vec<String>,
    reason: String,
    when: Vec<Condition>,
}

/// Calls refused with any arguments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Refusal {
    errno: Errno,
    reason: String,
    syscalls: Vec<String>,
}

/// Calls refused with some arguments, and allowed with others.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionalRefusal {
    syscalls: Vec<String>,
    reason: String,
    errno: Errno,
    when: Vec<Condition>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Condition {
    arg: u32,
    test: Test,
}

/// Numbers with their names in the kernel's headers; only the numbers reach the kernel.
type Named<T> = BTreeMap<String, T>;

/// What is asked of one argument.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Test {
    /// One of these numbers.
    Is(Named<u64>),
    /// Any number but this one.
    Not(u64),
    /// A greater number than this one.
    Above(u64),
    /// None of these flags.
    NoBits(Named<u64>),
    /// At least one of these flags.
    AnyBit(Named<u64>),
    /// One of these numbers under the mask.
    Field { mask: u64, values: Named<u64> },
    /// One of these numbers in the low 32 bits, where that is all the kernel reads.
    LowWordIs(Named<u32>),
    /// None of these numbers in the low 32 bits.
    LowWordNot(Named<u32>),
}

/// The errors a refused call can be answered with.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
enum Errno {
    #[serde(rename = "EPERM")]
    Perm,
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
            Self::Perm => 1,
            Self::NoSys => 38,
            Self::ProtoNoSupport => 93,
            Self::AfNoSupport => 97,
        }
    }
}

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
    Allow,
    Refuse(Errno),
}

/// One comparison of the whole 64-bit argument.
#[derive(Clone, Copy, Debug)]
struct Check {
    arg: u32,
    comparison: Comparison,
}

#[derive(Clone, Copy, Debug)]
enum Comparison {
    Equal(u64),
    NotEqual(u64),
    Above(u64),
    Masked { mask: u64, value: u64 },
}

impl Profile {
    /// Every rule, in the order of the file.
    fn rules(&self) -> Vec<Rule<'_>> {
        let mut rules: Vec<_> = self.allow.iter().map(Group::rule).collect();
        rules.extend(self.allow_when.iter().flat_map(Conditional::rules));
        rules.extend(self.refuse.iter().map(Refusal::rule));
        rules.extend(self.refuse_when.iter().flat_map(ConditionalRefusal::rules));
        rules
    }
}

impl Group {
    fn rule(&self) -> Rule<'_> {
        rule(&self.syscalls, Verdict::Allow, Vec::new(), &self.reason)
    }
}

impl Conditional {
    fn rules(&self) -> impl Iterator<Item = Rule<'_>> {
        alternatives(&self.when)
            .into_iter()
            .map(|checks| rule(&self.syscalls, Verdict::Allow, checks, &self.reason))
    }
}

impl Refusal {
    fn rule(&self) -> Rule<'_> {
        rule(&self.syscalls, Verdict::Refuse(self.errno), Vec::new(), &self.reason)
    }
}

impl ConditionalRefusal {
    fn rules(&self) -> impl Iterator<Item = Rule<'_>> {
        let verdict = Verdict::Refuse(self.errno);
        alternatives(&self.when)
            .into_iter()
            .map(move |checks| rule(&self.syscalls, verdict, checks, &self.reason))
    }
}

fn rule<'a>(
    syscalls: &'a [String],
    verdict: Verdict,
    checks: Vec<Check>,
    comment: &'a str,
) -> Rule<'a> {
    Rule { syscalls, verdict, checks, comment }
}

/// Every way to satisfy all conditions at once, each as one list of checks.
fn alternatives(conditions: &[Condition]) -> Vec<Vec<Check>> {
    conditions.iter().fold(vec![Vec::new()], |lists, condition| {
        let checks = condition.checks();
        lists
            .iter()
            .flat_map(|list| checks.iter().map(|check| [list.as_slice(), &[*check]].concat()))
            .collect()
    })
}

impl Condition {
    fn checks(&self) -> Vec<Check> {
        let check = |comparison| Check { arg: self.arg, comparison };
        self.test.comparisons().into_iter().map(check).collect()
    }
}

impl Test {
    /// The comparisons of which any one is enough.
    fn comparisons(&self) -> Vec<Comparison> {
        use Comparison::{Above, Equal, Masked, NotEqual};
        match self {
            Self::Is(values) => values.values().map(|&value| Equal(value)).collect(),
            Self::Not(value) => vec![NotEqual(*value)],
            Self::Above(value) => vec![Above(*value)],
            Self::NoBits(bits) => {
                let mask = bits.values().fold(0, |mask, bit| mask | bit);
                vec![Masked { mask, value: 0 }]
            }
            Self::AnyBit(bits) => {
                bits.values().map(|&bit| Masked { mask: bit, value: bit }).collect()
            }
            Self::Field { mask, values } => {
                values.values().map(|&value| Masked { mask: *mask, value }).collect()
            }
            Self::LowWordIs(values) => {
                values.values().map(|&value| low_word(u32::MAX, value)).collect()
            }
            Self::LowWordNot(values) => all_but(values.values().copied().collect()),
        }
    }
}

fn low_word(mask: u32, value: u32) -> Comparison {
    Comparison::Masked { mask: mask.into(), value: value.into() }
}

/// Comparisons that together hold for every 32-bit number but these.
///
/// Filters have no "masked and different", and a plain "different" compares 64 bits, so that a
/// forbidden number with a stray high bit would pass. Instead, these comparisons match every prefix that
/// shares its leading bits with a forbidden number, differs from it in the last bit, and begins no
/// forbidden number.
fn all_but(forbidden: Vec<u32>) -> Vec<Comparison> {
    let mut leaving = BTreeSet::new();
    for number in &forbidden {
        for bit in 0..u32::BITS {
            let mask = u32::MAX << bit;
            let prefix = (number ^ (1 << bit)) & mask;
            if forbidden.iter().all(|other| other & mask != prefix) {
                leaving.insert((mask, prefix));
            }
        }
    }
    leaving.into_iter().map(|(mask, prefix)| low_word(mask, prefix)).collect()
}

/// The profile in Docker's format.
fn docker(profile: &Profile) -> Value {
    let architectures = profile.architectures.names.iter();
    let rules = profile.rules();
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": profile.default.errno.number(),
        "archMap": architectures.map(|name| docker_architecture(*name)).collect::<Vec<_>>(),
        "syscalls": rules.iter().map(docker_rule).collect::<Vec<_>>(),
    })
}

/// An architecture without the older ones that it can also run.
fn docker_architecture(architecture: Architecture) -> Value {
    let name = match architecture {
        Architecture::X86_64 => "SCMP_ARCH_X86_64",
        Architecture::Aarch64 => "SCMP_ARCH_AARCH64",
    };
    json!({ "architecture": name, "subArchitectures": [] })
}

fn docker_rule(rule: &Rule<'_>) -> Value {
    let mut entry = json!({
        "names": rule.syscalls,
        "args": rule.checks.iter().map(docker_check).collect::<Vec<_>>(),
        "comment": rule.comment,
    });
    match rule.verdict {
        Verdict::Allow => entry["action"] = json!("SCMP_ACT_ALLOW"),
        Verdict::Refuse(errno) => {
            entry["action"] = json!("SCMP_ACT_ERRNO");
            entry["errnoRet"] = json!(errno.number());
        }
    }
    entry
}

/// The profile as BPF programs for this machine's kernel, in the order in which a process must install
/// them.
///
/// A compiled program has one action for calls that match and one for all others. So there is one program
/// for all that is allowed, and one for each errno of what is refused. Of actions with the same precedence
/// the kernel takes that of the program installed last, so the refusals come last. Calls of another
/// architecture kill the process.
///
/// # Errors
///
/// The compiler's, and for a machine that the profile is not for.
pub(crate) fn kernel_programs() -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    let rules = PROFILE.rules();
    let verdicts: BTreeSet<_> = rules.iter().map(|rule| rule.verdict).collect();
    verdicts.into_iter().map(|verdict| kernel_program(&rules, verdict)).collect()
}

fn kernel_program(
    rules: &[Rule<'_>],
    verdict: Verdict,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut calls: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for rule in rules.iter().filter(|rule| rule.verdict == verdict) {
        let checks = rule.checks.iter().map(kernel_check).collect::<Result<Vec<_>, _>>()?;
        // A name that is unknown on this machine can't be called here.
        for call in rule.syscalls.iter().filter_map(|name| name.parse::<Sysno>().ok()) {
            let alternatives = calls.entry(call.id().into()).or_default();
            if !checks.is_empty() {
                alternatives.push(SeccompRule::new(checks.clone())?);
            }
        }
    }
    let otherwise = match verdict {
        Verdict::Allow => Verdict::Refuse(PROFILE.default.errno),
        Verdict::Refuse(_) => Verdict::Allow,
    };
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(calls, kernel_action(otherwise), kernel_action(verdict), architecture)?
        .try_into()
}

fn kernel_action(verdict: Verdict) -> SeccompAction {
    match verdict {
        Verdict::Allow => SeccompAction::Allow,
        Verdict::Refuse(errno) => SeccompAction::Errno(errno.number()),
    }
}

fn kernel_check(check: &Check) -> Result<SeccompCondition, seccompiler::BackendError> {
    let (operator, value) = match check.comparison {
        Comparison::Equal(value) => (SeccompCmpOp::Eq, value),
        Comparison::NotEqual(value) => (SeccompCmpOp::Ne, value),
        Comparison::Above(value) => (SeccompCmpOp::Gt, value),
        Comparison::Masked { mask, value } => (SeccompCmpOp::MaskedEq(mask), value),
    };
    let arg = u8::try_from(check.arg).unwrap_or(u8::MAX);
    SeccompCondition::new(arg, SeccompCmpArgLen::Qword, operator, value)
}

fn docker_check(check: &Check) -> Value {
    // A masked comparison carries its mask first and what must be under it second.
    let (op, value, under_mask) = match check.comparison {
        Comparison::Equal(value) => ("SCMP_CMP_EQ", value, 0),
        Comparison::NotEqual(value) => ("SCMP_CMP_NE", value, 0),
        Comparison::Above(value) => ("SCMP_CMP_GT", value, 0),
        Comparison::Masked { mask, value } => ("SCMP_CMP_MASKED_EQ", mask, value),
    };
    json!({ "index": check.arg, "value": value, "valueTwo": under_mask, "op": op })
}

#[cfg(test)]
mod tests;
