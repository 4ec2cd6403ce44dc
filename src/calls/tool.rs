//! The names of the tools.

use crate::config::Config;

/// A tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolName {
    /// Runs a program, or a cell of a session.
    ExecuteCode,
    /// Checks the syntax of a program.
    CheckSyntax,
    /// Fetches the result of a long run.
    GetResult,
    OpenSession,
    /// Runs a shell command in a session.
    RunCommand,
    /// Undoes cells of a session.
    RewindSession,
    /// Interrupts what runs in a session.
    InterruptSession,
    /// Ends a session.
    CloseSession,
    /// Checks and runs a program.
    TestCode,
}

impl ToolName {
    /// All of them, in the order in which they are listed.
    pub(crate) const ALL: [Self; 9] = [
        Self::ExecuteCode,
        Self::CheckSyntax,
        Self::GetResult,
        Self::OpenSession,
        Self::RunCommand,
        Self::RewindSession,
        Self::InterruptSession,
        Self::CloseSession,
        Self::TestCode,
    ];

    /// The name that clients use.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::ExecuteCode => "execute_code",
            Self::CheckSyntax => "check_syntax",
            Self::GetResult => "get_result",
            Self::OpenSession => "open_session",
            Self::RunCommand => "run_command",
            Self::RewindSession => "rewind_session",
            Self::InterruptSession => "interrupt_session",
            Self::CloseSession => "close_session",
            Self::TestCode => "test_code",
        }
    }

    /// The tool of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.as_str() == name)
    }

    /// Whether it is for sessions only.
    pub(crate) const fn is_of_sessions(self) -> bool {
        matches!(
            self,
            Self::OpenSession
                | Self::RunCommand
                | Self::RewindSession
                | Self::InterruptSession
                | Self::CloseSession
        )
    }

    /// Whether a server with this configuration lists it.
    pub(crate) fn is_listed(self, config: &Config) -> bool {
        match self {
            Self::GetResult => config.detaches(),
            Self::TestCode => config.test_code.is_some(),
            tool => !tool.is_of_sessions() || config.sessions.max > 0,
        }
    }
}
