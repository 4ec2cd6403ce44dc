//! Puts sizes into a configuration. All else stays as it was written.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};

use crate::commands::hosts::file::Original;
use crate::config::Config;

/// Writes the sizes of these languages into the file, and returns the path of its backup.
///
/// # Errors
///
/// When the file can't be read or written, or would not be valid. It is then as it was.
pub(super) fn write(file: &Path, sizes: &[(String, usize)]) -> anyhow::Result<Option<PathBuf>> {
    let original = Original::read(file)?;
    let text = with_sizes(original.text()?, sizes)?;
    let directory = file.parent().unwrap_or(Path::new(""));
    if let Err(problems) = Config::parse(&text, Some(file.to_owned()), directory) {
        let described: Vec<_> = problems
            .iter()
            .map(|problem| format!("{}: {}", problem.path, problem.message))
            .collect();
        bail!("{} would not be valid with these sizes: {}", file.display(), described.join("; "));
    }
    Ok(original.replace(&text)?)
}

/// The text of a configuration with these sizes.
fn with_sizes(text: &str, sizes: &[(String, usize)]) -> anyhow::Result<String> {
    // Windows' editors begin files with it.
    let (mark, text) = text.split_at(if text.starts_with('\u{feff}') { 3 } else { 0 });
    let root = CstRootNode::parse(text, &ParseOptions::default());
    let root = root.context("the configuration can't be read as JSON")?;
    let languages = root.object_value_or_set().object_value_or_set("languageSettings");
    for (language, size) in sizes {
        let pool = languages.object_value_or_set(language).object_value_or_set("pool");
        set(&pool, "size", *size);
        let hot = pool.get("hot").and_then(|hot| hot.to_serde_value());
        // No more can be thawed than there are.
        if hot.and_then(|hot| hot.as_u64()).is_some_and(|hot| hot > *size as u64) {
            set(&pool, "hot", *size);
        }
    }
    Ok(format!("{mark}{root}"))
}

fn set(object: &CstObject, key: &str, number: usize) {
    let number = CstInputValue::Number(number.to_string());
    match object.get(key) {
        Some(there) => there.set_value(number),
        None => drop(object.append(key, number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str, sizes: &[(&str, usize)]) -> String {
        let sizes: Vec<_> = sizes.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
        with_sizes(text, &sizes).unwrap()
    }

    #[test]
    fn only_the_sizes_change() {
        let text = "{\n  \"defaultCpus\": 1,\n  \"languageSettings\": {\n    \"python\": { \"cpus\": 2, \"pool\": { \"size\": 2, \"hot\": 2 } },\n    \
            \"go\": { \"enabled\": true }\n  },\n  \"pool\": {\"size\":   3}\n}\n";
        let expected = text.replace("{ \"size\": 2, \"hot\": 2 }", "{ \"size\": 5, \"hot\": 2 }");
        assert_eq!(with(text, &[("python", 5)]), expected);
        let expected = text.replace("{ \"size\": 2, \"hot\": 2 }", "{ \"size\": 1, \"hot\": 1 }");
        assert_eq!(with(text, &[("python", 1)]), expected);
    }

    #[test]
    fn sections_that_are_missing_are_made() {
        for text in [
            "{}",
            "{\"languageSettings\": null}",
            "\u{feff}{\"languageSettings\": {\"go\": {\"pool\": null}}}",
        ] {
            let written = with(text, &[("go", 3), ("python", 1)]);
            assert_eq!(written.starts_with('\u{feff}'), text.starts_with('\u{feff}'));
            let value: serde_json::Value =
                serde_json::from_str(written.trim_start_matches('\u{feff}')).unwrap();
            let languages = &value["languageSettings"];
            assert_eq!(
                (&languages["go"]["pool"]["size"], &languages["python"]["pool"]["size"]),
                (&3.into(), &1.into())
            );
        }
    }
}
