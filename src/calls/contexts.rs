//! Contexts of sessions: finding, opening, restarting and removing them.

use std::sync::Arc;

use isolator_pool::pool::session::SessionError;

use super::{CallError, Calls};
use crate::config::Language;
use crate::request::arguments::InvalidArgument;
use crate::sessions::InUse;
use crate::sessions::contexts::{Context, ContextLanguage, ContextsFull};

/// The names under which clients know the kernels and the shell.
const PYTHON: &str = "python";
const JAVASCRIPT: &str = "javascript";
const TYPESCRIPT: &str = "typescript";
const SHELL: &str = "bash";

impl Calls {
    /// All contexts of a session, the session's own first. If its sandbox has the interpreter of JavaScript, that language has one, too.
    ///
    /// # Errors
    ///
    /// When the session has ended, or is busy.
    pub(crate) async fn contexts(&self, session: &InUse) -> Result<Vec<Context>, CallError> {
        self.own_context(session)?;
        match self.default_context(session, JAVASCRIPT).await {
            // It is not there, or there is no room for it.
            Ok(_) | Err(CallError::Invalid(_)) => Ok(session.contexts.list()),
            Err(error) => Err(error),
        }
    }

    /// The context with this id.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub(crate) fn context(&self, session: &InUse, id: &str) -> Result<Context, CallError> {
        self.own_context(session)?;
        session.contexts.find(id).ok_or_else(|| no_such_context(id))
    }

    /// The context in which code of a language runs if it names no context; that of the session if it names no language, either. Its
    /// kernel runs.
    ///
    /// # Errors
    ///
    /// When the sandbox can't run this language, or has no room for it.
    pub(crate) async fn default_context(
        &self,
        session: &InUse,
        language: &str,
    ) -> Result<Context, CallError> {
        let own = self.own_context(session)?;
        let name = normalized(language);
        if name.is_empty() || name == own.language_name || name == session.language.name {
            return Ok(own);
        }
        // One that is being opened is waited for: it may not be there in the end.
        if let Some(context) = session.contexts.default_of(&name).filter(|it| it.is_open) {
            return Ok(context);
        }
        self.add_context(session, &name, "", true).await
    }

    /// Opens a context of a language in a folder: below the workspace, or absolute.
    ///
    /// # Errors
    ///
    /// When the sandbox can't run this language, or has no room for it, or there is no such folder.
    pub(crate) async fn open_context(
        &self,
        session: &InUse,
        language: &str,
        cwd: &str,
    ) -> Result<Context, CallError> {
        let own = self.own_context(session)?;
        let name = normalized(language);
        let name = if name.is_empty() { own.language_name } else { name };
        self.add_context(session, &name, cwd, false).await
    }

    async fn add_context(
        &self,
        session: &InUse,
        name: &str,
        cwd: &str,
        is_default: bool,
    ) -> Result<Context, CallError> {
        let _changing = session.contexts.changing.lock().await;
        if is_default && let Some(context) = session.contexts.default_of(name) {
            return Ok(context);
        }
        let language = self.language_of(session, name)?;
        let context = session.contexts.add(language, name, cwd, is_default);
        let mut context = context.map_err(|full| of_full(&full))?;
        let mut added = Added { session, number: context.number, is_open: false };
        self.start(session, &context).await?;
        added.is_open = true;
        context.is_open = true;
        Ok(context)
    }

    /// Makes sure that the kernel of a context runs: it may have been ended by a cell.
    ///
    /// # Errors
    ///
    /// When it can't be started.
    pub(crate) async fn ensure_open(
        &self,
        session: &InUse,
        context: &Context,
    ) -> Result<(), CallError> {
        let _changing = session.contexts.changing.lock().await;
        match still_there(session, context)? {
            now if now.is_open => Ok(()),
            now => self.start(session, &now).await,
        }
    }

    /// Starts the kernel of a context anew: its variables are gone, and its files stay.
    ///
    /// # Errors
    ///
    /// When it can't be started.
    pub(crate) async fn restart_context(
        &self,
        session: &InUse,
        context: &Context,
    ) -> Result<(), CallError> {
        // A cell that runs in it ends with it, and would keep others waiting.
        let _changing = session.contexts.changing.lock().await;
        let context = still_there(session, context)?;
        self.start(session, &context).await?;
        session.contexts.reset_cells(context.number);
        Ok(())
    }

    /// Ends the kernel of a context and forgets the context.
    ///
    /// # Errors
    ///
    /// When the session has ended, or is busy.
    pub(crate) async fn remove_context(
        &self,
        session: &InUse,
        context: &Context,
    ) -> Result<(), CallError> {
        let _changing = session.contexts.changing.lock().await;
        let context = still_there(session, context)?;
        if context.language.has_kernel() {
            let closed = session.session.close_context(context.number).await;
            closed.map_err(|error| CallError::of_session(error, session))?;
        }
        session.contexts.remove(context.number);
        Ok(())
    }

    /// Starts the kernel of a context, if it has one.
    async fn start(&self, session: &InUse, context: &Context) -> Result<(), CallError> {
        let ContextLanguage::Kernel { language, .. } = &context.language else {
            session.contexts.set_open(context.number, true);
            return Ok(());
        };
        let Some(kernel) = language.kernel_command(session.resources.memory) else {
            return Err(not_there(session, &context.language_name, None));
        };
        session.contexts.set_open(context.number, false);
        match session.session.open_context(context.number, &kernel, &context.cwd).await {
            Ok(_) => {
                session.contexts.set_open(context.number, true);
                Ok(())
            }
            Err(error @ SessionError::NoFolder(_)) => {
                Err(InvalidArgument::new("cwd", error.to_string()).into())
            }
            Err(SessionError::Command(why)) => {
                Err(not_there(session, &context.language_name, Some(&why.to_string())))
            }
            Err(error) => Err(CallError::of_session(error, session)),
        }
    }

    /// The context of the session's own kernel. It is added when it is used for the first time.
    fn own_context(&self, session: &InUse) -> Result<Context, CallError> {
        if let Some(own) = session.contexts.own() {
            return Ok(own);
        }
        let language = Arc::clone(&session.language);
        let name = known_name(&language).to_owned();
        let language = match language.kernel {
            Some(_) => ContextLanguage::Kernel { language, typescript: false },
            None => ContextLanguage::Programs(language),
        };
        let own = session.contexts.add_own(language, &name);
        own.map_err(|full| of_full(&full))
    }

    /// The language of a context with this name.
    fn language_of(&self, session: &InUse, name: &str) -> Result<ContextLanguage, CallError> {
        if name == SHELL {
            return Ok(ContextLanguage::Shell);
        }
        let (own, typescript) = (&session.language, name == TYPESCRIPT);
        let wanted = if typescript { JAVASCRIPT } else { name };
        if wanted == known_name(own) || wanted == own.name {
            let language = Arc::clone(own);
            return Ok(match own.kernel {
                Some(_) => ContextLanguage::Kernel { language, typescript },
                None => ContextLanguage::Programs(language),
            });
        }
        let languages = &self.config.languages;
        let found = languages.values().find(|it| it.kernel.is_some() && known_name(it) == wanted);
        match found {
            Some(language) => {
                Ok(ContextLanguage::Kernel { language: Arc::clone(language), typescript })
            }
            None => Err(not_there(session, name, None)),
        }
    }
}

