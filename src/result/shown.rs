//! The values and pictures that a cell showed, as they come back.

use std::collections::BTreeMap;

use isolator_pool::pool::session::{Occasion, ShownThing};
use schemars::JsonSchema;
use serde::Serialize;

use crate::result::forms::{Form, Room, most_pictures};
use crate::result::kept::Item;
use crate::result::returned::{Attachment, FileReport};
use crate::result::units::text;

/// Longest text of one form in the data, in bytes. A model gets only plain text.
const MAX_FORM: usize = 128 * 1024;

/// Longest plain text of everything that is shown, for the model.
const MAX_TEXT: usize = 32 * 1024;

/// The forms that are written as text in the data, by their media types.
const PLAIN: &str = "text/plain";

/// A value or picture that a cell showed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub(crate) struct ShownReport {
    /// Whether it is the value of the last expression.
    pub is_result: bool,
    /// Whether threads or timers of earlier cells have shown it before the cell began.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_background: bool,
    /// Media types of all its forms. The pictures come with the text of the answer, in the same order.
    pub media_types: Vec<String>,
    /// As plain text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// As HTML.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    /// As Markdown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub markdown: Option<String>,
    /// As LaTeX.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latex: Option<String>,
    /// As JSON, written as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<String>,
    /// As SVG.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub svg: Option<String>,
}

impl ShownReport {
    /// Bytes of its texts.
    pub(crate) fn weight(&self) -> usize {
        let texts = [&self.text, &self.html, &self.markdown, &self.latex, &self.json, &self.svg];
        texts.into_iter().flatten().map(String::len).sum()
    }
}

/// The values and pictures that a cell showed, as they come back.
#[derive(Default)]
pub(crate) struct Shown {
    /// For the data.
    pub reports: Vec<ShownReport>,
    pub pictures: Vec<Attachment>,
    /// Pictures for which there is no room in the answer, by the names under which they are read.
    pub items: BTreeMap<String, Item>,
    /// How much more the answer can hold.
    pub room: Room,
    /// Forms that are too long for the data.
    pub left_out: u32,
}

/// Sorts what a cell showed. To decode its pictures can take a second.
pub(crate) fn shown(things: Vec<ShownThing>) -> Shown {
    let Shown { mut reports, mut pictures, mut items, mut room, mut left_out } = Shown::default();
    for (number, ShownThing { occasion, forms }) in things.into_iter().enumerate() {
        let mut report = ShownReport {
            is_result: occasion == Occasion::Result,
            is_background: occasion == Occasion::Background,
            ..ShownReport::default()
        };
        for (media_type, content) in forms {
            let place = match media_type.as_str() {
                PLAIN => Some(&mut report.text),
                "text/html" => Some(&mut report.html),
                "text/markdown" => Some(&mut report.markdown),
                "text/latex" => Some(&mut report.latex),
                "application/json" => Some(&mut report.json),
                "image/svg+xml" => Some(&mut report.svg),
                _ => None,
            };
            match place {
                Some(place) if content.len() <= MAX_FORM => *place = Some(text(&content)),
                Some(_) => {
                    left_out += 1;
                    continue;
                }
                None => {
                    let seen = room.look(&content);
                    if !seen.is_picture() {
                        continue;
                    }
                    let name = format!("shown/{:03}", number + 1);
                    match room.form(&seen, &content) {
                        Form::Link => {
                            let media_type = media_type.clone();
                            items.insert(name, Item { content, media_type });
                            continue;
                        }
                        form => {
                            let mut file = FileReport::named(name, content.len() as u64);
                            file.media_type = Some(media_type.clone());
                            pictures.extend(form.attachment(&file));
                        }
                    }
                }
            }
            report.media_types.push(media_type);
        }
        reports.push(report);
    }
    Shown { reports, pictures, items, room, left_out }
}

/// A remark on forms that were too long.
pub(crate) fn too_long(left_out: u32) -> Option<String> {
    (left_out > 0).then(|| {
        format!(
            "{left_out} forms of what the cell showed are left out: each can have {} KiB; write it to a file instead",
            MAX_FORM >> 10
        )
    })
}

