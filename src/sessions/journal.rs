//! The journal of a session: what it was sent, so that it can be run again when the session is lost.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Something that a session has run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JournalEntry {
    /// Number of the cell.
    pub cell: u32,
    pub step: Step,
    /// The files that came with it.
    pub files: Vec<SentFile>,
    /// Whether it came with files that are too large to be remembered.
    pub has_lost_files: bool,
    /// How long it could run.
    pub timeout: Duration,
    pub end: EntryEnd,
}

/// A step that was run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Code, with the name of its file if it has one.
    Code {
        code: String,
        file_name: Option<String>,
        /// Its arguments, variables and standard input.
        input: StepInput,
    },
    /// Only its files.
    Files,
    /// A shell command.
    Command {
        command: String,
        /// Where it ran.
        cwd: String,
        /// Its variables and standard input.
        input: StepInput,
    },
}

/// Arguments, variables and standard input of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StepInput {
    pub args: Vec<String>,
    /// Variables that its caller has set.
    pub env: BTreeMap<String, String>,
    pub stdin: String,
}

impl StepInput {
    fn weight(&self) -> usize {
        let args = self.args.iter().map(String::len);
        let env = self.env.iter().map(|(name, value)| name.len() + value.len());
        args.chain(env).map(|length| length + OVERHEAD).sum::<usize>() + self.stdin.len()
    }
}

/// A file that came with a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SentFile {
    /// Its path below the working directory.
    pub name: String,
    pub content: Vec<u8>,
    /// Whether it was added to what was there.
    pub append: bool,
}

/// The end of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EntryEnd {
    /// It ran, and what it did stayed.
    Ran,
    /// It was undone.
    Undone,
    /// It ran longer than it could, and was killed or interrupted.
    TimedOut,
    /// The session has ended with it.
    SessionEnded,
}

impl EntryEnd {
    /// A remark for the text that a model reads.
    pub(crate) const fn remark(self) -> &'static str {
        match self {
            Self::Ran => "",
            Self::Undone => " (undone)",
            Self::TimedOut => " (timed out)",
            Self::SessionEnded => " (the session ended with it)",
        }
    }
}

/// Bytes of each part of an entry besides its content.
const OVERHEAD: usize = 200;

impl JournalEntry {
    /// Gives up its files: they were undone with it.
    pub(crate) fn forget_files(&mut self) {
        self.files = Vec::new();
        self.has_lost_files = false;
    }

    /// Bytes that it holds.
    fn weight(&self) -> usize {
        let step = match &self.step {
            Step::Code { code, file_name, input } => {
                code.len() + file_name.as_ref().map_or(0, String::len) + input.weight()
            }
            Step::Command { command, cwd, input } => command.len() + cwd.len() + input.weight(),
            Step::Files => 0,
        };
        let files = self.files.iter().map(|file| file.name.len() + file.content.len() + OVERHEAD);
        OVERHEAD + step + files.sum::<usize>()
    }

    /// Its text, as its author wrote it.
    pub(crate) fn text(&self) -> &str {
        match &self.step {
            Step::Code { code, .. } => code,
            Step::Command { command, .. } => command,
            Step::Files => "",
        }
    }
}

/// The last steps of a session, as many as there is room for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Journal {
    most: usize,
    weight: usize,
    entries: VecDeque<JournalEntry>,
    /// Older ones that are not there anymore.
    missing: u32,
    /// The packages that the session asked for.
    packages: Vec<String>,
    /// How many steps were added.
    added: u64,
    /// How often steps were changed after they had been added.
    changes: u64,
}

impl Journal {
    /// An empty journal that holds up to `most` bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// The same for a session that asked for these sets of packages, or requirements.
    pub(crate) fn with_packages(self, packages: Vec<String>) -> Self {
        Self { packages, ..self }
    }

    /// The same if older steps are missing from the beginning.
    pub(super) fn with_missing(self, missing: u32) -> Self {
        Self { missing, ..self }
    }

    /// The sets of packages, and requirements, that the session asked for.
    pub(crate) fn packages(&self) -> &[String] {
        &self.packages
    }

    /// Adds a step. The oldest ones make room for it. If its files alone are too large, they are given up instead: most of what
    /// the others did can still be done again.
    pub(crate) fn add(&mut self, mut entry: JournalEntry) {
        if entry.weight() > self.most && !entry.files.is_empty() {
            entry.files = Vec::new();
            entry.has_lost_files = true;
        }
        self.weight += entry.weight();
        self.added += 1;
        self.entries.push_back(entry);
        while self.weight > self.most
            && let Some(oldest) = self.entries.pop_front()
        {
            self.weight -= oldest.weight();
            self.missing = self.missing.saturating_add(1);
        }
    }

