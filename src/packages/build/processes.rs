//! The processes of a tool: it and all its descendants, as `/proc` shows them.

use std::collections::HashSet;
use std::fs;

use rustix::process::Pid;

/// A process.
#[derive(Debug, Clone, Copy)]
struct Process {
    pid: Pid,
    parent: i32,
    group: i32,
}

/// The sums of several processes.
#[derive(Debug, Default, Clone)]
pub(super) struct Together {
    pub pids: Vec<Pid>,
    /// Processes and threads.
    pub tasks: u64,
    /// Bytes of memory that is not backed by files.
    pub memory: u64,
}

/// The processes of the group of this leader, and their descendants in other groups.
pub(super) fn of_tool(leader: Pid) -> Together {
    let mut left: Vec<Process> =
        fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|it| read(&it)).collect();
    let leader = leader.as_raw_nonzero().get();
    let mut known = HashSet::new();
    let mut together = Together::default();
    // Each round finds the children of those before.
    loop {
        let is_own = |it: &Process| it.group == leader || known.contains(&it.parent);
        let (own, others): (Vec<_>, Vec<_>) = left.into_iter().partition(is_own);
        left = others;
        if own.is_empty() {
            return together;
        }
        for Process { pid, .. } in own {
            known.insert(pid.as_raw_nonzero().get());
            together.add(pid);
        }
    }
}

/// Reads a process as `proc_pid_stat(5)` describes it. It may have ended.
fn read(entry: &fs::DirEntry) -> Option<Process> {
    let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
    let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
    // Its name is in brackets, and can have any characters.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
    let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Process { pid, parent, group })
}

impl Together {
    /// Adds a process with its values of `proc_pid_status(5)`.
    fn add(&mut self, pid: Pid) {
        self.pids.push(pid);
        let path = format!("/proc/{}/status", pid.as_raw_nonzero());
        let status = fs::read_to_string(path).unwrap_or_default();
        for (name, value) in status.lines().filter_map(|line| line.split_once(':')) {
            let value = value.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            match name {
                "Threads" => self.tasks += value,
                "RssAnon" | "RssShmem" | "VmSwap" => self.memory += value << 10,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpid;

    use super::*;

    #[test]
    fn the_threads_and_memory_of_a_process_are_known() {
        let own = || {
            let mut own = Together::default();
            own.add(getpid());
            own
        };
        let before = own();
        assert!(before.tasks >= 2, "{before:?}");
        let more = std::hint::black_box(vec![1_u8; 64 << 20]);
        let with_more = own();
        assert!(with_more.memory >= before.memory + (32 << 20), "{before:?} {with_more:?}");
        drop(more);
    }
}
