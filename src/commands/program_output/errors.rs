//! The colours of errors on a terminal: red, with the places of a traceback and the name of an exception.

const RED: &str = "\u{1b}[31m";
const BOLD: &str = "\u{1b}[1;31m";
const PLACE: &str = "\u{1b}[36m";
const PLAIN: &str = "\u{1b}[0m";

/// The looks of the lines of standard error.
#[derive(Debug)]
pub(super) struct ErrorLooks {
    /// That of the last line.
    look: &'static str,
    /// Whether the last line was one of a traceback.
    is_in_traceback: bool,
}

impl Default for ErrorLooks {
    fn default() -> Self {
        Self { look: RED, is_in_traceback: false }
    }
}

impl ErrorLooks {
    /// A text with its looks. `is_in_line`: its beginning belongs to the line before.
    pub(super) fn shown(&mut self, text: &str, is_in_line: bool) -> String {
        let mut shown = String::with_capacity(text.len() + 16);
        let mut last = "";
        for (at, line) in text.split_inclusive('\n').enumerate() {
            let name = if at == 0 && is_in_line { 0 } else { self.begin_line(line) };
            let (name, line) = line.split_at(name);
            let end = if last.is_empty() { "" } else { PLAIN };
            if !name.is_empty() {
                shown.extend([end, BOLD, name, PLAIN, self.look, line]);
            } else if last == self.look {
                shown.push_str(line);
            } else {
                shown.extend([end, self.look, line]);
            }
            last = self.look;
        }
        if !last.is_empty() {
            shown.push_str(PLAIN);
        }
        shown
    }

    /// Sets the look of a line. Returns the length of the name of an exception at its beginning.
    fn begin_line(&mut self, line: &str) -> usize {
        let text = line.trim_start();
        let is_indented = text.len() < line.len();
        let is_place =
            is_indented && ["File ", "Cell In[", "at "].iter().any(|it| text.starts_with(it));
        let was_in_traceback = self.is_in_traceback;
        self.is_in_traceback = is_place
            || line.starts_with("Traceback (most recent call last)")
            || (was_in_traceback && is_indented);
        self.look = match () {
            () if is_place => PLACE,
            () if self.is_in_traceback && is_indented => "",
            () => RED,
        };
        let is_exception = was_in_traceback && !is_indented;
        let is_of_name = |it: char| it.is_alphanumeric() || matches!(it, '_' | '.');
        let name = text.find(|it| !is_of_name(it)).unwrap_or(text.len());
        if is_exception && !self.is_in_traceback { name } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceback_has_places_and_the_name_of_its_exception() {
        let mut looks = ErrorLooks::default();
        let text = "before\nTraceback (most recent call last):\n  Cell In[5], line 1\n    1/0\nZeroDivisionError: division\nafter\n";
        let expected = [
            "\u{1b}[31mbefore\nTraceback (most recent call last):\n\u{1b}[0m",
            "\u{1b}[36m  Cell In[5], line 1\n\u{1b}[0m    1/0\n",
            "\u{1b}[1;31mZeroDivisionError\u{1b}[0m\u{1b}[31m: division\nafter\n\u{1b}[0m",
        ];
        assert_eq!(looks.shown(text, false), expected.concat());
        // In pieces, the look of a line goes on.
        assert_eq!(looks.shown("wa", false), "\u{1b}[31mwa\u{1b}[0m");
        assert_eq!(
            looks.shown("rn\n    at f", true),
            "\u{1b}[31mrn\n\u{1b}[0m\u{1b}[36m    at f\u{1b}[0m"
        );
        assert_eq!(looks.shown(" (x)\n", true), "\u{1b}[36m (x)\n\u{1b}[0m");
    }
}
