//! The calls of commands: calls of tools with what only commands can ask for, and one that is no tool.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::answer::base64_text;
use crate::calls::ToolName;
use crate::request::arguments::{
    Arguments, CompleteText, InvalidArgument, OneSession, OpenSession, RewindSession, RunCommand,
    parse,
};
use crate::request::understand::given::Given;

/// The key of a request's `_meta` with the options of a command, and of the answer's with the result for it.
pub(crate) const COMMAND: &str = "isolator/command";

/// The name of [`CommandCall::Complete`], which is no tool: only commands call it.
pub(crate) const COMPLETE_CODE: &str = "complete_code";

/// A call of a command. Nothing in its arguments is corrected: they are what the user wrote.
#[derive(Debug, Clone)]
pub(crate) enum CommandCall {
    /// Run a program in a new sandbox.
    Run(Box<Arguments>, RunOptions),
    /// Open a session.
    Open(Box<OpenSession>, OpenOptions),
    /// Run a cell in a session; without code, only write files.
    Cell(Box<Arguments>, CellOptions),
    /// Run a shell command in a session.
    Shell(Box<RunCommand>),
    /// Undo cells of a session.
    Rewind(RewindSession),
    /// Ask a session for the names that the word at the end of a text may become.
    Complete(CompleteText),
    /// Interrupt the cell that runs.
    Interrupt(OneSession),
    /// Kill the cell that runs or waits. Its call is answered with what became of it.
    Kill(OneSession),
    /// Keep a session open until this call ends, and close it then, whatever ends the call.
    Hold(OneSession),
}

/// The options of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RunOptions {
    /// Whether the files that the program leaves should come back.
    pub files: bool,
    /// Standard input of any bytes, instead of the argument.
    #[serde(with = "base64_text")]
    pub stdin: Vec<u8>,
    /// How long to wait for packages that are being built. In a server it is `results.detachAfter` if it is not given; otherwise
    /// until they are there.
    pub max_wait_ms: Option<u64>,
}

/// The options of an opening.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OpenOptions {
    /// The longest run time of its cells, to be checked.
    pub timeout: Option<String>,
    /// As of a run.
    pub max_wait_ms: Option<u64>,
}

/// The options of a cell.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CellOptions {
    /// The width of the terminal that shows its values.
    pub columns: Option<u16>,
    /// The name of its code for policies.
    pub name: Option<String>,
    /// The names of the files that were sent before: some of them can be sources of the same program.
    pub sent: Vec<String>,
    /// Whether values come in all their forms, and an exception as one, as programs read them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub for_program: bool,
}

/// The options of an interrupt.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct InterruptOptions {
    kill: bool,
}

impl CommandCall {
    /// Reads a call with this name and the options of a command.
    ///
    /// # Errors
    ///
    /// When no command sends this.
    pub(crate) fn read(
        name: &str,
        arguments: Given,
        options: Value,
    ) -> Result<Self, InvalidArgument> {
        let arguments = arguments.into_value();
        if name == COMPLETE_CODE {
            return Ok(Self::Complete(parse(arguments)?));
        }
        let not_called = || InvalidArgument::new(COMMAND, "no command calls this tool");
        Ok(match ToolName::named(name).ok_or_else(not_called)? {
            ToolName::ExecuteCode if arguments["session"].is_string() => {
                Self::Cell(Box::new(parse(arguments)?), read_options(options)?)
            }
            ToolName::ExecuteCode => Self::Run(Box::new(parse(arguments)?), read_options(options)?),
            ToolName::OpenSession => {
                Self::Open(Box::new(parse(arguments)?), read_options(options)?)
            }
            ToolName::RunCommand => Self::Shell(Box::new(parse(arguments)?)),
            ToolName::RewindSession => Self::Rewind(parse(arguments)?),
            ToolName::InterruptSession => match read_options(options)? {
                InterruptOptions { kill: true } => Self::Kill(parse(arguments)?),
                InterruptOptions { kill: false } => Self::Interrupt(parse(arguments)?),
            },
            ToolName::CloseSession => Self::Hold(parse(arguments)?),
            ToolName::CheckSyntax | ToolName::GetResult | ToolName::TestCode => {
                return Err(not_called());
            }
        })
    }

