//! Checks of the kernel: code that no program on such a host needs, and data that it gives away.

use super::check::{Reading, Subject, Verdict};

/// A number in `/proc/sys` that the operator can change.
struct Setting {
    /// The file's path below `/proc/sys`.
    path: &'static str,
    /// Whether a value is safe.
    is_safe: fn(i64) -> bool,
    /// The meaning of a safe value.
    fine: &'static str,
    /// The meaning of another value.
    danger: &'static str,
    /// A safe value.
    safe: i64,
    /// The meaning of a missing file.
    absent: fn() -> Verdict,
}

impl Setting {
    fn judge(&self, subject: &Subject<'_>) -> Verdict {
        let text = match subject.machine.read(&format!("proc/sys/{}", self.path)) {
            Reading::Text(text) => text,
            Reading::Absent => return (self.absent)(),
            Reading::Unreadable(verdict) => return verdict,
        };
        if text.parse().is_ok_and(self.is_safe) {
            return Verdict::fine(self.fine);
        }
        Verdict::warning(self.danger, set(self.path, self.safe))
    }
}

/// How a setting is changed, now and at every start.
fn set(path: &str, value: i64) -> String {
    let key = path.replace('/', ".");
    format!("run: sysctl -w {key}={value}, and write {key}={value} to a file in /etc/sysctl.d")
}

fn old_kernel() -> Verdict {
    Verdict::not_known("the kernel does not say", "use a kernel of this decade, with /proc mounted")
}

/// Core dumps that start a program on the host, or go to one.
pub(super) fn core_dumps(subject: &Subject<'_>) -> Verdict {
    let text = match subject.machine.read("proc/sys/kernel/core_pattern") {
        Reading::Text(text) => text,
        Reading::Absent => return Verdict::fine("this kernel writes no core dumps"),
        Reading::Unreadable(verdict) => return verdict,
    };
    match text.chars().next() {
        Some('|') => Verdict::warning(
            "a program that crashes can start a program on the host, as root, which reads its memory; only their limit \
             of core dumps keeps sandboxes from that",
            DUMP_TO_FILES,
        ),
        Some('@') => Verdict::warning(
            "a program that crashes in a sandbox can send its memory to a service of the host",
            DUMP_TO_FILES,
        ),
        _ => Verdict::fine("core dumps go to files, which sandboxes don't write"),
    }
}

const DUMP_TO_FILES: &str = "run: sysctl -w kernel.core_pattern=core, write kernel.core_pattern=core to a file in \
     /etc/sysctl.d, and remove the package that sets it, such as systemd-coredump or apport";

/// The version of the control groups that limit sandboxes.
pub(super) fn control_groups(subject: &Subject<'_>) -> Verdict {
    match subject.machine.read("sys/fs/cgroup/cgroup.controllers") {
        Reading::Unreadable(verdict) => verdict,
        Reading::Text(_) => Verdict::fine("control groups of version 2 limit sandboxes"),
        Reading::Absent => Verdict::warning(
            "control groups of version 1 limit sandboxes: on Docker, buffers of sockets have no limit of their own, \
             and programs can be swapped out",
            "add systemd.unified_cgroup_hierarchy=1 to the kernel's command line and restart",
        ),
    }
}

/// User namespaces for sandboxes.
pub(super) fn user_namespaces(subject: &Subject<'_>) -> Verdict {
    const PATH: &str = "user/max_user_namespaces";
    match subject.machine.read(&format!("proc/sys/{PATH}")) {
        Reading::Unreadable(verdict) => verdict,
        Reading::Text(text) if text != "0" => Verdict::fine(format!(
            "up to {text} user namespaces, for sandboxes with users of their own"
        )),
        Reading::Text(_) => {
            Verdict::warning("no sandbox can have users of its own", set(PATH, 15_000))
        }
        Reading::Absent => Verdict::warning(
            "no sandbox can have users of its own, because the kernel has no user namespaces",
            "use a kernel that was compiled with CONFIG_USER_NS",
        ),
    }
}

/// User namespaces for everybody else, through which a process without any rights reaches most of the kernel.
pub(super) fn unprivileged_namespaces(subject: &Subject<'_>) -> Verdict {
    const DEBIAN: &str = "kernel/unprivileged_userns_clone";
    const APPARMOR: &str = "kernel/apparmor_restrict_unprivileged_userns";
    if !subject.is_root {
        return Verdict::fine("a server that is not root needs user namespaces for its sandboxes");
    }
    let value = |path: &str| subject.machine.text(&format!("proc/sys/{path}"));
    let danger = "processes without any rights reach most of the kernel through user namespaces; sandboxes are \
         refused them by the filter only";
    match (value(DEBIAN).as_deref(), value(APPARMOR).as_deref()) {
        (Some("0"), _) | (_, Some("1")) => Verdict::fine("only root can create user namespaces"),
        (_, Some(_)) => Verdict::warning(danger, set(APPARMOR, 1)),
        (Some(_), None) => Verdict::warning(danger, set(DEBIAN, 0)),
        (None, None) => Verdict::fine(
            "this kernel can't keep user namespaces from others without keeping them from Isolator; the filter \
             refuses them to sandboxes",
        ),
    }
}

