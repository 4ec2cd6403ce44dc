//! The Unix socket at which a server answers commands of its own user: its folder, its name, and the check of both ends.
//!
//! The folder belongs to the user alone, and each end also asks the kernel for the user of the other.

use std::env;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock, open};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::net::{UnixListener, UnixStream};

use crate::app::{data_directory, user_runtime};
use crate::config::Config;
use crate::hex::hex;

/// The header in which a command says under which configuration it wants to run. A server with another one refuses the request.
pub(crate) const CONFIGURATION: &str = "isolator-configuration";

/// The header of answers to requests that were refused before anything has run.
pub(crate) const HAS_NOT_RUN: &str = "isolator-has-not-run";

/// The extension of sockets in the folder.
const EXTENSION: &str = "sock";

/// Most names that a server tries. Servers in several containers can have the same process number.
const MAX_NAMES: usize = 16;

/// How long a server waits for others that are making or removing sockets.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The user that the kernel names for every user without a number in this namespace, unless it is set to another.
const OVERFLOW_USER: u32 = 65534;

/// A socket with its file, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct LocalSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl LocalSocket {
    /// Listens in the folder of this user.
    ///
    /// # Errors
    ///
    /// When there is no such folder, another user can change it, or its path is too long.
    pub(crate) fn bind() -> io::Result<Self> {
        let folder = user_runtime().ok_or_else(|| {
            io::Error::new(
                ErrorKind::NotFound,
                "no folder for it is known: set XDG_RUNTIME_DIR to one",
            )
        })?;
        Self::bind_in(&folder)
    }

    fn bind_in(folder: &Path) -> io::Result<Self> {
        check_own_user()?;
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let opened = open_folder(folder)?;
        if opened.metadata()?.uid() == geteuid().as_raw() {
            fchmod(&opened, Mode::RWXU)?;
        }
        check_private(&opened, folder)?;
        // Until the end of this function: a socket on which its server does not listen yet looks like a stale one.
        lock(&opened)?;
        remove_stale(folder);
        let process = std::process::id();
        let mut names = (1..=MAX_NAMES).map(|number| match number {
            1 => format!("{process}.{EXTENSION}"),
            number => format!("{process}-{number}.{EXTENSION}"),
        });
        loop {
            let Some(name) = names.next() else { return Err(ErrorKind::AddrInUse.into()) };
            let path = folder.join(name);
            match UnixListener::bind(&path) {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                bound => {
                    let socket = Self { listener: bound?, path };
                    fs::set_permissions(&socket.path, Permissions::from_mode(0o600))?;
                    return Ok(socket);
                }
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts the next connection of a process of this user. Others are closed.
    ///
    /// # Errors
    ///
    /// When none can be accepted now, most likely because there are no file descriptors.
    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            match check_peer(&stream) {
                Ok(()) => return Ok(stream),
                Err(error) => tracing::warn!(%error, "a connection to the local socket is refused"),
            }
        }
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        // If it can't be removed, the next server does it.
        let _ = fs::remove_file(&self.path);
    }
}

/// The sockets of servers of this user, the newest first.
pub(crate) fn sockets() -> Vec<PathBuf> {
    let is_private = |folder: &PathBuf| {
        open_folder(folder).and_then(|opened| check_private(&opened, folder)).is_ok()
    };
    let Some(folder) = user_runtime().filter(is_private) else { return Vec::new() };
    let mut found: Vec<_> = sockets_in(&folder)
        .filter_map(|path| Some((fs::symlink_metadata(&path).ok()?.modified().ok()?, path)))
        .collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

/// Connects to a socket, and checks that its server belongs to this user.
///
/// # Errors
///
/// When there is no server, or it is another user's.
pub(crate) async fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path).await?;
    check_peer(&stream)?;
    Ok(stream)
}

/// The value of [`CONFIGURATION`]: equal where a command in its own process would do the same as a server with this
/// configuration. It covers the files that are read when a configuration is loaded, as they were then, and is computed once for
/// each. Snippets are read at each call, so both must see the same folder of them: a server in a container may see another.
pub(crate) fn fingerprint(config: &Config) -> String {
    let loaded = config.fingerprint.get_or_init(|| {
        let file = config.file.as_ref().map(|file| fs::canonicalize(file).unwrap_or(file.clone()));
        let variables = ["DOCKER_HOST", "DOCKER_CONTEXT", "XDG_STATE_HOME"].map(env::var_os);
        let parts = json!([
            env!("CARGO_PKG_VERSION"),
            file,
            config.settings.document,
            config.engine.kind,
            config.policies.texts().collect::<Vec<_>>(),
            config.packages.locks,
            std::path::absolute(&config.prompts).ok(),
            data_directory(),
            variables.map(|value| value.map(|value| value.to_string_lossy().into_owned())),
        ]);
        hex(&Sha256::digest(parts.to_string()))
    });
    match fs::metadata(&config.prompts) {
        Ok(folder) => format!("{loaded}-{}-{}", folder.dev(), folder.ino()),
        Err(_) => loaded.clone(),
    }
}

/// Waits a limited time for the lock of the folder.
fn lock(folder: &File) -> io::Result<()> {
    let end = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(10));
            }
            locked => return Ok(locked?),
        }
    }
}

