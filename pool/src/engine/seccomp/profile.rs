//! The files of the policy, and the rules that they come down to.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::LazyLock;

use serde::Deserialize;

use super::{Check, Comparison, Errno, Rule, Verdict};

/// The embedded policy. It is part of the build, so a bad one fails the unit tests first.
pub(super) static PROFILE: LazyLock<Profile> = LazyLock::new(|| {
    let arguments = [include_str!("arguments.json"), include_str!("sockets.json")];
    let parse = |file| serde_json::from_str(file).expect("the embedded arguments are well formed");
    Profile {
        whole: serde_json::from_str(include_str!("profile.json"))
            .expect("the embedded profile is well formed"),
        arguments: arguments.into_iter().map(parse).collect(),
    }
});

/// The policy.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) whole: Whole,
    pub(super) arguments: Vec<Arguments>,
}

/// The calls that are decided as a whole.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Whole {
    pub(super) default: DefaultAnswer,
    pub(super) architectures: Architectures,
    pub(super) allow: Vec<Group>,
    pub(super) refuse: Vec<Refusal>,
}

/// The calls that depend on their arguments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    pub(super) allow_except: Vec<Exception>,
    pub(super) allow_when: Vec<Conditional>,
    pub(super) refuse_when: Vec<ConditionalRefusal>,
}

/// The answer to a call that no rule covers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DefaultAnswer {
    errno: Errno,
    // For the reader of the file; no engine has a place for it.
    #[serde(rename = "reason")]
    pub(super) _reason: String,
}

/// The machines the profile is for. Calls of any other kind kill the program.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Architectures {
    names: Vec<Architecture>,
    // As above.
    #[serde(rename = "reason")]
    pub(super) _reason: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) enum Architecture {
    #[serde(rename = "x86_64")]
    X86_64,
    #[serde(rename = "aarch64")]
    Aarch64,
}

/// Calls allowed with any arguments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Group {
    // As above.
    #[serde(rename = "group")]
    pub(super) _group: String,
    reason: String,
    syscalls: Vec<String>,
}

/// Calls refused with any arguments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Refusal {
    errno: Errno,
    reason: String,
    syscalls: Vec<String>,
}

/// Calls allowed but for some flags or numbers in one argument.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exception {
    syscalls: Vec<String>,
    reason: String,
    arg: u32,
    except: Forbidden,
    errno: Errno,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Forbidden {
    /// Each of these flags.
    Bits(Named<u64>),
    /// Each of these numbers in the low 32 bits, where that is all the kernel reads.
    Numbers(Named<u32>),
}

/// Calls allowed when every condition holds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Conditional {
    syscalls: Vec<String>,
    pub(super) reason: String,
    when: Vec<Condition>,
}

/// Calls refused with some arguments, and allowed with others.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConditionalRefusal {
    syscalls: Vec<String>,
    pub(super) reason: String,
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

/// The condition of one argument.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Test {
    /// One of these numbers.
    Is(Named<u64>),
    /// Any number but this one.
    Not(u64),
    /// A greater number than this one.
    Above(u64),
    /// One of these numbers under the mask.
    Field { mask: u64, values: Named<u64> },
    /// One of these numbers in the low 32 bits, where that is all the kernel reads.
    LowWordIs(Named<u32>),
    /// A number from the first to the second of a pair, again in the low 32 bits.
    LowWordWithin(Named<(u32, u32)>),
}

impl Profile {
    pub(super) fn architectures(&self) -> &[Architecture] {
        &self.whole.architectures.names
    }

    /// The answer to a call that no rule covers.
    pub(super) fn default_errno(&self) -> Errno {
        self.whole.default.errno
    }

    /// Every rule, in the order of the files.
    pub(super) fn rules(&self) -> Vec<Rule<'_>> {
        let allowed = self.whole.allow.iter().map(Group::rule);
        let refused = self.whole.refuse.iter().map(Refusal::rule);
        allowed.chain(refused).chain(self.arguments.iter().flat_map(Arguments::rules)).collect()
    }
}

