//! The configuration files of the servers that are measured.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::error::BenchError;
use crate::scenario::PoolShape;

/// Writes `settings`, in which no language is enabled, into a new file in `directory`, with these languages
/// enabled and a pool of this shape for each.
///
/// # Errors
///
/// When the file can't be written.
pub fn write(
    settings: &Value,
    languages: &BTreeSet<String>,
    pool: PoolShape,
    directory: &Path,
) -> Result<PathBuf, BenchError> {
    let text = overlay(settings.clone(), languages, pool).to_string();
    let write = || -> io::Result<PathBuf> {
        let file = tempfile::Builder::new().suffix(".json").tempfile_in(directory)?;
        std::fs::write(&file, text)?;
        // The file is removed with the directory.
        Ok(file.keep()?.1)
    };
    write().map_err(|source| BenchError::Settings { directory: directory.to_owned(), source })
}

fn overlay(mut settings: Value, languages: &BTreeSet<String>, pool: PoolShape) -> Value {
    for name in languages {
        let language = &mut settings["languageSettings"][name];
        language["enabled"] = json!(true);
        language["pool"]["size"] = json!(pool.size);
        language["pool"]["hot"] = json!(pool.hot);
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_the_measured_languages_with_their_pools_and_everything_else_as_given() {
        let given = json!({
            "defaultMemoryMB": 300,
            "languageSettings": {
                "python": { "image": "mine", "enabled": false, "pool": { "size": 6, "maxAge": "30m" } },
                "go": { "enabled": false },
            },
        });
        let mut expected = given.clone();
        expected["languageSettings"]["python"]["enabled"] = json!(true);
        expected["languageSettings"]["python"]["pool"] =
            json!({ "size": 2, "hot": 1, "maxAge": "30m" });
        let pool = PoolShape { size: 2, hot: 1 };
        assert_eq!(overlay(given, &BTreeSet::from(["python".to_owned()]), pool), expected);
    }

    #[test]
    fn every_server_has_a_file_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let pool = PoolShape { size: 0, hot: 0 };
        let write = || write(&json!({}), &BTreeSet::new(), pool, directory.path()).unwrap();
        let [file, other] = [write(), write()];
        assert_ne!(file, other);
        assert_eq!(std::fs::read_to_string(file).unwrap(), "{}");
    }
}
