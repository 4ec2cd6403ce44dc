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
    /// Its own CPU time.
    own_cpu: Duration,
    /// CPU time of its children that it has waited for.
    pub(crate) children_cpu: Duration,
    /// How it ended, if it has.
    pub(crate) end: End,
    /// Its parent, if that is in the sandbox.
    parent: Option<Pid>,
    /// When it was started, in ticks.
    started: u64,
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
        let own = number(14)? + number(15)?;
        let of_children = number(16)? + number(17)?;
        let status = number(52).and_then(|status| i32::try_from(status).ok()).unwrap_or(0);
        let end = match status & 0x7f {
            0 => End::Code(status >> 8 & 0xff),
            signal => End::Signal(signal),
        };
        Some(Self {
            has_ended: matches!(field(3)?, "Z" | "X"),
            own_cpu: from_ticks(own),
            children_cpu: from_ticks(of_children),
            end,
            parent: number(4).and_then(|pid| Pid::from_raw(pid.try_into().ok()?)),
            started: number(22)?,
        })
    }
}

fn from_ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)
}

/// CPU time of all processes of the sandbox, with those that have ended and were waited for.
pub(crate) fn cpu() -> Duration {
    let own = [Pid::INIT, rustix::process::getpid()];
    let others = all().unwrap_or_default();
    let all: HashSet<_> = others.into_iter().chain(own).collect();
    all.into_iter().filter_map(Stat::of).map(|stat| stat.own_cpu + stat.children_cpu).sum()
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

/// How often the parents of a process are looked up, if one of them ends meanwhile.
const LOOK_UPS: usize = 8;

/// Whether a process is of the family that is kept.
fn is_of_family(pid: Pid, stat: &Stat) -> bool {
    let Some(head) = Pid::from_raw(FAMILY.load(Ordering::Relaxed)) else { return false };
    is_below(pid, *stat, head, Stat::of)
}

/// Whether a process is `head`, or was started by one that is below it. `stat_of` looks a process up.
fn is_below(pid: Pid, stat: Stat, head: Pid, stat_of: impl Fn(Pid) -> Option<Stat>) -> bool {
    let mut stat = stat;
    for _ in 0..LOOK_UPS {
        match climb(pid, stat, head, &stat_of) {
            Climb::Head => return true,
            Climb::Top => return false,
            // The kernel has given its children to another parent: the head, if it is one of the family.
            Climb::Broken => match stat_of(pid) {
                Some(now) => stat = now,
                None => return false,
            },
        }
    }
    // Its parents end faster than they are read, which only a program can want that tries to live on.
    false
}

/// The end of a look-up of parents.
enum Climb {
    Head,
    /// A process whose parent is outside of the sandbox, or process 1.
    Top,
    /// A parent that has just ended.
    Broken,
}

fn climb(pid: Pid, stat: Stat, head: Pid, stat_of: impl Fn(Pid) -> Option<Stat>) -> Climb {
    let (mut pid, mut stat) = (pid, stat);
    for _ in 0..GENERATIONS {
        if pid == head {
            return Climb::Head;
        }
        let Some(parent) = stat.parent.filter(|_| pid != Pid::INIT) else { return Climb::Top };
        let Some(of_parent) = stat_of(parent) else { return Climb::Broken };
        (pid, stat) = (parent, of_parent);
    }
    Climb::Top
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

/// Kills the child that a process has started last, with everything below that, unless it is in `keep`. Returns whether there was one.
pub(crate) fn kill_last_child(parent: Pid, keep: &HashSet<Pid>) -> bool {
    let Ok(pids) = all() else { return false };
    let found = pids.into_iter().filter_map(|pid| Stat::of(pid).map(|stat| (pid, stat)));
    let found: Vec<_> = found.filter(|(_, stat)| !stat.has_ended).collect();
    let children =
        found.iter().filter(|(pid, stat)| stat.parent == Some(parent) && !keep.contains(pid));
    let last = children.max_by_key(|(pid, stat)| (stat.started, pid.as_raw_pid()));
    let Some((last, _)) = last else { return false };
    for (pid, stat) in &found {
        if is_below(*pid, *stat, *last, Stat::of) {
            // An error means that it has just ended.
            let _ = kill_process(*pid, Signal::KILL);
        }
    }
    true
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
        assert_eq!(stat.started, 22);
        assert!(Stat::parse(b"7 (a) S 1").is_none());
    }

    #[test]
    fn a_parent_that_ends_meanwhile_does_not_part_a_process_from_its_family() {
        let pid = |number| Pid::from_raw(number).unwrap();
        let below = |parent| {
            let stat = Stat::of(rustix::process::getpid()).unwrap();
            Stat { parent: Pid::from_raw(parent), ..stat }
        };
        // 9 is a child of 8, which ends while it is looked up, so the head of the family, 5, gets 9.
        let looks = AtomicI32::new(0);
        let stat_of = |asked: Pid| match asked.as_raw_pid() {
            8 => None,
            9 if looks.fetch_add(1, Ordering::Relaxed) > 0 => Some(below(5)),
            9 => Some(below(8)),
            5 => Some(below(1)),
            _ => Some(below(0)),
        };
        assert!(is_below(pid(9), below(8), pid(5), stat_of));
        assert!(!is_below(pid(9), below(1), pid(5), stat_of));
        // One whose parents always end is not kept.
        assert!(!is_below(pid(9), below(8), pid(5), |asked| (asked == pid(9)).then(|| below(8))));
    }

    #[test]
    fn the_cpu_time_of_a_sandbox_has_that_of_this_process() {
        let own = Stat::of(rustix::process::getpid()).unwrap().own_cpu;
        assert!(cpu() >= own);
    }

    #[test]
    fn the_last_child_is_killed_with_its_children_and_no_other() {
        let sleep = |script: &str| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", script]).stdout(std::process::Stdio::piped()).spawn().unwrap()
        };
        let own = rustix::process::getpid();
        let pid = |child: &std::process::Child| Pid::from_child(child);
        let (mut first, mut second) = (sleep("exec sleep 60"), sleep("sleep 60 & sleep 60"));
        let mut keep = HashSet::new();
        while all()
            .unwrap()
            .into_iter()
            .filter_map(Stat::of)
            .filter(|it| it.parent == Some(pid(&second)))
            .count()
            < 2
        {
            std::thread::sleep(Duration::from_millis(2));
        }
        // Other tests may have children, too.
        keep.extend(all().unwrap());
        keep.remove(&pid(&second));
        assert!(kill_last_child(own, &keep));
        // The end of its output shows that nothing of it is left.
        let mut output = String::new();
        io::Read::read_to_string(&mut second.stdout.take().unwrap(), &mut output).unwrap();
        second.wait().unwrap();
        assert!(first.try_wait().unwrap().is_none());
        keep.insert(pid(&second));
        assert!(!kill_last_child(own, &keep));
        first.kill().unwrap();
        first.wait().unwrap();
    }

    #[test]
    fn a_process_that_runs_has_not_ended() {
        assert!(!Stat::of(rustix::process::getpid()).unwrap().has_ended);
    }
}
