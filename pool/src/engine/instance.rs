//! The identity of a running server, with which its containers and volumes are labelled, and the proof
//! that another instance is dead.
//!
//! An instance holds a lock on a file named after it as long as it lives; the kernel releases the
//! lock however the process ends. The labels name the instance, the machine, its boot, and the process
//! with its start time. What belongs to another instance is removed only if it was made on this machine, and the
//! instance is proven dead. Several machines may use one Docker engine, or have their state in one network folder, so a
//! label alone proves neither:
//!
//! | the label says | what it was made on | what proves that it is dead |
//! |---|---|---|
//! | this boot | this machine, whatever its name was then: a boot has a random number | its lock is free, or its lock file and its process are gone |
//! | another boot, this machine's ID and name | this machine | its lock is free or gone |
//! | another boot, this machine's ID, another name | this machine if the lock file is in our folder and that is on a local disk: the machine was renamed. Otherwise it may be a clone, because clones often keep the ID | its lock is free |
//! | anything else | another machine | nothing |

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use uuid::Uuid;

use crate::engine::{Labels, SandboxName};

const INSTANCE: &str = "isolator.instance";
const MACHINE: &str = "isolator.machine";
const BOOT: &str = "isolator.boot";

/// The label on everything that an instance makes.
pub const LABEL: &str = INSTANCE;

/// The label with the process: namespace, process ID and start time, separated by slashes.
pub const PROCESS: &str = "isolator.process";

/// The identity of a running instance.
#[derive(Debug)]
pub struct Instance {
    id: Uuid,
    labels: Labels,
    directory: PathBuf,
    // Locked as long as it is open.
    _lock: File,
}

impl Instance {
    /// Registers a new instance in a directory, which all instances of a user share.
    ///
    /// # Errors
    ///
    /// When the directory can't be created or the lock file can't be written.
    pub fn register(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let id = Uuid::new_v4();
        let lock = create_locked(&lock_path(directory, &id.to_string()))?;
        let here = ProcessIdentity::here()?;
        let labels = Labels::from([
            (INSTANCE.to_owned(), id.to_string()),
            (MACHINE.to_owned(), here.machine),
            (BOOT.to_owned(), here.boot),
            (PROCESS.to_owned(), here.process),
        ]);
        Ok(Self { id, labels, directory: directory.to_owned(), _lock: lock })
    }

    /// The labels for everything that this instance makes.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// The short name of this instance, for names of what it makes.
    pub fn short_id(&self) -> String {
        self.id.simple().to_string()[..12].to_owned()
    }

    /// The name of this instance's sandbox number `number`.
    pub fn sandbox_name(&self, number: u64) -> SandboxName {
        SandboxName::new(format!("isolator-{}-{number}", self.short_id()))
    }

    /// Whether something with these labels is this instance's own.
    pub fn owns(&self, labels: &Labels) -> bool {
        labels.get(INSTANCE) == self.labels.get(INSTANCE)
    }

    /// Whether something with these labels belongs to an instance that is proven dead.
    pub fn is_dead(&self, labels: &Labels) -> bool {
        let Some(instance) = labels.get(INSTANCE) else {
            return false;
        };
        if self.owns(labels) {
            return false;
        }
        let lock = lock_state(&self.directory, instance);
        if matches!(lock, LockState::Held) {
            return false;
        }
        let is_lock_here = matches!(lock, LockState::Free(_));
        if labels.get(BOOT) == self.labels.get(BOOT) {
            return is_lock_here
                || labels.get(PROCESS).is_some_and(|process| is_process_gone(process));
        }
        let machines = [labels, &self.labels].map(|labels| labels.get(MACHINE));
        let [Some(machine), Some(ours)] = machines.map(|it| it.and_then(|it| it.split_once('/')))
        else {
            return false;
        };
        let is_named_so = machine.1 == ours.1;
        let is_renamed = || !ours.0.is_empty() && is_lock_here && is_local(&self.directory);
        machine.0 == ours.0 && (is_named_so || is_renamed())
    }

    /// A file next to the lock, for data that this instance keeps on disk. It is removed with the
    /// instance, or by a later sweep.
    pub fn side_file(&self) -> PathBuf {
        side_path(&self.directory, &self.id.to_string())
    }

