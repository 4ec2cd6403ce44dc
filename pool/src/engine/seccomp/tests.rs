//! The verdicts of the rules, call by call and argument by argument.

mod compiled;
mod page;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use syscalls::Sysno;

use super::profile::{Arguments, PROFILE, blocks};
use super::*;

/// Put into the high half of an argument of which the kernel reads the low one.
const HIGH: u64 = 0xdead_beef << 32;

const REFUSED: Option<Verdict> = Some(Verdict::Refuse(Errno::Perm));
const ALLOWED: Option<Verdict> = Some(Verdict::Allow);

fn names<'a>(rules: &'a [Rule<'_>], wanted: impl Fn(&Rule<'_>) -> bool) -> Vec<&'a str> {
    let matching = rules.iter().filter(|rule| wanted(rule));
    matching.flat_map(|rule| rule.syscalls).map(String::as_str).collect()
}

fn plain(rule: &Rule<'_>) -> bool {
    rule.checks.is_empty()
}

/// The verdict on a call, found as a filter finds it; at most one verdict may apply.
fn verdict(syscall: &str, args: &[u64]) -> Option<Verdict> {
    verdict_of(&PROFILE.rules(), syscall, args)
}

fn verdict_of(rules: &[Rule<'_>], syscall: &str, args: &[u64]) -> Option<Verdict> {
    let named = rules.iter().filter(|rule| rule.syscalls.iter().any(|name| name == syscall));
    let holding = named.filter(|rule| rule.checks.iter().all(|check| holds(check, args)));
    let mut verdicts: Vec<_> = holding.map(|rule| rule.verdict).collect();
    verdicts.dedup();
    assert!(verdicts.len() <= 1, "{syscall} {args:x?} is both: {verdicts:?}");
    verdicts.pop()
}

fn holds(check: &Check, args: &[u64]) -> bool {
    let arg = args[check.arg as usize];
    match check.comparison {
        Comparison::Equal(value) => arg == value,
        Comparison::NotEqual(value) => arg != value,
        Comparison::Above(value) => arg > value,
        Comparison::Masked { mask, value } => arg & mask == value,
    }
}

#[test]
fn a_syscall_is_named_once_and_one_with_conditions_never_plainly() {
    let rules = PROFILE.rules();
    let plainly = names(&rules, plain);
    let once: BTreeSet<_> = plainly.iter().collect();
    assert_eq!(once.len(), plainly.len(), "a name is in two groups");
    let conditional = names(&rules, |rule| !plain(rule));
    // A rule without conditions would win over the ones with them.
    assert_eq!(conditional.iter().find(|name| once.contains(name)), None);
}

#[test]
fn conditions_refuse_only_what_other_conditions_allow_in_part() {
    let rules = PROFILE.rules();
    let allowed = names(&rules, |rule| !plain(rule) && rule.verdict == Verdict::Allow);
    let refused = names(&rules, |rule| !plain(rule) && rule.verdict != Verdict::Allow);
    assert_eq!(refused.iter().find(|name| !allowed.contains(name)), None);
}

#[test]
fn forbidden_calls_are_refused_by_name() {
    let refused = [
        ("io_uring_setup", Errno::NoSys),
        ("clone3", Errno::NoSys),
        ("unshare", Errno::Perm),
        ("setns", Errno::Perm),
        ("mount", Errno::Perm),
        ("bpf", Errno::Perm),
        ("keyctl", Errno::Perm),
        ("ptrace", Errno::Perm),
        ("userfaultfd", Errno::Perm),
        ("open_by_handle_at", Errno::Perm),
    ];
    for (name, errno) in refused {
        assert_eq!(verdict(name, &[]), Some(Verdict::Refuse(errno)), "{name}");
    }
}

#[test]
fn everything_has_a_reason() {
    assert!(!PROFILE.whole.default._reason.is_empty());
    assert!(!PROFILE.whole.architectures._reason.is_empty());
    assert!(PROFILE.whole.allow.iter().all(|group| !group._group.is_empty()));
    for rule in PROFILE.rules() {
        assert!(!rule.comment.is_empty(), "{:?}", rule.syscalls);
        assert!(!rule.syscalls.is_empty(), "{}", rule.comment);
    }
}

#[test]
fn every_condition_leads_somewhere() {
    for Arguments { allow_when, refuse_when, .. } in &PROFILE.arguments {
        for conditional in allow_when {
            assert_ne!(conditional.rules().count(), 0, "{}", conditional.reason);
        }
        for conditional in refuse_when {
            assert_ne!(conditional.rules().count(), 0, "{}", conditional.reason);
        }
    }
}

#[test]
fn no_rule_checks_an_argument_twice() {
    for rule in PROFILE.rules() {
        let args: BTreeSet<_> = rule.checks.iter().map(|check| check.arg).collect();
        assert_eq!(args.len(), rule.checks.len(), "{:?}", rule.syscalls);
        assert!(args.iter().all(|&arg| arg < 6), "{:?}", rule.syscalls);
    }
}

#[test]
fn clone_makes_threads_but_no_namespaces() {
    const THREAD: u64 = 0x003d_0f00;
    assert_eq!(verdict("clone", &[THREAD]), Some(Verdict::Allow));
    for namespace in [0x0002_0000, 0x0200_0000, 0x1000_0000, 0x4000_0000, 0x7e02_0000] {
        let refused = Some(Verdict::Refuse(Errno::Perm));
        assert_eq!(verdict("clone", &[THREAD | namespace]), refused, "{namespace:x}");
    }
}

#[test]
fn only_local_and_loopback_sockets_exist() {
    const CLOSE_ON_EXEC: u64 = 0x0008_0000;
    for (family, kind, protocol) in
        [(1, 1, 0), (2, 1, 0), (10, 1, 6), (2, 2, 17), (10, 2, 0), (16, 3, 0)]
    {
        let args = [family, kind | CLOSE_ON_EXEC, protocol];
        assert_eq!(verdict("socket", &args), Some(Verdict::Allow), "{args:?}");
    }
    // Packets, ALG, VSOCK, XDP, and TCP hidden under a high bit.
    for family in [0, 17, 38, 40, 44, (1 << 32) | 2] {
        let refused = Some(Verdict::Refuse(Errno::AfNoSupport));
        assert_eq!(verdict("socket", &[family, 1, 0]), refused, "{family}");
    }
    // Other netlink, raw, SCTP by protocol and by type, multipath TCP, UDP-Lite.
    for args in [[16, 3, 12], [2, 3, 1], [2, 1, 132], [2, 5, 0], [2, 1, 262], [10, 2, 136]] {
        assert_ne!(verdict("socket", &args), Some(Verdict::Allow), "{args:?}");
    }
    assert_eq!(verdict("socketpair", &[1, 1, 0]), Some(Verdict::Allow));
    assert_ne!(verdict("socketpair", &[2, 1, 0]), Some(Verdict::Allow));
}

/// Asks about a call with one argument set, with a clean high half and with one that is not.
fn verdict_on(syscall: &str, arg: usize, value: u64) -> Option<Verdict> {
    let mut args = [0; 6];
    args[arg] = value;
    let clean = verdict(syscall, &args);
    args[arg] |= HIGH;
    assert_eq!(verdict(syscall, &args), clean, "{syscall} {value:x}");
    clean
}

#[test]
fn controls_of_descriptors_type_nothing_and_load_nothing() {
    let terminals = [0x5412, 0x541c, 0x5423];
    let networks = [0x8940, 0x8941, 0x8980, 0x8981, 0x8982, 0x8983, 0x89a0, 0x89a1, 0x89a2, 0x89a3];
    let refused: BTreeSet<u64> = terminals.into_iter().chain(networks).collect();
    let neighbours = (0x5400..=0x54ff).chain(0x8900..=0x89ff);
    let one_bit_off =
        refused.iter().flat_map(|request| (0..32).map(move |bit| request ^ (1 << bit)));
    for request in neighbours.chain(one_bit_off) {
        let expected = if refused.contains(&request) { REFUSED } else { ALLOWED };
        assert_eq!(verdict_on("ioctl", 1, request), expected, "{request:x}");
    }
}

#[test]
fn one_flag_is_enough_to_be_refused() {
    let flags = [
        ("mmap", 3, 0x4_0000),
        ("memfd_create", 1, 0x4),
        ("shmget", 2, 0x800),
        ("sendto", 3, 1),
        ("recvfrom", 3, 1),
        ("sendmmsg", 3, 1),
        ("recvmmsg", 3, 1),
        ("sendmsg", 2, 1),
        ("recvmsg", 2, 1),
    ];
    for (call, arg, flag) in flags {
        for others in [0, u64::from(u32::MAX), 0x22, 0x4040, 0x780] {
            assert_eq!(verdict_on(call, arg, others & !flag), ALLOWED, "{call} {others:x}");
            assert_eq!(verdict_on(call, arg, others | flag), REFUSED, "{call} {others:x}");
        }
    }
    assert_eq!(verdict_on("preadv2", 5, 0), ALLOWED);
    assert_eq!(verdict_on("preadv2", 5, 8), Some(Verdict::Refuse(Errno::NoSys)));
}

#[test]
fn advice_is_taken_but_equal_pages_are_not_merged() {
    for advice in 0..128 {
        let expected = if [12, 100, 101].contains(&advice) { REFUSED } else { ALLOWED };
        assert_eq!(verdict_on("madvise", 2, advice), expected, "{advice}");
    }
    assert_eq!(verdict_on("madvise", 2, 128), None);
}

#[test]
fn files_stay_in_the_cache() {
    for advice in 0..8 {
        let ignored = Some(Verdict::Refuse(Errno::None));
        let expected = if advice == 4 { ignored } else { ALLOWED };
        assert_eq!(verdict_on("fadvise64", 3, advice), expected, "{advice}");
    }
    assert_eq!(verdict_on("fadvise64", 3, 8), None);
}

#[test]
fn a_program_has_no_filters_of_its_own() {
    for operation in [0, 2, 3] {
        assert_eq!(verdict_on("seccomp", 0, operation), ALLOWED, "{operation}");
    }
    // The second is PR_SET_SECCOMP.
    for (call, operation) in [("seccomp", 1), ("prctl", 22)] {
        let without_filters = Some(Verdict::Refuse(Errno::Inval));
        assert_eq!(verdict_on(call, 0, operation), without_filters, "{call}");
    }
    // PR_SET_MM, PR_SCHED_CORE, PR_SET_MEMORY_MERGE.
    for option in [35, 62, 67] {
        assert_eq!(verdict_on("prctl", 0, option), REFUSED, "{option}");
    }
    // Names, signals of parents, no_new_privs, names of mappings, and who may trace.
    for option in [1, 4, 15, 16, 21, 36, 38, 39, 41, 55, 0x5356_4d41, 0x5961_6d61] {
        assert_eq!(verdict_on("prctl", 0, option), ALLOWED, "{option}");
    }
    // PR_SET_IO_FLUSHER, PR_SET_SYSCALL_USER_DISPATCH, PR_TIMER_CREATE_RESTORE_IDS, PR_FUTEX_HASH,
    // PR_RSEQ_SLICE_EXTENSION, and whatever comes.
    for option in [0, 57, 59, 77, 78, 79, 90, 0x5356_4d42, u64::from(u32::MAX)] {
        assert_eq!(verdict_on("prctl", 0, option), None, "{option}");
    }
}

#[test]
fn the_limit_of_core_dumps_stays() {
    const ASKED: u64 = 0;
    const IGNORED: Option<Verdict> = Some(Verdict::Refuse(Errno::None));
    for resource in 0..16 {
        let is_core = resource == 4;
        let set = if is_core { IGNORED } else { ALLOWED };
        assert_eq!(verdict_on("setrlimit", 0, resource), set, "{resource}");
        for resource in [resource, HIGH | resource] {
            assert_eq!(verdict("prlimit64", &[0, resource, ASKED, 1]), ALLOWED, "{resource}");
            for new in [1, 1 << 32, 0x7ffe_0000_1000] {
                assert_eq!(verdict("prlimit64", &[0, resource, new, 0]), set, "{resource} {new}");
            }
        }
    }
}

#[test]
fn options_of_sockets_load_no_programs_and_no_protocols() {
    let on = |level: u64, option: u64| {
        let clean = verdict("setsockopt", &[3, level, option]);
        assert_eq!(verdict("setsockopt", &[3, HIGH | level, option]), clean, "{level} {option}");
        assert_eq!(verdict("setsockopt", &[3, level, HIGH | option]), clean, "{level} {option}");
        clean
    };
    let refused = [
        (1, vec![26, 44, 50, 51, 52]),
        (0, vec![64, 65]),
        (41, vec![64, 65]),
        (6, vec![14, 31, 32, 38, 39, 40, 41, 42]),
        (17, vec![100]),
    ];
    for (level, options) in refused {
        for option in options {
            assert_eq!(on(level, option), REFUSED, "{level} {option}");
        }
    }
    let usual = [
        (1, vec![2, 6, 7, 8, 9, 10, 13, 15, 16, 20, 21, 25, 27, 29, 37, 60, 66, 67, 76, 84]),
        (0, vec![1, 2, 8, 10, 11, 13, 24, 32, 33, 34, 35, 36, 46, 49, 50]),
        (41, vec![16, 17, 18, 19, 20, 25, 26, 42, 46, 49, 66, 67, 72, 78]),
        (6, vec![1, 2, 3, 4, 5, 6, 9, 11, 12, 13, 18, 23, 25, 30, 36, 37]),
        (17, vec![1, 101, 103, 104]),
        (270, vec![1, 5, 11, 12]),
    ];
    for (level, options) in usual {
        for option in options {
            assert_eq!(on(level, option), ALLOWED, "{level} {option}");
        }
    }
    // Turning IPv6 into IPv4, repair, raw ICMP, SCTP, and the levels of TLS and multipath TCP.
    for (level, option) in [(41, 1), (6, 19), (58, 1), (132, 1), (282, 1), (284, 1)] {
        assert_eq!(on(level, option), None, "{level} {option}");
    }
}

#[test]
fn a_range_is_cut_into_blocks_that_hold_for_it_and_nothing_else() {
    let ranges = [0..1, 0..64, 1..14, 16..19, 13..100, 102..128, 0x5413..0x541c, 0..1 << 32];
    for range in ranges {
        let blocks = blocks(range.clone());
        let below = range.start.saturating_sub(70)..range.start;
        for number in below.chain(range.start..(range.start + 200).min(1 << 32)) {
            let matching = blocks
                .iter()
                .filter(|block| holds(&Check { arg: 0, comparison: **block }, &[number]));
            assert_eq!(matching.count(), usize::from(range.contains(&number)), "{number}");
        }
    }
    // A mask for each length of what two numbers can have in common.
    assert_eq!(blocks(1..1 << 32).len(), 32);
}

/// The newest calls of the kernel for which the list of numbers is too old.
const NEWER: [&str; 2] = ["listns", "rseq_slice_yield"];

#[test]
fn every_call_of_this_machine_is_decided() {
    let rules = PROFILE.rules();
    let decided: BTreeSet<_> = names(&rules, |_| true).into_iter().collect();
    let numbers: BTreeSet<_> = decided.iter().filter_map(|name| kernel::number(name)).collect();
    let undecided = Sysno::iter().filter(|call| !numbers.contains(&i64::from(call.id())));
    // The list has 32-bit calls for aarch64.
    let undecided: Vec<_> = undecided.map(|call| call.name()).collect();
    let undecided: Vec<_> = undecided.iter().filter(|name| !name.contains("64")).collect();
    assert!(undecided.is_empty(), "{undecided:?}");
    // No other machine has calls that this one has not.
    if cfg!(target_arch = "x86_64") {
        let unknown = decided.into_iter().filter(|name| kernel::number(name).is_none());
        assert_eq!(unknown.collect::<Vec<_>>(), NEWER, "a wrong name?");
    }
    assert!(kernel::number("newfstatat").is_some());
}

#[test]
fn names_make_plain_files_but_no_devices() {
    for kind in [0, 0o010_000, 0o100_000, 0o140_000] {
        assert_eq!(verdict("mknod", &[0, kind | 0o644]), Some(Verdict::Allow), "{kind:o}");
    }
    for kind in [0o020_000, 0o060_000] {
        assert_ne!(verdict("mknodat", &[0, 0, kind]), Some(Verdict::Allow), "{kind:o}");
    }
}

#[test]
fn the_docker_form_parses_and_is_complete() {
    let profile: Value = serde_json::from_str(docker_profile()).expect("valid JSON");
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    assert_eq!(profile["defaultErrnoRet"], 38);
    assert_eq!(profile["archMap"][0]["subArchitectures"], json!([]));
    let entries = profile["syscalls"].as_array().expect("a list");
    assert_eq!(entries.len(), PROFILE.rules().len());
    for entry in entries {
        assert_eq!(entry["action"] == "SCMP_ACT_ERRNO", entry["errnoRet"].is_u64(), "{entry}");
    }
}
