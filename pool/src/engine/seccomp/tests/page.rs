//! Compares the page about system calls with the profile.

use std::collections::BTreeMap;

use super::super::profile::PROFILE;
use super::{Rule, Verdict, plain};

const PAGE: &str = include_str!("../../../../../docs/system-calls.md");

/// How often each call is named in the first column of the tables of a section.
fn calls(section: &str) -> BTreeMap<&'static str, usize> {
    let begin = PAGE.split("\n## ").find(|part| part.starts_with(section)).expect(section);
    let rows = begin.lines().filter_map(|line| line.strip_prefix("| "));
    let columns = rows.filter_map(|row| row.split(" | ").nth(COLUMN));
    let mut found = BTreeMap::new();
    for call in columns.flat_map(|column| column.split('`').skip(1).step_by(2)) {
        *found.entry(call).or_default() += 1;
    }
    found
}

/// The column of the calls. The first one has the name of the group.
const COLUMN: usize = 1;

fn assert_named_once(section: &str, wanted: impl Fn(&Rule<'_>) -> bool) {
    let rules = PROFILE.rules();
    let profile = rules.iter().filter(|rule| wanted(rule)).flat_map(|rule| rule.syscalls);
    let profile = profile.map(|name| (name.as_str(), 1)).collect::<BTreeMap<_, _>>();
    let page = calls(section);
    let missing: Vec<_> = profile.keys().filter(|name| !page.contains_key(*name)).collect();
    let wrong: Vec<_> = page.iter().filter(|(name, _)| !profile.contains_key(*name)).collect();
    let twice: Vec<_> = page.iter().filter(|(_, count)| **count > 1).collect();
    assert_eq!(page, profile, "{section}: missing {missing:?}, wrong {wrong:?}, twice {twice:?}");
}

#[test]
fn the_page_names_each_allowed_call_once_and_no_other() {
    assert_named_once("Allowed\n", |rule| plain(rule) && rule.verdict == Verdict::Allow);
}

#[test]
fn the_page_names_each_call_once_that_depends_on_its_arguments() {
    assert_named_once("Allowed with some arguments\n", |rule| !plain(rule));
}

#[test]
fn the_page_names_each_refused_call_once() {
    assert_named_once("Refused\n", |rule| plain(rule) && rule.verdict != Verdict::Allow);
}
