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

use edit::Dialect;
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
    /// Key of the object with the servers.
    pub key: &'static str,
    /// What the host accepts beyond JSON.
    pub dialect: Dialect,
    /// Whether an entry names its transport.
    pub transport: Transport,
    /// Timeout of calls to write into the entry, if the host has a key for it.
    pub timeout: Option<Duration>,
    /// The host's own command that adds a server.
    pub command: Option<OwnCommand>,
    /// What the user does next, so that the host notices.
    pub next: &'static str,
}

/// Whether an entry names its transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// By `"type": "stdio"`.
    Named,
    /// By having a command.
    Implied,
}

/// A host's own command that adds a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnCommand {
    /// `claude mcp add`
    ClaudeMcpAdd,
    /// `code --add-mcp`
    CodeAddMcp,
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
        }
    }
}

static CLAUDE_DESKTOP: Profile = Profile {
    title: "Claude Desktop",
    named_by: &[],
    places: &[Place(Base::Applications, "Claude/claude_desktop_config.json")],
    choice: Choice::First,
    key: "mcpServers",
    dialect: Dialect::Strict,
    transport: Transport::Implied,
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
    key: "mcpServers",
    dialect: Dialect::Strict,
    transport: Transport::Named,
    timeout: None,
    command: Some(OwnCommand::ClaudeMcpAdd),
    next: "start a new session of Claude Code; /mcp shows the server",
};

static CURSOR: Profile = Profile {
    title: "Cursor",
    named_by: &[],
    places: &[Place(Base::Home, ".cursor/mcp.json")],
    choice: Choice::First,
    key: "mcpServers",
    dialect: Dialect::WithComments,
    transport: Transport::Named,
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
    key: "servers",
    dialect: Dialect::WithComments,
    transport: Transport::Named,
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
    key: "mcpServers",
    dialect: Dialect::WithComments,
    transport: Transport::Implied,
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
    key: "mcpServers",
    dialect: Dialect::WithComments,
    transport: Transport::Implied,
    timeout: Some(LONGER_THAN_ANY_DEFAULT),
    command: None,
    next: "Cline notices by itself; \"MCP Servers\" shows the server",
};