    /// Gives up all steps.
    pub(crate) fn forget(&mut self) {
        self.missing =
            self.missing.saturating_add(u32::try_from(self.entries.len()).unwrap_or(u32::MAX));
        self.entries = VecDeque::new();
        self.weight = 0;
        self.changes += 1;
    }

    /// Marks the last `cells` cells of code as undone. `has_files`: with the files that came with them.
    pub(crate) fn undo(&mut self, cells: u32, has_files: bool) {
        let is_code = |entry: &&mut JournalEntry| {
            let has_ended = matches!(entry.end, EntryEnd::Ran | EntryEnd::TimedOut);
            matches!(entry.step, Step::Code { .. }) && has_ended
        };
        let last = self.entries.iter_mut().rev().filter(is_code);
        let mut freed = 0;
        for entry in last.take(usize::try_from(cells).unwrap_or(usize::MAX)) {
            entry.end = EntryEnd::Undone;
            if has_files {
                freed += entry.weight();
                entry.forget_files();
                freed -= entry.weight();
            }
        }
        self.weight -= freed;
        self.changes += 1;
    }

    /// How many steps were added, and how often older ones were changed.
    pub(super) fn progress(&self) -> (u64, u64) {
        (self.added, self.changes)
    }

    /// The steps, the oldest first.
    pub(crate) fn entries(&self) -> impl DoubleEndedIterator<Item = &JournalEntry> {
        self.entries.iter()
    }

    /// How many steps came before the oldest and are not there anymore.
    pub(crate) fn missing(&self) -> u32 {
        self.missing
    }

    /// Bytes that it holds.
    pub(crate) fn weight(&self) -> usize {
        self.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(number: u32, length: usize) -> JournalEntry {
        let code = "x".repeat(length);
        let step = Step::Code { code, file_name: None, input: StepInput::default() };
        JournalEntry {
            cell: number,
            step,
            files: Vec::new(),
            has_lost_files: false,
            timeout: Duration::from_secs(1),
            end: EntryEnd::Ran,
        }
    }

    fn numbers(journal: &Journal) -> Vec<u32> {
        journal.entries().map(|entry| entry.cell).collect()
    }

    #[test]
    fn the_oldest_steps_make_room() {
        let mut journal = Journal::new(2500);
        for number in 1..=3 {
            journal.add(cell(number, 1000));
        }
        assert_eq!(numbers(&journal), [2, 3]);
        assert_eq!((journal.missing(), journal.weight()), (1, 2400));
        journal.add(cell(4, 5000));
        assert_eq!((numbers(&journal), journal.missing(), journal.weight()), (vec![], 4, 0));
    }

    #[test]
    fn files_that_are_too_large_cost_no_other_step() {
        let mut journal = Journal::new(2500);
        journal.add(cell(1, 1000));
        let content = vec![0; 3000];
        let file = SentFile { name: "large.csv".to_owned(), content, append: false };
        journal.add(JournalEntry { files: vec![file], ..cell(2, 10) });
        assert_eq!((numbers(&journal), journal.missing()), (vec![1, 2], 0));
        let last = journal.entries().next_back().unwrap();
        assert!(last.files.is_empty() && last.has_lost_files && last.text().len() == 10);
    }

    #[test]
    fn the_last_cells_that_ran_are_undone_and_no_command() {
        let mut journal = Journal::new(100_000);
        for number in 1..=4 {
            journal.add(cell(number, 1));
        }
        let (command, cwd, input) = ("ls".to_owned(), String::new(), StepInput::default());
        let step = Step::Command { command, cwd, input };
        journal.add(JournalEntry { step, ..cell(5, 0) });
        let file = SentFile { name: "a".to_owned(), content: vec![0; 10], append: false };
        journal.add(JournalEntry { files: vec![file], ..cell(6, 1) });
        journal.undo(1, false);
        assert!(journal.entries().next_back().is_some_and(|it| !it.files.is_empty()));
        journal.undo(1, true);
        journal.undo(2, true);
        let undone: Vec<_> =
            journal.entries().filter(|it| it.end == EntryEnd::Undone).map(|it| it.cell).collect();
        assert_eq!(undone, [2, 3, 4, 6]);
    }
}
