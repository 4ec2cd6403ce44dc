use super::*;

fn names<'a>(rules: &'a [Rule<'_>], wanted: impl Fn(&Rule<'_>) -> bool) -> Vec<&'a str> {
    let matching = rules.iter().filter(|rule| wanted(rule));
    matching.flat_map(|rule| rule.syscalls).map(String::as_str).collect()
}

fn plain(rule: &Rule<'_>) -> bool {
    rule.checks.is_empty()
}

/// The verdict on a call, found as a filter finds it; at most one verdict may apply.
fn verdict(syscall: &str, args: &[u64]) -> Option<Verdict> {
    let rules = PROFILE.rules();
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
fn what_must_never_pass_is_refused_by_name() {
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
    assert!(!PROFILE.default._reason.is_empty());
    assert!(!PROFILE.architectures._reason.is_empty());
    assert!(PROFILE.allow.iter().all(|group| !group._group.is_empty()));
    for rule in PROFILE.rules() {
        assert!(!rule.comment.is_empty(), "{:?}", rule.syscalls);
        assert!(!rule.syscalls.is_empty(), "{}", rule.comment);
    }
}

#[test]
fn every_condition_leads_somewhere() {
    for conditional in &PROFILE.allow_when {
        assert_ne!(conditional.rules().count(), 0, "{}", conditional.reason);
    }
    for conditional in &PROFILE.refuse_when {
        assert_ne!(conditional.rules().count(), 0, "{}", conditional.reason);
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

#[test]
fn terminals_take_no_typing_and_no_line_discipline() {
    const HIGH: u64 = 0xdead_beef << 32;
    let refused = [0x5412, 0x541c, 0x5423];
    let neighbours = 0x5400..=0x54ff;
    let one_bit_off = (0..32).flat_map(|bit| refused.map(|request| request ^ (1 << bit)));
    for request in neighbours.chain(one_bit_off) {
        let expected = match refused.contains(&request) {
            true => Verdict::Refuse(Errno::Perm),
            false => Verdict::Allow,
        };
        assert_eq!(verdict("ioctl", &[0, request]), Some(expected), "{request:x}");
        assert_eq!(verdict("ioctl", &[0, HIGH | request]), Some(expected), "{request:x}");
    }
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
