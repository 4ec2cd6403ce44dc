//! The configuration files of the servers that are measured: the operator's configuration with one engine, without
//! fetching images, and with the measured languages and their pools only.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use isolator::config::{Config, EngineKind};
use serde_json::{Value, json};

use crate::error::BenchError;
use crate::scenario::PoolShape;

/// The keys besides `promptsDir` whose values are paths relative to the file.
const PATHS: [&str; 4] =
    ["/policies/folder", "/http/tokens", "/http/tls/certificate", "/http/tls/key"];

/// The configuration for servers on an engine of this kind, with no language enabled yet. It can be written to any folder.
///
/// # Errors
///
/// When a relative path can't be made absolute.
pub fn for_servers(config: &Config, kind: EngineKind) -> anyhow::Result<Value> {
    let mut settings = config.settings.document.clone();
    resolve_paths(&mut settings, &std::env::current_dir()?.join(&config.directory));
    // Without the key it is a folder next to the operator's file or in the user's directory.
    settings["promptsDir"] = json!(std::path::absolute(&config.prompts)?);
    settings["engine"]["kind"] = json!(kind);
    // The images are there; servers that fetch them again would not be quiescent for minutes.
    settings["images"]["policy"] = json!("never");
    // Its language may not be one of the measured ones.
    settings["tools"]["testCode"]["enabled"] = json!(false);
    for name in config.languages.keys() {
        settings["languageSettings"][name]["enabled"] = json!(false);
    }
    Ok(settings)
}

/// Makes relative paths, which start at `directory`, absolute.
fn resolve_paths(settings: &mut Value, directory: &Path) {
    for key in PATHS {
        if let Some(Value::String(path)) = settings.pointer_mut(key) {
            *path = directory.join(&*path).to_string_lossy().into_owned();
        }
    }
}

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
    use std::fs;

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

    /// The configuration that a server reads from another folder, with Python.
    fn read_elsewhere(mut settings: Value) -> Config {
        settings["languageSettings"]["python"]["enabled"] = json!(true);
        Config::parse(&settings.to_string(), None, Path::new("/elsewhere")).unwrap()
    }

    #[test]
    fn only_the_engine_the_images_and_the_tools_differ_from_the_operator_s() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("isolator_config.json");
        let own = json!({
            "defaultMemoryMB": 300,
            "engine": { "host": "tcp://engine:2375" },
            "images": { "policy": "always" },
            "pool": { "size": 9 },
            "languageSettings": {
                "python": { "image": "mine", "pool": { "size": 6, "hot": 6, "maxAge": "30m" } },
                "bash": { "image": "b", "extensions": [".sh"], "command": ["bash", "{file}"] },
                "go": { "enabled": false },
            },
            "tools": { "testCode": { "enabled": true, "language": "javascript" } },
        });
        fs::write(&file, own.to_string()).unwrap();
        let config = Config::load(Some(&file)).unwrap();
        let settings = for_servers(&config, EngineKind::Docker).unwrap();

        let mut expected = own;
        expected["promptsDir"] = json!(directory.path().join("prompts"));
        expected["engine"]["kind"] = json!("docker");
        expected["images"]["policy"] = json!("never");
        expected["tools"]["testCode"]["enabled"] = json!(false);
        let languages = &mut expected["languageSettings"];
        languages["python"]["enabled"] = json!(false);
        languages["bash"]["enabled"] = json!(false);
        languages["javascript"] = json!({ "enabled": false });
        assert_eq!(settings, expected);
        assert_eq!(read_elsewhere(settings).languages.keys().collect::<Vec<_>>(), ["python"]);
    }

    #[test]
    fn relative_paths_still_start_at_the_operator_s_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("isolator_config.json");
        fs::create_dir(directory.path().join("policies")).unwrap();
        let rule = "id: no-eval\nlanguage: python\nmessage: no\nrule:\n  pattern: eval($A)\n";
        fs::write(directory.path().join("policies/own.yml"), rule).unwrap();
        let own = json!({
            "promptsDir": "snippets",
            "policies": { "folder": "policies", "apply": { "python": ["own"] } },
            "http": { "tokens": "tokens", "tls": { "certificate": "tls/cert.pem", "key": "/tls/key.pem" } },
        });
        fs::write(&file, own.to_string()).unwrap();
        let config = Config::load(Some(&file)).unwrap();
        let settings = for_servers(&config, EngineKind::Embedded).unwrap();

        let read = read_elsewhere(settings);
        let tls = read.http.tls.unwrap();
        assert_eq!(read.prompts, directory.path().join("snippets"));
        assert_eq!(read.http.tokens, Some(directory.path().join("tokens")));
        assert_eq!(tls.certificate, directory.path().join("tls/cert.pem"));
        assert_eq!(tls.key, Path::new("/tls/key.pem"));
        assert_eq!(format!("{:?}", read.policies), format!("{:?}", config.policies));
    }

    #[test]
    fn without_a_file_the_defaults_hold() {
        let config = Config::parse("{}", None, Path::new("/home/me")).unwrap();
        let read = read_elsewhere(for_servers(&config, EngineKind::Embedded).unwrap());
        assert_eq!(read.engine.kind, EngineKind::Embedded);
        assert_eq!(read.prompts, config.prompts);
    }
}
