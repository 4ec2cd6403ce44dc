//! Checks that every test that `SECURITY.md` names exists.

use std::fs;
use std::path::Path;

/// The words in backticks of a line.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[test]
fn every_test_that_a_promise_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let promises = page.split("\n## ").find(|part| part.starts_with("What we promise")).unwrap();
    let rows = promises.lines().filter(|line| line.starts_with("| ") && line.contains(": `"));
    let mut count = 0;
    for row in rows {
        let tests = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let mut file = String::new();
        let mut path = "";
        for word in quoted(tests) {
            if word.contains('/') {
                path = word;
                file = fs::read_to_string(root.join(path)).expect(path);
                continue;
            }
            let definitions =
                [format!("fn {word}("), format!("def {word}("), format!("\n[{word}]\n")];
            assert!(definitions.iter().any(|it| file.contains(it)), "{word} is not in {path}");
            count += 1;
        }
    }
    assert!(count > 100, "{count} tests are named");
}
