//! The values of a text in JSON, before it is parsed: how many there are, because each takes many times the memory of its text, and how
//! long texts are, because an error of the parser repeats the one that is wrong, several times as long.

use memchr::{memchr, memchr2};

/// Longest text of a value that an error may repeat, in bytes.
const MAX_TEXT: usize = 4096;

/// How much is left of a longer one. The beginning of base64 is base64, if it has a multiple of four characters.
const SHORT_TEXT: usize = 64;

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

/// The same text with the beginnings of its long texts and keys, whose values have the same types; `None` if it has no long ones.
pub(crate) fn with_short_texts(text: &[u8]) -> Option<Vec<u8>> {
    if text.len() <= MAX_TEXT {
        return None;
    }
    let (mut short, mut has_long, mut rest) = (Vec::new(), false, text);
    while let Some(at) = memchr(b'"', rest) {
        let (before, after) = rest.split_at(at + 1);
        rest = after_string(after);
        let string = &after[..after.len() - rest.len()];
        short.extend_from_slice(before);
        if string.len() <= MAX_TEXT {
            short.extend_from_slice(string);
            continue;
        }
        has_long = true;
        let is_plain = |byte: &&u8| byte.is_ascii_graphic() && **byte != b'\\' && **byte != b'"';
        short.extend(string.iter().take(SHORT_TEXT).take_while(is_plain));
        short.push(b'"');
    }
    short.extend_from_slice(rest);
    has_long.then_some(short)
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

    #[test]
    fn long_texts_and_keys_are_cut_and_nothing_else() {
        let long = format!("ab\\\"c{}", "x".repeat(MAX_TEXT));
        let text =
            json!({ "a": [1, long, "b"], long.clone(): "\u{7f}".repeat(MAX_TEXT + 1) }).to_string();
        let short: Value =
            serde_json::from_slice(&with_short_texts(text.as_bytes()).unwrap()).unwrap();
        assert_eq!(short, json!({ "a": [1, "ab", "b"], "ab": "" }));
        assert_eq!(with_short_texts(json!(vec!["b"; 5000]).to_string().as_bytes()), None);
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