/// A remark on the pictures that there was no room for. `base` is how their addresses begin, if they were kept.
pub(crate) fn not_shown(names: &[String], base: Option<&str>) -> Option<String> {
    let read = match base {
        Some(base) => {
            let uris: Vec<_> = names.iter().map(|name| format!("{base}{name}")).collect();
            format!("read them at {}, or show", uris.join(", "))
        }
        None => "show".to_owned(),
    };
    (!names.is_empty()).then(|| {
        format!(
            "{} of the pictures that the cell showed are not in the answer: {}; {read} fewer in a cell",
            names.len(),
            most_pictures()
        )
    })
}

/// The text for a model. The pictures come with it.
pub(crate) fn as_text(things: &[ShownReport]) -> Vec<String> {
    let (mut sections, mut left) = (Vec::new(), MAX_TEXT);
    for thing in things {
        let is_picture =
            thing.media_types.iter().any(|it| it.starts_with("image/") && it != "image/svg+xml");
        let best = [&thing.text, &thing.markdown, &thing.html].into_iter().flatten().next();
        let Some(text) = best.filter(|_| !is_picture) else { continue };
        let end = text.floor_char_boundary(text.len().min(left));
        left -= end;
        let rest = if end < text.len() { "\n[... the rest is in the data ...]" } else { "" };
        let title = match (thing.is_result, thing.is_background) {
            (true, _) => "result",
            (false, true) => "shown in the background before this cell",
            (false, false) => "shown",
        };
        sections.push(format!("--- {title} ---\n{}{rest}", &text[..end]));
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::pictures::tests::picture;

    fn thing(is_result: bool, forms: &[(&str, &[u8])]) -> ShownThing {
        let forms =
            forms.iter().map(|(media_type, content)| ((*media_type).to_owned(), content.to_vec()));
        let occasion = if is_result { Occasion::Result } else { Occasion::Cell };
        ShownThing { occasion, forms: forms.collect() }
    }

    #[test]
    fn tables_are_text_for_the_model_and_html_in_the_data() {
        let Shown { reports, pictures, .. } =
            shown(vec![thing(true, &[("text/plain", b"   a"), ("text/html", b"<table>")])]);
        assert!(pictures.is_empty() && too_long(0).is_none());
        let long = vec![b'x'; MAX_FORM + 1];
        let left = shown(vec![thing(true, &[("text/plain", b"a"), ("text/html", &long)])]);
        assert_eq!((left.left_out, left.reports[0].html.as_deref()), (1, None));
        assert!(too_long(1).is_some_and(|note| note.contains("128 KiB")));
        assert_eq!(reports[0].html.as_deref(), Some("<table>"));
        assert_eq!(as_text(&reports), ["--- result ---\n   a"]);
    }

    #[test]
    fn pictures_come_as_pictures_if_they_are_some() {
        let png = picture();
        let forms: [(&str, &[u8]); 2] = [("text/plain", b"<Figure>"), ("image/png", &png)];
        let again = thing(false, &forms);
        let Shown { reports, pictures, items, .. } =
            shown(vec![thing(false, &forms), thing(false, &[("image/png", b"no")]), again]);
        assert!(pictures.len() == 1 && items.is_empty(), "the same picture is there once");
        assert_eq!(reports[0].media_types, ["text/plain", "image/png"]);
        assert!(reports[1].media_types.is_empty());
        assert!(as_text(&reports).is_empty());
    }

    #[test]
    fn a_long_value_is_cut_for_the_model() {
        let long = "ü".repeat(MAX_TEXT);
        let reports = shown(vec![thing(true, &[("text/plain", long.as_bytes())])]).reports;
        let text = as_text(&reports).remove(0);
        assert!(text.len() < MAX_TEXT + 100 && text.ends_with("is in the data ...]"));
        assert_eq!(reports[0].text.as_ref().map(String::len), Some(2 * MAX_TEXT));
    }
}