    /// The same call, which waits for packages no longer than this unless it says how long.
    pub(crate) fn with_max_wait(mut self, most: Duration) -> Self {
        let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        match &mut self {
            Self::Run(_, RunOptions { max_wait_ms, .. })
            | Self::Open(_, OpenOptions { max_wait_ms, .. }) => {
                max_wait_ms.get_or_insert(most);
            }
            _ => {}
        }
        self
    }

    /// The name of what is called: a tool, or [`COMPLETE_CODE`].
    pub(crate) const fn name(&self) -> &'static str {
        let tool = match self {
            Self::Run(..) | Self::Cell(..) => ToolName::ExecuteCode,
            Self::Open(..) => ToolName::OpenSession,
            Self::Shell(_) => ToolName::RunCommand,
            Self::Rewind(_) => ToolName::RewindSession,
            Self::Complete(_) => return COMPLETE_CODE,
            Self::Interrupt(_) | Self::Kill(_) => ToolName::InterruptSession,
            Self::Hold(_) => ToolName::CloseSession,
        };
        tool.as_str()
    }

    /// The arguments and the options, as a command sends them.
    pub(crate) fn to_parts(&self) -> (Value, Value) {
        match self {
            Self::Run(arguments, options) => (json!(arguments), json!(options)),
            Self::Open(arguments, options) => (json!(arguments), json!(options)),
            Self::Cell(arguments, options) => (json!(arguments), json!(options)),
            Self::Shell(arguments) => (json!(arguments), json!({})),
            Self::Rewind(arguments) => (json!(arguments), json!({})),
            Self::Complete(arguments) => (json!(arguments), json!({})),
            Self::Interrupt(arguments) | Self::Hold(arguments) => (json!(arguments), json!({})),
            Self::Kill(arguments) => (json!(arguments), json!(InterruptOptions { kill: true })),
        }
    }

    /// Bytes of its code, files and input.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Run(arguments, options) => arguments.weight() + options.stdin.len(),
            Self::Cell(arguments, _) => arguments.weight(),
            Self::Open(arguments, _) => arguments.weight(),
            Self::Shell(arguments) => arguments.weight(),
            Self::Complete(arguments) => arguments.text.len(),
            Self::Rewind(_) | Self::Interrupt(_) | Self::Kill(_) | Self::Hold(_) => 0,
        }
    }
}

fn read_options<T: DeserializeOwned>(options: Value) -> Result<T, InvalidArgument> {
    let read = serde_json::from_value(options);
    read.map_err(|error| InvalidArgument::new(COMMAND, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_read_as_it_was_sent() {
        let session = || Some("1".to_owned());
        let arguments = |session| {
            let code = Some("x".to_owned());
            Box::new(Arguments {
                session,
                entrypoint_code: code,
                cpus: Some(0.5),
                ..Arguments::default()
            })
        };
        let options = RunOptions { files: true, stdin: b"\xff".to_vec(), max_wait_ms: Some(1) };
        let one = || OneSession { session: session() };
        let columns = CellOptions { columns: Some(80), ..CellOptions::default() };
        for call in [
            CommandCall::Run(arguments(None), options),
            CommandCall::Cell(arguments(session()), columns),
            CommandCall::Open(Box::default(), OpenOptions::default()),
            CommandCall::Shell(Box::default()),
            CommandCall::Rewind(RewindSession { session: session(), cells: Some(2) }),
            CommandCall::Complete(CompleteText { session: session(), text: "pri".to_owned() }),
            CommandCall::Interrupt(one()),
            CommandCall::Kill(one()),
            CommandCall::Hold(one()),
        ] {
            let (arguments, options) = call.to_parts();
            let read = CommandCall::read(call.name(), Given::from(arguments), options).unwrap();
            assert_eq!(format!("{read:?}"), format!("{call:?}"));
        }
    }

    #[test]
    fn other_tools_and_options_are_refused() {
        let read = |name, options| CommandCall::read(name, Given::Object([].into()), options);
        for name in ["get_result", "check_syntax", "none"] {
            assert!(read(name, json!({})).is_err(), "{name}");
        }
        assert!(read("execute_code", json!({ "other": 1 })).is_err());
    }
}
