//! Reads the state of the embedded engine from the kernel's files: control groups, processes, mounts.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Value, json};

use super::{Engine, Kind, Limits, Sandbox, State};
use crate::common::process::{self, Mount, Process};

/// How long what was killed may take to be gone, and how often it is looked for.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);

pub(crate) struct Bystander {
    /// Directory of what an instance's sandboxes share.
    shared: PathBuf,
    hierarchies: Vec<PathBuf>,
}

/// The control groups of a sandbox, one in each hierarchy.
#[derive(Debug, Clone, Default)]
pub(crate) struct Groups(Vec<PathBuf>);

impl Bystander {
    /// A look at those who keep their state there.
    pub(crate) fn new(state: &Path) -> Self {
        let mounts = own_mounts();
        let groups = mounts.into_iter().filter(|mount| mount.kind.starts_with("cgroup"));
        Self {
            shared: state.join("isolator/instances/embedded"),
            hierarchies: groups.map(|mount| mount.target.into()).collect(),
        }
    }

    /// The groups of a sandbox of whatever instance.
    pub(crate) fn groups(&self, sandbox: &str) -> Groups {
        let instances = self.instances(|_| true);
        let groups = instances.into_iter().map(|instance| instance.join(sandbox));
        Groups(groups.filter(|group| group.is_dir()).collect())
    }

    /// Process 1 of a sandbox, if it has one.
    pub(crate) fn first_process(&self, sandbox: &str) -> Option<Process> {
        let mut processes = self.groups(sandbox).processes().into_iter();
        processes.find(|process| process.inner_pid() == Some(1))
    }

    /// Everything but the server itself that runs for an instance: what is in its groups, and what has
    /// the files that its sandboxes share in its sight, as only launchers and sandboxes do.
    pub(crate) fn processes(&self, instance: &str) -> Vec<Process> {
        processes_with(&format!("{instance}+"))
    }

    /// The groups of an instance and of its sandboxes.
    pub(crate) fn all_groups(&self, instance: &str) -> Vec<PathBuf> {
        self.groups_where(|name| name.starts_with(&format!("{instance}+")))
    }

    /// How many groups of an instance's sandboxes the kernel has not freed, although they were removed. It counts them on version 2;
    /// where that limits memory, pages of files that others use may keep one for long.
    pub(crate) fn dying_groups(&self, instance: &str) -> usize {
        let groups = self.instances(|name| name.starts_with(&format!("{instance}+")));
        let groups = groups.into_iter().filter(|group| !group.join("memory.max").exists());
        let stats = groups.filter_map(|group| read(&group.join("cgroup.stat")));
        let dying = |stat: String| {
            let count = stat.lines().find_map(|line| line.strip_prefix("nr_dying_descendants "));
            count.and_then(|count| count.parse::<usize>().ok())
        };
        stats.filter_map(dying).sum()
    }

    /// The groups of instances, wherever in the hierarchies they are.
    fn instances(&self, its: impl Fn(&str) -> bool) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut open = self.hierarchies.clone();
        while let Some(directory) = open.pop() {
            for (name, path) in directories(&directory) {
                // A name of theirs: the instance, the process namespace, the process, its start.
                match name.split('+').collect::<Vec<_>>()[..] {
                    [_, namespace, _, _] if namespace.starts_with("pid:") => {
                        if its(&name) {
                            found.push(path);
                        }
                    }
                    _ => open.push(path),
                }
            }
        }
        found
    }

    fn groups_where(&self, its: impl Fn(&str) -> bool) -> Vec<PathBuf> {
        let mut groups = self.instances(its);
        for index in 0..groups.len() {
            let sandboxes = directories(&groups[index]);
            groups.extend(sandboxes.into_iter().map(|(_, path)| path));
        }
        groups
    }

    /// Everything in whose name or sight there is an instance with this in its name.
    async fn left_with(&self, part: &str) -> Vec<String> {
        // A process that was killed is there until the kernel has taken it apart.
        let began = Instant::now();
        let mut processes = processes_with(part);
        while !processes.is_empty() && began.elapsed() < PATIENCE {
            tokio::time::sleep(LOOK).await;
            processes = processes_with(part);
        }
        let groups = self.groups_where(|name| name.contains(part));
        let shared = directories(&self.shared).into_iter().filter(|(name, _)| name.contains(part));
        let mounts = own_mounts()
            .into_iter()
            .filter(|mount| mount.root.contains(part) || mount.target.contains(part));
        let processes = processes
            .into_iter()
            .map(|process| format!("process {} ({})", process.pid, process.command()));
        processes
            .chain(groups.into_iter().map(|group| format!("control group {}", group.display())))
            .chain(shared.map(|(_, path)| format!("directory {}", path.display())))
            .chain(mounts.map(|mount| format!("mount at {}", mount.target)))
            .collect()
    }
}

