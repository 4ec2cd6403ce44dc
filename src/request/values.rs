//! How many values a text in JSON has. Parsed, each takes many times the memory of its text.

use memchr::memchr2;

/// Counts keys and values until there are more than `most`. Every one but the first follows a separator or an opening
/// bracket.
pub(crate) fn count_values(text: &[u8], most: usize) -> usize {
    let mut count = 1;
    let mut rest = text;
    while count <= most {
        // Most of a long message is inside of strings.
        let Some(at) = rest.iter().position(|byte| b"\",:[{".contains(byte)) else { break };
        let found = rest[at];
        rest = &rest[at + 1..];
        if found == b'"' {
            rest = after_string(rest);
        } else {
            count += 1;
        }
    }
    count
}

/// The text after the string whose opening quotation mark was before `rest`.
pub(crate) fn after_string(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr2(b'"', b'\\', rest) {
        if rest[at] == b'"' {
            return &rest[at + 1..];
        }
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    &[]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The counts of an independent parser.
    fn count(value: &Value) -> usize {
        1 + match value {
            Value::Array(values) => values.iter().map(count).sum(),
            Value::Object(entries) => entries.values().map(|value| 1 + count(value)).sum::<usize>(),
            _ => 0,
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_has_more_values_than_are_counted(
            keys in proptest::collection::vec(".{0,8}", 0..6),
            texts in proptest::collection::vec(".{0,8}", 0..6),
            depth in 0_usize..5,
        ) {
            let mut value = json!({ "keys": keys, "texts": texts, "none": [], "empty": {}, "n": -1.5e3 });
            for key in keys.iter().cycle().take(if keys.is_empty() { 0 } else { depth }) {
                value = json!([{ key.as_str(): value, "\"": "[{,:\\" }]);
            }
            for text in [serde_json::to_vec(&value).unwrap(), serde_json::to_vec_pretty(&value).unwrap()] {
                let counted = count_values(&text, usize::MAX);
                // An empty array or object counts as if it held something.
                proptest::prop_assert!((count(&value)..=2 * count(&value)).contains(&counted));
            }
        }
    }
}
