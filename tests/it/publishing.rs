//! Published files: the registry entry, the bundle's manifest, the image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;
use serde_json::{Value, json};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> Value {
    let text = fs::read_to_string(file(name)).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Asserts that an object has these keys with texts, and none but these and those that it may have.
fn assert_keys(object: &Value, has: &[&str], may_have: &[&str]) {
    let object = object.as_object().unwrap();
    for key in has {
        assert!(object.get(*key).is_some_and(|value| !value.is_null()), "no {key}: {object:?}");
    }
    for key in object.keys() {
        assert!(has.contains(&key.as_str()) || may_have.contains(&key.as_str()), "{key}?");
    }
}

#[test]
fn the_registry_entry_has_this_version_and_fits_its_schema() {
    let server = read("server.json");
    assert_keys(
        &server,
        &["$schema", "name", "description", "version", "packages"],
        &["title", "repository", "websiteUrl", "icons", "_meta"],
    );
    let schema = server["$schema"].as_str().unwrap();
    assert!(schema.ends_with("/schemas/2025-12-11/server.schema.json"), "{schema}");
    let name = Regex::new("^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$").unwrap();
    assert!(name.is_match(server["name"].as_str().unwrap()), "{}", server["name"]);
    for key in ["title", "description"] {
        assert!((1..=100).contains(&server[key].as_str().unwrap().chars().count()), "{key}");
    }
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(server["version"], version);
    for package in server["packages"].as_array().unwrap() {
        assert_keys(
            package,
            &["registryType", "identifier", "version", "transport"],
            &["fileSha256", "environmentVariables", "runtimeHint", "runtimeArguments"],
        );
        assert_eq!(package["version"], version);
        assert_eq!(package["transport"], json!({ "type": "stdio" }));
        let identifier = package["identifier"].as_str().unwrap();
        assert!(identifier.ends_with(&format!("/isolator-{version}.mcpb")), "{identifier}");
        for variable in package["environmentVariables"].as_array().unwrap() {
            assert_keys(
                variable,
                &["name", "description"],
                &["format", "isRequired", "isSecret", "default"],
            );
        }
    }
}

#[test]
fn the_bundle_manifest_has_this_version_and_names_what_exists() {
    let manifest = read("packaging/manifest.json");
    // What the specification knows; hosts refuse a manifest with anything else.
    assert_keys(
        &manifest,
        &["manifest_version", "name", "version", "description", "author", "server"],
        &[
            "display_name",
            "long_description",
            "icon",
            "tools",
            "keywords",
            "license",
            "compatibility",
            "user_config",
        ],
    );
    assert_eq!(manifest["manifest_version"], "0.3");
    assert_eq!(manifest["version"], env!("CARGO_PKG_VERSION"));
    assert!(manifest["author"]["name"].is_string());
    assert_eq!(manifest["compatibility"]["platforms"], json!(["linux"]));
    let names: Vec<_> =
        manifest["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["execute_code"]);

    let server = &manifest["server"];
    assert_eq!(server["type"], "binary");
    let command = format!("${{__dirname}}/{}", server["entry_point"].as_str().unwrap());
    assert_eq!(server["mcp_config"]["command"], json!(command));
    assert_eq!(server["mcp_config"]["args"], json!(["serve"]));
    // Every question to the user is asked for a use, has an answer without him, and is explained.
    for (name, question) in manifest["user_config"].as_object().unwrap() {
        assert_keys(question, &["type", "title", "description", "required", "default"], &[]);
        let used = server["mcp_config"].to_string().contains(&format!("${{user_config.{name}}}"));
        assert!(used, "{name}");
    }
}

#[test]
fn an_empty_configuration_variable_counts_as_unset() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_isolator"));
    command.env_clear().env("HOME", home.path()).env("ISOLATOR_CONFIG", "");
    let output = command.current_dir(home.path()).args(["config", "check"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("the defaults"), "{output:?}");
}

#[test]
fn the_image_starts_the_command_of_hosts() {
    let dockerfile = fs::read_to_string(file("Dockerfile")).unwrap();
    for line in ["USER isolator", "ENTRYPOINT [\"isolator\"]", "CMD [\"serve\"]"] {
        assert!(dockerfile.lines().any(|other| other == line), "no {line}");
    }
}
