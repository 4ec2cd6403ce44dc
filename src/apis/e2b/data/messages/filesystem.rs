//! The messages of `filesystem.Filesystem`.

use std::time::{Duration, UNIX_EPOCH};

use isolator_pool::pool::session::agent::{Entry, EntryKind, LeadsTo, WatchKind};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::InvalidField;
use crate::apis::e2b::data::connect::json::Number;
use crate::apis::e2b::watchers::{Change, Watched};

/// Deepest listing that a client can ask for.
const MAX_DEPTH: u32 = 32;

/// Longest path, in bytes: the system takes none that is longer.
const MAX_PATH: usize = 4096;

/// The last second of the year 9999.
const LAST_SECOND: i64 = 253_402_300_799;

/// Types of entries. Clients leave out entries whose type they don't know, as those of pipes and sockets.
const FILE: &str = "FILE_TYPE_FILE";
const FOLDER: &str = "FILE_TYPE_DIRECTORY";
const NO_TYPE: &str = "FILE_TYPE_UNSPECIFIED";

/// A message that only names a path.
#[derive(Debug, Default, Deserialize)]
pub(in super::super) struct OfPath {
    path: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
pub(in super::super) struct ListDirRequest {
    path: Option<String>,
    depth: Option<Number>,
}

#[derive(Debug, Default, Deserialize)]
pub(in super::super) struct MoveRequest {
    source: Option<String>,
    destination: Option<String>,
}

/// A watch of a folder. No sandbox has file systems of a network, so a permission to watch them changes nothing.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in super::super) struct WatchRequest {
    path: Option<String>,
    recursive: Option<bool>,
    #[serde(alias = "include_entry")]
    include_entry: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in super::super) struct OfWatcher {
    #[serde(alias = "watcher_id")]
    watcher_id: Option<String>,
}

/// The path for the agent: relative to the user's home, which clients also call `~`.
///
/// # Errors
///
/// When no file system has such a path, or it is that of another user's home.
pub(in super::super) fn path(
    path: Option<String>,
    field: &'static str,
) -> Result<String, InvalidField> {
    let path = path.unwrap_or_default();
    if path.contains('\0') {
        return Err(InvalidField::new(field, "can't contain a zero byte"));
    }
    if path.len() > MAX_PATH {
        return Err(InvalidField::new(
            field,
            "is longer than 4096 bytes, the longest path of the system",
        ));
    }
    let inside = match path.strip_prefix('~') {
        None => path.as_str(),
        Some("") => "",
        Some(rest) => rest.strip_prefix('/').map(|rest| rest.trim_start_matches('/')).ok_or(
            InvalidField::new(
                field,
                "begins with the home of another user, and there is one user: write ~/ for its home, or ./~ \
                 for a file with this name",
            ),
        )?,
    };
    Ok(cleaned(inside))
}

/// A path without parts that lead nowhere or back, as clients expect it. A relative one can lead out of the home.
fn cleaned(path: &str) -> String {
    let is_absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            ".." if is_absolute => {}
            name => parts.push(name),
        }
    }
    let joined = parts.join("/");
    match (is_absolute, joined.as_str()) {
        (true, _) => format!("/{joined}"),
        (false, "") => ".".to_owned(),
        (false, _) => joined,
    }
}

impl OfPath {
    pub(in super::super) fn into_path(self) -> Result<String, InvalidField> {
        path(self.path, "path")
    }
}

impl ListDirRequest {
    pub(in super::super) fn into_listing(self) -> Result<(String, u32), InvalidField> {
        let depth = self.depth.unwrap_or_default().0.max(1);
        if depth > MAX_DEPTH {
            return Err(InvalidField::new(
                "depth",
                "can be at most 32: list the folders below one by one",
            ));
        }
        Ok((path(self.path, "path")?, depth))
    }
}

impl MoveRequest {
    pub(in super::super) fn into_paths(self) -> Result<(String, String), InvalidField> {
        Ok((path(self.source, "source")?, path(self.destination, "destination")?))
    }
}

impl WatchRequest {
    pub(in super::super) fn into_watched(self) -> Result<Watched, InvalidField> {
        Ok(Watched {
            path: path(self.path, "path")?,
            is_recursive: self.recursive.unwrap_or(false),
            has_entries: self.include_entry.unwrap_or(false),
        })
    }
}

impl OfWatcher {
    pub(in super::super) fn into_id(self) -> Result<String, InvalidField> {
        let id = self.watcher_id.filter(|id| !id.is_empty());
        id.ok_or(InvalidField::new("watcherId", "is required: the one that CreateWatcher returned"))
    }
}

/// An entry of a file system, for clients.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in super::super) struct EntryInfo {
    name: String,
    r#type: &'static str,
    path: String,
    /// A text, as 64 bits don't fit into the numbers of JavaScript.
    size: String,
    mode: u32,
    permissions: String,
    owner: String,
    group: String,
    modified_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink_target: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_symlink: bool,
}

