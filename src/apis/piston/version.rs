//! Versions, and ranges of them as Piston's clients write them.

use isolator_pool::quote::quoted;

/// The numbers of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version([u64; 3]);

/// The numbers that a range gives, of which later ones may be missing.
type Given = Vec<u64>;

impl Version {
    /// The numbers at the beginning of a text. Those that are missing are zero.
    pub(super) fn parse(text: &str) -> Self {
        let digits = |part: &str| {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..end].parse().unwrap_or_default()
        };
        let mut numbers = [0; 3];
        for (number, part) in numbers.iter_mut().zip(text.split('.')) {
            *number = digits(part);
        }
        Self(numbers)
    }

    /// Whether it is in a range: parts of a version, with `*` or `x` for any, each perhaps after `^`, `~`, `=`, `>`, `>=`, `<` or
    /// `<=`, with spaces between several that must all hold.
    ///
    /// # Errors
    ///
    /// When the text is no such range.
    pub(super) fn is_in(self, range: &str) -> Result<bool, String> {
        let mut is_in = true;
        for part in range.split_whitespace() {
            let wrong = || {
                format!(
                    "{} is not a version: use \"*\", one such as \"3.12\", or a range such as \"^3.10\" or \">=3.10 <4\"",
                    quoted(range)
                )
            };
            is_in &= self.holds(part).ok_or_else(wrong)?;
        }
        Ok(is_in)
    }

    fn holds(self, part: &str) -> Option<bool> {
        const SIGNS: [&str; 7] = [">=", "<=", ">", "<", "^", "~", "="];
        let sign = SIGNS.into_iter().find(|sign| part.starts_with(sign)).unwrap_or_default();
        let given = given(part[sign.len()..].trim_start_matches('v'))?;
        let is_same = |most: usize| self.0.iter().zip(&given).take(most).all(|(own, it)| own == it);
        let mut filled = [0; 3];
        filled.iter_mut().zip(&given).for_each(|(number, it)| *number = *it);
        let other = Self(filled);
        Some(match sign {
            ">=" => self >= other,
            ">" => self > other && !is_same(3),
            "<" => self < other,
            "<=" => self <= other || is_same(3),
            "^" => {
                // Up to the next number where the first that is not zero differs.
                let fixed = given.iter().take_while(|number| **number == 0).count() + 1;
                self >= other && is_same(fixed)
            }
            "~" => self >= other && is_same(2),
            _ => is_same(3),
        })
    }
}

/// The numbers of a part of a range before the first that can be any.
fn given(text: &str) -> Option<Given> {
    let parts: Vec<_> = text.splitn(4, '.').collect();
    if parts.len() > 3 {
        return None;
    }
    let is_any = |part: &&&str| matches!(**part, "*" | "x" | "X");
    let numbers = parts.iter().take_while(|part| !is_any(part)).map(|part| part.parse().ok());
    let numbers: Given = numbers.collect::<Option<_>>()?;
    parts[numbers.len()..].iter().all(|part| is_any(&part)).then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_the_versions_that_clients_mean() {
        let version = Version::parse("3.12.4");
        for range in [
            "*",
            "x",
            "",
            "3",
            "3.x",
            "3.12",
            "3.12.*",
            "3.12.4",
            "=3.12.4",
            "v3.12.4",
            "^3.1",
            "^3.12.4",
            "~3.12",
            "~3.12.1",
            ">=3.12",
            ">3.11",
            "<4",
            "<=3.12.4",
            "<=3.12",
            ">=3.10 <4.0.0",
            "3.12.4 ",
        ] {
            assert_eq!(version.is_in(range), Ok(true), "{range}");
        }
        for range in [
            "2", "3.11", "3.12.5", "^4", "^3.13", "~3.11", ">3.12.4", ">3.12", "<3.12.4", "<3",
            ">=3.13", "3.x 2.x",
        ] {
            assert_eq!(version.is_in(range), Ok(false), "{range}");
        }
        for range in ["latest", "3.12.4.1", "3..1", "x.3", "3.a", ">", "-1", "3.12 || 3.13"] {
            assert!(version.is_in(range).is_err(), "{range}");
        }
        assert!(version.is_in(&".".repeat(1 << 20)).is_err());
        assert_eq!(Version::parse("0.2.3").is_in("^0.2.1"), Ok(true));
        assert_eq!(Version::parse("0.3.0").is_in("^0.2.1"), Ok(false));
        assert_eq!(Version::parse("24.1.0-rc.1"), Version([24, 1, 0]));
    }
}
