//! Each check against a machine that the test makes up.

use std::fs;
use std::path::Path;

use isolator_pool::engine::{Component, Facts, Location};

use super::check::{EngineFound, Machine, Subject, Verdict};
use super::{cpu, engine, kernel, memory};

type Judge = fn(&Subject<'_>) -> Verdict;

/// A machine with these files, seen by root.
fn machine(root: &Path, files: &[(&str, &str)]) -> Subject<'static> {
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
    Subject {
        machine: Machine::at(root),
        is_root: true,
        has_core_scheduling: false,
        engine: None,
        with_network: Vec::new(),
    }
}

/// The result of a check on a machine with these files: its kind, its meaning and the fix.
fn found(judge: Judge, files: &[(&str, &str)]) -> (&'static str, String) {
    let root = tempfile::tempdir().unwrap();
    describe(judge(&machine(root.path(), files)))
}

fn describe(verdict: Verdict) -> (&'static str, String) {
    match verdict {
        Verdict::Fine(what) => ("fine", what),
        Verdict::Warning { what, fix } => ("warning", format!("{what}: {fix}")),
        Verdict::NotKnown { what, fix } => ("unknown", format!("{what}: {fix}")),
    }
}

fn kinds(judge: Judge, path: &str, values: &[(&str, &str)]) {
    for (value, kind) in values {
        let (found, text) = found(judge, &[(path, value)]);
        assert_eq!(found, *kind, "{path} is {value}: {text}");
    }
}

#[test]
fn settings_of_the_kernel_are_judged_by_their_value() {
    let cases: [(Judge, &str, [&str; 2], &str); 9] = [
        (kernel::bpf, "kernel/unprivileged_bpf_disabled", ["2", "0"], "fine"),
        (kernel::performance_counters, "kernel/perf_event_paranoid", ["2", "1"], "fine"),
        (kernel::page_faults, "vm/unprivileged_userfaultfd", ["0", "1"], "fine"),
        (kernel::io_uring, "kernel/io_uring_disabled", ["1", "0"], "fine"),
        (kernel::kernel_addresses, "kernel/kptr_restrict", ["1", "0"], "unknown"),
        (kernel::kernel_log, "kernel/dmesg_restrict", ["1", "0"], "unknown"),
        (kernel::tracing, "kernel/yama/ptrace_scope", ["1", "0"], "warning"),
        (kernel::random_addresses, "kernel/randomize_va_space", ["2", "1"], "unknown"),
        (kernel::user_namespaces, "user/max_user_namespaces", ["15000", "0"], "warning"),
    ];
    for (judge, path, [safe, bad], absent) in cases {
        let file = format!("proc/sys/{path}");
        kinds(judge, &file, &[(safe, "fine"), (bad, "warning")]);
        let (_, text) = found(judge, &[(&file, bad)]);
        let fix = format!("sysctl -w {}=", path.replace('/', "."));
        assert!(text.contains(&fix), "{text}");
        assert_eq!(found(judge, &[]).0, absent, "{path}");
    }
    // A value that no kernel of today knows is not taken for a safe one.
    kinds(kernel::bpf, "proc/sys/kernel/unprivileged_bpf_disabled", &[("on", "warning")]);
}

#[test]
fn core_dumps_must_not_start_anything() {
    let pattern = "proc/sys/kernel/core_pattern";
    kinds(
        kernel::core_dumps,
        pattern,
        &[
            ("core", "fine"),
            ("/var/crash/%e.%p", "fine"),
            ("|/usr/lib/systemd/systemd-coredump %P", "warning"),
            ("@/run/coredump", "warning"),
        ],
    );
}

#[test]
fn user_namespaces_are_kept_from_others_if_the_kernel_can() {
    let debian = "proc/sys/kernel/unprivileged_userns_clone";
    let apparmor = "proc/sys/kernel/apparmor_restrict_unprivileged_userns";
    let judge = kernel::unprivileged_namespaces;
    for (files, kind) in [
        (&[(debian, "1")][..], "warning"),
        (&[(debian, "0")], "fine"),
        (&[(apparmor, "0")], "warning"),
        (&[(apparmor, "1")], "fine"),
        (&[(debian, "1"), (apparmor, "1")], "fine"),
        (&[(debian, "1"), (apparmor, "0")], "warning"),
        (&[], "fine"),
    ] {
        assert_eq!(found(judge, files).0, kind, "{files:?}");
    }
    let root = tempfile::tempdir().unwrap();
    let subject = Subject { is_root: false, ..machine(root.path(), &[(debian, "1")]) };
    assert_eq!(describe(judge(&subject)).0, "fine", "a server without root needs them");
}

