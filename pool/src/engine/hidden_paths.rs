//! Paths of the kernel that describe the host or change it, hidden from sandboxes on every engine.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use crate::lock::lock;

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

/// The processors of this machine.
const PROCESSORS: &str = "/sys/devices/system/cpu";

/// The online processors when the paths were last looked for, and the paths.
static FOUND: Mutex<(String, Vec<String>)> = Mutex::new((String::new(), Vec::new()));

/// All paths that are hidden, with those of this machine's processors: how often each was slowed down because it was too hot
/// shows what others run there. Engines leave out what a machine does not have.
pub(super) fn hidden() -> Vec<String> {
    // A processor has them from when it comes online.
    let online = fs::read_to_string(Path::new(PROCESSORS).join("online")).unwrap_or_default();
    let mut found = lock(&FOUND);
    if found.1.is_empty() || found.0 != online {
        let processors = fs::read_dir(PROCESSORS).into_iter().flatten().flatten();
        let throttles = processors.map(|processor| processor.path().join("thermal_throttle"));
        let throttles = throttles.filter(|path| path.exists());
        let throttles = throttles.map(|path| path.to_string_lossy().into_owned());
        *found = (online, HIDDEN.into_iter().map(str::to_owned).chain(throttles).collect());
    }
    found.1.clone()
}
