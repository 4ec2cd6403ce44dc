//! Processes and files of a session, along with its cells: the calls to the *agent* in its sandbox.
//!
//! [`Hub`] has the calls under way, and turns them into messages; the task of the session carries these. The agent is a neighbour of
//! hostile code, so its word is only about its own processes and files: [`Hub`] holds it to the credit of each stream and to the
//! number of messages that it was asked for. An agent that breaks the protocol or does not answer is killed, and the next call
//! starts another.

mod call;
mod error;
mod files;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod hub;
mod list;
mod messages;
mod processes;

pub use isolator_runner::wire::agent::{
    Entry, EntryKind, LeadsTo, ProcessInfo, StartProcess, TerminalSize, WatchEvent, WatchKind,
};

pub use self::error::{AgentError, AgentLoss, TooMany};
pub use self::files::{FileReader, FileWriter, Watcher};
pub(crate) use self::hub::Hub;
pub use self::processes::{Attached, ProcessEnd, ProcessEvent};
