//! The hosts that can start this server: where each keeps its configuration, and its format.
//!
//! The profiles are all that differs between them. [`place`] finds the file, [`entry`] is the entry to add, [`edit`]
//! changes that one entry in the text, and [`file`](mod@file) writes the file.

pub(super) mod edit;
pub(super) mod entry;
pub(super) mod file;
pub(super) mod place;

use std::time::Duration;

use clap::ValueEnum;

use edit::Keys;
use place::{Base, Choice, Place};

/// A program that starts MCP servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Host {
    /// Claude Desktop
    ClaudeDesktop,
    /// Claude Code, for all projects of this user
    ClaudeCode,
    /// Cursor
    Cursor,
    /// Visual Studio Code, in the user's profile
    #[value(name = "vscode")]
    VsCode,
    /// LM Studio
    LmStudio,
    /// Cline
    Cline,
    /// Codex, its command line and its IDE extension
    Codex,
    /// Gemini CLI, for all projects of this user
    GeminiCli,
    /// Goose
    Goose,
    /// OpenCode, for all projects of this user
    #[value(name = "opencode")]
    OpenCode,
    /// Windsurf
    Windsurf,
    /// Zed
    Zed,
}

/// What Isolator knows about a host.
#[derive(Debug)]
pub struct Profile {
    /// Its name in messages.
    pub title: &'static str,
    /// Environment variables by which the host finds its configuration, with the path below each. The first that
    /// is set counts.
    pub named_by: &'static [(&'static str, &'static str)],
    /// Where the file is otherwise, the usual place first.
    pub places: &'static [Place],
    /// Which of the places is meant.
    pub choice: Choice,
    /// Where the servers are in the file, the usual place first. If the file has a later place already, that counts.
    pub keys: &'static [Keys],
    /// The language of the file.
    pub format: Format,
    /// How an entry is written.
    pub form: Form,
    /// Timeout of calls to write into the entry, if the host has a key for it and needs one.
    pub timeout: Option<Timeout>,
    /// The host's own command that adds a server.
    pub command: Option<OwnCommand>,
    /// What the user does next, so that the host notices.
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

/// What a host accepts beyond JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Nothing.
    Strict,
    /// Comments.
    Comments,
    /// Comments, and commas before a closing brace.
    CommentsAndCommas,
}

/// How an entry is written.
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

/// A program can run for a minute by default, and its call may have to wait for a slot before.
const LONGER_THAN_ANY_DEFAULT: Duration = Duration::from_secs(120);

impl Host {
    /// What Isolator knows about it.
    pub fn profile(self) -> &'static Profile {
        match self {
            Self::ClaudeDesktop => &CLAUDE_DESKTOP,
            Self::ClaudeCode => &CLAUDE_CODE,
            Self::Cursor => &CURSOR,
            Self::VsCode => &VS_CODE,
            Self::LmStudio => &LM_STUDIO,
            Self::Cline => &CLINE,
            Self::Codex => &CODEX,
            Self::GeminiCli => &GEMINI_CLI,
            Self::Goose => &GOOSE,
            Self::OpenCode => &OPEN_CODE,
            Self::Windsurf => &WINDSURF,
            Self::Zed => &ZED,
        }
    }
}

static CLAUDE_DESKTOP: Profile = Profile {
    title: "Claude Desktop",
    named_by: &[],
    places: &[Place(Base::Applications, "Claude/claude_desktop_config.json")],
    choice: Choice::First,
    keys: &[&["mcpServers"]],
    format: Format::Json(Dialect::Strict),
    form: Form::Plain,
    timeout: None,
    command: None,
    next: "quit Claude Desktop, also from the tray, and start it again",
};

/// The same file has the user's projects, and the program itself writes much to it.
static CLAUDE_CODE: Profile = Profile {
    title: "Claude Code",
    named_by: &[("CLAUDE_CONFIG_DIR", ".claude.json")],
    places: &[Place(Base::Home, ".claude.json")],
    choice: Choice::First,
    keys: &[&["mcpServers"]],
    format: Format::Json(Dialect::Strict),
    form: Form::Typed,
    timeout: None,
    command: Some(OwnCommand::ClaudeMcpAdd),
    next: "start a new session of Claude Code; /mcp shows the server",
};

static CURSOR: Profile = Profile {
    title: "Cursor",
    named_by: &[],
    places: &[Place(Base::Home, ".cursor/mcp.json")],
    choice: Choice::First,
    keys: &[&["mcpServers"]],
    format: Format::Json(Dialect::CommentsAndCommas),
    form: Form::Typed,
    timeout: None,
    command: None,
    next: "turn the server on in Cursor's settings, under MCP, if it is off",
};

/// The last two places are on machines that are used remotely, over SSH or in a container.
static VS_CODE: Profile = Profile {
    title: "VS Code",
    named_by: &[],
    places: &[
        Place(Base::Applications, "Code/User/mcp.json"),
        Place(Base::Applications, "Code - Insiders/User/mcp.json"),
        Place(Base::Applications, "VSCodium/User/mcp.json"),
        Place(Base::Home, ".vscode-server/data/User/mcp.json"),
        Place(Base::Home, ".vscode-server-insiders/data/User/mcp.json"),
    ],
    choice: Choice::TheOnlyFolder,
    keys: &[&["servers"]],
    format: Format::Json(Dialect::CommentsAndCommas),
    form: Form::Typed,
    timeout: None,
    command: Some(OwnCommand::CodeAddMcp),
    next: "VS Code notices by itself; \"MCP: List Servers\" shows the server and starts it",
};

