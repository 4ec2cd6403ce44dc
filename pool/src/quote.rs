//! Other people's text inside our messages.

/// Most characters of a text that are repeated in a message.
const MAX: usize = 60;

/// The text in quotes, with special characters escaped; what is too long is cut.
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX) {
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
