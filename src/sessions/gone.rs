//! Records of sessions that are gone: why, and the steps they had run. A client that uses one gets its record, so that it can
//! go on from there.

use std::collections::VecDeque;
use std::time::Duration;

use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::session::EndReason;
use tokio::time::Instant;

use crate::duration;
use crate::sessions::OpenSession;
use crate::sessions::journal::Journal;

/// Maximum records of one client and of all, and maximum bytes of their journals together.
const MAX_OF_ONE: usize = 512;
const MAX: usize = 4096;
const MAX_BYTES: usize = 32 << 20;

/// How long a record is kept.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

/// Why a session is gone.
#[derive(Debug, Clone)]
pub(crate) enum Why {
    /// It was not used for this time.
    Idle(Duration),
    /// It has reached its greatest age.
    TooOld(Duration),
    /// It has reached the deadline that its client had set, this time before.
    Deadline(Duration),
    /// Its client opened another, and can have only this number.
    TooManyOfClient(usize),
    /// Another session was opened, and the server can have only this number.
    TooMany(usize),
    /// All sessions together took more memory than they may have, in MiB.
    Memory(u64),
    /// It ended in another way.
    Ended(EndReason),
}

impl Why {
    /// The names of all kinds for operators, in the order of their numbers.
    pub(super) const KINDS: [&str; 9] = [
        "idle",
        "too_old",
        "too_many",
        "memory",
        "closed",
        "by_program",
        "lost",
        "server_stops",
        "deadline",
    ];

    /// The number of its kind.
    pub(super) const fn kind(&self) -> usize {
        match self {
            Self::Idle(_) => 0,
            Self::TooOld(_) => 1,
            Self::TooManyOfClient(_) | Self::TooMany(_) => 2,
            Self::Memory(_) => 3,
            Self::Ended(EndReason::Closed) => 4,
            Self::Ended(EndReason::ByProgram(_)) => 5,
            Self::Ended(EndReason::Lost(_)) => 6,
            Self::Ended(EndReason::ServerStops) => 7,
            Self::Deadline(_) => 8,
        }
    }
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Idle(time) => write!(f, "it was not used for {}", duration::shown(*time)),
            Self::TooOld(age) => {
                write!(f, "it had reached the greatest age of a session, {}", duration::shown(*age))
            }
            Self::Deadline(after) => {
                write!(f, "its timeout was reached, {} after it was set", duration::shown(*after))
            }
            Self::TooManyOfClient(most) => write!(
                f,
                "you opened another session and can have {most}, so the one that was unused longest was ended"
            ),
            Self::TooMany(most) => write!(
                f,
                "this server can have {most} sessions, and another one was opened, so one that had not been used for a while was ended"
            ),
            Self::Memory(mb) => write!(
                f,
                "the sessions of this server took more than {mb} MiB together, so the one that was unused longest was \
                 ended"
            ),
            Self::Ended(reason) => reason.fmt(f),
        }
    }
}

/// A session that is gone.
#[derive(Debug, Clone)]
pub(crate) struct Gone {
    pub id: String,
    pub client: Client,
    /// The name of its language.
    pub language: String,
    pub why: Why,
    /// The steps that it had run.
    pub journal: Journal,
    /// Since when.
    pub since: Instant,
}

/// The record of a session that has ended for this reason.
pub(crate) fn gone_of(session: &OpenSession, why: Why) -> Gone {
    Gone {
        id: session.id.clone(),
        client: session.client.clone(),
        language: session.language.name.clone(),
        why,
        journal: lock(&session.journal).clone(),
        since: Instant::now(),
    }
}

/// The records of sessions that are gone, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Tombstones(VecDeque<Gone>);

impl Tombstones {
    /// Adds a record. Older ones make room for it, first those of the same client.
    pub(super) fn add(&mut self, gone: Gone) {
        let Self(all) = self;
        let client = gone.client.clone();
        all.push_back(gone);
        all.retain(|gone| gone.since.elapsed() < REMEMBERED);
        let is_own = |gone: &Gone| gone.client == client;
        while all.iter().filter(|gone| is_own(gone)).count() > MAX_OF_ONE
            && let Some(oldest) = all.iter().position(is_own)
        {
            all.remove(oldest);
        }
        while all.len() > MAX {
            all.pop_front();
        }
        // The reason is remembered for longer than the journal.
        let mut bytes: usize = all.iter().map(|gone| gone.journal.weight()).sum();
        for gone in all.iter_mut() {
            if bytes <= MAX_BYTES {
                break;
            }
            bytes -= gone.journal.weight();
            gone.journal.forget();
        }
    }

    /// The record of the session with this handle.
    pub(super) fn of(&mut self, id: &str) -> Option<&mut Gone> {
        self.0.iter_mut().rev().find(|gone| gone.id == id)
    }

    /// The record of a client's session with this handle.
    pub(super) fn find(&self, client: &Client, id: &str) -> Option<&Gone> {
        self.0.iter().find(|gone| gone.id == id && gone.client == *client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::journal::{EntryEnd, JournalEntry, SentFile, Step};

    fn gone(client: &Client, id: String) -> Gone {
        Gone {
            id,
            client: client.clone(),
            language: "python".to_owned(),
            why: Why::Idle(Duration::from_secs(60)),
            journal: Journal::new(0),
            since: Instant::now(),
        }
    }

    #[tokio::test]
    async fn journals_make_room_and_the_reasons_stay() {
        let client = Client::named("one");
        let mut tombstones = Tombstones::default();
        for id in ["0", "1", "2"] {
            let mut journal = Journal::new(MAX_BYTES);
            journal.add(JournalEntry {
                cell: 1,
                step: Step::Files,
                files: vec![SentFile {
                    name: String::new(),
                    content: vec![0; MAX_BYTES / 2],
                    append: false,
                }],
                has_lost_files: false,
                timeout: Duration::ZERO,
                end: EntryEnd::Ran,
            });
            tombstones.add(Gone { journal, ..gone(&client, id.to_owned()) });
        }
        let steps = |id| tombstones.find(&client, id).map(|gone| gone.journal.entries().count());
        assert_eq!((steps("0"), steps("1"), steps("2")), (Some(0), Some(0), Some(1)));
    }

    #[tokio::test]
    async fn a_client_takes_room_only_from_itself_and_sees_only_its_own() {
        let (one, other) = (Client::named("one"), Client::named("other"));
        let mut tombstones = Tombstones::default();
        tombstones.add(gone(&other, "theirs".to_owned()));
        for number in 0..=MAX_OF_ONE {
            tombstones.add(gone(&one, number.to_string()));
        }
        assert!(tombstones.find(&one, "0").is_none() && tombstones.find(&one, "1").is_some());
        assert!(tombstones.find(&other, "theirs").is_some());
        assert!(tombstones.find(&one, "theirs").is_none());
    }
}