fn own_mounts() -> Vec<Mount> {
    Process::find(std::process::id()).expect("this process").mounts()
}

fn processes_with(part: &str) -> Vec<Process> {
    let is_its = |process: &Process| {
        process.read("cgroup").contains(part) || process.read("mountinfo").contains(part)
    };
    Process::all().into_iter().filter(is_its).collect()
}

fn directories(path: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()))
        .collect()
}

impl Groups {
    pub(crate) fn processes(&self) -> Vec<Process> {
        let lists = self.0.iter().filter_map(|group| read(&group.join("cgroup.procs")));
        let mut pids: Vec<u32> =
            lists.flat_map(|list| list.lines().flat_map(str::parse).collect::<Vec<_>>()).collect();
        pids.sort_unstable();
        pids.dedup();
        pids.into_iter().filter_map(Process::find).collect()
    }

    /// The content of the first of these files that is there: they have other names in each version.
    pub(crate) fn read(&self, names: &[&str]) -> Option<String> {
        let files = names.iter().flat_map(|name| self.0.iter().map(move |group| group.join(name)));
        files.into_iter().find_map(|file| read(&file)).map(|content| content.trim().to_owned())
    }

    /// Takes away the rules for devices, which only version 1 has.
    pub(crate) fn allow_every_device(&self) {
        let mut rules = self.0.iter().map(|group| group.join("devices.allow"));
        if let Some(file) = rules.find(|file| file.exists()) {
            fs::write(file, "a").expect("root may");
            assert_eq!(self.read(&["devices.list"]).as_deref(), Some("a *:* rwm"));
        }
    }

    /// The group of version 2.
    pub(crate) fn of_version_two(&self) -> &Path {
        let mut groups = self.0.iter();
        groups.find(|group| group.join("cgroup.freeze").exists()).expect("version 2 is mounted")
    }

    fn number(&self, names: &[&str]) -> u64 {
        let found = self.read(names).unwrap_or_else(|| panic!("none of {names:?}"));
        found.parse().unwrap_or_else(|error| panic!("{names:?}: {found:?}: {error}"))
    }

    fn state(&self) -> State {
        if self.processes().is_empty() {
            State::Stopped
        } else if self.is_frozen() {
            State::Paused
        } else {
            State::Running
        }
    }

    /// Whether it is, by either version's freezer.
    fn is_frozen(&self) -> bool {
        self.read(&["freezer.state"]).is_some_and(|state| state == "FROZEN")
            || self.read(&["cgroup.events"]).is_some_and(|events| events.contains("frozen 1"))
    }

    fn freeze(&self, frozen: bool) {
        // Where there are both it is the second that is used.
        let versions = [("cgroup.freeze", ["0", "1"]), ("freezer.state", ["THAWED", "FROZEN"])];
        for (name, values) in versions {
            let mut files = self.0.iter().map(|group| group.join(name));
            if let Some(file) = files.find(|file| file.exists()) {
                // The sandbox may go at this very moment.
                let _ = fs::write(file, values[usize::from(frozen)]);
                return;
            }
        }
    }
}

fn read(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok()
}

/// Where the images are.
fn store() -> PathBuf {
    let data = env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = || PathBuf::from(env::var_os("HOME").expect("a home")).join(".local/share");
    data.unwrap_or_else(home).join("isolator")
}

/// The file that says what the names of images mean.
fn names() -> PathBuf {
    store().join("names.json")
}

/// Regular files below a directory.
fn regular_files(directory: PathBuf) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    let mut open = vec![directory];
    while let Some(directory) = open.pop() {
        let entries = fs::read_dir(&directory);
        for entry in entries.unwrap_or_else(|error| panic!("{}: {error}", directory.display())) {
            let path = entry.expect("an entry").path();
            let metadata = fs::symlink_metadata(&path).expect("its metadata");
            if metadata.is_dir() {
                open.push(path);
            } else if metadata.is_file() {
                found.push((path, metadata.mode()));
            }
        }
    }
    found
}

