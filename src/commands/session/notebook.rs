//! Notebooks as files, in version 4 of their format: their code cells, and the file with the outputs of a run.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use isolator_pool::quote::quoted;
use isolator_pool::run::output::Stream;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use super::record::{Exception, Part, Record};
use crate::calls::command::{Bytes, Form as ShownForm};
use crate::request::notebook::MultilineText;
use crate::result::media::{Form, check_json};
use crate::result::units::text;

/// Largest notebook that is read, and most bytes of outputs that are written.
pub(super) const MAX_NOTEBOOK: u64 = 256 << 20;

/// The version of the format that is read and written.
const FORMAT: u64 = 4;

/// Fields of an object as they are in the file. What is not replaced is written as it was read.
type Fields = BTreeMap<String, Box<RawValue>>;

/// A notebook.
#[derive(Debug)]
pub(super) struct Notebook {
    fields: Fields,
    cells: Vec<Cell>,
    /// Bytes of outputs that can still be added.
    room: u64,
}

#[derive(Debug)]
struct Cell {
    fields: Fields,
    /// Those of this run, which replace what `fields` has.
    outputs: Option<Vec<Output>>,
    /// The source, if it is a cell of code that has some.
    code: Option<String>,
    tags: Tags,
}

/// A cell of code that is run.
#[derive(Debug)]
pub(super) struct CodeCell {
    /// Its position among all cells.
    pub(super) at: usize,
    pub(super) source: String,
    /// Whether it may end with an exception.
    pub(super) may_raise: bool,
}

/// The tags of a cell, as far as they say how it is run.
#[derive(Debug, Default, Clone, Copy)]
struct Tags {
    may_raise: bool,
    is_skipped: bool,
}

/// Where a cell has its tags.
#[derive(Default, Deserialize)]
#[serde(default)]
struct CellMetadata {
    tags: Vec<String>,
}

/// The names of a notebook's language, under which tools write it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    kernelspec: Option<KernelSpec>,
    language_info: Option<LanguageInfo>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct KernelSpec {
    language: Option<String>,
    name: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LanguageInfo {
    name: Option<String>,
}

/// An output as the format has it, with its fields in the order in which Jupyter writes them.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Output {
    Stream {
        name: &'static str,
        output_type: &'static str,
        text: Vec<String>,
    },
    Shown {
        data: Forms,
        #[serde(skip_serializing_if = "Option::is_none")]
        execution_count: Option<Option<u32>>,
        metadata: Empty,
        output_type: &'static str,
    },
    Error {
        ename: String,
        evalue: String,
        output_type: &'static str,
        traceback: Vec<String>,
    },
}

type Forms = BTreeMap<String, OutputForm>;

/// A form of a thing. Texts are lists of lines, as Jupyter writes them, so that a change of one line is one.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum OutputForm {
    Lines(Vec<String>),
    Whole(Form),
}

/// An object without fields.
#[derive(Debug, Serialize)]
struct Empty {}