/// Programs inside the kernel.
pub(super) fn bpf(subject: &Subject<'_>) -> Verdict {
    let setting = Setting {
        path: "kernel/unprivileged_bpf_disabled",
        is_safe: |value| value >= 1,
        fine: "only root can load programs into the kernel (eBPF)",
        danger: "everybody can load programs into the kernel (eBPF), whose checks have often been fooled",
        safe: 1,
        absent: || Verdict::fine("this kernel has no eBPF"),
    };
    setting.judge(subject)
}

/// Measurements of the kernel.
pub(super) fn performance_counters(subject: &Subject<'_>) -> Verdict {
    let setting = Setting {
        path: "kernel/perf_event_paranoid",
        is_safe: |value| value >= 2,
        fine: "only root can measure the kernel",
        danger: "everybody can measure the kernel, which gives away its addresses and has let programs in",
        safe: 2,
        absent: || Verdict::fine("this kernel has no performance counters"),
    };
    setting.judge(subject)
}

/// Page faults of the kernel that a program handles.
pub(super) fn page_faults(subject: &Subject<'_>) -> Verdict {
    let setting = Setting {
        path: "vm/unprivileged_userfaultfd",
        is_safe: |value| value == 0,
        fine: "only root can make the kernel wait in a page fault (userfaultfd)",
        danger: "everybody can make the kernel wait in a page fault (userfaultfd), with which exploits win races",
        safe: 0,
        absent: || Verdict::fine("this kernel has no userfaultfd"),
    };
    setting.judge(subject)
}

/// The interface of the kernel that filters don't see into.
pub(super) fn io_uring(subject: &Subject<'_>) -> Verdict {
    let setting = Setting {
        path: "kernel/io_uring_disabled",
        is_safe: |value| value >= 1,
        fine: "io_uring is off for everybody, or for all but one group",
        danger: "everybody can use io_uring, which has often let programs into the kernel; sandboxes are refused it by \
                 the filter only",
        safe: 2,
        absent: || {
            Verdict::fine(
                "this kernel can't switch io_uring off; the filter refuses it to sandboxes",
            )
        },
    };
    setting.judge(subject)
}

/// The kernel's addresses in files.
pub(super) fn kernel_addresses(subject: &Subject<'_>) -> Verdict {
    let setting = Setting {
        path: "kernel/kptr_restrict",
        is_safe: |value| value >= 1,
        fine: "files don't show the kernel's addresses",
        danger: "files can show the kernel's addresses, which most exploits need",
        safe: 1,
        absent: old_kernel,
    };
    setting.judge(subject)
}

/// The kernel's log.
pub(super) fn kernel_log(subject: &Subject<'_>) -> Verdict {
    let setting = Setting {
        path: "kernel/dmesg_restrict",
        is_safe: |value| value >= 1,
        fine: "only root can read the kernel's log",
        danger: "everybody can read the kernel's log, in which every crash leaves addresses",
        safe: 1,
        absent: old_kernel,
    };
    setting.judge(subject)
}

/// Memory of other processes of the same user.
pub(super) fn tracing(subject: &Subject<'_>) -> Verdict {
    const DANGER: &str = "every process can read the memory of others of its user, such as the tokens of a server that \
         is not root";
    let setting = Setting {
        path: "kernel/yama/ptrace_scope",
        is_safe: |value| value >= 1,
        fine: "processes can't read the memory of others of their user",
        danger: DANGER,
        safe: 1,
        absent: || {
            Verdict::warning(
                DANGER,
                "use a kernel with Yama, and name yama in lsm= on its command line",
            )
        },
    };
    setting.judge(subject)
}

/// Random addresses of programs.
pub(super) fn random_addresses(subject: &Subject<'_>) -> Verdict {
    let setting = Setting {
        path: "kernel/randomize_va_space",
        is_safe: |value| value == 2,
        fine: "the addresses of programs are random",
        danger: "the addresses of programs, the server among them, are not random, so their mistakes are easy to use",
        safe: 2,
        absent: old_kernel,
    };
    setting.judge(subject)
}
