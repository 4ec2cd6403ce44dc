//! The contexts of a session: kernels over the same files, each with variables of its own.
//!
//! The session's own kernel is context 0. Another language has a default context, which is opened when it is used for the first time.

use std::sync::{Arc, Mutex};

use isolator_pool::lock::lock;

use crate::config::Language;
use crate::hex::hex;

/// Maximum number of contexts of a session. Each is a process with the memory of an interpreter.
pub(crate) const MAX_CONTEXTS: usize = 16;

/// Random bytes of an id.
const ID_BYTES: usize = 16;

/// The contexts of a session.
pub(crate) struct Contexts {
    all: Mutex<All>,
    /// Held while a kernel is started, ended or replaced, so that two calls do not start it twice.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

struct All {
    /// The number of the next one.
    next: u32,
    /// In the order of their opening.
    contexts: Vec<Context>,
    /// Whether the kernel of context 0 runs: it does, until the context is removed.
    is_own_open: bool,
}

/// The language of a context's code.
#[derive(Debug, Clone)]
pub(crate) enum ContextLanguage {
    /// The kernel of a language that is configured.
    Kernel {
        /// The language.
        language: Arc<Language>,
        /// Whether it is TypeScript, which the kernel of JavaScript runs.
        typescript: bool,
    },
    /// The session's language, which has no kernel: each cell is a program.
    Programs(Arc<Language>),
    /// Shell commands. Each begins with the variables and functions, and in the folder, that the one before has left.
    Shell,
}

impl ContextLanguage {
    /// Whether a kernel has to run before its cells.
    pub(crate) const fn has_kernel(&self) -> bool {
        matches!(self, Self::Kernel { .. })
    }
}

/// A context of a session.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    /// Its name for clients.
    pub id: String,
    /// Its number in the sandbox.
    pub number: u32,
    pub language: ContextLanguage,
    /// The name of its language, as its client has asked for it.
    pub language_name: String,
    /// The folder in which it starts: below the workspace, or absolute.
    pub cwd: String,
    /// Whether cells of its language run in it if they name no context.
    pub is_default: bool,
    /// Number of cells that were begun in it.
    pub cells: u32,
    /// Whether its kernel runs, as far as is known.
    pub is_open: bool,
}

/// Why there is no other context.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContextsFull {
    /// There are too many.
    #[error("a sandbox has at most {MAX_CONTEXTS} contexts: remove one that is not needed")]
    TooMany,
    /// The kernel returns no random bytes for an id.
    #[error("the kernel returned no random bytes: {0}")]
    Random(#[from] getrandom::Error),
}

impl Contexts {
    /// None yet.
    pub(super) fn new() -> Self {
        let all = Mutex::new(All { next: 1, contexts: Vec::new(), is_own_open: true });
        Self { all, changing: tokio::sync::Mutex::default() }
    }

    /// All of them, in the order of their opening.
    pub(crate) fn list(&self) -> Vec<Context> {
        lock(&self.all).contexts.clone()
    }

    /// The one with this id.
    pub(crate) fn find(&self, id: &str) -> Option<Context> {
        lock(&self.all).contexts.iter().find(|context| context.id == id).cloned()
    }

    /// The default one of a language.
    pub(crate) fn default_of(&self, language_name: &str) -> Option<Context> {
        let all = lock(&self.all);
        let is_it = |it: &&Context| it.is_default && it.language_name == language_name;
        all.contexts.iter().find(is_it).cloned()
    }

    /// The session's own, unless it was removed or not added yet.
    pub(crate) fn own(&self) -> Option<Context> {
        lock(&self.all).contexts.iter().find(|context| context.number == 0).cloned()
    }

    /// Adds the session's own one, unless it is there. Its kernel runs.
    ///
    /// # Errors
    ///
    /// When it gets no id.
    pub(crate) fn add_own(
        &self,
        language: ContextLanguage,
        language_name: &str,
    ) -> Result<Context, ContextsFull> {
        self.insert(language, language_name, "", true, Some(0))
    }