#[test]
fn control_groups_of_version_1_get_a_warning() {
    let controllers = "sys/fs/cgroup/cgroup.controllers";
    kinds(kernel::control_groups, controllers, &[("cpu memory pids", "fine")]);
    assert_eq!(found(kernel::control_groups, &[]).0, "warning");
}

#[test]
fn memory_must_not_be_merged_or_uncounted() {
    let merging = "sys/kernel/mm/ksm/run";
    kinds(memory::page_merging, merging, &[("0", "fine"), ("1", "warning"), ("2", "fine")]);
    assert_eq!(found(memory::page_merging, &[]).0, "fine");
    let pages = "proc/sys/vm/nr_hugepages";
    kinds(memory::huge_pages, pages, &[("0", "fine"), ("64", "warning"), ("many", "unknown")]);
    let more = "proc/sys/vm/nr_overcommit_hugepages";
    kinds(memory::huge_pages, more, &[("0", "fine"), ("64", "warning")]);
}

#[test]
fn swap_is_encrypted_or_in_memory() {
    const HEAD: &str = "Filename Type Size Used Priority";
    let swaps = |devices: &[&str], more: &[(&str, &str)]| {
        let lines = devices.iter().map(|device| format!("{device} partition 1024 0 -2"));
        let text: Vec<_> = [HEAD.to_owned()].into_iter().chain(lines).collect();
        let text = text.join("\n");
        let files: Vec<_> =
            [("proc/swaps", text.as_str())].into_iter().chain(more.iter().copied()).collect();
        found(memory::swap, &files)
    };
    assert_eq!(swaps(&[], &[]).0, "fine");
    assert_eq!(swaps(&["/dev/zram0"], &[]).0, "fine");
    assert_eq!(swaps(&["/dev/zram0"], &[("sys/block/zram0/backing_dev", "none")]).0, "fine");
    let written_on = [("sys/block/zram0/backing_dev", "/dev/sda3")];
    assert_eq!(swaps(&["/dev/zram0"], &written_on).0, "warning");
    let encrypted = [("sys/block/dm-1/dm/uuid", "CRYPT-PLAIN-swap")];
    assert_eq!(swaps(&["/dev/dm-1"], &encrypted).0, "fine");
    assert_eq!(swaps(&["/dev/dm-1"], &[("sys/block/dm-1/dm/uuid", "LVM-abc")]).0, "warning");
    let (kind, text) = swaps(&["/dev/dm-1", "/dev/sda2", "/swapfile"], &encrypted);
    assert_eq!(kind, "warning");
    assert!(text.contains("/dev/sda2, /swapfile") && !text.contains("dm-1"), "{text}");
}

#[test]
fn cores_are_not_shared_and_faults_are_mended() {
    let control = "sys/devices/system/cpu/smt/control";
    let values = [
        ("on", "warning"),
        ("off", "fine"),
        ("forceoff", "fine"),
        ("notsupported", "fine"),
        ("4", "warning"),
    ];
    kinds(cpu::threads_of_a_core, control, &values);
    assert_eq!(found(cpu::threads_of_a_core, &[]).0, "unknown");
    let root = tempfile::tempdir().unwrap();
    let subject = Subject { has_core_scheduling: true, ..machine(root.path(), &[(control, "on")]) };
    assert!(describe(cpu::threads_of_a_core(&subject)).1.contains("coresched"));

    let fault = |name: &str| format!("sys/devices/system/cpu/vulnerabilities/{name}");
    let (mds, retbleed, microcode) = (fault("mds"), fault("retbleed"), fault("old_microcode"));
    let values = [
        ("Not affected", "fine"),
        ("Mitigation: Clear CPU buffers; SMT disabled", "fine"),
        ("Mitigation: Clear CPU buffers; SMT vulnerable", "warning"),
        ("Vulnerable: No microcode", "warning"),
    ];
    kinds(cpu::faults, &mds, &values);
    let (_, text) = found(cpu::faults, &[(&mds, "Vulnerable"), (&retbleed, "Vulnerable")]);
    assert!(text.contains("mds, retbleed"), "{text}");
    assert_eq!(found(cpu::faults, &[]).0, "unknown");
    // It has a check of its own.
    assert_eq!(found(cpu::faults, &[(&microcode, "Vulnerable")]).0, "fine");
}

#[test]
fn microcode_is_only_known_to_be_new_where_the_kernel_has_a_list() {
    let fault = |name: &str| format!("sys/devices/system/cpu/vulnerabilities/{name}");
    let (list, other) = (fault("old_microcode"), fault("spec_rstack_overflow"));
    let processor = |text| ("proc/cpuinfo", text);
    let (intel, guest, amd) =
        ("GenuineIntel\nflags: fpu", "GenuineIntel\nflags: fpu hypervisor", "AuthenticAMD");
    for (files, kind) in [
        (&[(&*list, "Vulnerable"), processor(intel)][..], "warning"),
        (&[(&*list, "Not affected"), processor(intel)], "fine"),
        (&[(&*list, "Not affected"), processor(guest)], "unknown"),
        (&[(&*list, "Not affected"), processor(amd)], "unknown"),
        (&[(&*other, "Vulnerable: Safe RET, no microcode"), processor(amd)], "warning"),
        (&[(&*other, "Mitigation: Safe RET"), processor(intel)], "unknown"),
        (&[], "unknown"),
    ] {
        let (found, text) = found(cpu::microcode, files);
        assert_eq!(found, kind, "{files:?}: {text}");
    }
}