impl Group {
    fn rule(&self) -> Rule<'_> {
        rule(&self.syscalls, Verdict::Allow, Vec::new(), &self.reason)
    }
}

impl Refusal {
    fn rule(&self) -> Rule<'_> {
        rule(&self.syscalls, Verdict::Refuse(self.errno), Vec::new(), &self.reason)
    }
}

impl Arguments {
    fn rules(&self) -> impl Iterator<Item = Rule<'_>> {
        let exceptions = self.allow_except.iter().flat_map(Exception::rules);
        let allowed = self.allow_when.iter().flat_map(Conditional::rules);
        exceptions.chain(allowed).chain(self.refuse_when.iter().flat_map(ConditionalRefusal::rules))
    }
}

impl Exception {
    fn rules(&self) -> impl Iterator<Item = Rule<'_>> {
        let rules = move |verdict, comparisons: Vec<Comparison>| {
            let check = move |comparison| vec![Check { arg: self.arg, comparison }];
            let checks = comparisons.into_iter().map(check);
            checks.map(move |checks| rule(&self.syscalls, verdict, checks, &self.reason))
        };
        let refused = rules(Verdict::Refuse(self.errno), self.except.comparisons());
        rules(Verdict::Allow, self.except.all_others()).chain(refused)
    }
}

impl Forbidden {
    /// Comparisons of which any one means a forbidden argument.
    fn comparisons(&self) -> Vec<Comparison> {
        match self {
            Self::Bits(bits) => {
                bits.values().map(|&bit| Comparison::Masked { mask: bit, value: bit }).collect()
            }
            Self::Numbers(numbers) => numbers.values().map(|&number| low_word(number)).collect(),
        }
    }

    /// Comparisons of which any one means an argument that is not forbidden.
    fn all_others(&self) -> Vec<Comparison> {
        match self {
            Self::Bits(bits) => {
                let mask = bits.values().fold(0, |mask, bit| mask | bit);
                vec![Comparison::Masked { mask, value: 0 }]
            }
            Self::Numbers(numbers) => {
                let mut numbers: Vec<u64> = numbers.values().copied().map(u64::from).collect();
                numbers.sort_unstable();
                let begins = std::iter::once(0).chain(numbers.iter().map(|number| number + 1));
                let ends = numbers.iter().copied().chain([1 << u32::BITS]);
                begins.zip(ends).flat_map(|(begin, end)| blocks(begin..end)).collect()
            }
        }
    }
}

impl Conditional {
    pub(super) fn rules(&self) -> impl Iterator<Item = Rule<'_>> {
        alternatives(&self.when)
            .into_iter()
            .map(|checks| rule(&self.syscalls, Verdict::Allow, checks, &self.reason))
    }
}

impl ConditionalRefusal {
    pub(super) fn rules(&self) -> impl Iterator<Item = Rule<'_>> {
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
            Self::Field { mask, values } => {
                values.values().map(|&value| Masked { mask: *mask, value }).collect()
            }
            Self::LowWordIs(values) => values.values().map(|&value| low_word(value)).collect(),
            Self::LowWordWithin(ranges) => {
                let range = |&(first, last): &(u32, u32)| first.into()..u64::from(last) + 1;
                ranges.values().map(range).flat_map(blocks).collect()
            }
        }
    }
}

fn low_word(value: u32) -> Comparison {
    Comparison::Masked { mask: u32::MAX.into(), value: value.into() }
}

/// Comparisons that together hold for the 32-bit numbers of a range.
///
/// Filters can compare the order of 64-bit numbers only, not that of 32 bits of them. So the range is cut
/// into the fewest blocks whose numbers have all of their leading bits in common.
pub(super) fn blocks(range: Range<u64>) -> Vec<Comparison> {
    let all = 1_u64 << u32::BITS;
    let mut begin = range.start;
    let mut blocks = Vec::new();
    while begin < range.end {
        // The greatest block that can begin here, and that ends in time.
        let aligned = 1 << (begin | all).trailing_zeros();
        let size = (1_u64 << (range.end - begin).ilog2()).min(aligned);
        blocks.push(Comparison::Masked { mask: all - size, value: begin });
        begin += size;
    }
    blocks
}
