//! Cells of piped input and of programs: what is between two separators, lines such as `# %%`.

use std::io::BufRead;

use isolator_pool::engine::preload::Interpreter;

/// Marks a cell of prose, which notebooks that were turned into programs have, too.
const PROSE: [&str; 3] = ["[markdown]", "[md]", "[raw]"];

/// Reads cells one after the other. A cell is complete when the separator after it, or the end of the input, was read.
pub(super) struct Cells<R> {
    input: R,
    interpreter: Option<Interpreter>,
    /// Most bytes of a cell.
    most: u64,
    /// Whether what comes next is prose.
    is_prose: bool,
    is_first: bool,
    has_ended: bool,
}

/// Why there is no next cell.
#[derive(Debug, thiserror::Error)]
pub(super) enum CellsError {
    /// It can't be read.
    #[error("it can't be read")]
    Read(#[from] std::io::Error),
    /// It is not text.
    #[error("this is not text in UTF-8")]
    NotText,
    /// A cell is too long.
    #[error("a cell is longer than {0} bytes (limits.maxFilesKB); send data with --file")]
    TooLong(u64),
}

impl<R: BufRead> Cells<R> {
    pub(super) const fn new(input: R, interpreter: Option<Interpreter>, most: u64) -> Self {
        Self { input, interpreter, most, is_prose: false, is_first: true, has_ended: false }
    }

    /// The next cell that has something in it; `None` at the end of the input.
    ///
    /// # Errors
    ///
    /// See [`CellsError`].
    pub(super) fn next(&mut self) -> Result<Option<String>, CellsError> {
        while !self.has_ended {
            let is_prose = self.is_prose;
            let cell = self.up_to_separator()?;
            if !is_prose && !cell.trim().is_empty() {
                return Ok(Some(cell));
            }
        }
        Ok(None)
    }

    fn up_to_separator(&mut self) -> Result<String, CellsError> {
        let mut cell = String::new();
        let mut line = Vec::new();
        loop {
            line.clear();
            // The separator after a cell is not a part of it.
            let mut limited = std::io::Read::take(&mut self.input, self.most + 1);
            if limited.read_until(b'\n', &mut line)? == 0 {
                self.has_ended = true;
                return Ok(cell);
            }
            if line.len() as u64 > self.most {
                return Err(CellsError::TooLong(self.most));
            }
            let mut text = std::str::from_utf8(&line).map_err(|_| CellsError::NotText)?;
            if std::mem::take(&mut self.is_first) {
                text = text.strip_prefix('\u{feff}').unwrap_or(text);
            }
            if let Some(title) = title(text, self.interpreter) {
                self.is_prose = PROSE.iter().any(|mark| title.contains(mark));
                return Ok(cell);
            }
            cell.push_str(text);
            if cell.len() as u64 > self.most {
                return Err(CellsError::TooLong(self.most));
            }
        }
    }
}

/// The title on a line that separates cells; `None` if it is another line. Programs that were notebooks also have
/// lines such as `# %%time`, which belong to their cell.
fn title(line: &str, interpreter: Option<Interpreter>) -> Option<&str> {
    let marks: &[&str] = match interpreter {
        Some(Interpreter::Python) => &["#"],
        Some(Interpreter::Node) => &["//"],
        None => &["#", "//"],
    };
    let comment = marks.iter().find_map(|mark| line.strip_prefix(mark))?;
    let title = comment.strip_prefix(' ').unwrap_or(comment).strip_prefix("%%")?;
    let is_separator = title.is_empty() || title.starts_with(char::is_whitespace);
    is_separator.then(|| title.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: &[u8], interpreter: Option<Interpreter>) -> Result<Vec<String>, CellsError> {
        let mut cells = Cells::new(input, interpreter, 40);
        let mut read = Vec::new();
        while let Some(cell) = cells.next()? {
            read.push(cell);
        }
        Ok(read)
    }

    fn python(input: &str) -> Vec<String> {
        read(input.as_bytes(), Some(Interpreter::Python)).unwrap()
    }

    #[test]
    fn separators_divide_the_input_and_without_one_it_is_one_cell() {
        assert_eq!(python("x = 1\n\nx\n"), ["x = 1\n\nx\n"]);
        assert_eq!(python("a\n# %%\nb\n#%% title\nc"), ["a\n", "b\n", "c"]);
        assert_eq!(python("# %%\r\na\r\n# %%\r\n"), ["a\r\n"]);
        assert_eq!(python("\u{feff}# %%\na\n"), ["a\n"]);
        assert_eq!(python("# %%\n \n# %%\n"), [""; 0]);
    }

    #[test]
    fn only_whole_marks_of_the_language_separate() {
        for line in ["# %%time", "x # %%", " # %%", "## %%", "// %%", "# % %", "#  %%"] {
            let input = format!("a\n{line}\nb\n");
            assert_eq!(python(&input), std::slice::from_ref(&input), "{line}");
        }
        let input = b"a\n// %%\n# %%\nb\n";
        assert_eq!(read(input, Some(Interpreter::Node)).unwrap(), ["a\n", "# %%\nb\n"]);
        assert_eq!(read(input, None).unwrap(), ["a\n", "b\n"]);
    }

    #[test]
    fn prose_is_left_out() {
        let input = "# %% [markdown]\n# Title\n# %%\na\n# %% Notes [md]\nb\n# %% c\nc\n";
        assert_eq!(python(input), ["a\n", "c\n"]);
    }

    #[test]
    fn cells_that_are_too_long_or_no_text_are_refused() {
        let whole = "x".repeat(40);
        assert_eq!(python(&whole), std::slice::from_ref(&whole));
        let parts = format!("{}\n# %%\n{}", "x".repeat(39), "y".repeat(40));
        assert_eq!(python(&parts).len(), 2);
        let too_long = |input: &str| {
            let read = read(input.as_bytes(), None);
            assert!(matches!(read, Err(CellsError::TooLong(40))), "{read:?}");
        };
        too_long(&"x".repeat(41));
        too_long(&"x\n".repeat(21));
        assert!(matches!(read(b"\xff\n", None), Err(CellsError::NotText)));
    }
}
