//! The image of a language: its interpreter, the packages that it has, and the requirements that apply to it.

use std::collections::BTreeMap;

use isolator_pool::engine::preload::Interpreter;

use super::{Packages, satisfies};
use crate::config::Language;
use crate::packages::target::Target;
use crate::requirement::{self, Machine, Requirement, shown};

impl Packages {
    /// Digest of the image of a language's sandboxes that are made now, once it is known.
    pub(super) fn image(&self, language: &str) -> Option<String> {
        self.shared.as_ref()?.backend.image(language)
    }

    /// The interpreter of a language, if it can be found out.
    async fn target(&self, language: &Language) -> Option<Target> {
        let target = self.shared.as_ref()?.backend.target(language).await;
        let log =
            |error| tracing::debug!(%error, language = language.name, "an image is not known");
        target.map_err(log).ok()
    }

    /// The version of a language's interpreter, if it can be found out.
    pub(crate) async fn version(&self, language: &Language) -> Option<String> {
        self.target(language).await.map(|target| target.version)
    }

    /// The packages that the image of a language has, with their versions, if they can be found out.
    pub(super) async fn image_packages(&self, language: &Language) -> BTreeMap<String, String> {
        self.target(language).await.map(|target| target.packages).unwrap_or_default()
    }

    /// Whether the image of a language satisfies all these requirements by itself.
    pub(crate) async fn in_image(&self, language: &Language, wanted: &[Requirement]) -> bool {
        if language.kernel != Some(Interpreter::Python) || wanted.is_empty() {
            return false;
        }
        let target = self.target(language).await;
        target.is_some_and(|it| wanted.iter().all(|one| satisfies::has_version(&it.packages, one)))
    }

    /// The names and requirements of these that a language's interpreter needs: requirements whose marker is false there are left
    /// out. If its version is not known, only those are whose marker is false for every version.
    pub(crate) async fn needed(&self, language: &Language, mut texts: Vec<String>) -> Vec<String> {
        let has_marker = texts.iter().any(|text| text.contains(';'));
        if !has_marker || language.kernel != Some(Interpreter::Python) {
            return texts;
        }
        let target = self.target(language).await;
        let machine = target.map_or_else(Machine::default, |target| target.machine());
        // A requirement that can't be read is refused later, with the reason.
        texts.retain(|text| {
            let read = requirement::parse(Interpreter::Python, text);
            read.map_or(true, |requirement| requirement.is_needed(&machine))
        });
        texts
    }

    /// The same for the packages of a program. If none is needed, there is a note for its author.
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
