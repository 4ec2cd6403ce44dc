//! Versions of runc with known holes.

use super::check::Verdict;

/// A version: major, minor and patch, and the number of the release candidate, or `u32::MAX` for a release.
type Version = (u32, u32, u32, u32);

const fn release(major: u32, minor: u32, patch: u32) -> Version {
    (major, minor, patch, u32::MAX)
}

/// A hole, with the first good version of each series, oldest first. Series before the first and between two of
/// them were given up with the hole in them.
struct Hole {
    names: &'static str,
    what: &'static str,
    fixed: &'static [Version],
}

const HOLES: [Hole; 3] = [
    Hole {
        names: "CVE-2024-21626",
        what: "a sandbox can start in a folder of the host",
        fixed: &[release(1, 1, 12)],
    },
    Hole {
        names: "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881",
        what: "the author of an image can write to the kernel's settings in /proc",
        fixed: &[release(1, 2, 8), release(1, 3, 3), (1, 4, 0, 3)],
    },
    Hole {
        names: "CVE-2026-41579",
        what: "the author of an image can write some files of the host",
        fixed: &[release(1, 3, 6), release(1, 4, 3), (1, 5, 0, 3)],
    },
];

impl Hole {
    fn is_in(&self, version: Version) -> bool {
        let series = |version: Version| (version.0, version.1);
        let is_newest = self.fixed.last().is_some_and(|fixed| version >= *fixed);
        let is_mended =
            self.fixed.iter().any(|fixed| series(*fixed) == series(version) && version >= *fixed);
        !is_newest && !is_mended
    }
}

/// Judges a version as an engine gives it, such as `1.1.5+ds1`.
pub(super) fn judge(said: &str) -> Verdict {
    let Some((said, version)) = parse(said) else {
        let what = format!("the version of runc is no version: {said:?}");
        return Verdict::not_known(what, "run: runc --version");
    };
    let holes: Vec<_> = HOLES.iter().filter(|hole| hole.is_in(version)).collect();
    if holes.is_empty() {
        return Verdict::fine(format!(
            "runc {said} has no hole that this version of Isolator knows"
        ));
    }
    let holes: Vec<_> =
        holes.iter().map(|hole| format!("{} ({})", hole.what, hole.names)).collect();
    Verdict::warning(
        format!("runc {said}: {}", holes.join("; ")),
        "install runc 1.3.6, 1.4.3 or later, or the correction of your distribution, which keeps the number: see the \
         log of changes of its package",
    )
}

/// Finds the first version in a text, and returns it as it is written, too.
fn parse(said: &str) -> Option<(&str, Version)> {
    let whole =
        said.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    // What a distribution adds comes after one of these.
    let word = whole.split(['+', '~']).next()?;
    let (numbers, more) = word.split_once('-').unwrap_or((word, ""));
    let mut numbers = numbers.split('.').map(|number| number.parse().ok());
    let (major, minor, patch) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let candidate = more.strip_prefix("rc").map(|rest| {
        let rest = rest.trim_start_matches('.');
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().unwrap_or_default()
    });
    Some((whole, (major, minor, patch, candidate.unwrap_or(u32::MAX))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holes(said: &str) -> Vec<bool> {
        let (_, version) = parse(said).expect(said);
        HOLES.iter().map(|hole| hole.is_in(version)).collect()
    }

    #[test]
    fn a_version_has_the_holes_that_were_mended_after_it() {
        for (said, found) in [
            ("1.0.0-rc95", [true, true, true]),
            ("1.1.11", [true, true, true]),
            ("1.1.5+ds1", [true, true, true]),
            ("1.1.12", [false, true, true]),
            ("1.1.15", [false, true, true]),
            ("1.2.7", [false, true, true]),
            ("1.2.8", [false, false, true]),
            ("1.3.2", [false, true, true]),
            ("1.3.3-0ubuntu1", [false, false, true]),
            ("1.3.6", [false, false, false]),
            ("1.4.0-rc.2", [false, true, true]),
            ("1.4.0-rc.3", [false, false, true]),
            ("1.4.2", [false, false, true]),
            ("1.4.3", [false, false, false]),
            ("1.5.0-rc.2+dev", [false, false, true]),
            ("1.5.0-rc.3", [false, false, false]),
            ("1.5.0", [false, false, false]),
            ("2.0.0", [false, false, false]),
            ("runc version 1.2.5\ncommit: v1.2.5-0-g59923ef1", [false, true, true]),
        ] {
            assert_eq!(holes(said), found, "{said}");
        }
    }

    #[test]
    fn what_is_no_version_is_not_judged() {
        for said in ["", "unknown", "1.2", "v1.x.3"] {
            assert!(matches!(judge(said), Verdict::NotKnown { .. }), "{said}");
        }
        assert!(matches!(judge("1.1.5+ds1"), Verdict::Warning { .. }));
        assert!(matches!(judge("1.5.0"), Verdict::Fine(_)));
    }
}
