//! Everything that the launcher prepares for a sandbox, with the machine's files and its own rights in reach, so that the
//! sandbox's process finds descriptors and finished text.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, makedev, mkdirat,
    mknodat, open, openat2, symlinkat,
};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags, unmount};
use rustix::process::umask;

use super::open_root;
use crate::engine::embedded::host::Ids;
use crate::engine::embedded::launcher::binder;
use crate::engine::embedded::launcher::mounting::{self, HARMLESS, NO_PROGRAMS};
use crate::engine::embedded::layout::{BUILDING, LAYER, SHARED};
use crate::engine::embedded::plan::{
    MemoryMount, Plan, ResourceLimit, Role, Root, Users, WritableLayer,
};

/// A file system in memory, as the kernel takes it.
pub(super) struct Memory {
    /// Its path below the root.
    pub(super) path: CString,
    pub(super) options: Vec<(&'static CStr, CString)>,
    pub(super) attributes: MountAttrFlags,
}

/// The parts of a sandbox.
pub(super) struct Ready {
    pub(super) role: Role,
    pub(super) users: Option<Users>,
    pub(super) host_name: CString,
    /// The mount of its root.
    pub(super) root: OwnedFd,
    /// The mount of its devices, if the launcher can make some.
    pub(super) devices: Option<OwnedFd>,
    pub(super) memory: Vec<Memory>,
    /// Paths below the root.
    pub(super) files: Vec<(CString, CString)>,
    /// The mount of its set of packages.
    pub(super) packages: Option<OwnedFd>,
    pub(super) program: Vec<CString>,
    pub(super) arguments: Strings,
    pub(super) variables: Strings,
    /// A path below the root.
    pub(super) directory: CString,
    pub(super) user: (u32, u32),
    pub(super) capabilities: u64,
    pub(super) limits: Vec<ResourceLimit>,
    /// Its standard streams.
    pub(super) streams: [OwnedFd; 3],
}

/// A list of strings as `execve` takes it.
pub(super) struct Strings {
    pointers: Vec<*const c_char>,
    _strings: Vec<CString>,
}

impl Strings {
    fn new(strings: impl IntoIterator<Item = String>) -> io::Result<Self> {
        let strings = strings.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>()?;
        let end = [std::ptr::null()];
        let pointers = strings.iter().map(|string| string.as_ptr()).chain(end).collect();
        Ok(Self { pointers, _strings: strings })
    }

