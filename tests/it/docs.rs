//! Compares the documentation with the program.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use regex::Regex;
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

/// The words of lists with commas.
fn words(lists: &BTreeSet<String>) -> BTreeSet<String> {
    lists.iter().flat_map(|list| list.split(", ")).map(str::to_owned).collect()
}

/// The matches of a pattern in a command's help.
fn listed(arguments: &[&str], pattern: &str) -> BTreeSet<String> {
    let home = tempfile::tempdir().unwrap();
    let help = run_command(isolator(home.path()).args(arguments), "").stdout;
    let pattern = Regex::new(pattern).unwrap();
    let found: BTreeSet<_> = pattern.captures_iter(&help).map(|it| it[1].to_owned()).collect();
    assert!(!found.is_empty(), "{help}");
    found
}

#[test]
fn the_table_of_commands_has_every_command() {
    let readme = page("README.md");
    let row = Regex::new(r"`isolator ([a-z]+)[^`]*`(?:, `isolator ([a-z]+)[^`]*`)? \|").unwrap();
    let rows = row.captures_iter(&readme);
    let named: BTreeSet<_> = rows
        .flat_map(|row| [row.get(1), row.get(2)].into_iter().flatten().collect::<Vec<_>>())
        .map(|name| name.as_str().to_owned())
        .collect();
    let mut commands = listed(&["--help"], r"(?m)^  ([a-z]+)  ");
    commands.remove("help");
    assert_eq!(named, commands);
}

#[test]
fn the_page_about_hosts_and_the_demo_have_every_host_and_no_other() {
    let hosts = words(&listed(&["install", "-h"], r"<HOST>.*values: ([a-z, -]+)\]"));
    let page_of_hosts = page("docs/hosts.md");
    let rows = page_of_hosts.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let rows: BTreeSet<_> = rows.filter(|row| !row.contains("--")).map(str::to_owned).collect();
    assert_eq!(rows, hosts);

    let demo = page("scripts/demo");
    let line = demo.lines().find(|line| line.starts_with("hosts=")).unwrap();
    let script = format!("bin={}; {line}; echo \"$hosts\"", env!("CARGO_BIN_EXE_isolator"));
    let said = run_command(Command::new("sh").args(["-c", &script]), "").stdout;
    assert_eq!(words(&BTreeSet::from([said.trim().to_owned()])), hosts);
}

/// The anchors of the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let is_text = text.lines().scan(true, |is_text, line| {
        *is_text ^= line.starts_with("```");
        Some(*is_text)
    });
    let headings =
        text.lines().zip(is_text).filter(|(line, is_text)| *is_text && line.starts_with('#'));
    let anchor = |(line, _): (&str, bool)| {
        let heading = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        heading.chars().filter(|c| c.is_alphanumeric() || ['-', '_'].contains(c)).collect()
    };
    headings.map(anchor).collect()
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
                let (file, heading) = link.split_once('#').unwrap_or((link, ""));
                if file.contains(':') {
                    continue;
                }
                let name = path.display();
                let target = if file.is_empty() { path.clone() } else { folder.join(file) };
                assert!(target.exists(), "{name} links to {file}, which is not there");
                if !heading.is_empty() && target.extension().is_some_and(|it| it == "md") {
                    let headings = anchors(&fs::read_to_string(target).unwrap());
                    assert!(headings.contains(heading), "{name} links to {link}: no such heading");
                }
                links += 1;
            }
        }
    }
    assert!(links > 50, "{links} links");
}

#[test]
fn the_page_about_metrics_has_every_family_and_no_other() {
    let name = Regex::new(r#""((?:isolator|mcp_server|http_server|process)_[a-z_]+)""#).unwrap();
    let mut families = BTreeSet::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/metrics")).unwrap() {
        let source = fs::read_to_string(entry.unwrap().path()).unwrap();
        families.extend(name.captures_iter(&source).map(|found| found[1].to_owned()));
    }
    assert!(families.len() > 30, "{families:?}");
    let page = page("docs/operating.md");
    let (_, section) = page.split_once("\n## Metrics\n").unwrap();
    let rows = section.split("\n## ").next().unwrap().lines();
    let names = rows.filter(|line| line.starts_with("| `")).flat_map(|line| {
        let cell = line.split('|').nth(1).unwrap();
        cell.split('`').skip(1).step_by(2).map(|name| name.trim_end_matches("_total").to_owned())
    });
    assert_eq!(names.collect::<BTreeSet<_>>(), families);
}

#[test]
fn the_runbook_has_every_alert_and_no_other() {
    let alerts = page("contrib/prometheus/isolator-alerts.yml");
    let alert = |line: &str| Some(line.trim().strip_prefix("- alert: ")?.to_owned());
    let alerts: BTreeSet<_> = alerts.lines().filter_map(alert).collect();
    assert!(alerts.len() > 5, "{alerts:?}");
    let page = page("docs/runbook.md");
    let (_, section) = page.split_once("\n## The alerts\n").unwrap();
    let headings = section.lines().filter_map(|line| Some(line.strip_prefix("### ")?.to_owned()));
    assert_eq!(headings.collect::<BTreeSet<_>>(), alerts);
}
