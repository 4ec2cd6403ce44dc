//! `isolator install`, as a user calls it: the files of every host, in temporary home directories.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Finished, run_command};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A host as its users know it.
struct Host {
    name: &'static str,
    /// Its configuration, below the home.
    file: &'static str,
    /// The key with the servers.
    key: &'static str,
    /// Whether the host takes comments, and commas after the last of several things.
    comments: bool,
    /// Keys of the entry besides those of the command.
    more: fn() -> Value,
}

/// The hosts whose configuration is JSON.
const HOSTS: [Host; 9] = [
    Host {
        name: "claude-desktop",
        file: ".config/Claude/claude_desktop_config.json",
        key: "mcpServers",
        comments: false,
        more: || json!({}),
    },
    Host {
        name: "claude-code",
        file: ".claude.json",
        key: "mcpServers",
        comments: false,
        more: || json!({ "type": "stdio" }),
    },
    Host {
        name: "cursor",
        file: ".cursor/mcp.json",
        key: "mcpServers",
        comments: true,
        more: || json!({ "type": "stdio" }),
    },
    Host {
        name: "vscode",
        file: ".config/Code/User/mcp.json",
        key: "servers",
        comments: true,
        more: || json!({ "type": "stdio" }),
    },
    Host {
        name: "lm-studio",
        file: ".lmstudio/mcp.json",
        key: "mcpServers",
        comments: true,
        more: || json!({}),
    },
    Host {
        name: "cline",
        file: ".cline/data/settings/cline_mcp_settings.json",
        key: "mcpServers",
        comments: true,
        more: || json!({ "timeout": 120 }),
    },
    Host {
        name: "windsurf",
        file: ".codeium/windsurf/mcp_config.json",
        key: "mcpServers",
        comments: false,
        more: || json!({}),
    },
    Host {
        name: "zed",
        file: ".config/zed/settings.json",
        key: "context_servers",
        comments: true,
        more: || json!({}),
    },
    Host {
        name: "opencode",
        file: ".config/opencode/opencode.json",
        key: "mcp",
        comments: true,
        more: || json!({ "type": "local" }),
    },
];

const BINARY: &str = env!("CARGO_BIN_EXE_isolator");

impl Host {
    fn file(&self, home: &Home) -> PathBuf {
        home.path().join(self.file)
    }

    /// The entry that starts the server with these arguments.
    fn entry(&self, args: &[&str]) -> Value {
        let mut entry = (self.more)();
        if self.name == "opencode" {
            entry["command"] = json!([&[BINARY][..], args].concat());
        } else {
            entry["command"] = json!(BINARY);
            entry["args"] = json!(args);
        }
        entry
    }

    /// A configuration with other servers and settings, as the host's users have it.
    fn existing(&self) -> String {
        let key = self.key;
        format!(
            "{{\n    \"zoom\": 1.50,\n    \"{key}\": {{\n        \"web\": {{ \"url\": \
             \"https://example.com\" }},\n        \"files\": {{\n            \"command\": \"files\",\n            \
             \"env\": {{\"KEY\": \"secret\"}}\n        }}\n    }},\n    \"a\": [ 1,2 ]\n}}\n"
        )
    }
}

/// A user's home, and nothing of the tester's.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.env_clear().env("HOME", self.path()).current_dir(self.path()).args(arguments);
        command
    }

    fn install(&self, arguments: &[&str]) -> Finished {
        let arguments: Vec<_> = ["install"].iter().chain(arguments).copied().collect();
        run_command(&mut self.command(&arguments), "")
    }

    /// Writes a file and the folders above it.
    fn write(&self, file: &Path, text: &str) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// All files and links, with what they say.
    fn all(&self) -> Vec<(PathBuf, String)> {
        let mut found = Vec::new();
        let mut folders = vec![self.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                let (path, kind) = (entry.path(), entry.file_type().unwrap());
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_symlink() {
                    let target = fs::read_link(&path).unwrap();
                    found.push((path, target.display().to_string()));
                } else {
                    let text = fs::read_to_string(&path).unwrap_or_else(|error| error.to_string());
                    found.push((path, text));
                }
            }
        }
        found.sort();
        found
    }
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn parse(file: &Path) -> Value {
    serde_json::from_str(&read(file)).unwrap()
}