/// An answer with one entry.
#[derive(Debug, Serialize)]
pub(in super::super) struct WithEntry {
    pub entry: EntryInfo,
}

/// The answer to `ListDir`.
#[derive(Debug, Serialize)]
pub(in super::super) struct ListDirResponse {
    pub entries: Vec<EntryInfo>,
}

/// The answer to `CreateWatcher`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in super::super) struct CreateWatcherResponse {
    pub watcher_id: String,
}

/// The answer to `GetWatcherEvents`.
#[derive(Debug, Serialize)]
pub(in super::super) struct WatcherEvents {
    pub events: Vec<FilesystemEvent>,
}

/// A change in a folder.
#[derive(Debug, Serialize)]
pub(in super::super) struct FilesystemEvent {
    name: String,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<EntryInfo>,
}

impl From<Entry> for EntryInfo {
    fn from(entry: Entry) -> Self {
        let is_folder = matches!(entry.kind, EntryKind::Folder);
        let is_symlink = matches!(entry.kind, EntryKind::Link { .. });
        let r#type = match &entry.kind {
            EntryKind::File => FILE,
            EntryKind::Folder => FOLDER,
            // The type is that of the file to which it leads. Clients leave out entries without a type, and some know no links.
            EntryKind::Link { leads_to: Some(LeadsTo::File), .. } => FILE,
            EntryKind::Link { leads_to: Some(LeadsTo::Folder), .. } => FOLDER,
            EntryKind::Link { leads_to: None, .. } => "FILE_TYPE_SYMLINK",
            EntryKind::Link { leads_to: Some(LeadsTo::Other), .. } | EntryKind::Other => NO_TYPE,
        };
        let symlink_target = match entry.kind {
            EntryKind::Link { target, .. } => Some(from_root(&entry.path, &target)),
            _ => None,
        };
        Self {
            name: entry.name,
            r#type,
            path: cleaned(&entry.path),
            size: entry.size.to_string(),
            mode: entry.mode & 0o7777,
            permissions: permissions(is_folder, is_symlink, entry.mode),
            owner: entry.owner,
            group: entry.group,
            modified_time: timestamp(entry.modified),
            symlink_target,
            is_symlink,
        }
    }
}

/// The target of a link as a path from the root, which clients expect. It is not looked up, so it may lead through further links.
fn from_root(link: &str, target: &str) -> String {
    let folder = link.rsplit_once('/').map_or("", |(folder, _)| folder);
    match target.starts_with('/') {
        true => cleaned(target),
        false => cleaned(&format!("{folder}/{target}")),
    }
}

/// Permissions as clients show them: a link has an `L`, unlike in `ls`.
fn permissions(is_folder: bool, is_symlink: bool, mode: u32) -> String {
    let letter = match (is_folder, is_symlink) {
        (true, _) => 'd',
        (_, true) => 'L',
        _ => '-',
    };
    let bit = |(at, letter): (u32, char)| if mode & (0o400 >> at) != 0 { letter } else { '-' };
    std::iter::once(letter).chain((0..9).zip("rwxrwxrwx".chars()).map(bit)).collect()
}

/// A time in the form of protocol buffers. A program can give a file any time, and clients read those up to the year 9999.
fn timestamp((seconds, nanoseconds): (i64, u32)) -> String {
    let seconds = seconds.clamp(0, LAST_SECOND).unsigned_abs();
    let since = Duration::new(seconds, nanoseconds.min(999_999_999));
    humantime::format_rfc3339_nanos(UNIX_EPOCH + since).to_string()
}

impl FilesystemEvent {
    /// A change below the path `root`. Clients want the name from there.
    pub(in super::super) fn new(change: Change, root: &str) -> Self {
        let Change { event, entry } = change;
        let r#type = match event.kind {
            WatchKind::Create => "EVENT_TYPE_CREATE",
            WatchKind::Write => "EVENT_TYPE_WRITE",
            WatchKind::Remove => "EVENT_TYPE_REMOVE",
            WatchKind::Rename => "EVENT_TYPE_RENAME",
            WatchKind::Chmod => "EVENT_TYPE_CHMOD",
        };
        let below = event.path.strip_prefix(root).map(|rest| rest.trim_start_matches('/'));
        let name = below.unwrap_or(&event.path).to_owned();
        Self { name, r#type, entry: entry.map(EntryInfo::from) }
    }
}

/// The first event of a watch.
pub(in super::super) fn watching() -> Vec<u8> {
    json!({"start": {}}).to_string().into_bytes()
}

/// An event that keeps the stream alive.
pub(in super::super) fn keepalive() -> Vec<u8> {
    json!({"keepalive": {}}).to_string().into_bytes()
}