    /// Adds one whose kernel does not run yet.
    ///
    /// # Errors
    ///
    /// When there are too many, or it gets no id.
    pub(crate) fn add(
        &self,
        language: ContextLanguage,
        language_name: &str,
        cwd: &str,
        is_default: bool,
    ) -> Result<Context, ContextsFull> {
        self.insert(language, language_name, cwd, is_default, None)
    }

    fn insert(
        &self,
        language: ContextLanguage,
        language_name: &str,
        cwd: &str,
        is_default: bool,
        number: Option<u32>,
    ) -> Result<Context, ContextsFull> {
        let mut id = [0; ID_BYTES];
        getrandom::fill(&mut id)?;
        let mut all = lock(&self.all);
        if let Some(there) = all.contexts.iter().find(|context| Some(context.number) == number) {
            return Ok(there.clone());
        }
        if all.contexts.len() >= MAX_CONTEXTS {
            return Err(ContextsFull::TooMany);
        }
        let number = number.unwrap_or_else(|| {
            let number = all.next;
            all.next = number.wrapping_add(1).max(1);
            number
        });
        let context = Context {
            id: hex(&id),
            number,
            language,
            language_name: language_name.to_owned(),
            cwd: cwd.to_owned(),
            is_default,
            cells: 0,
            is_open: number == 0 && all.is_own_open,
        };
        all.contexts.push(context.clone());
        Ok(context)
    }

    /// Notes whether the kernel of a context runs.
    pub(crate) fn set_open(&self, number: u32, is_open: bool) {
        self.change(number, |context| context.is_open = is_open);
    }

    /// Counts a cell of a context. Returns its number.
    pub(crate) fn count_cell(&self, number: u32) -> u32 {
        let mut cells = 1;
        self.change(number, |context| {
            context.cells = context.cells.saturating_add(1);
            cells = context.cells;
        });
        cells
    }

    /// Begins to count the cells of a context anew.
    pub(crate) fn reset_cells(&self, number: u32) {
        self.change(number, |context| context.cells = 0);
    }

    /// Forgets a context.
    pub(crate) fn remove(&self, number: u32) {
        let mut all = lock(&self.all);
        all.contexts.retain(|context| context.number != number);
        all.is_own_open &= number != 0;
    }

    fn change(&self, number: u32, change: impl FnOnce(&mut Context)) {
        let mut all = lock(&self.all);
        if let Some(context) = all.contexts.iter_mut().find(|it| it.number == number) {
            change(context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_bounded_and_have_their_own_counts() {
        let contexts = Contexts::new();
        let own = contexts.add_own(ContextLanguage::Shell, "bash").unwrap();
        assert!(
            own.is_open && contexts.add_own(ContextLanguage::Shell, "bash").unwrap().id == own.id
        );
        for at in 1..MAX_CONTEXTS {
            let context = contexts.add(ContextLanguage::Shell, "bash", "", false).unwrap();
            assert_eq!((context.number as usize, context.is_open), (at, false));
        }
        let more = contexts.add(ContextLanguage::Shell, "bash", "", false);
        assert!(matches!(more, Err(ContextsFull::TooMany)));
        assert_eq!(
            (contexts.count_cell(3), contexts.count_cell(3), contexts.count_cell(4)),
            (1, 2, 1)
        );
        contexts.reset_cells(3);
        assert_eq!(contexts.count_cell(3), 1);
        let third = contexts.list()[3].clone();
        contexts.remove(3);
        assert!(contexts.find(&third.id).is_none());
        let new = contexts.add(ContextLanguage::Shell, "bash", "", false).unwrap();
        assert_eq!(new.number as usize, MAX_CONTEXTS, "a number is used once");
        assert_eq!(contexts.default_of("bash").unwrap().number, 0);
    }
}
