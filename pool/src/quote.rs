//! Quoting foreign text in messages.

/// Longest quoted text, in characters.
const MAX_CHARS: usize = 60;

/// The text in quotes, with special characters escaped, and cut if it is too long.
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        Some((cut, _)) => format!("{:?}…", &text[..cut]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_long_text_is_cut_and_a_short_one_is_not() {
        assert_eq!(quoted("a\nb"), r#""a\nb""#);
        assert_eq!(quoted(&"ü".repeat(60)), format!("\"{}\"", "ü".repeat(60)));
        assert_eq!(quoted(&"ü".repeat(61)), format!("\"{}\"…", "ü".repeat(60)));
    }
}
