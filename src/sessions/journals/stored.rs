//! The form in which a journal is kept on a server: records in JSON, of which the first has what the session was, and each
//! further one the steps that came after.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use crate::sessions::journal::{EntryEnd, Journal, JournalEntry, SentFile, Step, StepInput};

/// A session whose journal was kept.
#[derive(Debug, Clone)]
pub(crate) struct KeptJournal {
    /// The name of its language.
    pub language: String,
    pub journal: Journal,
}

/// Why a record can't be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error(
        "a record of the journal can't be read: another version of Isolator may have written it"
    )]
    Json(#[from] serde_json::Error),
    #[error("the first record of the journal is missing")]
    NoBeginning,
    /// The server was asked to remove it then, or shows a copy of an earlier time.
    #[error("the journal was to be kept until a time that is over")]
    Expired,
}

/// A record: the steps, and before the first ones what the session was.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beginning: Option<Beginning>,
    steps: Vec<StoredStep>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Beginning {
    language: String,
    packages: Vec<String>,
    missing: u32,
    /// When it expires, in seconds since 1970.
    until: u64,
}

/// How far the clocks of nodes may differ, in seconds.
const CLOCKS_DIFFER: u64 = 300;

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredStep {
    cell: u32,
    #[serde(flatten)]
    step: StoredKind,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    files: Vec<StoredFile>,
    #[serde(default)]
    has_lost_files: bool,
    timeout_ms: u64,
    end: EntryEnd,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum StoredKind {
    Code { code: String, file_name: Option<String>, input: StoredInput },
    Files,
    Command { command: String, cwd: String, input: StoredInput },
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredInput {
    args: Vec<String>,
    env: BTreeMap<String, String>,
    stdin: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredFile {
    name: String,
    #[serde(with = "in_base64")]
    content: Vec<u8>,
    append: bool,
}

mod in_base64 {
    use super::*;
    use serde::de::Error as _;
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        BASE64.encode(bytes).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        BASE64.decode(text).map_err(|_| D::Error::custom("is not Base64"))
    }
}

impl Record {
    /// The record of a whole journal, which expires after this time from now on.
    pub(super) fn whole(language: &str, journal: &Journal, keep: Duration) -> Self {
        let beginning = Beginning {
            language: language.to_owned(),
            packages: journal.packages().to_vec(),
            missing: journal.missing(),
            until: seconds(SystemTime::now()).saturating_add(keep.as_secs()),
        };
        let steps = journal.entries().cloned().map(StoredStep::from).collect();
        Self { beginning: Some(beginning), steps }
    }

    /// The record of the last steps.
    pub(super) fn of_steps(steps: impl Iterator<Item = JournalEntry>) -> Self {
        Self { beginning: None, steps: steps.map(StoredStep::from).collect() }
    }

    /// Bytes of the code and files in it, about.
    pub(super) fn content_bytes(&self) -> usize {
        let files =
            |step: &StoredStep| step.files.iter().map(|file| file.content.len()).sum::<usize>();
        let text = |step: &StoredStep| match &step.step {
            StoredKind::Code { code, input, .. } => code.len() + input.stdin.len(),
            StoredKind::Command { command, input, .. } => command.len() + input.stdin.len(),
            StoredKind::Files => 0,
        };
        self.steps.iter().map(|step| files(step) + text(step)).sum()
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, RecordError> {
        Ok(serde_json::to_vec(self)?)
    }
}

/// The journal that these records have, of which up to `most` bytes are read, unless it has expired `now`.
pub(super) fn restore(
    records: impl IntoIterator<Item = Vec<u8>>,
    most: usize,
    now: SystemTime,
) -> Result<KeptJournal, RecordError> {
    let mut kept: Option<KeptJournal> = None;
    for bytes in records {
        let Record { beginning, steps } = serde_json::from_slice(&bytes)?;
        let kept = match (&mut kept, beginning) {
            (kept @ None, Some(Beginning { language, packages, missing, until })) => {
                if until.saturating_add(CLOCKS_DIFFER) < seconds(now) {
                    return Err(RecordError::Expired);
                }
                let journal = Journal::new(most).with_packages(packages).with_missing(missing);
                kept.insert(KeptJournal { language, journal })
            }
            (Some(kept), None) => kept,
            _ => return Err(RecordError::NoBeginning),
        };
        for step in steps {
            kept.journal.add(step.into());
        }
    }
    kept.ok_or(RecordError::NoBeginning)
}

impl From<JournalEntry> for StoredStep {
    fn from(entry: JournalEntry) -> Self {
        let JournalEntry { cell, step, files, has_lost_files, timeout, end } = entry;
        let file = |SentFile { name, content, append }| StoredFile { name, content, append };
        Self {
            cell,
            step: match step {
                Step::Code { code, file_name, input } => {
                    StoredKind::Code { code, file_name, input: input.into() }
                }
                Step::Files => StoredKind::Files,
                Step::Command { command, cwd, input } => {
                    StoredKind::Command { command, cwd, input: input.into() }
                }
            },
            files: files.into_iter().map(file).collect(),
            has_lost_files,
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            end,
        }
    }
}

impl From<StoredStep> for JournalEntry {
    fn from(stored: StoredStep) -> Self {
        let StoredStep { cell, step, files, has_lost_files, timeout_ms, end } = stored;
        let file = |StoredFile { name, content, append }| SentFile { name, content, append };
        Self {
            cell,
            step: match step {
                StoredKind::Code { code, file_name, input } => {
                    Step::Code { code, file_name, input: input.into() }
                }
                StoredKind::Files => Step::Files,
                StoredKind::Command { command, cwd, input } => {
                    Step::Command { command, cwd, input: input.into() }
                }
            },
            files: files.into_iter().map(file).collect(),
            has_lost_files,
            timeout: Duration::from_millis(timeout_ms),
            end,
        }
    }
}

impl From<StepInput> for StoredInput {
    fn from(StepInput { args, env, stdin }: StepInput) -> Self {
        Self { args, env, stdin }
    }
}

impl From<StoredInput> for StepInput {
    fn from(StoredInput { args, env, stdin }: StoredInput) -> Self {
        Self { args, env, stdin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(60);

    fn journal() -> Journal {
        let mut journal = Journal::new(10_000).with_packages(vec!["text".to_owned()]);
        let file = SentFile { name: "a.bin".to_owned(), content: vec![0, 255, 7], append: true };
        let input = StepInput {
            args: vec!["a".to_owned()],
            env: [("A".to_owned(), "b".to_owned())].into(),
            stdin: "in".to_owned(),
        };
        let entry = JournalEntry {
            cell: 1,
            step: Step::Code { code: "x = 1".to_owned(), file_name: None, input: input.clone() },
            files: vec![file],
            has_lost_files: false,
            timeout: Duration::from_millis(1500),
            end: EntryEnd::Ran,
        };
        journal.add(entry.clone());
        let (command, cwd) = ("ls".to_owned(), "/tmp".to_owned());
        let step = Step::Command { command, cwd, input };
        journal.add(JournalEntry { cell: 2, step, end: EntryEnd::TimedOut, ..entry.clone() });
        journal.add(JournalEntry { cell: 3, step: Step::Files, has_lost_files: true, ..entry });
        journal
    }

    #[test]
    fn a_journal_is_the_same_after_it_was_kept() {
        let journal = journal();
        let whole = Record::whole("python", &journal, KEEP).to_bytes().unwrap();
        let last = Record::of_steps(journal.entries().skip(2).cloned()).to_bytes().unwrap();
        let KeptJournal { language, journal: read } =
            restore([whole, last], 10_000, SystemTime::now()).unwrap();
        assert_eq!((language.as_str(), read.packages()), ("python", journal.packages()));
        let mut expected: Vec<_> = journal.entries().cloned().collect();
        expected.extend(expected.last().cloned());
        assert!(read.entries().eq(&expected), "{read:?}");
    }

    #[test]
    fn a_node_with_less_room_keeps_the_last_steps() {
        let journal = journal();
        let whole = Record::whole("python", &journal, KEEP).to_bytes().unwrap();
        let read = restore([whole], 700, SystemTime::now()).unwrap().journal;
        assert_eq!(read.entries().map(|entry| entry.cell).collect::<Vec<_>>(), [3]);
        assert_eq!(read.missing(), 2);
    }

    #[test]
    fn a_journal_that_has_expired_is_refused_also_if_the_server_shows_it() {
        let whole = Record::whole("python", &journal(), KEEP).to_bytes().unwrap();
        let after =
            |time: Duration| restore([whole.clone()], 10_000, SystemTime::now() + time).is_ok();
        // The clocks of nodes differ.
        assert!(after(KEEP * 2));
        assert!(!after(KEEP + Duration::from_secs(CLOCKS_DIFFER + 60)));
    }

    #[test]
    fn records_that_are_no_journal_are_refused() {
        let steps = Record::of_steps(journal().entries().cloned()).to_bytes().unwrap();
        let whole = Record::whole("python", &journal(), KEEP).to_bytes().unwrap();
        for records in [vec![], vec![steps], vec![whole.clone(), whole.clone()]] {
            assert!(matches!(
                restore(records, 10_000, SystemTime::now()),
                Err(RecordError::NoBeginning)
            ));
        }
        for text in ["", "{}", "[]", "null", r#"{"steps": [{"cell": -1}]}"#] {
            let read = restore([text.as_bytes().to_vec()], 10_000, SystemTime::now());
            assert!(matches!(read, Err(RecordError::Json(_))), "{text}");
        }
    }
}