/// A context that was added. It is removed again if its kernel does not start, or if the client goes away before that.
struct Added<'a> {
    session: &'a InUse,
    number: u32,
    is_open: bool,
}

impl Drop for Added<'_> {
    fn drop(&mut self) {
        if !self.is_open {
            self.session.contexts.remove(self.number);
        }
    }
}

/// The context as it is now, for a caller that holds the lock of changes: another one may have removed it.
fn still_there(session: &InUse, context: &Context) -> Result<Context, CallError> {
    session.contexts.find(&context.id).ok_or_else(|| no_such_context(&context.id))
}

/// The name of a language for clients: that of its kernel, if it has one.
fn known_name(language: &Language) -> &str {
    use isolator_pool::engine::preload::Interpreter;
    match language.kernel {
        Some(Interpreter::Python) => PYTHON,
        Some(Interpreter::Node) => JAVASCRIPT,
        None => &language.name,
    }
}

/// The usual name of a language.
fn normalized(language: &str) -> String {
    let name = language.trim().to_ascii_lowercase();
    match name.as_str() {
        "js" | "node" | "nodejs" => JAVASCRIPT.to_owned(),
        "ts" => TYPESCRIPT.to_owned(),
        "sh" | "shell" => SHELL.to_owned(),
        "py" | "python3" => PYTHON.to_owned(),
        _ => name,
    }
}

fn no_such_context(id: &str) -> CallError {
    let id: String = id.chars().filter(|it| !it.is_control()).take(64).collect();
    let message = format!("there is no context {id:?} in this sandbox");
    InvalidArgument::new("context_id", message).into()
}

fn not_there(session: &InUse, name: &str, why: Option<&str>) -> CallError {
    let name: String = name.chars().filter(|it| !it.is_control()).take(64).collect();
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    let message = format!(
        "this sandbox can't run {name:?}{why}: its image is for {}, and has a shell, bash",
        known_name(&session.language)
    );
    InvalidArgument::new("language", message).into()
}

fn of_full(full: &ContextsFull) -> CallError {
    InvalidArgument::new("contexts", full.to_string()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_names_of_a_language_are_one() {
        for (given, name) in [
            (" JS ", "javascript"),
            ("ts", "typescript"),
            ("Python", "python"),
            ("r", "r"),
            ("", ""),
        ] {
            assert_eq!(normalized(given), name);
        }
    }
}
