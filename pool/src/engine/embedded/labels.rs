//! The labels of instances, in the names of control groups and folders.
//!
//! Control groups that no sandbox has are in groups with the instance's name and a suffix.

use crate::engine::Labels;
use crate::engine::instance::{LABEL, PROCESS};

/// Suffixes of the instance name for the control groups of builds, of tools and of templates.
pub(super) const BUILDS: &str = "+build";
pub(super) const TOOLS: &str = "+tools";
pub(super) const TEMPLATES: &str = "+template";

/// Whether control groups are those of builds, tools or templates. They have no leases, and must not be mistaken for
/// forgotten sandboxes.
pub(super) fn is_auxiliary(instance: &str) -> bool {
    [BUILDS, TOOLS, TEMPLATES].iter().any(|suffix| instance.ends_with(suffix))
}

/// The labels as a file name: this engine can store them only in names. The labels that it leaves out are the
/// same for all instances of a machine.
pub(super) fn instance_of(labels: &Labels) -> String {
    let process = labels.get(PROCESS).map_or(String::new(), |process| process.replace('/', "+"));
    format!("{}+{process}", labels.get(LABEL).map_or("", String::as_str))
}

/// The labels of an instance, by its name and the labels that it shares with this one.
pub(super) fn labels_of(instance: &str, ours: &Labels) -> Labels {
    let mut labels = ours.clone();
    let (id, process) = instance.split_once('+').unwrap_or((instance, ""));
    labels.insert(LABEL.to_owned(), id.to_owned());
    labels.insert(PROCESS.to_owned(), process.replace('+', "/"));
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_instance_restores_its_labels() {
        let process = "pid:[4026531836]/1234/567890";
        let labels = Labels::from([
            (LABEL.to_owned(), "11f5b8e0-0000".to_owned()),
            (PROCESS.to_owned(), process.to_owned()),
            ("isolator.boot".to_owned(), "this".to_owned()),
        ]);
        let name = instance_of(&labels);
        assert!(!name.contains('/'), "{name}");
        assert_eq!(labels_of(&name, &labels), labels);
        // A name in another form is an unknown instance.
        assert_eq!(labels_of("stranger", &labels)[LABEL], "stranger");
    }
}
