//! Compares the documentation with the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{isolator, run_command};

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect(name)
}

/// The leaves of a schema, as `pool.size`, with `*` for any key of a map.
fn leaves(schema: &Value, all: &Value, path: &str, found: &mut BTreeSet<String>) {
    let schema = resolved(schema, all);
    let below =
        |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let properties = schema["properties"].as_object().filter(|properties| !properties.is_empty());
    let map = &schema["additionalProperties"];
    match properties {
        Some(properties) => {
            for (name, schema) in properties {
                leaves(schema, all, &below(name), found);
            }
        }
        None if map.is_object() => leaves(map, all, &below("*"), found),
        None => {
            found.insert(path.to_owned());
        }
    }
}

/// The schema that a reference leads to, alone or beside `null`.
fn resolved<'a>(schema: &'a Value, all: &'a Value) -> &'a Value {
    if let Some(reference) = schema["$ref"].as_str() {
        let path = reference.trim_start_matches('#');
        return resolved(all.pointer(path).expect(reference), all);
    }
    let options = schema["anyOf"].as_array().into_iter().flatten();
    let mut options = options.filter(|option| option["type"] != "null");
    match (options.next(), options.next()) {
        (Some(only), None) => resolved(only, all),
        _ => schema,
    }
}

#[test]
fn the_page_of_the_configuration_has_every_key_and_no_other() {
    let home = tempfile::tempdir().unwrap();
    let printed = run_command(isolator(home.path()).args(["config", "schema"]), "").stdout;
    let schema: Value = serde_json::from_str(&printed).unwrap();
    let mut keys = BTreeSet::new();
    leaves(&schema, &schema, "", &mut keys);
    let page = page("docs/configuration.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let rows: BTreeSet<String> = rows.map(str::to_owned).collect();
    let missing: Vec<_> = keys.difference(&rows).collect();
    let unknown: Vec<_> = rows.difference(&keys).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "missing {missing:?}, unknown {unknown:?}");
}

#[test]
fn the_page_about_hosts_has_every_check_of_the_doctor_and_no_other() {
    let names: BTreeSet<String> =
        isolator::commands::doctor::names_of_checks().into_iter().map(str::to_owned).collect();
    let page = page("docs/hardening.md");
    let (_, section) = page.split_once("\n## What the doctor checks\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(rows.map(str::to_owned).collect::<BTreeSet<_>>(), names);
}

#[test]
fn links_between_the_pages_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.to_owned(), root.join("docs"), root.join("docs/decisions")];
    let mut links = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let file = link.split('#').next().unwrap();
                if file.is_empty() || file.contains(':') {
                    continue;
                }
                let name = path.display();
                assert!(folder.join(file).exists(), "{name} links to {file}, which is not there");
                links += 1;
            }
        }
    }
    assert!(links > 50, "{links} links");
}
