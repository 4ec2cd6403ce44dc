//! The hosts that can start this server: the table of where each keeps its configuration, and in which format.
//!
//! All differences between hosts are in the table. [`place`] finds the file, [`entry`] is the entry to add, [`edit`]
//! changes that one entry in the text, and [`file`](mod@file) writes the file.

pub(super) mod edit;
pub(super) mod entry;
pub(super) mod file;
pub(super) mod place;

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use edit::Keys;
use place::{Base, Choice, Place};

/// A program that starts MCP servers.
#[derive(Debug)]
pub struct Host {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its description in the help.
    pub about: &'static str,
    /// Its name in messages.
    pub title: &'static str,
    /// Environment variables by which the host finds its configuration, with the path below each. The first that
    /// is set counts.
    pub named_by: &'static [(&'static str, &'static str)],
    /// The places of the file otherwise, the usual one first.
    pub places: &'static [Place],
    /// How to choose between the places.
    pub choice: Choice,
    /// The keys below which the servers are in the file, the usual ones first. If the file has later ones already, those count.
    pub keys: &'static [Keys],
    /// The language of the file.
    pub format: Format,
    /// The fields of an entry.
    pub form: Form,
    /// Timeout of calls to write into the entry, if the host has a key for it and needs one.
    pub timeout: Option<Timeout>,
    /// The host's own command that adds a server.
    pub command: Option<OwnCommand>,
    /// The user's next step, so that the host notices.
    pub next: &'static str,
}

/// The language of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JSON.
    Json(Dialect),
    /// TOML.
    Toml,
    /// YAML.
    Yaml,
}

/// The extensions of JSON that a host accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Nothing.
    Strict,
    /// Comments.
    Comments,
    /// Comments, and commas before a closing brace.
    CommentsAndCommas,
}

/// The fields of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// With `command` and `args`.
    Plain,
    /// The same, and `"type": "stdio"`.
    Typed,
    /// With `"type": "local"`, and one list for the command and its arguments.
    List,
    /// With `cmd` and `args`, `type: stdio`, the name once more, and whether the server is on.
    Goose,
}

/// The key of a timeout, and its value, which the host reads as seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeout(pub &'static str, pub Duration);

/// A host's own command that adds a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnCommand {
    /// `claude mcp add`
    ClaudeMcpAdd,
    /// `code --add-mcp`
    CodeAddMcp,
    /// `codex mcp add`
    CodexMcpAdd,
}

/// The fields that most hosts have in common.
const USUAL: Host = Host {
    name: "",
    about: "",
    title: "",
    named_by: &[],
    places: &[],
    choice: Choice::First,
    keys: &[&["mcpServers"]],
    format: Format::Json(Dialect::CommentsAndCommas),
    form: Form::Plain,
    timeout: None,
    command: None,
    next: "",
};

/// A program can run for a minute by default, and its call may have to wait for a slot before.
const LONGER_THAN_ANY_DEFAULT: Duration = Duration::from_secs(120);

/// Timeout that Goose gives its own extensions.
const GOOSE_TIMEOUT: Duration = Duration::from_secs(300);