/// A value of a notebook or of a cell, as it is written.
#[derive(Serialize)]
#[serde(untagged)]
enum Value<'a> {
    /// As it was read.
    Kept(&'a RawValue),
    Cells(&'a [Cell]),
    Outputs(&'a [Output]),
}

impl Notebook {
    /// Reads a notebook.
    ///
    /// # Errors
    ///
    /// When it is none, or a cell is wrong or too long.
    pub(super) fn parse(content: &[u8], max_cell: u64) -> anyhow::Result<Self> {
        let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content);
        check_json(content).context(
            "this is not the JSON of a notebook, or not all of it: open it in Jupyter, and save it again",
        )?;
        let read = serde_json::from_slice(content);
        let mut fields: Fields =
            read.context("this is no notebook: it has to be an object with cells")?;
        let format = fields.get("nbformat").and_then(|it| it.get().parse::<u64>().ok());
        match format {
            Some(FORMAT) => {}
            Some(other) => bail!(
                "this is a notebook in version {other} of the format, and only {FORMAT} is read: convert it, as with \
                 jupyter nbconvert --to notebook"
            ),
            None => bail!("this is no notebook: nbformat is missing or no number"),
        }
        let cells = fields.remove("cells").context("this is no notebook: it has no cells")?;
        let cells: Vec<Box<RawValue>> =
            serde_json::from_str(cells.get()).context("this is no notebook: cells is no list")?;
        let cells = cells.iter().zip(1..).map(|(cell, number)| {
            Cell::read(cell, max_cell).with_context(|| format!("cell {number} of the notebook"))
        });
        Ok(Self { cells: cells.collect::<anyhow::Result<_>>()?, fields, room: MAX_NOTEBOOK })
    }

    /// The names under which it gives its language, the most exact first.
    pub(super) fn languages(&self) -> Vec<String> {
        let metadata = self.fields.get("metadata");
        // What is no name names no language, and is kept as it is.
        let read = metadata.and_then(|it| serde_json::from_str(it.get()).ok());
        let Metadata { kernelspec, language_info } = read.unwrap_or_default();
        let (kernelspec, language_info) =
            (kernelspec.unwrap_or_default(), language_info.unwrap_or_default());
        [kernelspec.language, language_info.name, kernelspec.name].into_iter().flatten().collect()
    }

    /// Its cells of code that are run.
    pub(super) fn code(&self) -> Vec<CodeCell> {
        let cells = self.cells.iter().enumerate().filter(|(_, cell)| !cell.tags.is_skipped);
        cells
            .filter_map(|(at, cell)| {
                let source = cell.code.clone()?;
                Some(CodeCell { at, source, may_raise: cell.tags.may_raise })
            })
            .collect()
    }

    /// Removes the outputs of earlier runs: those of a cell that is not reached would be taken for those of this run. A cell that is
    /// skipped keeps its outputs, which are perhaps nowhere else.
    ///
    /// # Errors
    ///
    /// When they can't be written as JSON.
    pub(super) fn clear(&mut self) -> serde_json::Result<()> {
        for cell in &mut self.cells {
            if cell.is_code() && !cell.tags.is_skipped {
                cell.set("outputs", &[(); 0])?;
                cell.set("execution_count", &None::<u32>)?;
            }
        }
        Ok(())
    }

    /// Sets the outputs of a cell. Returns whether there was room for them.
    ///
    /// # Errors
    ///
    /// When they can't be written as JSON.
    pub(super) fn put(&mut self, at: usize, record: Record) -> serde_json::Result<bool> {
        let (number, outputs) = (record.number, outputs(record));
        let Some(cell) = self.cells.get_mut(at) else { return Ok(true) };
        cell.set("execution_count", &number)?;
        let size = serde_json::to_vec(&outputs)?.len() as u64;
        let Some(room) = self.room.checked_sub(size) else { return Ok(false) };
        self.room = room;
        cell.outputs = Some(outputs);
        Ok(true)
    }

    /// Its file, as Jupyter writes it.
    ///
    /// # Errors
    ///
    /// When it can't be written as JSON.
    pub(super) fn written(&self) -> serde_json::Result<Vec<u8>> {
        let mut fields = kept(&self.fields);
        fields.insert("cells", Value::Cells(&self.cells));
        let mut written = Vec::new();
        let format = serde_json::ser::PrettyFormatter::with_indent(b" ");
        fields.serialize(&mut serde_json::Serializer::with_formatter(&mut written, format))?;
        written.push(b'\n');
        Ok(written)
    }
}

fn kept(fields: &Fields) -> BTreeMap<&str, Value<'_>> {
    fields.iter().map(|(name, value)| (name.as_str(), Value::Kept(value))).collect()
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = kept(&self.fields);
        if let Some(outputs) = &self.outputs {
            fields.insert("outputs", Value::Outputs(outputs));
        }
        fields.serialize(serializer)
    }
}

impl Cell {
    fn read(cell: &RawValue, max_cell: u64) -> anyhow::Result<Self> {
        let fields: Fields = serde_json::from_str(cell.get()).context("it is no object")?;
        let kind = fields.get("cell_type").context("cell_type is missing")?;
        let kind: String = serde_json::from_str(kind.get()).context("cell_type is no text")?;
        let source = fields.get("source").context("source is missing")?;
        let Ok(source) = serde_json::from_str::<MultilineText>(source.get()).map(String::from)
        else {
            bail!("source is neither a text nor a list of texts")
        };
        let is_code = match kind.as_str() {
            "code" => true,
            "markdown" | "raw" => false,
            other => bail!("cell_type is {}: use code, markdown or raw", quoted(other)),
        };
        if is_code && source.len() as u64 > max_cell {
            bail!("it is longer than {max_cell} bytes (limits.maxFilesKB); send data with --file");
        }
        let code = (is_code && !source.trim().is_empty()).then_some(source);
        let tags = Tags::of(&fields);
        Ok(Self { fields, outputs: None, code, tags })
    }

    fn is_code(&self) -> bool {
        self.fields.get("cell_type").is_some_and(|kind| kind.get() == "\"code\"")
    }

    fn set<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> serde_json::Result<()> {
        self.fields.insert(name.to_owned(), to_raw_value(value)?);
        Ok(())
    }
}

