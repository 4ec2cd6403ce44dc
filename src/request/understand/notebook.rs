//! Notebooks that come in the place of a source.

use isolator_pool::quote::quoted;
use serde::Deserialize;

use crate::request::notebook::{MultilineText, is_notebook};

/// Most characters of the first cell that are shown.
const MAX_SHOWN: usize = 60;

#[derive(Deserialize)]
struct Notebook {
    cells: Vec<Cell>,
}

#[derive(Deserialize)]
struct Cell {
    cell_type: String,
    source: MultilineText,
}

/// Why a whole notebook is not run, and what to send instead; nothing if a source is none. `has_session` says whether the call names a session.
pub(super) fn instead(code: &str, has_session: bool) -> Option<String> {
    if !is_notebook(code) {
        return None;
    }
    let session = match has_session {
        true => "with this session",
        false => "with the session that open_session returns",
    };
    let rest = "leave out cells of other kinds, outputs and metadata";
    // One in an older version of the format, or that is not whole, can't be read.
    let Ok(Notebook { cells }) = serde_json::from_str(code) else {
        return Some(format!(
            "is a Jupyter notebook; send the source of each of its code cells in a call of its own, in their order and {session}; {rest}"
        ));
    };
    let mut sources = cells.into_iter().filter_map(|Cell { cell_type, source }| {
        let source = String::from(source);
        (cell_type == "code" && !source.trim().is_empty()).then_some(source)
    });
    let Some(first) = sources.next() else {
        return Some("is a Jupyter notebook without code, so there is nothing to run".to_owned());
    };
    let shown: String = first.chars().take(MAX_SHOWN).collect();
    let begins = if shown.len() < first.len() { "begins with" } else { "is" };
    let shown = quoted(&shown);
    Some(match sources.count() {
        0 => format!(
            "is a Jupyter notebook with one code cell; send only its source, which {begins} {shown}"
        ),
        others => format!(
            "is a Jupyter notebook with {} code cells; send the source of each in a call of its own, in their order and {session}, \
             so {} calls, the first with the source that {begins} {shown}; {rest}",
            others + 1,
            others + 1
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn notebook(sources: &[(&str, &str)]) -> String {
        let cell = |(kind, source): &(&str, &str)| json!({ "cell_type": kind, "source": [source], "outputs": [] });
        let cells: Vec<_> = sources.iter().map(cell).collect();
        json!({ "cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5 }).to_string()
    }

    #[test]
    fn a_notebook_is_answered_with_the_calls_to_make() {
        let two = notebook(&[("markdown", "# T"), ("code", "x = 1"), ("code", " "), ("code", "x")]);
        let said = instead(&two, true).unwrap();
        for part in ["2 code cells", "with this session", "2 calls", "source that is \"x = 1\""] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(instead(&two, false).unwrap().contains("open_session"));
        let one = instead(&notebook(&[("code", &"x".repeat(100))]), true).unwrap();
        assert!(one.contains("one code cell") && one.contains("begins with"), "{one}");
        assert!(instead(&notebook(&[("raw", "x")]), true).unwrap().contains("without code"));
        // Cut off, and in version 3.
        for content in [&two[..two.len() - 1], r#"{"nbformat": 3, "worksheets": [{"cells": []}]}"#]
        {
            assert!(
                instead(content, true).unwrap().contains("each of its code cells"),
                "{content}"
            );
        }
        for code in
            ["{'cells': 1, 'nbformat': 4}", r#"{ const it = {"cells": [], "nbformat": 4}; }"#]
        {
            assert_eq!(instead(code, true), None, "{code}");
        }
    }
}