/// A name as that file has it, with everything that a short one leaves out.
fn in_full(name: &str) -> String {
    let library = if name.contains('/') { "" } else { "library/" };
    format!("docker.io/{library}{name}:latest")
}

fn change_names(change: impl FnOnce(&mut Value)) {
    let mut all: Value = serde_json::from_str(&read(&names()).expect("images")).expect("names");
    change(&mut all);
    let new = names().with_extension("of-a-test");
    fs::write(&new, all.to_string()).expect("writable");
    fs::rename(&new, names()).expect("writable");
}

#[async_trait]
impl Engine for Bystander {
    fn kind(&self) -> Kind {
        Kind::Embedded
    }

    async fn sandboxes(&self, instance: &str) -> Vec<Sandbox> {
        let mut found: BTreeMap<String, Groups> = BTreeMap::new();
        for of_instance in self.instances(|name| name.starts_with(&format!("{instance}+"))) {
            for (id, group) in directories(&of_instance) {
                found.entry(id).or_default().0.push(group);
            }
        }
        found.into_iter().map(|(id, groups)| Sandbox { id, state: groups.state() }).collect()
    }

    async fn image_of(&self, sandbox: &str) -> String {
        let Some(first) = self.first_process(sandbox) else { return String::new() };
        let mounts = first.mounts();
        let root = mounts.iter().find(|mount| mount.target == "/").expect("a root");
        let is_digest =
            |part: &&str| part.len() == 64 && part.chars().all(|c| c.is_ascii_hexdigit());
        // The image lies below an overlay.
        let digest =
            root.of_file_system.iter().flat_map(|option| option.split('/')).find(is_digest);
        format!("sha256:{}", digest.unwrap_or_else(|| panic!("an image, not {root:?}")))
    }

    async fn digest(&self, image: &str) -> String {
        let all: Value = serde_json::from_str(&read(&names()).expect("images")).expect("names");
        all[in_full(image)].as_str().unwrap_or_else(|| panic!("no {image} in {all}")).to_owned()
    }

    async fn tag(&self, image: &str, name: &str) {
        let digest = self.digest(image).await;
        change_names(|all| all[in_full(name)] = json!(digest));
    }

    async fn untag(&self, name: &str) {
        change_names(|all| {
            all.as_object_mut().expect("names").remove(&in_full(name));
        });
    }

    async fn files(&self, image: &str) -> Vec<(PathBuf, u32)> {
        let digest = self.digest(image).await;
        let hex = digest.strip_prefix("sha256:").expect("a digest");
        let root = store().join("images").join(hex).join("root");
        tokio::task::spawn_blocking(|| regular_files(root)).await.expect("a list")
    }

    async fn limits(&self, sandbox: &str) -> Limits {
        let groups = self.groups(sandbox);
        Limits {
            memory: groups.number(&["memory.limit_in_bytes", "memory.max"]),
            processes: groups.number(&["pids.max"]),
        }
    }

    async fn commands(&self, sandbox: &str) -> Vec<String> {
        self.groups(sandbox).processes().into_iter().map(Process::command).collect()
    }

    async fn remove(&self, sandbox: &str) {
        let groups = self.groups(sandbox);
        let began = Instant::now();
        // Deepest first there is none: a sandbox can't make groups.
        while groups.0.iter().any(|group| group.exists() && fs::remove_dir(group).is_err()) {
            assert!(began.elapsed() < PATIENCE, "{sandbox} can't be removed");
            process::kill_all(&groups.processes());
            // What is frozen dies when it is thawed.
            groups.freeze(false);
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn pause(&self, sandbox: &str) -> bool {
        let groups = self.groups(sandbox);
        groups.freeze(true);
        let began = Instant::now();
        while !groups.is_frozen() && began.elapsed() < PATIENCE {
            tokio::time::sleep(LOOK).await;
        }
        groups.is_frozen()
    }

    async fn unpause(&self, sandbox: &str) {
        let groups = self.groups(sandbox);
        groups.freeze(false);
        assert!(!groups.is_frozen(), "{sandbox} is still frozen");
    }

    async fn left(&self, instance: &str) -> Vec<String> {
        self.left_with(&format!("{instance}+")).await
    }

    async fn left_of_process(&self, process: u32) -> Vec<String> {
        let this = Process::find(std::process::id()).expect("this process");
        self.left_with(&format!("+{}+{process}+", this.namespace("pid"))).await
    }
}