/// The pointer is a file with the folder's path. The last place is for installations from before 2025.
static LM_STUDIO: Profile = Profile {
    title: "LM Studio",
    named_by: &[],
    places: &[
        Place(Base::PointedToBy(".lmstudio-home-pointer"), "mcp.json"),
        Place(Base::Home, ".lmstudio/mcp.json"),
        Place(Base::Home, ".cache/lm-studio/mcp.json"),
    ],
    choice: Choice::FirstFolder,
    keys: &[&["mcpServers"]],
    format: Format::Json(Dialect::CommentsAndCommas),
    form: Form::Plain,
    timeout: None,
    command: None,
    next: "turn the server on in LM Studio's side bar, under Program",
};

/// Cline moved its file from the extension's storage to a folder of its own in 2026. When it first starts, it copies
/// the old file, unless the new one has servers. So the old file counts only if there is no new one.
static CLINE: Profile = Profile {
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
    keys: &[&["mcpServers"]],
    format: Format::Json(Dialect::CommentsAndCommas),
    form: Form::Plain,
    timeout: Some(Timeout("timeout", LONGER_THAN_ANY_DEFAULT)),
    command: None,
    next: "Cline notices by itself; \"MCP Servers\" shows the server",
};

/// Its documentation has the file, the keys, and a timeout of 60 seconds for calls.
static CODEX: Profile = Profile {
    title: "Codex",
    named_by: &[("CODEX_HOME", "config.toml")],
    places: &[Place(Base::Home, ".codex/config.toml")],
    choice: Choice::First,
    keys: &[&["mcp_servers"]],
    format: Format::Toml,
    form: Form::Plain,
    timeout: Some(Timeout("tool_timeout_sec", LONGER_THAN_ANY_DEFAULT)),
    command: Some(OwnCommand::CodexMcpAdd),
    next: "start a new session of Codex; /mcp shows the server",
};

/// Its source removes comments from the file, but not commas. It waits ten minutes for a call.
static GEMINI_CLI: Profile = Profile {
    title: "Gemini CLI",
    named_by: &[("GEMINI_CLI_HOME", ".gemini/settings.json")],
    places: &[Place(Base::Home, ".gemini/settings.json")],
    choice: Choice::First,
    keys: &[&["mcpServers"]],
    format: Format::Json(Dialect::Comments),
    form: Form::Plain,
    timeout: None,
    command: None,
    next: "start a new session of Gemini CLI; /mcp shows the server",
};

/// Its documentation calls servers extensions. Its source looks below `GOOSE_PATH_ROOT` first.
static GOOSE: Profile = Profile {
    title: "Goose",
    named_by: &[("GOOSE_PATH_ROOT", "config/config.yaml")],
    places: &[Place(Base::Config, "goose/config.yaml")],
    choice: Choice::First,
    keys: &[&["extensions"]],
    format: Format::Yaml,
    form: Form::Goose,
    timeout: Some(Timeout("timeout", GOOSE_TIMEOUT)),
    command: None,
    next: "start a new session of Goose; its settings show the server as an extension",
};

/// What Goose gives its own extensions.
const GOOSE_TIMEOUT: Duration = Duration::from_secs(300);

/// Version 1 has the servers under `mcp`, version 2 under `mcp` and `servers`. Version 2 also reads the first form, which
/// is therefore right for a new file.
static OPEN_CODE: Profile = Profile {
    title: "OpenCode",
    named_by: &[],
    places: &[
        Place(Base::Config, "opencode/opencode.json"),
        Place(Base::Config, "opencode/opencode.jsonc"),
    ],
    choice: Choice::FirstFile,
    keys: &[&["mcp"], &["mcp", "servers"]],
    format: Format::Json(Dialect::CommentsAndCommas),
    form: Form::List,
    timeout: None,
    command: None,
    next: "start OpenCode again; `opencode mcp list` shows the server",
};

static WINDSURF: Profile = Profile {
    title: "Windsurf",
    named_by: &[],
    places: &[Place(Base::Home, ".codeium/windsurf/mcp_config.json")],
    choice: Choice::First,
    keys: &[&["mcpServers"]],
    format: Format::Json(Dialect::Strict),
    form: Form::Plain,
    timeout: None,
    command: None,
    next: "press the refresh button among the MCP servers in Cascade's settings",
};

/// Its documentation calls servers context servers.
static ZED: Profile = Profile {
    title: "Zed",
    named_by: &[],
    places: &[Place(Base::Config, "zed/settings.json")],
    choice: Choice::First,
    keys: &[&["context_servers"]],
    format: Format::Json(Dialect::CommentsAndCommas),
    form: Form::Plain,
    timeout: None,
    command: None,
    next: "Zed notices by itself; the settings of the Agent Panel show the server",
};