/// Fails if this user can't be distinguished from users without a number in this namespace.
fn check_own_user() -> io::Result<()> {
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    let overflow = overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW_USER);
    (geteuid().as_raw() != overflow).then_some(()).ok_or_else(|| {
        let text = format!(
            "user {overflow} can't be distinguished from users that the kernel does not know here"
        );
        io::Error::new(ErrorKind::PermissionDenied, text)
    })
}

fn sockets_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|it| it == EXTENSION))
}

/// Removes the sockets of servers that have died.
fn remove_stale(folder: &Path) {
    for path in sockets_in(folder) {
        if StdUnixStream::connect(&path).is_err_and(|it| it.kind() == ErrorKind::ConnectionRefused)
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// Opens a folder, but not one behind a symbolic link, which is not meant for sockets.
fn open_folder(folder: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open(folder, flags, Mode::empty())?.into())
}

/// Fails unless an open folder is this user's, and only this user's.
fn check_private(opened: &File, folder: &Path) -> io::Result<()> {
    let found = opened.metadata()?;
    let is_private = found.mode() & 0o077 == 0 && found.uid() == geteuid().as_raw();
    is_private.then_some(()).ok_or_else(|| {
        let text = format!("{} is not a folder of this user alone", folder.display());
        io::Error::new(ErrorKind::PermissionDenied, text)
    })
}

/// Fails unless the process at the other end is this user's.
fn check_peer(stream: &UnixStream) -> io::Result<()> {
    check_own_user()?;
    let user = stream.peer_cred()?.uid();
    (user == geteuid().as_raw()).then_some(()).ok_or_else(|| {
        let text = format!("the process at the other end belongs to user {user}");
        io::Error::new(ErrorKind::PermissionDenied, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[tokio::test]
    async fn only_this_user_can_reach_the_socket() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("isolator");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let socket = LocalSocket::bind_in(&folder).unwrap();
        assert_eq!((mode(&folder), mode(socket.path())), (0o700, 0o600));
        let (connected, accepted) = tokio::join!(connect(socket.path()), socket.accept());
        assert!(connected.is_ok() && accepted.is_ok());

        fs::set_permissions(&folder, Permissions::from_mode(0o750)).unwrap();
        let opened = open_folder(&folder).unwrap();
        let error = check_private(&opened, &folder).unwrap_err().to_string();
        assert!(error.contains("not a folder of this user alone"), "{error}");
        let link = home.path().join("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(open_folder(&link).is_err());
        assert!(LocalSocket::bind_in(&link).is_err());
        assert_eq!(mode(&folder), 0o750, "nothing is changed behind a link");
    }

    #[tokio::test]
    async fn stale_sockets_are_removed_and_each_server_has_its_own() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path();
        fs::set_permissions(folder, Permissions::from_mode(0o700)).unwrap();
        let stale = folder.join("1.sock");
        drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
        assert!(stale.exists());
        let [first, second] = [(); 2].map(|()| LocalSocket::bind_in(folder).unwrap());
        assert!(!stale.exists());
        assert_ne!(first.path(), second.path());
        assert!(connect(first.path()).await.is_ok() && connect(second.path()).await.is_ok());
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists() && second.path().exists());
    }

    #[test]
    fn other_settings_have_another_fingerprint() {
        let config = |text: &str| Config::parse(text, None, Path::new("/")).unwrap();
        let [first, same] = [(); 2].map(|()| fingerprint(&config("{}")));
        assert_eq!(first, same);
        assert_ne!(first, fingerprint(&config(r#"{ "defaultCpus": 2 }"#)));
        let mut chosen = config("{}");
        chosen.choose_engine(Some(crate::config::EngineKind::Embedded));
        assert_ne!(first, fingerprint(&chosen));
    }

    #[test]
    fn another_folder_of_snippets_has_another_fingerprint() {
        let home = tempfile::tempdir().unwrap();
        let config = Config::parse("{}", None, home.path()).unwrap();
        let without = fingerprint(&config);
        fs::create_dir(home.path().join("prompts")).unwrap();
        let with = fingerprint(&config);
        assert_ne!(without, with);
        fs::write(home.path().join("prompts/count.py"), "print(1)").unwrap();
        assert_eq!(with, fingerprint(&config), "snippets are read at each call");
    }

    #[test]
    fn other_content_of_named_files_has_another_fingerprint() {
        let home = tempfile::tempdir().unwrap();
        let [policies, lock] = ["policies", "isolator.lock/text"].map(|it| home.path().join(it));
        fs::create_dir_all(&policies).unwrap();
        fs::create_dir_all(&lock).unwrap();
        let rule = |message: &str| {
            format!("id: a\nlanguage: Python\nmessage: {message}\nrule: {{ pattern: eval($A) }}\n")
        };
        fs::write(policies.join("own.yml"), rule("one")).unwrap();
        let text = r#"{ "policies": { "folder": "policies", "apply": { "python": ["own"] } },
            "packages": { "sets": { "text": { "language": "python", "requirements": ["humanize"] } } } }"#;
        let load = || Config::parse(text, None, home.path()).unwrap();
        let loaded = load();
        let first = fingerprint(&loaded);
        assert_eq!(first, fingerprint(&load()));
        fs::write(policies.join("own.yml"), rule("two")).unwrap();
        let second = fingerprint(&load());
        assert_ne!(first, second);
        assert_eq!(first, fingerprint(&loaded), "a server has what it has loaded");
        fs::write(lock.join("requirements.txt"), "1").unwrap();
        assert_ne!(second, fingerprint(&load()));
    }
}