impl Tags {
    fn of(fields: &Fields) -> Self {
        let metadata = fields.get("metadata");
        // What is no list of tags says nothing, and is kept as it is.
        let read = metadata.and_then(|it| serde_json::from_str(it.get()).ok());
        let CellMetadata { tags } = read.unwrap_or_default();
        let has = |name: &str| tags.iter().any(|tag| tag == name);
        Self { may_raise: has("raises-exception"), is_skipped: has("skip-execution") }
    }
}

fn outputs(record: Record) -> Vec<Output> {
    let Record { number, parts, error } = record;
    let part = |part| match part {
        Part::Printed(stream, bytes) => {
            let name = match stream {
                Stream::Stdout => "stdout",
                Stream::Stderr => "stderr",
            };
            Output::Stream { name, output_type: "stream", text: lines(&text(&bytes)) }
        }
        Part::Shown { forms, is_result } => Output::Shown {
            data: data(forms),
            execution_count: is_result.then_some(number),
            metadata: Empty {},
            output_type: if is_result { "execute_result" } else { "display_data" },
        },
    };
    let error = error.map(|Exception { name, value, traceback }| Output::Error {
        ename: name,
        evalue: value,
        output_type: "error",
        traceback: traceback.lines().map(str::to_owned).collect(),
    });
    parts.into_iter().map(part).chain(error).collect()
}

/// The forms of a thing. The format has JSON only in media types of applications.
fn data(forms: Vec<ShownForm>) -> Forms {
    let form = |(kind, Bytes(content)): ShownForm| {
        let subtype = kind.strip_prefix("application/");
        let has_json = subtype.is_some_and(|it| it == "json" || it.ends_with("+json"));
        let form = if is_text(&kind) {
            OutputForm::Lines(lines(&text(&content)))
        } else if kind.ends_with("json") && !has_json {
            OutputForm::Whole(Form::Text(text(&content)))
        } else {
            OutputForm::Whole(Form::of(&kind, &content))
        };
        (kind, form)
    };
    forms.into_iter().map(form).collect()
}

/// Whether Jupyter writes it as lines.
fn is_text(kind: &str) -> bool {
    kind.starts_with("text/") || matches!(kind, "application/javascript" | "image/svg+xml")
}

