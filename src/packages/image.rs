//! What is known of a language's image: its interpreter, and what that needs and has already.

use isolator_pool::engine::preload::Interpreter;

use super::requirement::{self, Requirement};
use super::{Packages, satisfies};
use crate::config::Language;

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
    /// out.
    pub(crate) async fn needed(&self, language: &Language, mut texts: Vec<String>) -> Vec<String> {
        let has_marker = texts.iter().any(|text| text.contains(';'));
        if !has_marker || language.kernel != Some(Interpreter::Python) {
            return texts;
        }
        match self.shared.workshop.machine(language).await {
            // What can't be read is refused later, with the reason.
            Ok(machine) => texts.retain(|text| {
                let read = requirement::parse(Interpreter::Python, text);
                read.map_or(true, |requirement| requirement.is_needed(&machine))
            }),
            Err(error) => {
                tracing::debug!(%error, language = language.name, "the machine of an interpreter is not known");
            }
        }
        texts
    }
}
