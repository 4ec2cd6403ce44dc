//! Reads processes from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A process and when it began, so that another one with its number is not taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    began: u64,
}

/// A line of a process's `mountinfo`.
#[derive(Debug, Clone)]
pub(crate) struct Mount {
    /// Its mounts.
    pub(crate) root: String,
    pub(crate) target: String,
    pub(crate) options: Vec<String>,
    /// Kind of the file system.
    pub(crate) kind: String,
    /// Options of the file system.
    pub(crate) of_file_system: Vec<String>,
}

impl Process {
    /// The process with this number, unless it has ended. One that waits for its parent to notice has.
    pub(crate) fn find(pid: u32) -> Option<Self> {
        let fields = stat(pid)?;
        (fields[0] != "Z" && fields[0] != "X")
            .then(|| Self { pid, began: fields[19].parse().expect("a time") })
    }

    /// All processes of the machine, without threads of the kernel.
    pub(crate) fn all() -> Vec<Self> {
        let entries = fs::read_dir("/proc").expect("processes").flatten();
        entries.filter_map(|entry| Self::find(entry.file_name().to_str()?.parse().ok()?)).collect()
    }

    pub(crate) fn is_there(self) -> bool {
        Self::find(self.pid) == Some(self)
    }

    pub(crate) fn parent(self) -> u32 {
        stat(self.pid).map_or(0, |fields| fields[1].parse().expect("a number"))
    }

    pub(crate) fn children(self) -> Vec<Self> {
        Self::all().into_iter().filter(|process| process.parent() == self.pid).collect()
    }

    /// How many children it has, those that have ended and that it has not waited for included.
    pub(crate) fn count_children(self) -> usize {
        let entries = fs::read_dir("/proc").expect("processes").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_its = |pid: &u32| stat(*pid).is_some_and(|fields| fields[1] == self.pid.to_string());
        pids.filter(is_its).count()
    }

    /// The process, its children, theirs, and so on.
    pub(crate) fn with_descendants(self) -> Vec<Self> {
        let mut all = vec![self];
        let mut done = 0;
        while done < all.len() {
            all.extend(all[done].children());
            done += 1;
        }
        all
    }

    pub(crate) fn directory(self) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string())
    }

    /// A file of the kernel's about it; empty once the process has ended.
    pub(crate) fn read(self, file: &str) -> String {
        let content = fs::read(self.directory().join(file)).unwrap_or_default();
        String::from_utf8_lossy(&content).into_owned()
    }

    pub(crate) fn command(self) -> String {
        self.read("cmdline").trim_end_matches('\0').replace('\0', " ")
    }

    /// The fields of `status`.
    pub(crate) fn status(self) -> BTreeMap<String, String> {
        let status = self.read("status");
        let fields = status.lines().filter_map(|line| line.split_once(':'));
        fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
    }

    /// One of its own limits, soft and hard, by the name that `limits` has for it.
    pub(crate) fn limit(self, name: &str) -> [String; 2] {
        let limits = self.read("limits");
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).expect("a limit");
        let mut values = line.split_whitespace().map(str::to_owned);
        [(); 2].map(|()| values.next().expect("a value"))
    }

    pub(crate) fn assert_has_no_privileges(self) {
        let status = self.status();
        let of = |field: &str| format!("{field} of {}: {status:?}", self.command());
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(status[set], "0000000000000000", "{}", of(set));
        }
        assert_eq!(status["NoNewPrivs"], "1", "{}", of("NoNewPrivs"));
        assert_eq!(status["Seccomp"], "2", "{}", of("Seccomp"));
    }

    /// Its number in the innermost process namespace.
    pub(crate) fn inner_pid(self) -> Option<u32> {
        self.status().get("NSpid")?.split_whitespace().last()?.parse().ok()
    }

    /// A namespace, as "net:[4026531840]".
    pub(crate) fn namespace(self, kind: &str) -> String {
        let link = fs::read_link(self.directory().join("ns").join(kind)).expect("a namespace");
        link.to_string_lossy().into_owned()
    }

    pub(crate) fn mounts(self) -> Vec<Mount> {
        self.read("mountinfo").lines().filter_map(Mount::parse).collect()
    }

    /// The targets of its descriptors.
    pub(crate) fn descriptors(self) -> BTreeMap<u32, String> {
        let Ok(entries) = fs::read_dir(self.directory().join("fd")) else {
            return BTreeMap::new();
        };
        let descriptor = |entry: fs::DirEntry| {
            let link = fs::read_link(entry.path()).ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, link.to_string_lossy().into_owned()))
        };
        entries.flatten().filter_map(descriptor).collect()
    }

    /// Kills it. One that has ended is killed.
    pub(crate) fn kill(self) {
        kill_all(&[self]);
    }
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mount: Vec<_> = mount.split(' ').collect();
        let file_system: Vec<_> = file_system.split(' ').collect();
        let options = |list: &str| list.split(',').map(str::to_owned).collect();
        Some(Self {
            root: mount[3].to_owned(),
            target: mount[4].to_owned(),
            options: options(mount[5]),
            kind: file_system[0].to_owned(),
            of_file_system: options(file_system[2]),
        })
    }

    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|found| found == option)
    }
}

/// Kills processes, with nothing in between. Those that have ended are killed.
pub(crate) fn kill_all(processes: &[Process]) {
    let there: Vec<_> = processes.iter().filter(|process| process.is_there()).collect();
    if there.is_empty() {
        return;
    }
    let mut kill = Command::new("kill");
    kill.arg("-KILL").args(there.iter().map(|process| process.pid.to_string()));
    // One may end by itself between the look and the signal.
    kill.stderr(Stdio::null()).status().expect("kill starts");
}

/// The fields of `stat` behind the name, which may hold anything.
fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind_name) = stat.rsplit_once(')')?;
    Some(behind_name.split_whitespace().map(str::to_owned).collect())
}