/// The lines of a text, each with its end.
fn lines(text: &str) -> Vec<String> {
    text.split_inclusive('\n').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn notebook(value: &Value) -> anyhow::Result<Notebook> {
        Notebook::parse(value.to_string().as_bytes(), 20)
    }

    fn error_of(content: &str) -> String {
        format!("{:#}", Notebook::parse(content.as_bytes(), 20).unwrap_err())
    }

    fn one_cell(cell: &Value) -> Value {
        json!({ "cells": [cell], "nbformat": 4, "nbformat_minor": 2, "metadata": {} })
    }

    fn form(kind: &str, content: &[u8]) -> ShownForm {
        (kind.to_owned(), Bytes(content.to_vec()))
    }

    #[test]
    fn what_is_not_run_is_kept_as_it_is() {
        let content = r#"{"nbformat_minor": 3, "own": 123456789012345678901234567890, "cells": [
            {"cell_type": "markdown", "source": ["a\n", "b"], "metadata": {"x": 1e2}},
            {"cell_type": "code", "source": ["x = 1\n", "x"], "metadata": {"t": []}, "outputs": [{"old": 1}], "execution_count": 7},
            {"cell_type": "code", "source": " ", "metadata": {}, "outputs": [], "execution_count": 8, "id": "z"},
            {"cell_type": "raw", "source": "r", "metadata": {}, "outputs": 5}
        ], "nbformat": 4, "metadata": {"kernelspec": {"name": "python3", "language": "python"}}}"#;
        let mut read = Notebook::parse(content.as_bytes(), 20).unwrap();
        assert_eq!(read.languages(), ["python", "python3"]);
        let [CodeCell { at: 1, source, may_raise: false }] = &read.code()[..] else {
            panic!("{:?}", read.code())
        };
        assert_eq!(source, "x = 1\nx");
        read.clear().unwrap();
        let written = String::from_utf8(read.written().unwrap()).unwrap();
        for kept in ["123456789012345678901234567890", r#"["a\n", "b"]"#, "1e2", r#""id": "z""#] {
            assert!(written.contains(kept), "{kept}: {written}");
        }
        let value: Value = serde_json::from_str(&written).unwrap();
        assert_eq!((&value["nbformat_minor"], &value["nbformat"]), (&json!(3), &json!(4)));
        assert_eq!(value["cells"][1]["outputs"], json!([]));
        assert_eq!(value["cells"][2]["execution_count"], Value::Null);
        assert_eq!(value["cells"][3]["outputs"], 5);
    }

    #[test]
    fn tags_say_which_cells_are_skipped_with_their_outputs_and_which_may_fail() {
        let cell = |tags: Value| json!({ "cell_type": "code", "source": "x", "metadata": { "tags": tags }, "outputs": [{}], "execution_count": 4 });
        let cells =
            [cell(json!(["raises-exception"])), cell(json!(["skip-execution"])), cell(json!(5))];
        let mut read = notebook(&json!({ "cells": cells, "nbformat": 4, "metadata": {} })).unwrap();
        let run: Vec<_> = read.code().iter().map(|cell| (cell.at, cell.may_raise)).collect();
        assert_eq!(run, [(0, true), (2, false)]);
        read.clear().unwrap();
        let written: Value = serde_json::from_slice(&read.written().unwrap()).unwrap();
        let outputs = |at: usize| {
            (&written["cells"][at]["outputs"], &written["cells"][at]["execution_count"])
        };
        assert_eq!(outputs(0), (&json!([]), &Value::Null));
        assert_eq!(outputs(1), (&json!([{}]), &json!(4)));
    }

    #[test]
    fn outputs_have_the_forms_of_the_format() {
        let cell = json!({ "cell_type": "code", "source": "x", "metadata": {}, "outputs": [] });
        let mut read = notebook(&one_cell(&cell)).unwrap();
        let shown = vec![
            form("application/json", b"[1, {}]"),
            form("image/png", b"png"),
            form("text/x-json", b"[1]"),
        ];
        let record = Record {
            number: Some(3),
            parts: vec![
                Part::Printed(Stream::Stdout, b"a\n\xff".to_vec()),
                Part::Shown { forms: shown, is_result: false },
                Part::Printed(Stream::Stderr, b"e".to_vec()),
                Part::Shown { forms: vec![form("text/plain", b"1")], is_result: true },
            ],
            error: Some(Exception {
                name: "E".to_owned(),
                value: "v".to_owned(),
                traceback: "a\nb".to_owned(),
            }),
        };
        assert!(read.put(0, record).unwrap());
        let value: Value = serde_json::from_slice(&read.written().unwrap()).unwrap();
        assert_eq!(value["cells"][0]["execution_count"], 3);
        let expected = json!([
            { "output_type": "stream", "name": "stdout", "text": ["a\n", "\u{fffd}"] },
            { "output_type": "display_data", "metadata": {},
              "data": { "application/json": [1, {}], "image/png": "cG5n", "text/x-json": ["[1]"] } },
            { "output_type": "stream", "name": "stderr", "text": ["e"] },
            { "output_type": "execute_result", "metadata": {}, "execution_count": 3, "data": { "text/plain": ["1"] } },
            { "output_type": "error", "ename": "E", "evalue": "v", "traceback": ["a", "b"] },
        ]);
        assert_eq!(value["cells"][0]["outputs"], expected);
        read.room = 10;
        let record = Record {
            parts: vec![Part::Printed(Stream::Stdout, vec![b'x'; 20])],
            ..Record::default()
        };
        assert!(!read.put(0, record).unwrap());
    }

    #[test]
    fn what_is_no_notebook_says_why() {
        let deep = format!("{{\"a\": {}1{}}}", "[".repeat(5000), "]".repeat(5000));
        for (content, expected) in [
            ("", "not the JSON of a notebook"),
            (&deep, "recursion limit"),
            ("[]", "has to be an object"),
            (r#"{"cells": []}"#, "nbformat is missing"),
            (r#"{"cells": [], "nbformat": 3}"#, "version 3 of the format"),
            (r#"{"nbformat": 4}"#, "it has no cells"),
            (r#"{"nbformat": 4, "cells": {}}"#, "cells is no list"),
        ] {
            let error = error_of(content);
            assert!(error.contains(expected), "{content:.40}: {error}");
        }
        for (cell, expected) in [
            (json!(1), "it is no object"),
            (json!({ "source": "" }), "cell_type is missing"),
            (json!({ "cell_type": "code" }), "source is missing"),
            (json!({ "cell_type": "code", "source": [1] }), "neither a text nor a list"),
            (json!({ "cell_type": "heading", "source": "" }), "use code, markdown or raw"),
            (json!({ "cell_type": "code", "source": "x".repeat(21) }), "longer than 20 bytes"),
        ] {
            let error = format!("{:#}", notebook(&one_cell(&cell)).unwrap_err());
            assert!(
                error.contains("cell 1 of the notebook") && error.contains(expected),
                "{error}"
            );
        }
    }
}
