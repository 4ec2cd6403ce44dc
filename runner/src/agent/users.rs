//! The names of users and groups, as the image has them.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::Path;

use super::opening;

/// Most bytes of a file of names.
const MOST: u64 = 256 * 1024;

/// The names by their numbers, once they were read.
#[derive(Default)]
pub(super) struct Users {
    users: Option<HashMap<u32, String>>,
    groups: Option<HashMap<u32, String>>,
}

impl Users {
    /// The name of a user, or the number if there is none.
    pub(super) fn user(&mut self, number: u32) -> String {
        named(self.users.get_or_insert_with(|| read("/etc/passwd")), number)
    }

    /// The name of a group, or the number if there is none.
    pub(super) fn group(&mut self, number: u32) -> String {
        named(self.groups.get_or_insert_with(|| read("/etc/group")), number)
    }
}

fn named(names: &HashMap<u32, String>, number: u32) -> String {
    names.get(&number).cloned().unwrap_or_else(|| number.to_string())
}

/// Reads a file of names. One that is not there has none.
fn read(path: &str) -> HashMap<u32, String> {
    let mut bytes = Vec::new();
    if let Ok(file) = opening::open(Path::new(path)) {
        // After an error there are as many as were read.
        let _ = file.take(MOST).read_to_end(&mut bytes);
    }
    parse(&String::from_utf8_lossy(&bytes))
}

fn parse(text: &str) -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        let (name, number) = (fields.next(), fields.nth(1));
        if let (Some(name), Some(number)) = (name, number.and_then(|it| it.parse().ok())) {
            names.entry(number).or_insert_with(|| name.chars().take(64).collect());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_of_a_number_counts() {
        let names =
            parse("root:x:0:0:root:/root:/bin/sh\nbroken\nuser:x:1000:\nother:x:1000:\n:x:y:\n");
        assert_eq!(named(&names, 0), "root");
        assert_eq!(named(&names, 1000), "user");
        assert_eq!(named(&names, 7), "7");
    }
}
