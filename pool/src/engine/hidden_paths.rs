//! Paths of the kernel that describe the host or change it, hidden from sandboxes on every engine.

use std::fs;

/// Paths that are hidden: those that Docker hides, the machine's temperatures and its use of energy, and
/// `/proc/pressure`. Opening that for writing creates a trigger that the kernel removes slowly: thousands of them
/// keep a killed sandbox alive for minutes.
const HIDDEN: [&str; 14] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/pressure",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/devices/virtual/thermal",
    "/sys/firmware",
];

/// Paths that can only be read: those of Docker, through which root could change the kernel.
pub(super) const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// All paths that are hidden, with those of this machine's processors: how often each was slowed down because it was too hot
/// shows what others run there. Engines leave out what a machine does not have.
pub(super) fn hidden() -> Vec<String> {
    let processors = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let throttles = processors.map(|processor| processor.path().join("thermal_throttle"));
    let throttles = throttles.filter(|path| path.exists());
    let throttles = throttles.map(|path| path.to_string_lossy().into_owned());
    HIDDEN.into_iter().map(str::to_owned).chain(throttles).collect()
}
