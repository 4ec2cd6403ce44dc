//! What is known of a language's image: its interpreter, and what that needs and has already.

use isolator_pool::engine::preload::Interpreter;

use super::requirement::{self, Machine, Requirement};
use super::{Packages, satisfies};
use crate::config::Language;

/// Most requirements of a program that a note repeats.
pub(crate) const MOST_TOLD: usize = 10;

impl Packages {
    /// The version of a language's interpreter, if it can be found out.
    pub(crate) async fn version(&self, language: &Language) -> Option<String> {
        match self.shared.workshop.version(language).await {
            Ok(version) => Some(version),
            Err(error) => {
                tracing::debug!(%error, language = language.name, "the version of an interpreter is not known");
                None
            }
        }
    }

    /// Whether the image of a language satisfies all these requirements by itself.
    pub(crate) async fn in_image(&self, language: &Language, wanted: &[Requirement]) -> bool {
        if language.kernel != Some(Interpreter::Python) || wanted.is_empty() {
            return false;
        }
        match self.shared.workshop.in_image(language).await {
            Ok(there) => wanted.iter().all(|wanted| satisfies::has_version(&there, wanted)),
            Err(error) => {
                tracing::debug!(%error, language = language.name, "the packages of an image are not known");
                false
            }
        }
    }

    /// Those of these names and requirements that a language's interpreter needs: requirements whose marker is false there are left
    /// out. If its version is not known, those are left out whose marker is false for every version.
    pub(crate) async fn needed(&self, language: &Language, mut texts: Vec<String>) -> Vec<String> {
        let has_marker = texts.iter().any(|text| text.contains(';'));
        if !has_marker || language.kernel != Some(Interpreter::Python) {
            return texts;
        }
        let machine = self.shared.workshop.machine(language).await.unwrap_or_else(|error| {
            tracing::debug!(%error, language = language.name, "the machine of an interpreter is not known");
            Machine::default()
        });
        // What can't be read is refused later, with the reason.
        texts.retain(|text| {
            let read = requirement::parse(Interpreter::Python, text);
            read.map_or(true, |requirement| requirement.is_needed(&machine))
        });
        texts
    }

    /// The same for what a program asks for. If it needs nothing of that, there is a note for its author.
    pub(crate) async fn needed_of(
        &self,
        language: &Language,
        texts: Vec<String>,
        notes: &mut Vec<String>,
    ) -> Vec<String> {
        let all = shown(&texts);
        let needed = self.needed(language, texts).await;
        if needed.is_empty() {
            notes.push(format!("nothing of this is needed here, as its markers say: {all}"));
        }
        needed
    }
}

/// Requirements of a program, for people.
pub(crate) fn shown(texts: &[String]) -> String {
    let mut shown: Vec<&str> = texts.iter().take(MOST_TOLD).map(String::as_str).collect();
    if texts.len() > MOST_TOLD {
        shown.push("…");
    }
    shown.join(", ").chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::config::Config;

    #[tokio::test]
    async fn without_packages_only_what_no_python_on_linux_needs_is_left_out() {
        let config = Arc::new(Config::parse("{}", None, Path::new("")).unwrap());
        let packages = Packages::unused(Arc::clone(&config), true);
        let python = &config.languages["python"];
        let (old, other) = ("tomli; python_version < '3.11'", "pywin32; sys_platform == 'win32'");
        let mut notes = Vec::new();
        let texts = vec![old.to_owned(), other.to_owned()];
        assert_eq!(packages.needed_of(python, texts, &mut notes).await, [old]);
        assert!(notes.is_empty(), "{notes:?}");
        assert!(packages.needed_of(python, vec![other.to_owned()], &mut notes).await.is_empty());
        assert!(notes[0].contains("nothing of this is needed") && notes[0].contains(other));
    }
}
