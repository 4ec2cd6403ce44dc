//! The section `sessions`.

use std::time::Duration;

use isolator_pool::engine::limits::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::{Check, three_quarters};
use super::journals::JournalsConfig;
use super::schema::follows;
use super::section::{Kib, Mib, Text, Unit as _, duration, section};

/// Most are frozen, and cost only their memory.
const MAX_SESSIONS: usize = 32;

/// Longer ones mean "never" to people, and can't be counted by every clock.
pub(crate) const LONGEST_SESSION: Duration = Duration::from_hours(366 * 24);

section! {
    /// Sessions: sandboxes that are kept between the calls of a client.
    #[derive(Clone, PartialEq, Eq)]
    pub struct SessionsConfig {
        /// Maximum number of sessions that are open; 0: none, and their tools are not offered.
        #[schemars(range(max = 10_000))]
        pub max: usize = MAX_SESSIONS,
        /// Maximum number of them that belong to one HTTP client. Default: three quarters of max.
        #[schemars(range(min = 1))]
        #[schemars(transform = follows)]
        pub max_per_client: usize = three_quarters(MAX_SESSIONS),
        /// What happens when a session is opened and there are as many as can be: the one that was unused longest ends, or the new
        /// one is refused, so that another node opens it. Default: evict, or refuse if the server has a node.name.
        #[schemars(transform = follows)]
        pub when_full: WhenFull = WhenFull::Evict,
        /// How long a session can be unused before it ends. A client can ask for less.
        // A conversation that rests for longer is rarely taken up again.
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        pub idle_timeout: Duration = Duration::from_mins(30),
        /// The age at which a session ends, even if it is used.
        // A working day.
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        pub max_age: Duration = Duration::from_hours(8),
        /// Memory of all sessions together, in MiB. If they take more, a session of the client whose sessions take the most ends.
        // Sixteen sessions of the default size that use all of their memory, or a hundred of the usual ones.
        #[serde(rename = "memoryMB", with = "Mib")]
        #[schemars(with = "u64", range(min = 1, max = 1 << 30))]
        pub memory: ByteSize = ByteSize::mib(4096),
        /// How many cells of a Python session can be undone; 0: none, and a cell that hangs or crashes can end its session.
        /// Each checkpoint is a process, which shares its memory.
        // Agents go back a step or two. Each checkpoint is one of the 64 processes of a sandbox.
        #[schemars(range(max = 64))]
        pub checkpoints: u32 = 8,
        /// How much of the code, commands and files that a session was sent is kept, so that it can be run again after the
        /// session is lost, in KiB; 0: nothing.
        // About a hundred cells of the usual size.
        #[serde(rename = "journalKB", with = "Kib")]
        #[schemars(with = "u64", range(max = 65_536))]
        pub journal: ByteSize = ByteSize::bytes(256 << 10),
        /// A server that keeps the journals for all nodes.
        pub journals: JournalsConfig = JournalsConfig::default(),
    }
}

/// What happens when a session is opened and there are as many as can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// The session that was unused longest ends.
    Evict,
    /// The new one is refused.
    Refuse,
}

impl SessionsConfig {
    pub(super) fn check(&mut self, check: &mut Check<'_>) {
        // Another node may have room.
        if check.is_set("node.name") && !check.is_set("sessions.whenFull") {
            self.when_full = WhenFull::Refuse;
        }
        check.share("sessions.maxPerClient", &mut self.max_per_client, self.max.max(1));
        self.idle_timeout = self.idle_timeout.min(LONGEST_SESSION);
        self.max_age = self.max_age.min(LONGEST_SESSION);
        self.journals.check(check);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    #[test]
    fn a_node_among_others_refuses_when_it_is_full_unless_it_is_told_otherwise() {
        for (text, expected) in [
            ("{}", WhenFull::Evict),
            (r#"{"sessions": {"whenFull": "refuse"}}"#, WhenFull::Refuse),
            (r#"{"node": {"name": "n1"}}"#, WhenFull::Refuse),
            (r#"{"node": {"name": "n1"}, "sessions": {"whenFull": "evict"}}"#, WhenFull::Evict),
        ] {
            let config = Config::parse(text, None, Path::new("")).unwrap();
            assert_eq!(config.sessions.when_full, expected, "{text}");
        }
    }
}
