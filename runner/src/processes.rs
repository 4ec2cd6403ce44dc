//! The processes of a sandbox, as `/proc` shows them.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use isolator_runner::wire::End;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// How long processes may go on starting others while they are killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// State of a process in `/proc`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stat {
    /// Whether it has ended, and is perhaps a zombie.
    pub(crate) has_ended: bool,
    /// CPU time of its children that it has waited for.
    pub(crate) children_cpu: Duration,
    /// How it ended, if it has.
    pub(crate) end: End,
    /// Its parent, if that is in the sandbox.
    parent: Option<Pid>,
}

/// The kernel counts CPU time for `/proc` in these, whatever the machine.
const TICKS_PER_SECOND: u64 = 100;

impl Stat {
    /// The state of a process, perhaps a zombie. `None` if there is no such process.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?)
    }

    fn parse(stat: &[u8]) -> Option<Self> {
        // The fields follow the name, which is in brackets and may have some itself.
        let after = stat.iter().rposition(|byte| *byte == b')')?;
        let fields = std::str::from_utf8(&stat[after + 1..]).ok()?;
        let fields: Vec<_> = fields.split_ascii_whitespace().collect();
        // The man page counts from one, and the state is the third.
        let field = |number: usize| fields.get(number - 3).copied();
        let number = |at: usize| field(at).and_then(|text| text.parse::<u64>().ok());
        let ticks = number(16)? + number(17)?;
        let status = number(52).and_then(|status| i32::try_from(status).ok()).unwrap_or(0);
        let end = match status & 0x7f {
            0 => End::Code(status >> 8 & 0xff),
            signal => End::Signal(signal),
        };
        Some(Self {
            has_ended: matches!(field(3)?, "Z" | "X"),
            children_cpu: Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND),
            end,
            parent: number(4).and_then(|pid| Pid::from_raw(pid.try_into().ok()?)),
        })
    }
}

/// The process whose family is kept when everything of a cell is killed; zero if there is none.
static FAMILY: AtomicI32 = AtomicI32::new(0);

/// How many generations of a family are known.
const GENERATIONS: usize = 64;

/// From now on, [`kill_all_but`] keeps this process and everything below it.
pub(crate) fn keep_family(head: Pid) {
    FAMILY.store(head.as_raw_pid(), Ordering::Relaxed);
}

/// From now on, it keeps no family.
pub(crate) fn forget_family() {
    FAMILY.store(0, Ordering::Relaxed);
}

/// Whether a process is of the family that is kept.
fn is_of_family(pid: Pid, stat: &Stat) -> bool {
    let Some(head) = Pid::from_raw(FAMILY.load(Ordering::Relaxed)) else { return false };
    let parents = std::iter::successors(Some((pid, *stat)), |(_, stat)| {
        let parent = stat.parent?;
        Some((parent, Stat::of(parent)?))
    });
    parents.take(GENERATIONS).any(|(pid, _)| pid == head)
}

/// All processes of the sandbox except process 1 and this one.
///
/// # Errors
///
/// When `/proc` can't be read.
pub(crate) fn all() -> io::Result<HashSet<Pid>> {
    let own = [Pid::INIT, rustix::process::getpid()];
    let mut pids = HashSet::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
        pids.extend(pid.filter(|pid| !own.contains(pid)));
    }
    Ok(pids)
}

/// Kills every process of the sandbox except the runner and process 1, in one call, so that a fork bomb can't
/// outrun it. The group of process 1, negated as `kill` wants it, is −1: everything the
/// caller may signal. [`crate::park`] made sure that this is a sandbox.
pub(crate) fn kill_everything() {
    // An error means that no process was left.
    let _ = kill_process_group(Pid::INIT, Signal::KILL);
}

/// Kills every process except those in `keep` and [a family](keep_family), also those that are started meanwhile. Returns whether none
/// is left.
pub(crate) fn kill_all_but(keep: &HashSet<Pid>) -> bool {
    let until = Instant::now() + KILL_TIMEOUT;
    loop {
        let Ok(pids) = all() else { return false };
        let mut found = false;
        for pid in pids.into_iter().filter(|pid| !keep.contains(pid)) {
            let goes_on = |stat: &Stat| !stat.has_ended && !is_of_family(pid, stat);
            if Stat::of(pid).as_ref().is_some_and(goes_on) {
                found = true;
                // An error means that it has just ended.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        if !found {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_follow_a_name_that_has_some_itself() {
        let fields = (4..=52).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
        let stat = Stat::parse(format!("7 (a) 9 (b)) Z {fields}\n").as_bytes()).unwrap();
        assert!(stat.has_ended);
        assert_eq!(stat.children_cpu, Duration::from_millis(330));
        assert_eq!(stat.end, End::Signal(52));
        assert!(Stat::parse(b"7 (a) S 1").is_none());
    }

    #[test]
    fn a_process_that_runs_has_not_ended() {
        assert!(!Stat::of(rustix::process::getpid()).unwrap().has_ended);
    }
}