fn mode(file: &Path) -> u32 {
    fs::metadata(file).unwrap().permissions().mode() & 0o777
}

/// Asserts that a command was refused with these words, and that it has changed nothing.
fn assert_refused(home: &Home, arguments: &[&str], hints: &[&str]) {
    let before = home.all();
    let finished = home.install(arguments);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(125), ""), "{finished:?}");
    for hint in hints {
        assert!(finished.stderr.contains(hint), "no {hint}: {finished:?}");
    }
    assert_eq!(home.all(), before, "{arguments:?}");
}

#[test]
fn a_host_without_a_configuration_gets_one() {
    for host in HOSTS {
        let home = Home::new();
        let finished = home.install(&[host.name]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        assert_eq!(
            parse(&host.file(&home)),
            json!({ host.key: { "isolator": host.entry(&["serve"]) } })
        );
        // Hosts keep keys in it, and there is nothing to keep a copy of.
        assert_eq!(mode(&host.file(&home)), 0o600, "{}", host.name);
        assert_eq!(home.all().len(), 1, "{:?}", home.all());
        for hint in [host.file(&home).to_str().unwrap(), "next: "] {
            assert!(finished.stdout.contains(hint), "no {hint}: {finished:?}");
        }
    }
}

#[test]
fn existing_content_is_kept_and_restored() {
    for host in HOSTS {
        let home = Home::new();
        let (file, before) = (host.file(&home), host.existing());
        home.write(&file, &before);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();

        let finished = home.install(&[host.name]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let mut expected: Value = serde_json::from_str(&before).unwrap();
        expected[host.key]["isolator"] = host.entry(&["serve"]);
        assert_eq!(parse(&file), expected, "{}", host.name);
        // Each line is where it was: the text only has more of them, and a comma.
        let after = read(&file);
        let mut lines = after.lines().map(|line| line.trim_end_matches(','));
        for line in before.lines() {
            let line = line.trim_end_matches(',');
            assert!(lines.any(|other| other == line), "{}: no {line:?}: {after}", host.name);
        }
        let copy = file.with_file_name(format!(
            "{}.before-isolator",
            file.file_name().unwrap().to_str().unwrap()
        ));
        assert_eq!((read(&copy), mode(&copy), mode(&file)), (before.clone(), 0o640, 0o640));
        assert!(finished.stdout.contains(copy.to_str().unwrap()), "{finished:?}");

        let finished = home.install(&[host.name, "--uninstall"]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
        assert_eq!(read(&file), before, "{}", host.name);
        let again = home.install(&[host.name, "--uninstall"]);
        assert_eq!(again.code, Some(0), "{again:?}");
        assert!(again.stdout.contains("is not in"), "{again:?}");
        // No copy takes the name of an earlier one.
        assert_eq!(home.all().len(), 3, "{:?}", home.all());
        assert_eq!(read(&copy), before);
    }
}

#[test]
fn a_second_time_changes_nothing() {
    for host in HOSTS {
        let home = Home::new();
        home.write(&host.file(&home), &host.existing());
        assert_eq!(home.install(&[host.name]).code, Some(0));
        let before = home.all();
        for arguments in [&[host.name][..], &[host.name, "--force"]] {
            let again = home.install(arguments);
            assert_eq!(again.code, Some(0), "{again:?}");
            assert!(again.stdout.contains("already"), "{again:?}");
            assert_eq!(home.all(), before, "{}", host.name);
        }
    }
}

#[test]
fn comments_are_kept_or_the_file_is_left_alone() {
    for host in HOSTS {
        let home = Home::new();
        let file = host.file(&home);
        let key = host.key;
        let before = format!(
            "// all mine\n{{\n  \"{key}\": {{\n    /* one */ \"a\": {{}}, // of two\n    \"b\": {{}},\n  }},\n}}\n"
        );
        home.write(&file, &before);
        if !host.comments {
            assert_refused(
                &home,
                &[host.name],
                &[file.to_str().unwrap(), "omments", "fix that first"],
            );
            continue;
        }
        assert_eq!(home.install(&[host.name]).code, Some(0));
        let after = read(&file);
        for comment in ["// all mine\n", "/* one */ \"a\": {}, // of two\n", "\"isolator\": {"] {
            assert!(after.contains(comment), "{}: {after}", host.name);
        }
        assert_eq!(home.install(&[host.name, "--uninstall"]).code, Some(0));
        assert_eq!(read(&file), before, "{}", host.name);
    }
}

#[test]
fn files_that_are_not_understood_are_left_alone() {
    for host in HOSTS {
        let (home, key) = (Home::new(), host.key);
        let file = host.file(&home);
        let place = file.to_str().unwrap();
        for (text, hint) in [
            ("{ \"zoom\": 1, ".to_owned(), "can't be read"),
            ("[]".to_owned(), "not an object"),
            (format!("{{ \"{key}\": [] }}"), key),
            (format!("{{ \"{key}\": {{}}, \"{key}\": {{}} }}"), "twice"),
        ] {
            home.write(&file, &text);
            for more in ["--force", "--uninstall"] {
                assert_refused(&home, &[host.name, more], &[place, hint]);
            }
        }
        fs::write(&file, b"{ \"\xff\": 1 }").unwrap();
        assert_refused(&home, &[host.name], &[place, "UTF-8"]);
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_refused(&home, &[host.name], &[place, "not a file"]);
    }
}

#[test]
fn another_server_of_that_name_is_replaced_only_on_request() {
    for host in HOSTS {
        let (home, key) = (Home::new(), host.key);
        let file = host.file(&home);
        home.write(
            &file,
            &json!({ key: { "isolator": { "url": "https://example.com" } } }).to_string(),
        );
        assert_refused(&home, &[host.name], &["example.com", "--force", "--name"]);
        assert_refused(&home, &[host.name, "--uninstall"], &["example.com", "--force"]);

        assert_eq!(home.install(&[host.name, "--name", "sandbox"]).code, Some(0));
        let entry = host.entry(&["serve"]);
        assert_eq!(parse(&file)[key]["sandbox"], entry);
        assert_eq!(parse(&file)[key]["isolator"], json!({ "url": "https://example.com" }));
        assert_eq!(home.install(&[host.name, "--force"]).code, Some(0));
        assert_eq!(parse(&file)[key]["isolator"], entry);
        assert_eq!(home.install(&[host.name, "--uninstall"]).code, Some(0));
        assert_eq!(parse(&file), json!({ key: { "sandbox": entry } }));
    }
}

#[test]
fn print_shows_the_entry_and_touches_nothing() {
    for host in HOSTS {
        let home = Home::new();
        let file = host.file(&home);
        for text in [None, Some("{ broken")] {
            if let Some(text) = text {
                home.write(&file, text);
            }
            let before = home.all();
            let finished = home.install(&[host.name, "--print"]);
            assert_eq!(finished.code, Some(0), "{finished:?}");
            let printed: Value = serde_json::from_str(&finished.stdout).unwrap();
            assert_eq!(printed, json!({ host.key: { "isolator": host.entry(&["serve"]) } }));
            assert!(finished.stderr.contains(file.to_str().unwrap()), "{finished:?}");
            assert_eq!(home.all(), before);
        }
    }
    let home = Home::new();
    let finished = home.install(&["claude-code", "--print", "--name", "box"]);
    let command = format!("claude mcp add --scope user --transport stdio box -- {BINARY} serve");
    assert!(finished.stderr.contains(&command), "{finished:?}");
    // Its command has no option for the timeout that the entry has.
    let finished = home.install(&["codex", "--print"]);
    let advice = format!(
        "or run: codex mcp add isolator -- {BINARY} serve\nand then add tool_timeout_sec = 120 to the entry"
    );
    assert!(finished.stderr.contains(&advice), "{finished:?}");
}

#[test]
fn a_link_stays_a_link() {
    let home = Home::new();
    let kept = home.path().join("dotfiles/cursor.json");
    home.write(&kept, "{}\n");
    let link = home.path().join(".cursor/mcp.json");
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    symlink("../dotfiles/cursor.json", &link).unwrap();

    assert_eq!(home.install(&["cursor"]).code, Some(0));
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("../dotfiles/cursor.json"));
    assert!(read(&kept).contains("isolator"));
    assert_eq!(read(&home.path().join("dotfiles/cursor.json.before-isolator")), "{}\n");

    fs::remove_file(&kept).unwrap();
    assert_refused(&home, &["cursor"], &[link.to_str().unwrap(), "symbolic link"]);
}

#[test]
fn an_unwritable_folder_is_reported() {
    // Not even root can create files there.
    let home = Home::new();
    symlink("/proc/self", home.path().join(".cursor")).unwrap();
    assert_refused(&home, &["cursor"], &["mcp.json", "can't be", "nothing was changed"]);
}

#[test]
fn missing_folders_are_not_guessed() {
    let home = Home::new();
    for (value, hint) in
        [(None, "not set"), (Some("home"), "absolute"), (Some("/no/such"), "not a folder")]
    {
        let mut command = home.command(&["install", "cursor"]);
        command.env_remove("HOME");
        command.envs(value.map(|value| ("HOME", value)));
        let finished = run_command(&mut command, "");
        assert_eq!(finished.code, Some(125), "{finished:?}");
        assert!(
            finished.stderr.contains(hint) && finished.stderr.contains("--file"),
            "{finished:?}"
        );
    }
    for folder in [".config/Code/User", ".config/VSCodium/User"] {
        fs::create_dir_all(home.path().join(folder)).unwrap();
    }
    assert_refused(&home, &["vscode"], &["Code/User/mcp.json", "VSCodium/User/mcp.json", "--file"]);
    assert_refused(
        &home,
        &["vscode", "--file", "no/such/mcp.json"],
        &["no/such", "does not exist"],
    );
    assert_eq!(home.install(&["vscode", "--file", ".config/VSCodium/User/mcp.json"]).code, Some(0));
    assert!(read(&home.path().join(".config/VSCodium/User/mcp.json")).contains("isolator"));
}

#[test]
fn the_entry_starts_the_server_as_this_command_was_started() {
    let home = Home::new();
    let config = home.path().join("my settings.json");
    fs::write(&config, "{}").unwrap();
    let file = home.path().join(".cursor/mcp.json");
    let with = ["--config", "my settings.json", "--engine", "embedded", "install", "cursor"];
    let finished = run_command(&mut home.command(&with), "");
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let config = config.to_str().unwrap();
    let args = json!(["serve", "--config", config, "--engine", "embedded"]);
    assert_eq!(parse(&file)["mcpServers"]["isolator"]["args"], args);

    // With other arguments it is another server.
    assert_refused(&home, &["cursor"], &["--force"]);

    // A host would only see a server that ends at once.
    fs::write(config, "{ \"defaultCpu\": 1 }").unwrap();
    let broken = run_command(&mut home.command(&with), "");
    assert_eq!(broken.code, Some(125), "{broken:?}");
    assert!(broken.stderr.contains("defaultCpu"), "{broken:?}");

    // By the link that it was called by, which may stay when the program moves.
    let link = home.path().join("isolator");
    symlink(BINARY, &link).unwrap();
    let mut command = Command::new(&link);
    let file = home.path().join(".lmstudio/mcp.json");
    command.env_clear().env("HOME", home.path()).args(["install", "lm-studio"]);
    assert_eq!(run_command(&mut command, "").code, Some(0));
    assert_eq!(parse(&file)["mcpServers"]["isolator"]["command"], json!(link));
}

#[test]
fn the_configuration_that_was_found_is_the_one_that_the_host_uses() {
    let home = Home::new();
    let args =
        |file: &str| parse(&home.path().join(file))["mcpServers"]["isolator"]["args"].clone();
    let none = home.install(&["claude-code"]);
    assert!(none.stdout.contains("configuration: the defaults"), "{none:?}");
    assert_eq!(args(".claude.json"), json!(["serve"]));

    let users = home.path().join(".config/isolator/isolator_config.json");
    let here = home.path().join("isolator_config.json");
    let named = home.path().join("named.json");
    for (host, file, config) in [
        ("cursor", ".cursor/mcp.json", &users),
        ("lm-studio", ".lmstudio/mcp.json", &here),
        ("windsurf", ".codeium/windsurf/mcp_config.json", &named),
    ] {
        home.write(config, "{}");
        let mut command = home.command(&["install", host]);
        if *config == named {
            command.env("ISOLATOR_CONFIG", "named.json");
        }
        let finished = run_command(&mut command, "");
        assert_eq!(finished.code, Some(0), "{finished:?}");
        let said = format!("configuration: {}\n", config.display());
        assert!(finished.stdout.contains(&said), "{finished:?}");
        assert_eq!(args(file), json!(["serve", "--config", config]));
    }
    // It would only end the server.
    home.write(&here, "{ \"defaultCpu\": 1 }");
    assert_refused(&home, &["zed"], &["defaultCpu"]);
}

#[test]
fn settings_that_hosts_leave_out_are_reported() {
    let home = Home::new();
    let mut command = home.command(&["install", "cursor"]);
    command.env("DOCKER_HOST", "tcp://example.com:2375").env("ISOLATOR_TEST", "1");
    let finished = run_command(&mut command, "");
    assert_eq!(finished.code, Some(0), "{finished:?}");
    for hint in ["DOCKER_HOST", "ISOLATOR_TEST", "\"env\""] {
        assert!(finished.stderr.contains(hint), "no {hint}: {finished:?}");
    }
}

#[test]
fn hosts_with_toml_or_yaml_get_their_format() {
    for (host, file, before, entry) in [
        (
            "codex",
            ".codex/config.toml",
            "# mine\nmodel = \"o3\"\n",
            format!(
                "\n[mcp_servers.isolator]\ncommand = \"{BINARY}\"\nargs = [\"serve\"]\n\
                 tool_timeout_sec = 120\n"
            ),
        ),
        (
            "goose",
            ".config/goose/config.yaml",
            "# mine\nextensions:\n  developer:\n    enabled: true\n",
            format!(
                "  isolator:\n    name: \"isolator\"\n    type: \"stdio\"\n    enabled: true\n    \
                 cmd: \"{BINARY}\"\n    args: [\"serve\"]\n    timeout: 300\n"
            ),
        ),
    ] {
        let home = Home::new();
        let file = home.path().join(file);
        home.write(&file, before);
        let printed = home.install(&[host, "--print"]);
        assert!(printed.stdout.contains(entry.trim()), "{printed:?}");
        assert_eq!(home.install(&[host]).code, Some(0));
        assert_eq!(read(&file), format!("{before}{entry}"));
        let again = home.install(&[host]);
        assert!(again.stdout.contains("already"), "{again:?}");
        assert_eq!(home.install(&[host, "--uninstall"]).code, Some(0));
        assert_eq!(read(&file), before);
        home.write(&file, "[");
        assert_refused(&home, &[host], &[file.to_str().unwrap(), "can't be read"]);
    }
}

#[test]
fn invalid_command_lines_are_explained() {
    let home = Home::new();
    for (arguments, hint) in [
        (&["emacs"][..], "claude-desktop"),
        (&[], "<HOST>"),
        (&["cursor", "--name", "a b"], "letters"),
        (&["cursor", "--print", "--uninstall"], "--uninstall"),
    ] {
        let finished = home.install(arguments);
        assert_eq!(finished.code, Some(125), "{finished:?}");
        assert!(finished.stderr.contains(hint), "no {hint}: {finished:?}");
    }
    assert!(home.all().is_empty());
}
