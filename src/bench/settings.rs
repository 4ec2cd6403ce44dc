//! The configuration of a server that is measured: the operator's, with an engine of ours and other pools,
//! and without the languages that are not needed.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::error::BenchError;
use super::scenario::PoolShape;
use crate::config::{Config, EngineKind, FILE_NAME};

/// A server that is measured.
#[derive(Debug, Clone, Copy)]
pub struct Server<'a> {
    /// Its engine.
    pub engine: EngineKind,
    /// Its languages.
    pub languages: &'a BTreeSet<String>,
    /// The pool of each.
    pub pool: PoolShape,
}

/// Writes the configuration of a server into a new file in `directory`.
///
/// # Errors
///
/// When the operator's file can't be read any more, or the new one can't be written.
pub fn write(config: &Config, server: Server<'_>, directory: &Path) -> Result<PathBuf, BenchError> {
    let own = match &config.file {
        Some(file) => {
            read(file).map_err(|source| BenchError::Settings { file: file.clone(), source })?
        }
        None => json!({}),
    };
    let failed = |source| BenchError::Settings { file: directory.to_owned(), source };
    let file = tempfile::Builder::new().suffix(FILE_NAME).tempfile_in(directory);
    // It goes with the directory.
    let (_, file) = file.and_then(|file| Ok(file.keep()?)).map_err(failed)?;
    let written = overlay(own, config, server)
        .and_then(|settings| std::fs::write(&file, settings.to_string()));
    written.map_err(|source| BenchError::Settings { file: file.clone(), source })?;
    Ok(file)
}

fn read(file: &Path) -> io::Result<Value> {
    Ok(serde_json::from_slice(&std::fs::read(file)?)?)
}

/// The file was valid a moment ago, so that what is indexed here is an object or not there.
fn overlay(mut settings: Value, config: &Config, server: Server<'_>) -> io::Result<Value> {
    let Server { engine, languages, pool } = server;
    // The new file lies elsewhere, where a relative path would mean something else.
    settings["promptsDir"] = json!(std::path::absolute(&config.prompts)?);
    settings["engine"]["kind"] = json!(engine);
    // The images are there; servers that fetch them anew would not be at rest for minutes.
    settings["images"]["policy"] = json!("never");
    for name in config.languages.keys() {
        let own = &mut settings["languageSettings"][name];
        if languages.contains(name) {
            own["pool"]["size"] = json!(pool.size);
            own["pool"]["hot"] = json!(pool.hot);
        } else {
            own["enabled"] = json!(false);
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_engine_the_pools_and_the_languages_differ_from_the_operator_s() {
        let own = json!({
            "defaultMemoryMB": 300,
            "promptsDir": "snippets",
            "engine": { "host": "tcp://engine:2375" },
            "images": { "policy": "always" },
            "pool": { "size": 9 },
            "languageSettings": {
                "python": { "image": "mine", "pool": { "size": 6, "hot": 6, "maxAge": "30m" } },
                "bash": { "image": "b", "extensions": [".sh"], "command": ["bash", "{file}"] },
                "go": { "enabled": false },
            },
        });
        let config = Config::parse(&own.to_string(), None, Path::new("/etc/isolator")).unwrap();
        let languages = BTreeSet::from(["python".to_owned()]);
        let pool = PoolShape { size: 2, hot: 1 };
        let server = Server { engine: EngineKind::Docker, languages: &languages, pool };
        let settings = overlay(own.clone(), &config, server).unwrap();

        let mut expected = own;
        expected["promptsDir"] = json!("/etc/isolator/snippets");
        expected["engine"]["kind"] = json!("docker");
        expected["images"]["policy"] = json!("never");
        let of_languages = &mut expected["languageSettings"];
        of_languages["python"]["pool"] = json!({ "size": 2, "hot": 1, "maxAge": "30m" });
        of_languages["bash"]["enabled"] = json!(false);
        of_languages["javascript"] = json!({ "enabled": false });
        assert_eq!(settings, expected);

        let again = Config::parse(&settings.to_string(), None, Path::new("/tmp")).unwrap();
        assert_eq!(again.languages.keys().collect::<Vec<_>>(), ["python"]);
        assert_eq!(again.prompts, config.prompts);
    }

    #[test]
    fn without_a_file_the_defaults_hold() {
        let config = Config::parse("{}", None, Path::new("/home/me")).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let languages = &config.languages.keys().cloned().collect();
        let pool = PoolShape { size: 0, hot: 0 };
        let server = Server { engine: EngineKind::Embedded, languages, pool };
        let [file, other] = [(); 2].map(|()| write(&config, server, directory.path()).unwrap());
        assert_ne!(file, other);
        let written = Config::load(Some(&file)).unwrap();
        assert_eq!(written.engine.kind, EngineKind::Embedded);
        assert!(written.languages.len() > 1);
        assert!(written.languages.values().all(|l| l.pool.size == 0 && l.pool.hot == 0));
    }
}