/// All hosts.
static HOSTS: [Host; 12] = [
    Host {
        name: "claude-desktop",
        about: "Claude Desktop",
        title: "Claude Desktop",
        places: &[Place(Base::Applications, "Claude/claude_desktop_config.json")],
        format: Format::Json(Dialect::Strict),
        next: "quit Claude Desktop, also from the tray, and start it again",
        ..USUAL
    },
    // The same file has the user's projects, and the program itself writes much to it.
    Host {
        name: "claude-code",
        about: "Claude Code, for all projects of this user",
        title: "Claude Code",
        named_by: &[("CLAUDE_CONFIG_DIR", ".claude.json")],
        places: &[Place(Base::Home, ".claude.json")],
        format: Format::Json(Dialect::Strict),
        form: Form::Typed,
        command: Some(OwnCommand::ClaudeMcpAdd),
        next: "start a new session of Claude Code; /mcp shows the server",
        ..USUAL
    },
    Host {
        name: "cursor",
        about: "Cursor",
        title: "Cursor",
        places: &[Place(Base::Home, ".cursor/mcp.json")],
        form: Form::Typed,
        next: "turn the server on in Cursor's settings, under MCP, if it is off",
        ..USUAL
    },
    // The last two places are on machines that are used remotely, over SSH or in a container.
    Host {
        name: "vscode",
        about: "Visual Studio Code, in the user's profile",
        title: "VS Code",
        places: &[
            Place(Base::Applications, "Code/User/mcp.json"),
            Place(Base::Applications, "Code - Insiders/User/mcp.json"),
            Place(Base::Applications, "VSCodium/User/mcp.json"),
            Place(Base::Home, ".vscode-server/data/User/mcp.json"),
            Place(Base::Home, ".vscode-server-insiders/data/User/mcp.json"),
        ],
        choice: Choice::TheOnlyFolder,
        keys: &[&["servers"]],
        form: Form::Typed,
        command: Some(OwnCommand::CodeAddMcp),
        next: "VS Code notices by itself; \"MCP: List Servers\" shows the server and starts it",
        ..USUAL
    },
    // The pointer is a file with the folder's path. The last place is for installations from before 2025.
    Host {
        name: "lm-studio",
        about: "LM Studio",
        title: "LM Studio",
        places: &[
            Place(Base::PointedToBy(".lmstudio-home-pointer"), "mcp.json"),
            Place(Base::Home, ".lmstudio/mcp.json"),
            Place(Base::Home, ".cache/lm-studio/mcp.json"),
        ],
        choice: Choice::FirstFolder,
        next: "turn the server on in LM Studio's side bar, under Program",
        ..USUAL
    },
    // Cline moved its file from the extension's storage to a folder of its own in 2026. When it first starts, it copies
    // the old file, unless the new one has servers. So the old file counts only if there is no new one.
    Host {
        name: "cline",
        about: "Cline",
        title: "Cline",
        named_by: &[
            ("CLINE_MCP_SETTINGS_PATH", ""),
            ("CLINE_DATA_DIR", "settings/cline_mcp_settings.json"),
            ("CLINE_DIR", "data/settings/cline_mcp_settings.json"),
        ],
        places: &[
            Place(Base::Home, ".cline/data/settings/cline_mcp_settings.json"),
            Place(
                Base::Applications,
                "Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
            ),
        ],
        choice: Choice::FirstFile,
        timeout: Some(Timeout("timeout", LONGER_THAN_ANY_DEFAULT)),
        next: "Cline notices by itself; \"MCP Servers\" shows the server",
        ..USUAL
    },
    // Its documentation has the file, the keys, and a timeout of 60 seconds for calls.
    Host {
        name: "codex",
        about: "Codex, its command line and its IDE extension",
        title: "Codex",
        named_by: &[("CODEX_HOME", "config.toml")],
        places: &[Place(Base::Home, ".codex/config.toml")],
        keys: &[&["mcp_servers"]],
        format: Format::Toml,
        timeout: Some(Timeout("tool_timeout_sec", LONGER_THAN_ANY_DEFAULT)),
        command: Some(OwnCommand::CodexMcpAdd),
        next: "start a new session of Codex; /mcp shows the server",
        ..USUAL
    },
    // Its source removes comments from the file, but not commas. It waits ten minutes for a call.
    Host {
        name: "gemini-cli",
        about: "Gemini CLI, for all projects of this user",
        title: "Gemini CLI",
        named_by: &[("GEMINI_CLI_HOME", ".gemini/settings.json")],
        places: &[Place(Base::Home, ".gemini/settings.json")],
        format: Format::Json(Dialect::Comments),
        next: "start a new session of Gemini CLI; /mcp shows the server",
        ..USUAL
    },
    // Its documentation calls servers extensions. Its source looks below `GOOSE_PATH_ROOT` first.
    Host {
        name: "goose",
        about: "Goose",
        title: "Goose",
        named_by: &[("GOOSE_PATH_ROOT", "config/config.yaml")],
        places: &[Place(Base::Config, "goose/config.yaml")],
        keys: &[&["extensions"]],
        format: Format::Yaml,
        form: Form::Goose,
        timeout: Some(Timeout("timeout", GOOSE_TIMEOUT)),
        next: "start a new session of Goose; its settings show the server as an extension",
        ..USUAL
    },
    // Version 1 has the servers under `mcp`, version 2 under `mcp` and `servers`. Version 2 also reads the first form, which
    // is therefore right for a new file.
    Host {
        name: "opencode",
        about: "OpenCode, for all projects of this user",
        title: "OpenCode",
        places: &[
            Place(Base::Config, "opencode/opencode.json"),
            Place(Base::Config, "opencode/opencode.jsonc"),
        ],
        choice: Choice::FirstFile,
        keys: &[&["mcp"], &["mcp", "servers"]],
        form: Form::List,
        next: "start OpenCode again; `opencode mcp list` shows the server",
        ..USUAL
    },
    Host {
        name: "windsurf",
        about: "Windsurf",
        title: "Windsurf",
        places: &[Place(Base::Home, ".codeium/windsurf/mcp_config.json")],
        format: Format::Json(Dialect::Strict),
        next: "press the refresh button among the MCP servers in Cascade's settings",
        ..USUAL
    },
    // Its documentation calls servers context servers.
    Host {
        name: "zed",
        about: "Zed",
        title: "Zed",
        places: &[Place(Base::Config, "zed/settings.json")],
        keys: &[&["context_servers"]],
        next: "Zed notices by itself; the settings of the Agent Panel show the server",
        ..USUAL
    },
];

/// The host with a name of the command line.
fn named(name: &str) -> Option<&'static Host> {
    HOSTS.iter().find(|host| host.name == name)
}

/// Reads the name of a host.
pub(super) fn parser() -> impl TypedValueParser<Value = &'static Host> {
    let names = HOSTS.iter().map(|host| PossibleValue::new(host.name).help(host.about));
    PossibleValuesParser::new(names).try_map(|name| named(&name).ok_or("it is no host"))
}

/// The host with this name, for tests.
#[cfg(test)]
fn host(name: &str) -> &'static Host {
    named(name).expect("a host of the table")
}