    /// Removes the files of dead instances. Called after their belongings were swept.
    ///
    /// # Errors
    ///
    /// When the directory can't be read.
    pub fn sweep_locks(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "lock")
                && let Some(instance) = path.file_stem().and_then(|stem| stem.to_str())
                // Held until the file is gone: no other instance may lock it and believe that it stays.
                && let LockState::Free(_lock) = lock_state(&self.directory, instance)
            {
                fs::remove_file(&path)?;
                let _ = fs::remove_file(side_path(&self.directory, instance));
            }
        }
        Ok(())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // A file that stays is unlocked, so the next instance knows what it means.
        let _ = fs::remove_file(self.side_file());
        let _ = fs::remove_file(lock_path(&self.directory, &self.id.to_string()));
    }
}

enum LockState {
    Held,
    /// No instance held it; this is the file, which is locked now.
    Free(File),
    Absent,
}

/// Makes a file and locks it. Another instance that sweeps may remove the file between the two, because it was not locked: then
/// it is made again.
fn create_locked(path: &Path) -> io::Result<File> {
    loop {
        let lock = File::create(path)?;
        // Another instance may be probing the file at this moment, for microseconds.
        flock(&lock, FlockOperation::LockExclusive)?;
        if is_at(path, &lock)? {
            return Ok(lock);
        }
    }
}

