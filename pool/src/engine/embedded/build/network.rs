//! The network of a build: its own namespace, from which `slirp4netns` makes connections for it.
//!
//! A build that shared the host's network would reach its abstract Unix sockets and what listens on its loopback
//! interface. `slirp4netns` takes the packets and makes ordinary connections of them, but none to loopback.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use crate::engine::embedded::pidfd;
use crate::engine::embedded::rootless::is_on_path;

const PROGRAM: &str = "slirp4netns";

/// How long it may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The machine's name servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The servers behind systemd's own, which listens on loopback.
const RESOLV_CONF_OF_SYSTEMD: &str = "/run/systemd/resolve/resolv.conf";

/// The connection of one build with the network. Dropping it ends it. It also ends with this process, because its
/// standard input does.
pub(super) struct BuildNetwork {
    _process: Child,
}

impl BuildNetwork {
    /// Connects the network namespace of a process, and waits until that works.
    ///
    /// # Errors
    /// If the program is not installed, or its own error.
    pub(super) async fn connect(process: &OwnedFd) -> io::Result<Self> {
        let namespaces = pidfd::directory(process)?.join("ns").display().to_string();
        let mut process = Command::new(PROGRAM)
            .args(["--configure", "--mtu=65520", "--disable-host-loopback"])
            // Its own name server leads to the machine's, even if that is on loopback.
            .arg("--disable-dns")
            // It reads untrusted packets, so it gives up its rights first.
            .args(["--enable-sandbox", "--enable-seccomp", "--exit-fd=0", "--ready-fd=1"])
            .arg(format!("--userns-path={namespaces}/user"))
            .args(["--netns-type=path", &format!("{namespaces}/net"), "tap0"])
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Signals for the server's process group, such as Ctrl-C, are not for it.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(not_started)?;
        let ready = tokio::time::timeout(START_TIMEOUT, is_ready(&mut process)).await;
        match ready.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(()) => Ok(Self { _process: process }),
            Err(error) => Err(io::Error::other(format!("{PROGRAM} does not work: {error}"))),
        }
    }
}

/// Whether the program is there.
///
/// # Errors
///
/// How to install it.
pub(super) fn is_installed() -> io::Result<()> {
    if is_on_path(PROGRAM) { Ok(()) } else { Err(not_started(io::ErrorKind::NotFound.into())) }
}

fn not_started(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => io::Error::other(format!(
            "builds reach the network through {PROGRAM}, which is not installed; as root, run: \
             apt-get install {PROGRAM}"
        )),
        _ => io::Error::other(format!("{PROGRAM} can't be started: {error}")),
    }
}

/// Waits for its first byte on standard output, which means that it is ready.
async fn is_ready(process: &mut Child) -> io::Result<()> {
    let (Some(output), Some(errors)) = (&mut process.stdout, &mut process.stderr) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    if output.read(&mut [0]).await? > 0 {
        return Ok(());
    }
    let mut said = String::new();
    errors.read_to_string(&mut said).await?;
    Err(io::Error::other(said.trim().replace('\n', "; ")))
}

/// The list of name servers for a build: the machine's, as far as a build can reach them.
///
/// # Errors
///
/// If it can reach none of those that there are.
pub(super) fn resolv_conf() -> io::Result<String> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let machine = read(RESOLV_CONF);
    let lists = [machine.clone(), read(RESOLV_CONF_OF_SYSTEMD)];
    let reachable = lists.iter().map(|list| reachable(list)).find(|list| has_servers(list));
    reachable.map_or_else(
        || match has_servers(&machine) {
            true => Err(io::Error::other(format!(
                "builds can reach no name server: all in {RESOLV_CONF} are on this machine's loopback \
                 interface or have IPv6 addresses; add one with another IPv4 address"
            ))),
            // A machine without network has none, and its builds work without.
            false => Ok(machine),
        },
        Ok,
    )
}

/// A list without the servers that a build can't reach.
fn reachable(list: &str) -> String {
    let is_reachable = |line: &&str| match server(line) {
        Some(IpAddr::V4(address)) => !address.is_loopback() && !address.is_unspecified(),
        Some(IpAddr::V6(_)) => false,
        None => true,
    };
    list.lines().filter(is_reachable).flat_map(|line| [line, "\n"]).collect()
}

fn has_servers(list: &str) -> bool {
    list.lines().any(|line| server(line).is_some())
}

/// The address in a line that names a server.
fn server(line: &str) -> Option<IpAddr> {
    let mut words = line.split_whitespace();
    let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
    address.split('%').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_gets_only_name_servers_that_it_can_reach() {
        let list =
            "search here\nnameserver 127.0.0.53\nnameserver 192.0.2.1\nnameserver fe80::1%eth0\n";
        let left = reachable(list);
        assert_eq!(left, "search here\nnameserver 192.0.2.1\n");
        assert!(has_servers(&left));
        assert!(!has_servers(&reachable("nameserver 127.0.0.1\nnameserver 0.0.0.0\n")));
    }
}