#[test]
fn unreadable_values_are_unknown() {
    let root = tempfile::tempdir().unwrap();
    let subject = machine(root.path(), &[]);
    for (judge, path) in [
        (memory::page_merging as Judge, "sys/kernel/mm/ksm/run"),
        (memory::swap, "proc/swaps"),
        (kernel::core_dumps, "proc/sys/kernel/core_pattern"),
        (kernel::bpf, "proc/sys/kernel/unprivileged_bpf_disabled"),
    ] {
        // A folder can be opened and not read, by root too.
        fs::create_dir_all(root.path().join(path)).unwrap();
        let (kind, text) = describe(judge(&subject));
        assert_eq!(kind, "unknown", "{path}");
        assert!(text.contains(&format!("/{path}")), "{text}");
    }
}

/// The result of a check of an engine, as root.
fn about(judge: Judge, engine: Option<EngineFound<'_>>) -> &'static str {
    let root = tempfile::tempdir().unwrap();
    let empty = machine(root.path(), &[]);
    let subject = Subject {
        machine: empty.machine,
        is_root: true,
        has_core_scheduling: false,
        engine,
        with_network: Vec::new(),
    };
    describe(judge(&subject)).0
}

fn docker(runc: &str, protections: &[&str]) -> EngineFound<'static> {
    let runc = Component { name: "runc".to_owned(), version: runc.to_owned() };
    let protections = protections.iter().map(|name| (*name).to_owned()).collect();
    let facts = Facts {
        location: Location::Here,
        runtime: Some("runc".to_owned()),
        components: vec![runc],
        protections,
    };
    EngineFound { facts, is_embedded: false, runtime: None, warnings: 0 }
}

#[test]
fn the_engine_is_judged_by_what_it_says() {
    let good = || docker("1.3.6", &["seccomp", "apparmor", "userns"]);
    let bad = || docker("1.1.11", &["seccomp"]);
    for judge in [engine::runtime as Judge, engine::remapped_users, engine::security_module] {
        assert_eq!(about(judge, Some(good())), "fine");
        assert_eq!(about(judge, Some(bad())), "warning");
        assert_eq!(about(judge, None), "unknown");
    }
    let other = EngineFound { runtime: Some("runsc"), ..bad() };
    assert_eq!(about(engine::runtime, Some(other)), "fine", "runc makes no sandboxes");
    let mut other = bad();
    other.facts.runtime = Some("crun".to_owned());
    assert_eq!(about(engine::runtime, Some(other)), "fine", "it is the engine's default");
    let wrapper = EngineFound { runtime: Some("nvidia"), ..bad() };
    assert_eq!(about(engine::runtime, Some(wrapper)), "warning", "it starts runc");
    let mut silent = bad();
    silent.facts.components.clear();
    assert_eq!(about(engine::runtime, Some(silent)), "unknown");

    let mut embedded = EngineFound { is_embedded: true, ..bad() };
    embedded.facts.components.clear();
    assert_eq!(about(engine::runtime, Some(embedded)), "fine");
    let embedded = EngineFound { is_embedded: true, ..bad() };
    assert_eq!(about(engine::server_user, Some(embedded)), "fine");
    assert_eq!(about(engine::server_user, Some(bad())), "warning");

    let warned = EngineFound { warnings: 2, ..good() };
    assert_eq!(about(engine::warnings, Some(warned)), "warning");
    assert_eq!(about(engine::warnings, Some(good())), "fine");
    for (location, kind) in [
        (Location::Here, "fine"),
        (Location::VirtualMachine, "fine"),
        (Location::Encrypted, "fine"),
        (Location::Open, "warning"),
    ] {
        let mut engine = good();
        engine.facts.location = location;
        assert_eq!(about(engine::address, Some(engine)), kind);
    }
}

#[test]
fn a_network_gets_a_warning_with_the_languages_that_have_it() {
    let root = tempfile::tempdir().unwrap();
    let mut subject = machine(root.path(), &[]);
    assert_eq!(describe(engine::network(&subject)).0, "fine");
    subject.with_network = vec!["python"];
    let (kind, text) = describe(engine::network(&subject));
    assert_eq!(kind, "warning");
    assert!(text.contains("programs in python"), "{text}");
}