    pub(super) fn as_ptr(&self) -> *const *const c_char {
        self.pointers.as_ptr()
    }
}

impl Ready {
    /// Prepares a sandbox.
    pub(super) fn new(
        plan: &Plan,
        streams: [OwnedFd; 3],
        can_make_devices: bool,
    ) -> io::Result<Self> {
        let users = match plan.role {
            Role::Program { users } => users,
            Role::Build { ids } => Some(Users { ids, entered_by: None }),
            Role::Template => None,
        };
        // Forks of a template map and unmap the copy of its program: large pages take fewer steps.
        let ids = users.map(|users| users.ids);
        let root = root(&plan.root, ids, plan.is_template())?;
        if plan.is_template() {
            hide_program(&root, &plan.program)?;
            // Nothing else is written there.
            mounting::restrict(&root, MountAttrFlags::MOUNT_ATTR_RDONLY, None)?;
        }
        let is_build = matches!(plan.role, Role::Build { .. });
        let files = plan.files.iter();
        let files = files.map(|(file, at)| Ok((below_root(file)?, below_root(at)?)));
        let program = plan.program.iter().map(|path| CString::new(path.as_os_str().as_bytes()));
        Ok(Self {
            role: plan.role,
            users,
            host_name: CString::new(plan.host_name.as_str())?,
            root,
            devices: can_make_devices.then(|| devices(ids, !is_build)).transpose()?,
            memory: plan.memory.iter().map(Memory::new).collect::<io::Result<_>>()?,
            files: files.collect::<io::Result<_>>()?,
            packages: plan.packages.as_deref().map(binder::mount).transpose()?,
            program: program.collect::<Result<_, _>>()?,
            arguments: Strings::new(plan.arguments.iter().cloned())?,
            variables: Strings::new(variables(&plan.variables))?,
            directory: below_root(&plan.directory)?,
            user: plan.user,
            capabilities: plan.capabilities,
            limits: plan.limits.clone(),
            streams,
        })
    }
}

/// The variables, sorted and each once: a runner starts programs with sorted ones, and those of a template become a program's.
fn variables(all: &[String]) -> Vec<String> {
    let pairs = all.iter().filter_map(|variable| variable.split_once('='));
    let last: BTreeMap<_, _> = pairs.collect();
    last.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// A path without its leading slash, for look-ups that don't leave a root.
pub(super) fn below_root(path: &Path) -> io::Result<CString> {
    let path = path.strip_prefix("/").unwrap_or(path);
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

impl Memory {
    fn new(mount: &MemoryMount) -> io::Result<Self> {
        let (uid, gid) = mount.owner;
        let mut options = vec![
            (c"mode", c"1777".to_owned()),
            (c"size", number(mount.size)),
            (c"uid", number(uid.into())),
            (c"gid", number(gid.into())),
        ];
        options.extend(mount.inodes.map(|inodes| (c"nr_inodes", number(inodes.into()))));
        let attributes = if mount.is_executable { HARMLESS } else { NO_PROGRAMS };
        Ok(Self { path: below_root(&mount.path)?, options, attributes })
    }
}

fn number(number: u64) -> CString {
    CString::new(number.to_string()).unwrap_or_default()
}

/// Mounts a root, nowhere yet.
///
/// Each sandbox has an overlay of its own. Nothing is copied, and the page cache is shared, but to the kernel the
/// files are different ones. If sandboxes shared a file, a program could watch (inotify) what other sandboxes
/// and the host open, or make them wait with a lock (flock).
fn root(root: &Root, ids: Option<Ids>, has_large_pages: bool) -> io::Result<OwnedFd> {
    let (image, layer) = match root {
        Root::Building => return Ok(mounting::again(CWD, &CString::new(BUILDING)?)?),
        Root::Image { image, layer } => (image, layer),
    };
    let lower = CString::new(format!("{SHARED}:{}", image.display()))?;
    let mounted = match layer {
        None => {
            let attributes = HARMLESS.union(MountAttrFlags::MOUNT_ATTR_RDONLY);
            mounting::new(c"overlay", [(c"lowerdir", &*lower)], attributes)
        }
        Some(layer) => writable_root(&lower, image, layer, ids, has_large_pages),
    };
    mounted.map_err(|error| {
        io::Error::other(format!(
            "{} can't be mounted: {}",
            image.display(),
            io::Error::from(error)
        ))
    })
}

/// The upper layer is mounted where the overlay finds it, but no longer than that takes. The overlay keeps it. If the kernel
/// refused to unmount one, it goes before the next one comes.
fn writable_root(
    lower: &CStr,
    image: &Path,
    layer: &WritableLayer,
    ids: Option<Ids>,
    has_large_pages: bool,
) -> Result<OwnedFd, Errno> {
    let (size, inodes) = (number(layer.size), number(layer.inodes.into()));
    let options = [(c"mode", c"755"), (c"size", &*size), (c"nr_inodes", &*inodes)];
    let large_pages = has_large_pages.then_some((c"huge", c"within_size"));
    let memory = match mounting::new(c"tmpfs", options.into_iter().chain(large_pages), HARMLESS) {
        // Some kernels have no large pages.
        Err(Errno::INVAL) if has_large_pages => mounting::new(c"tmpfs", options, HARMLESS)?,
        memory => memory?,
    };
    for directory in [c"upper", c"work"] {
        mkdirat(&memory, directory, Mode::from_raw_mode(0o755))?;
    }
    if let Some(account) = &layer.open_to {
        open_root::fill(&memory, image, account, ids)?;
    }
    while unmount(LAYER, UnmountFlags::DETACH).is_ok() {}
    let point = open(LAYER, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    mounting::place(&memory, &point)?;
    let options = [
        (c"lowerdir", lower),
        (c"upperdir", c"/tmp/layer/upper"),
        (c"workdir", c"/tmp/layer/work"),
    ];
    let mounted = mounting::new(c"overlay", options, HARMLESS);
    unmount(LAYER, UnmountFlags::DETACH)?;
    mounted
}

/// Removes every user's right to read a program: the first of these paths that exists. It can still be started. The writable root
/// gets a copy of it.
fn hide_program(root: &OwnedFd, paths: &[PathBuf]) -> io::Result<()> {
    for path in paths {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        match openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::NOENT) => {}
            program => {
                let program = program?;
                let path = format!("/proc/self/fd/{}", program.as_raw_fd());
                return fs::set_permissions(path, fs::Permissions::from_mode(0o111));
            }
        }
    }
    Ok(())
}

/// Device nodes: name, and number below 1 or 5.
const NODES: [(&CStr, u32, u32); 6] = [
    (c"null", 1, 3),
    (c"zero", 1, 5),
    (c"full", 1, 7),
    (c"random", 1, 8),
    (c"urandom", 1, 9),
    (c"tty", 5, 0),
];

/// The names of all devices, whose paths in the machine are the same.
pub(in super::super) const DEVICES: [(&CStr, &CStr); 6] = [
    (c"null", c"/dev/null"),
    (c"zero", c"/dev/zero"),
    (c"full", c"/dev/full"),
    (c"random", c"/dev/random"),
    (c"urandom", c"/dev/urandom"),
    (c"tty", c"/dev/tty"),
];

/// The size and mode of the folder of devices.
pub(super) const OPTIONS_OF_DEVICES: [(&CStr, &CStr); 2] = [(c"mode", c"755"), (c"size", c"64k")];

/// Mounts devices for one sandbox, nowhere yet: if sandboxes shared them, a program could watch who opens them. The launcher
/// must be root of the machine: the kernel does not open devices on a mount of another user.
fn devices(ids: Option<Ids>, is_read_only: bool) -> io::Result<OwnedFd> {
    let first = ids.map_or(0, |ids| ids.first);
    let owner = number(first.into());
    let options = [(c"uid", &*owner), (c"gid", &*owner)];
    let options = OPTIONS_OF_DEVICES.into_iter().chain(options);
    let mounted = mounting::new(c"tmpfs", options, mounting::DEVICES)?;
    fill_devices(&mounted)?;
    let (uid, gid) = (Uid::from_raw(first), Gid::from_raw(first));
    for (_, link) in LINKS {
        chownat(&mounted, link, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    let own = umask(Mode::empty());
    let made = NODES.into_iter().try_for_each(|(name, major, minor)| {
        let mode = Mode::from_raw_mode(0o666);
        mknodat(&mounted, name, FileType::CharacterDevice, mode, makedev(major, minor))
    });
    umask(own);
    made?;
    if is_read_only {
        mounting::restrict(&mounted, MountAttrFlags::MOUNT_ATTR_RDONLY, None)?;
    }
    Ok(mounted)
}

/// Links beside the nodes: where they lead, and their names.
const LINKS: [(&CStr, &CStr); 5] = [
    (c"/proc/self/fd", c"fd"),
    (c"/proc/self/fd/0", c"stdin"),
    (c"/proc/self/fd/1", c"stdout"),
    (c"/proc/self/fd/2", c"stderr"),
    (c"pts/ptmx", c"ptmx"),
];

/// Makes the links, and folders for mounts.
pub(super) fn fill_devices(devices: &OwnedFd) -> Result<(), Errno> {
    LINKS.into_iter().try_for_each(|(target, link)| symlinkat(target, devices, link))?;
    let folders = [c"pts", c"shm", c"mqueue"];
    folders.into_iter().try_for_each(|folder| mkdirat(devices, folder, Mode::from_raw_mode(0o755)))
}

/// Whether this process can make devices.
pub(super) fn can_make_devices() -> bool {
    let made = devices(None, true);
    made.inspect_err(|error| tracing::debug!(%error, "sandboxes have the devices of the machine"))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_sorted_and_the_last_of_a_name_counts() {
        let all = ["B=1", "A=x=y", "B=2", "none"].map(str::to_owned);
        assert_eq!(variables(&all), ["A=x=y", "B=2"]);
    }
}
