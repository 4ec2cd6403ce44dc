//! No circles among modules: of two modules with the same parent, at most one depends on the other, directly or by way of
//! their siblings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::architecture::{CRATES, code, sources};

/// A module's path inside its crate.
type Module = Vec<String>;

/// Which siblings each module depends on, by the parent.
type Siblings = BTreeMap<Module, BTreeMap<String, BTreeSet<String>>>;

fn module(file: &str) -> Module {
    let path = Path::new(file).with_extension("");
    let mut parts: Module = path.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    parts.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
    parts
}

/// The paths that the code of a file names: those of `use`, one for each name, and those that begin with `crate` or
/// `super` elsewhere.
fn paths(source: &str) -> Vec<Module> {
    // Tests at the end of a file may put together what they like.
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let code: String = source.lines().map(|line| code(line) + "\n").collect();
    let mut found = Vec::new();
    for (nth, statement) in code.split("use ").enumerate() {
        let ends = statement.split_once(';').filter(|_| nth > 0);
        let (tree, rest) = ends.unwrap_or(("", statement));
        branch(&[], tree, &mut found);
        let words = rest.split(|c: char| !c.is_alphanumeric() && !['_', ':'].contains(&c));
        let is_path = |word: &&str| word.starts_with("crate::") || word.starts_with("super::");
        found.extend(words.filter(is_path).map(segments));
    }
    found
}

fn segments(path: &str) -> Module {
    path.split("::").map(str::trim).filter(|it| !it.is_empty()).map(str::to_owned).collect()
}

/// Takes a tree of `use` apart.
fn branch(before: &[String], tree: &str, found: &mut Vec<Module>) {
    let tree = tree.trim();
    let (path, branches) = tree.split_once('{').unwrap_or((tree, ""));
    let whole = [before, &segments(path.split(" as ").next().unwrap())].concat();
    if branches.is_empty() {
        found.extend((!whole.is_empty()).then_some(whole));
        return;
    }
    let mut depth = 0;
    let is_between = |c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    };
    for part in branches.strip_suffix('}').unwrap_or(branches).split(is_between) {
        branch(&whole, part, found);
    }
}

/// The module to which a path leads, from inside of a module.
fn target(path: &[String], from: &Module, modules: &BTreeSet<Module>) -> Option<Module> {
    let mut path = match path.first()?.as_str() {
        "crate" => path[1..].to_vec(),
        "self" => [from, &path[1..]].concat(),
        "super" => {
            let ups = path.iter().take_while(|segment| *segment == "super").count();
            [&from[..from.len().saturating_sub(ups)], &path[ups..]].concat()
        }
        _ => return None,
    };
    while !modules.contains(&path) {
        path.pop()?;
    }
    Some(path)
}

fn siblings(folder: &str) -> Siblings {
    let files: BTreeMap<Module, String> = sources(folder)
        .into_iter()
        .map(|(name, source)| {
            (module(name.strip_prefix(folder).unwrap().trim_start_matches('/')), source)
        })
        .filter(|(module, _)| !module.iter().any(|part| part == "tests"))
        .collect();
    let modules: BTreeSet<Module> = files.keys().cloned().collect();
    let mut siblings = Siblings::new();
    for (from, source) in &files {
        for to in paths(source).iter().filter_map(|path| target(path, from, &modules)) {
            let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
            if common < from.len() && common < to.len() {
                let users = siblings.entry(from[..common].to_vec()).or_default();
                users.entry(from[common].clone()).or_default().insert(to[common].clone());
            }
        }
    }
    siblings
}

/// Modules that can be put into an order, each before those on which it depends, are taken away. The rest has circles.
fn circles(mut users: BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    loop {
        let left = users.len();
        let needs: BTreeSet<String> = users.keys().cloned().collect();
        for used in users.values_mut() {
            used.retain(|module| needs.contains(module));
        }
        users.retain(|_, used| !used.is_empty());
        if users.len() == left {
            return users;
        }
    }
}

#[test]
fn modules_do_not_depend_on_each_other_in_circles() {
    let mut found = BTreeMap::new();
    for folder in CRATES {
        for (parent, users) in siblings(folder) {
            let circles = circles(users);
            if !circles.is_empty() {
                found.insert(format!("{folder} {}", parent.join("::")), circles);
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn circles_are_found() {
    let users = |pairs: &[(&str, &[&str])]| {
        let set = |used: &[&str]| used.iter().map(ToString::to_string).collect();
        pairs.iter().map(|(module, used)| (module.to_string(), set(used))).collect()
    };
    assert!(circles(users(&[("a", &["b", "c"]), ("b", &["c"])])).is_empty());
    let found = circles(users(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"]), ("d", &[])]));
    assert!(found.contains_key("b") && found.contains_key("c") && !found.contains_key("d"));
    let tree = "use crate::a::{self, b::{c, d as e}};\nuse super::f;\nlet x = crate::g::h();";
    let expected =
        ["crate::a::self", "crate::a::b::c", "crate::a::b::d", "super::f", "crate::g::h"];
    assert_eq!(paths(tree), expected.map(segments));
}