/// Whether the file is the one at the path.
fn is_at(path: &Path, file: &File) -> io::Result<bool> {
    let file = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (file.dev(), file.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn lock_path(directory: &Path, instance: &str) -> PathBuf {
    directory.join(format!("{instance}.lock"))
}

fn side_path(directory: &Path, instance: &str) -> PathBuf {
    directory.join(format!("{instance}.side"))
}

fn lock_state(directory: &Path, instance: &str) -> LockState {
    // The name comes from a label, which any user of the engine may write.
    if Uuid::try_parse(instance).is_err() {
        return LockState::Absent;
    }
    let path = lock_path(directory, instance);
    match File::open(&path) {
        Ok(file) => match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // It may have been replaced since it was opened, by a file that another instance holds.
            Ok(()) if matches!(is_at(&path, &file), Ok(true)) => LockState::Free(file),
            _ => LockState::Held,
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => LockState::Absent,
        // A file that can't be read proves nothing.
        Err(_) => LockState::Held,
    }
}

/// Whether a folder is on a file system that only one machine uses at a time, of a known kind.
fn is_local(directory: &Path) -> bool {
    /// ext2 to ext4, XFS, Btrfs, F2FS, bcachefs, ZFS, tmpfs, overlay.
    const LOCAL: [i64; 8] = [
        0xef53,
        0x5846_5342,
        0x9123_683e,
        0xf2f5_2010,
        0xca45_1a4e,
        0x2fc1_2fc1,
        0x0102_1994,
        0x794c_7630,
    ];
    rustix::fs::statfs(directory).is_ok_and(|found| {
        // The type is signed or not, and has 32 or 64 bits, depending on the architecture.
        LOCAL.contains(&i64::from(found.f_type as u32))
    })
}

/// Machine, boot and process, as in the labels.
struct ProcessIdentity {
    machine: String,
    boot: String,
    process: String,
}

impl ProcessIdentity {
    fn here() -> io::Result<Self> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
        // Clones often share the identifier, and containers have none: the name tells them apart, as long as it stays.
        let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let pid = std::process::id();
        let start = start_time(pid).unwrap_or_default();
        let namespace = pid_namespace()?;
        Ok(Self {
            machine: format!("{}/{}", machine.trim(), host.trim()),
            boot: boot.trim().to_owned(),
            process: format!("{namespace}/{pid}/{start}"),
        })
    }
}

/// Whether the process of a label has ended. Processes of another process namespace are invisible, so
/// nothing is known about them.
fn is_process_gone(process: &str) -> bool {
    let mut parts = process.split('/');
    let (Some(namespace), Some(pid), Some(start)) = (parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let Ok(pid) = pid.parse() else { return false };
    pid_namespace().is_ok_and(|here| here == namespace)
        && start_time(pid).is_none_or(|now| now != start)
}

fn pid_namespace() -> io::Result<String> {
    Ok(fs::read_link("/proc/self/ns/pid")?.to_string_lossy().into_owned())
}

/// Start of a process in clock ticks since boot: field 22 of its `stat`, counted behind the
/// command name, which may hold anything.
fn start_time(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(19).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn a_live_instance_is_never_dead_and_a_dropped_one_is() {
        let directory = directory();
        let here = Instance::register(directory.path()).unwrap();
        let other = Instance::register(directory.path()).unwrap();
        let labels = other.labels().clone();
        assert!(!here.is_dead(&labels));
        // A crash leaves the lock file behind, unlocked.
        let path = lock_path(directory.path(), &labels[INSTANCE]);
        drop(other);
        File::create(&path).unwrap();
        assert!(here.is_dead(&labels));
        here.sweep_locks().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn an_instance_never_sweeps_itself() {
        let directory = directory();
        let here = Instance::register(directory.path()).unwrap();
        assert!(here.owns(here.labels()) && !here.is_dead(here.labels()));
    }

    #[test]
    fn without_a_lock_file_a_live_process_protects_its_own() {
        let directory = directory();
        let elsewhere = self::directory();
        let here = Instance::register(directory.path()).unwrap();
        let other = Instance::register(elsewhere.path()).unwrap();
        assert!(!here.is_dead(other.labels()), "its process, this one, is alive");

        let mut ended = other.labels().clone();
        ended.insert(PROCESS.into(), format!("{}/1/never", pid_namespace().unwrap()));
        assert!(here.is_dead(&ended), "process 1 did not start then");
        ended.insert(PROCESS.into(), "pid:[1]/1/never".into());
        assert!(!here.is_dead(&ended), "another namespace proves nothing");
    }

    /// Labels of an instance that was started in an earlier boot on a machine with this ID and name.
    fn earlier(here: &Instance, id: &str, name: &str) -> Labels {
        let mut labels = here.labels().clone();
        labels.insert(INSTANCE.into(), Uuid::new_v4().to_string());
        labels.insert(BOOT.into(), "another".into());
        labels.insert(MACHINE.into(), format!("{id}/{name}"));
        labels
    }

    #[test]
    fn unknown_labels_and_other_machines_are_left_alone() {
        let directory = directory();
        let here = Instance::register(directory.path()).unwrap();
        assert!(!here.is_dead(&Labels::new()));
        let labels = earlier(&here, "elsewhere", "host");
        assert!(!here.is_dead(&labels));
        // Even if its lock file is in a folder that both use.
        File::create(lock_path(directory.path(), &labels[INSTANCE])).unwrap();
        assert!(!here.is_dead(&labels));
    }

    #[test]
    fn a_machine_s_name_may_change() {
        let directory = directory();
        let mut here = Instance::register(directory.path()).unwrap();
        here.labels.insert(MACHINE.into(), "this/new".into());
        let ended = earlier(&here, "this", "old");
        assert!(!here.is_dead(&ended), "a clone may have it");
        File::create(lock_path(directory.path(), &ended[INSTANCE])).unwrap();
        assert!(here.is_dead(&ended), "it was here");
        assert!(here.is_dead(&earlier(&here, "this", "new")));

        // In the same boot nothing but the process counts.
        let mut ended = earlier(&here, "", "old");
        ended.insert(BOOT.into(), here.labels()[BOOT].clone());
        assert!(!here.is_dead(&ended), "its process, this one, is alive");
        ended.insert(PROCESS.into(), format!("{}/1/never", pid_namespace().unwrap()));
        assert!(here.is_dead(&ended));
    }

    #[test]
    fn without_an_id_the_name_is_all_that_a_machine_has() {
        let directory = directory();
        let mut here = Instance::register(directory.path()).unwrap();
        here.labels.insert(MACHINE.into(), "/new".into());
        let other = earlier(&here, "", "old");
        File::create(lock_path(directory.path(), &other[INSTANCE])).unwrap();
        assert!(!here.is_dead(&other));
        assert!(here.is_dead(&earlier(&here, "", "new")));
    }

    #[test]
    fn an_instance_s_lock_file_is_there_although_others_sweep() {
        let directory = tempfile::tempdir().unwrap();
        let sweeping = Instance::register(directory.path()).unwrap();
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    sweeping.sweep_locks().unwrap();
                }
            });
            for _ in 0..2000 {
                let instance = Instance::register(directory.path()).unwrap();
                assert!(lock_path(directory.path(), &instance.id.to_string()).exists());
            }
            is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