/// An event with a change.
pub(in super::super) fn changed(event: &FilesystemEvent) -> Vec<u8> {
    json!({"filesystem": event}).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use isolator_pool::pool::session::agent::WatchEvent;

    use super::*;

    #[test]
    fn paths_are_relative_to_the_home() {
        let read = |text: &str| path(Some(text.to_owned()), "path");
        for (given, expected) in [
            ("a/b", "a/b"),
            ("/etc", "/etc"),
            ("", "."),
            ("~", "."),
            ("~/", "."),
            ("~/a", "a"),
            ("~//a", "a"),
            ("a~", "a~"),
            ("./~", "~"),
            ("a/../b", "b"),
            ("a/./b//c/", "a/b/c"),
            ("../a", "../a"),
            ("../../a/..", "../.."),
            ("/../a", "/a"),
            ("/", "/"),
        ] {
            assert_eq!(read(given).as_deref(), Ok(expected), "{given:?}");
        }
        assert_eq!(path(None, "path").as_deref(), Ok("."));
        assert!(read("~root/a").is_err() && read("a\0").is_err());
        assert!(
            read(&"a/".repeat(MAX_PATH / 2)).is_ok() && read(&"a".repeat(MAX_PATH + 1)).is_err()
        );
    }

    #[test]
    fn entries_have_the_form_that_clients_expect() {
        let entry = |kind, mode| {
            let modified = (1, 500_000_000);
            let (name, path) = ("a".to_owned(), "/home/user/a".to_owned());
            let (owner, group) = ("user".to_owned(), "user".to_owned());
            let entry = Entry { name, path, kind, size: 4096, mode, owner, group, modified };
            serde_json::to_value(EntryInfo::from(entry)).unwrap()
        };
        let file = entry(EntryKind::File, 0o100_644);
        assert_eq!(
            file,
            json!({
                "name": "a", "type": "FILE_TYPE_FILE", "path": "/home/user/a", "size": "4096", "mode": 0o644,
                "permissions": "-rw-r--r--", "owner": "user", "group": "user",
                "modifiedTime": "1970-01-01T00:00:01.500000000Z",
            })
        );
        let folder = entry(EntryKind::Folder, 0o040_755);
        assert_eq!(
            (&folder["size"], &folder["permissions"]),
            (&json!("4096"), &json!("drwxr-xr-x"))
        );
        for (leads_to, expected) in [
            (Some(LeadsTo::File), FILE),
            (Some(LeadsTo::Folder), FOLDER),
            (Some(LeadsTo::Other), NO_TYPE),
            (None, "FILE_TYPE_SYMLINK"),
        ] {
            let link = entry(EntryKind::Link { target: "b".to_owned(), leads_to }, 0o777);
            let target = json!("/home/user/b");
            assert_eq!((&link["type"], &link["symlinkTarget"]), (&json!(expected), &target));
            assert_eq!(link["isSymlink"], true);
        }
    }

    #[test]
    fn targets_of_links_begin_at_the_root() {
        for (target, expected) in [
            ("b", "/home/user/b"),
            ("../b/./c", "/home/b/c"),
            ("../../../../b", "/b"),
            ("/etc//x/", "/etc/x"),
            ("", "/home/user"),
        ] {
            assert_eq!(from_root("/home/user/a", target), expected, "{target}");
        }
    }

    #[test]
    fn times_that_no_client_can_read_are_changed() {
        assert_eq!(timestamp((1 << 50, 0)), "9999-12-31T23:59:59.000000000Z");
        assert_eq!(timestamp((-1, u32::MAX)), "1970-01-01T00:00:00.999999999Z");
    }

    #[test]
    fn names_of_changes_begin_below_the_watched_path() {
        let named = |path: &str| {
            let event = WatchEvent { kind: WatchKind::Write, path: path.to_owned() };
            FilesystemEvent::new(Change { event, entry: None }, "/home/user/a").name
        };
        assert_eq!(named("/home/user/a/b/c"), "b/c");
        assert_eq!(named("/home/user/a"), "");
        assert_eq!(named("/elsewhere"), "/elsewhere");
    }

    #[test]
    fn requests_are_read_in_each_spelling() {
        for text in [r#"{"watcherId": "w"}"#, r#"{"watcher_id": "w"}"#] {
            assert_eq!(
                serde_json::from_str::<OfWatcher>(text).unwrap().into_id().as_deref(),
                Ok("w")
            );
        }
        let watch =
            r#"{"path": "a", "recursive": true, "includeEntry": true, "allowNetworkMounts": true}"#;
        let watched = serde_json::from_str::<WatchRequest>(watch).unwrap().into_watched().unwrap();
        assert_eq!(
            watched,
            Watched { path: "a".to_owned(), is_recursive: true, has_entries: true }
        );
        let depth =
            |text: &str| serde_json::from_str::<ListDirRequest>(text).unwrap().into_listing();
        assert_eq!(depth("{}"), Ok((".".to_owned(), 1)));
        assert_eq!(depth(r#"{"path": "/", "depth": 3}"#), Ok(("/".to_owned(), 3)));
        assert!(depth(r#"{"depth": 33}"#).is_err());
    }
}
