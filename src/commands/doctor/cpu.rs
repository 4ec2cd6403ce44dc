//! Checks of the processor: what programs can learn about others through it.

use super::check::{Reading, Subject, Verdict};

/// Where the kernel says what it does against each known fault of the processor.
const FAULTS: &str = "sys/devices/system/cpu/vulnerabilities";

/// The file there that is about the microcode.
const OLD_MICROCODE: &str = "old_microcode";

/// Two programs on one core, which share its caches and buffers.
pub(super) fn threads_of_a_core(subject: &Subject<'_>) -> Verdict {
    let text = match subject.machine.read("sys/devices/system/cpu/smt/control") {
        Reading::Unreadable(verdict) => return verdict,
        Reading::Text(text) => text,
        Reading::Absent => {
            return Verdict::not_known(
                "the kernel does not say whether two programs can share a core",
                "look for it in the output of lscpu, as \"Thread(s) per core\"",
            );
        }
    };
    match text.as_str() {
        "off" | "forceoff" => Verdict::fine("two programs never share a core"),
        "notsupported" | "notimplemented" => {
            Verdict::fine("as far as this machine can see, its cores run one program at a time")
        }
        _ => Verdict::warning(
            "two programs can run on one core and learn about each other from its caches and buffers (SMT)",
            no_shared_cores(subject.has_core_scheduling),
        ),
    }
}

fn no_shared_cores(has_core_scheduling: bool) -> String {
    let off = "run: echo off >/sys/devices/system/cpu/smt/control, and add nosmt to the kernel's command line";
    match has_core_scheduling {
        true => format!(
            "{off}; if others need SMT, start the embedded engine's server with `coresched new`, which keeps its \
             sandboxes off the cores of other services, but not off each other's"
        ),
        false => off.to_owned(),
    }
}

/// Faults of the processor that nothing is done against.
pub(super) fn faults(subject: &Subject<'_>) -> Verdict {
    let names = match subject.machine.names(FAULTS) {
        Ok(names) => names,
        Err(verdict) => return verdict,
    };
    let mut open = Vec::new();
    for name in names.into_iter().filter(|name| name != OLD_MICROCODE) {
        match subject.machine.read(&format!("{FAULTS}/{name}")) {
            Reading::Text(text) if is_open(&text) => open.push(name),
            Reading::Text(_) | Reading::Absent => {}
            Reading::Unreadable(verdict) => return verdict,
        }
    }
    if open.is_empty() {
        return Verdict::fine(
            "something is done against every fault of the processor that the kernel knows",
        );
    }
    Verdict::warning(
        format!(
            "programs may read the memory of others through faults of the processor: {}",
            open.join(", ")
        ),
        "read the files in /sys/devices/system/cpu/vulnerabilities; update the kernel and the microcode, and remove \
         mitigations=off from the kernel's command line",
    )
}

fn is_open(text: &str) -> bool {
    text.starts_with("Vulnerable") || text.contains("SMT vulnerable")
}

/// Microcode that lacks corrections which the kernel knows of. Its list is of Intel's processors only, and in a
/// virtual machine it can't see what the real one has.
pub(super) fn microcode(subject: &Subject<'_>) -> Verdict {
    const UPDATE: &str = "install the package intel-microcode or amd64-microcode and restart; in a virtual machine, \
         the machine that runs it needs this";
    let names = match subject.machine.names(FAULTS) {
        Ok(names) => names,
        Err(verdict) => return verdict,
    };
    let text = |name: &str| subject.machine.text(&format!("{FAULTS}/{name}")).unwrap_or_default();
    let lacks = |name: &&String| text(name).to_lowercase().contains("no microcode");
    let lacking: Vec<_> = names.iter().filter(lacks).map(String::as_str).collect();
    let listed = text(OLD_MICROCODE);
    if listed.starts_with("Vulnerable") || !lacking.is_empty() {
        let what = ["the processor's microcode lacks corrections"].into_iter().chain(lacking);
        return Verdict::warning(what.collect::<Vec<_>>().join(", "), UPDATE);
    }
    let processor = subject.machine.text("proc/cpuinfo").unwrap_or_default();
    let is_in_list = processor.contains("GenuineIntel") && !processor.contains("hypervisor");
    if listed.starts_with("Not affected") && is_in_list {
        return Verdict::fine("the kernel knows no newer microcode for this processor");
    }
    Verdict::not_known(
        "the kernel does not say whether the processor's microcode is up to date",
        UPDATE,
    )
}
