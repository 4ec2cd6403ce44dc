//! The order in which files come back.

use std::cmp::Ordering;

/// The natural order of paths: 2 comes before 10.
pub(super) fn natural(a: &str, b: &str) -> Ordering {
    fn parts(path: &str) -> impl Iterator<Item = &[u8]> {
        path.as_bytes().chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit())
    }
    fn number(part: &[u8]) -> Option<(usize, &[u8])> {
        let zeros = part.iter().take_while(|digit| **digit == b'0').count();
        part[0].is_ascii_digit().then(|| (part.len() - zeros, &part[zeros..]))
    }
    let mut differ = parts(a).zip(parts(b)).map(|(a, b)| match (number(a), number(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => a.cmp(b),
    });
    let lengths = || parts(a).count().cmp(&parts(b).count());
    differ.find(|order| order.is_ne()).unwrap_or_else(lengths).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_paths_are_compared_by_value() {
        let mut paths = ["a10", "a9/b", "b", "a010", "a2", "a", "a10b", "a9"];
        paths.sort_by(|a, b| natural(a, b));
        assert_eq!(paths, ["a", "a2", "a9", "a9/b", "a010", "a10", "a10b", "b"]);
    }
}
