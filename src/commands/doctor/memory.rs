//! Checks of the machine's memory: what is shared between programs, and what is written to disk.

use super::check::{Machine, Reading, Subject, Verdict};

/// Merging of equal pages: the time of a write then says whether another process has the same page.
pub(super) fn page_merging(subject: &Subject<'_>) -> Verdict {
    match subject.machine.read("sys/kernel/mm/ksm/run") {
        Reading::Absent => Verdict::fine("this kernel can't merge equal pages of memory"),
        Reading::Unreadable(verdict) => verdict,
        Reading::Text(text) if text != "1" => Verdict::fine("equal pages of memory are not merged"),
        Reading::Text(_) => Verdict::warning(
            "equal pages of memory are merged, so that the time of a write can say what others have in memory",
            "run: echo 2 >/sys/kernel/mm/ksm/run, and stop the service that turns it on, such as ksmtuned",
        ),
    }
}

/// Reserved huge pages, which count towards no sandbox's limit.
pub(super) fn huge_pages(subject: &Subject<'_>) -> Verdict {
    let mut pages = 0;
    for path in ["proc/sys/vm/nr_hugepages", "proc/sys/vm/nr_overcommit_hugepages"] {
        match subject.machine.read(path) {
            Reading::Absent => {}
            Reading::Unreadable(verdict) => return verdict,
            Reading::Text(text) => match text.parse::<u64>() {
                Ok(number) => pages += number,
                Err(_) => {
                    return Verdict::not_known(
                        format!("/{path} is no number: {text}"),
                        "read it yourself",
                    );
                }
            },
        }
    }
    if pages == 0 {
        return Verdict::fine("no huge pages are reserved");
    }
    Verdict::warning(
        format!(
            "{pages} huge pages can be used, which count towards no sandbox's memory limit; only the filter of \
             system calls keeps programs from them"
        ),
        "run: sysctl -w vm.nr_hugepages=0 vm.nr_overcommit_hugepages=0, and set both in a file in /etc/sysctl.d",
    )
}

/// Swap on a disk that is not encrypted.
pub(super) fn swap(subject: &Subject<'_>) -> Verdict {
    let text = match subject.machine.read("proc/swaps") {
        Reading::Absent => return Verdict::fine("this kernel has no swap"),
        Reading::Unreadable(verdict) => return verdict,
        Reading::Text(text) => text,
    };
    let devices = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let plain: Vec<_> = devices.filter(|device| !is_safe(&subject.machine, device)).collect();
    if plain.is_empty() {
        return Verdict::fine("memory is not written to disk, except encrypted");
    }
    Verdict::warning(
        format!(
            "memory of the server, and with control groups of version 1 that of programs, can be written unencrypted \
             to {}",
            plain.join(", ")
        ),
        "run: swapoff -a, and remove the swap from /etc/fstab; or use encrypted swap or zram",
    )
}

/// Whether what is swapped to a device is encrypted or stays in memory.
fn is_safe(machine: &Machine, device: &str) -> bool {
    let name = device.rsplit('/').next().unwrap_or_default();
    if name.starts_with("zram") {
        let backing = machine.text(&format!("sys/block/{name}/backing_dev"));
        return backing.is_none_or(|backing| backing == "none");
    }
    let mapped = machine.text(&format!("sys/block/{name}/dm/uuid"));
    mapped.is_some_and(|uuid| uuid.starts_with("CRYPT-"))
}
