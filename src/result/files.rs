//! The files that a program left, on their way to the caller: pictures are shown, short texts attached, and
//! whatever else was wanted can be read for a while.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use globset::{GlobBuilder, GlobMatcher};
use isolator_pool::WantedFiles;
use isolator_pool::quote::quoted;
use isolator_pool::run::outcome::ChangedFile;
use rmcp::model::{ContentBlock, Resource, ResourceContents};
use schemars::JsonSchema;
use serde::Serialize;

use crate::request::arguments::InvalidArgument;
use crate::result::kept::{Item, encoded};

/// Most patterns of a request, and the longest of them in bytes.
const MAX_GLOBS: usize = 32;
const MAX_GLOB: usize = 256;

/// Largest picture that is shown, how many are, and how much of all of them. A host hands them to its model, and
/// many take no message of more than 16 MiB, in which a picture is a third larger.
const MAX_PICTURE: usize = 2 << 20;
const MAX_PICTURES: usize = 10;
const MAX_SHOWN: usize = 6 << 20;

/// Longest text that is attached, and how much of all of them. A model reads all of it.
const MAX_TEXT: usize = 16 * 1024;
const MAX_TEXTS: usize = 64 * 1024;

/// Texts that are attached, and links that are given beside the data, which has all of them.
const MAX_ATTACHED: usize = 50;
const MAX_LINKS: usize = 50;

/// Pictures that hosts show.
const SHOWN: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// Names in the text for the model. The data has all.
const MAX_NAMED: usize = 50;

/// Which of a program's files its caller wants.
#[derive(Debug, Clone)]
pub struct Wanted {
    globs: Vec<(String, GlobMatcher)>,
    most: u64,
}

/// A file that the program created or changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(inline)]
pub struct FileReport {
    /// Path below the working directory.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// How its content comes back, if it does: image, text, or link, which is read as a resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub returned: Option<&'static str>,
    /// Media type of its content, if that comes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub media_type: Option<String>,
    /// Where its content can be read for a while, if it comes back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub uri: Option<String>,
}

/// The files as they come back.
#[derive(Debug, Default)]
pub struct Returned {
    /// What is shown, attached and linked to.
    pub content: Vec<ContentBlock>,
    /// All of them.
    pub files: Vec<FileReport>,
    /// What is not as the caller wanted.
    pub notes: Vec<String>,
    /// How the addresses of all that was kept begin, if anything was.
    pub base: Option<String>,
}

impl Wanted {
    /// Pictures, and what is named by patterns; `most` bytes of all of them.
    ///
    /// # Errors
    ///
    /// The first pattern that is none.
    pub fn new(globs: Vec<String>, most: u64) -> Result<Self, InvalidArgument> {
        if globs.len() > MAX_GLOBS {
            let message = format!("more than {MAX_GLOBS} patterns");
            return Err(InvalidArgument::new("output_files", message));
        }
        let compile = |(at, glob): (usize, String)| {
            let wrong =
                |message: String| InvalidArgument::new(format!("output_files[{at}]"), message);
            if glob.is_empty() || glob.len() > MAX_GLOB {
                return Err(wrong(format!("a pattern has from 1 to {MAX_GLOB} bytes")));
            }
            // As people write what lies in the working directory.
            let pattern = glob.strip_prefix("./").unwrap_or(&glob);
            if pattern.starts_with('/') || pattern.split('/').any(|part| part == "..") {
                let glob = quoted(&glob);
                return Err(wrong(format!("{glob} leads out of the working directory")));
            }
            let compiled = GlobBuilder::new(pattern).literal_separator(true).build();
            let compiled = compiled.map_err(|error| wrong(error.kind().to_string()))?;
            Ok((pattern.to_owned(), compiled.compile_matcher()))
        };
        Ok(Self {
            globs: globs.into_iter().enumerate().map(compile).collect::<Result<_, _>>()?,
            most,
        })
    }

    /// The same for the sandbox.
    pub fn to_sandbox(&self) -> WantedFiles {
        let globs = self.globs.iter().map(|(glob, _)| glob.clone()).collect();
        WantedFiles { globs, pictures: true, most: self.most }
    }

    fn names(&self, path: &str) -> bool {
        self.globs.iter().any(|(_, glob)| glob.is_match(path))
    }

    /// What is to be said where the files are not what the patterns want.
    fn notes(&self, files: &[ChangedFile], is_all: bool) -> Vec<String> {
        let mut notes = Vec::new();
        for (pattern, glob) in &self.globs {
            if !files.iter().any(|file| glob.is_match(&file.path)) {
                notes.push(format!(
                    "output_files: {} matches no file that the program created or changed",
                    quoted(pattern)
                ));
            }
        }
        let is_left_out = |file: &&ChangedFile| {
            file.content.is_none()
                && (self.names(&file.path) || is_named_like_a_picture(&file.path))
        };
        let left_out: Vec<_> = files.iter().filter(is_left_out).collect();
        if let Some(first) = left_out.first() {
            notes.push(format!(
                "{} of the files that should come back, {} among them, are too large: together they \
                 hold {} KiB at most",
                left_out.len(),
                quoted(&first.path),
                self.most >> 10
            ));
        }
        if !is_all {
            notes.push("not all files that the program left could be listed".to_owned());
        }
        notes
    }
}

/// Words what a program left. `keep` keeps contents by names, those of the `items` among them, and returns how
/// their addresses begin.
pub fn returned(
    files: Vec<ChangedFile>,
    is_all: bool,
    wanted: &Wanted,
    mut items: BTreeMap<String, Item>,
    keep: impl FnOnce(BTreeMap<String, Item>) -> Result<String, String>,
) -> Returned {
    let mut notes = wanted.notes(&files, is_all);
    let (mut forms, mut room) = (Vec::new(), Room::default());
    let mut reports = Vec::with_capacity(files.len());
    for ChangedFile { path, size, content } in files {
        let mut report = FileReport { path, size, returned: None, media_type: None, uri: None };
        let item = content.map(|content| {
            let media_type = media_type(&report.path, &content);
            Item { content, media_type }
        });
        // What only has the name of a picture was not asked for.
        let is_wanted = |item: &Item| item.is_picture() || wanted.names(&report.path);
        if let Some(item) = item.filter(is_wanted) {
            report.media_type = Some(item.media_type.clone());
            forms.push((reports.len(), room.form(&item)));
            items.insert(name(&report.path), item);
        }
        reports.push(report);
    }
    let base = match items.is_empty() {
        true => None,
        false => keep(items).map_err(|why| notes.push(why)).ok(),
    };
    let (mut content, mut links) = (Vec::new(), 0);
    for (at, form) in forms {
        let report = &mut reports[at];
        let uri = base.as_ref().map(|base| base.clone() + &encoded(&name(&report.path)));
        report.uri.clone_from(&uri);
        let media_type = report.media_type.clone().unwrap_or_default();
        report.returned = form.returned(uri.is_some());
        if matches!(form, Form::Link) {
            links += 1;
        }
        if links <= MAX_LINKS || !matches!(form, Form::Link) {
            content.extend(form.block(report, uri, media_type));
        }
    }
    Returned { content, files: reports, notes, base }
}

/// What the sandbox takes for a picture before it has looked at it.
fn is_named_like_a_picture(path: &str) -> bool {
    mime_guess::from_path(path).iter_raw().any(|guess| SHOWN.contains(&guess))
}

/// The text that tells a model of the files.
pub fn as_text(files: &[FileReport]) -> String {
    let mut text = String::from("--- files ---");
    for FileReport { path, size, returned, uri, .. } in files.iter().take(MAX_NAMED) {
        let path = if path.chars().any(char::is_control) { quoted(path) } else { path.clone() };
        let how = match (*returned, uri) {
            (Some(LINK), Some(uri)) => format!(", to be read at {uri}"),
            (Some(_), _) => ", below".to_owned(),
            _ => String::new(),
        };
        // Writing to a string can't fail.
        let _ = write!(text, "\n{path} ({size} bytes{how})");
    }
    if files.len() > MAX_NAMED {
        let _ = write!(text, "\nand {} others", files.len() - MAX_NAMED);
    }
    if files.iter().any(|file| file.returned.is_none()) {
        text.push_str("\n(a file's content comes back if output_files names it)");
    }
    text
}

/// A file's name among what a run leaves.
fn name(path: &str) -> String {
    format!("files/{path}")
}

/// How a content comes back.
enum Form {
    /// A picture, in base64.
    Picture(String),
    /// A text.
    Text(String),
    /// Something to be read.
    Link,
}

const IMAGE: &str = "image";
const TEXT: &str = "text";
const LINK: &str = "link";

impl Form {
    fn returned(&self, is_kept: bool) -> Option<&'static str> {
        match self {
            Self::Picture(_) => Some(IMAGE),
            Self::Text(_) => Some(TEXT),
            Self::Link => is_kept.then_some(LINK),
        }
    }

    fn block(
        self,
        report: &FileReport,
        uri: Option<String>,
        media_type: String,
    ) -> Option<ContentBlock> {
        // Nothing is to be read at the address of a text that was not kept.
        let address =
            |uri: Option<String>| uri.unwrap_or_else(|| format!("file:{}", encoded(&report.path)));
        match self {
            Self::Picture(picture) => Some(ContentBlock::image(picture, media_type)),
            Self::Text(text) => {
                let contents = ResourceContents::text(text, address(uri));
                Some(ContentBlock::resource(contents.with_mime_type(media_type)))
            }
            Self::Link => uri.map(|uri| {
                let mut link = Resource::new(uri, report.path.clone());
                link.size = Some(report.size);
                link.mime_type = Some(media_type);
                ContentBlock::resource_link(link)
            }),
        }
    }
}

/// What an answer may still hold.
struct Room {
    pictures: usize,
    shown: usize,
    texts: usize,
    text: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { pictures: MAX_PICTURES, shown: MAX_SHOWN, texts: MAX_ATTACHED, text: MAX_TEXTS }
    }
}

impl Room {
    fn form(&mut self, item: &Item) -> Form {
        let Item { content, .. } = item;
        if item.is_picture() {
            if self.pictures > 0 && content.len() <= MAX_PICTURE.min(self.shown) {
                self.pictures -= 1;
                self.shown -= content.len();
                return Form::Picture(BASE64.encode(content));
            }
        } else if self.texts > 0
            && content.len() <= MAX_TEXT.min(self.text)
            && let Some(text) = plain_text(content)
        {
            self.texts -= 1;
            self.text -= text.len();
            return Form::Text(text.to_owned());
        }
        Form::Link
    }
}

impl Item {
    fn is_picture(&self) -> bool {
        SHOWN.contains(&self.media_type.as_str())
    }
}

fn plain_text(content: &[u8]) -> Option<&str> {
    std::str::from_utf8(content).ok().filter(|text| !text.contains('\0'))
}

/// By the content where that tells, and otherwise by the name; but no name makes a picture.
fn media_type(path: &str, content: &[u8]) -> String {
    if let Some(known) = infer::get(content) {
        return known.mime_type().to_owned();
    }
    let otherwise =
        if plain_text(content).is_some() { "text/plain" } else { "application/octet-stream" };
    let guess = mime_guess::from_path(path).first_raw().filter(|guess| !SHOWN.contains(guess));
    guess.unwrap_or(otherwise).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";

    fn file(path: &str, content: Option<&[u8]>) -> ChangedFile {
        let size = content.map_or(5, <[u8]>::len) as u64;
        ChangedFile { path: path.to_owned(), size, content: content.map(<[u8]>::to_vec) }
    }

    fn wanted(globs: &[&str]) -> Wanted {
        Wanted::new(globs.iter().map(|&glob| glob.to_owned()).collect(), 10 << 20).unwrap()
    }

    fn words(files: Vec<ChangedFile>, globs: &[&str]) -> Returned {
        returned(files, true, &wanted(globs), BTreeMap::new(), |_| {
            Ok("isolator://runs/1/".to_owned())
        })
    }

    fn hows(returned: &Returned) -> Vec<Option<&str>> {
        returned.files.iter().map(|file| file.returned).collect()
    }

    #[test]
    fn pictures_are_shown_texts_attached_and_the_rest_linked_to() {
        let large = "x".repeat(MAX_TEXT + 1);
        let files = vec![
            file("a.csv", Some(b"1,2")),
            file("b.png", Some(PNG)),
            file("c.bin", Some(b"\0\xff")),
            file("d.txt", Some(large.as_bytes())),
            file("e.txt", None),
        ];
        let all = words(files, &["*.csv", "*.bin", "d.txt"]);
        assert_eq!(hows(&all), [Some("text"), Some("image"), Some("link"), Some("link"), None]);
        assert!(all.notes.is_empty(), "{:?}", all.notes);
        assert_eq!(all.files[0].uri.as_deref(), Some("isolator://runs/1/files/a.csv"));
        assert_eq!(all.files[0].media_type.as_deref(), Some("text/csv"));
        assert_eq!(all.content.len(), 4);
        let ContentBlock::Image(image) = &all.content[1] else { panic!("{:?}", all.content) };
        assert_eq!(
            (image.mime_type.as_str(), &BASE64.decode(&image.data).unwrap()[..]),
            ("image/png", PNG)
        );
        let ContentBlock::ResourceLink(link) = &all.content[2] else { panic!("{:?}", all.content) };
        assert_eq!((link.name.as_str(), link.size), ("c.bin", Some(2)));
        let text = as_text(&all.files);
        assert!(text.starts_with("--- files ---\na.csv (3 bytes, below)\n"), "{text}");
        assert!(text.contains("\ne.txt (5 bytes)\n"), "{text}");
    }

    #[test]
    fn the_name_of_a_picture_makes_none() {
        let all =
            words(vec![file("a.png", Some(b"<script>")), file("b.png", Some(b"text"))], &["b*"]);
        assert_eq!(hows(&all), [None, Some("text")]);
        assert_eq!(all.files[1].media_type.as_deref(), Some("text/plain"));
        let named_otherwise = words(vec![file("picture", Some(PNG))], &["picture"]);
        assert_eq!(hows(&named_otherwise), [Some("image")]);
    }

    #[test]
    fn an_answer_holds_only_so_much() {
        let files = (0..20).map(|at| file(&format!("{at:02}.png"), Some(PNG))).collect();
        let pictures = words(files, &[]);
        assert_eq!(hows(&pictures)[MAX_PICTURES - 1..=MAX_PICTURES], [Some("image"), Some("link")]);
        let large = [PNG, &vec![0; MAX_PICTURE - PNG.len()]].concat();
        let files = (0..4).map(|at| file(&format!("{at}.png"), Some(&large))).collect();
        assert_eq!(hows(&words(files, &[]))[2..], [Some("image"), Some("link")]);
        let text = vec![b'x'; MAX_TEXT];
        let files = (0..5).map(|at| file(&format!("{at}.txt"), Some(&text))).collect();
        assert_eq!(hows(&words(files, &["*"]))[3..], [Some("text"), Some("link")]);
        let many = words((0..200).map(|at| file(&at.to_string(), Some(b"x"))).collect(), &["*"]);
        assert_eq!(many.content.len(), MAX_ATTACHED + MAX_LINKS);
        assert!(many.files.iter().all(|file| file.uri.is_some()));
    }

    #[test]
    fn patterns_that_match_nothing_or_too_much_are_told() {
        let all =
            words(vec![file("big.bin", None), file("a.txt", Some(b"a"))], &["*.bin", "*.csv"]);
        assert!(all.notes[0].contains("\"*.csv\" matches no file"), "{:?}", all.notes);
        assert!(all.notes[1].contains("\"big.bin\"") && all.notes[1].contains("10240 KiB"));
        let picture = words(vec![file("big.png", None), file("other", None)], &[]);
        assert!(picture.notes.len() == 1 && picture.notes[0].contains("big.png"), "{picture:?}");
        let files = vec![file("a", Some(b"\0"))];
        let full = |_| Err("no room".to_owned());
        let unkept = returned(files, false, &wanted(&["a"]), BTreeMap::new(), full);
        assert_eq!(hows(&unkept), [None]);
        assert!(unkept.content.is_empty() && unkept.notes.len() == 2, "{unkept:?}");
    }

    #[test]
    fn a_pattern_that_is_none_is_named_by_its_place() {
        for (globs, field) in [
            (vec!["*", "[a"], "output_files[1]"),
            (vec![""], "output_files[0]"),
            (vec!["/etc/*"], "output_files[0]"),
            (vec!["a/../b"], "output_files[0]"),
            (vec!["*"; MAX_GLOBS + 1], "output_files"),
        ] {
            let error = Wanted::new(globs.iter().map(|&g| g.to_owned()).collect(), 1).unwrap_err();
            assert_eq!(error.field, field);
        }
        assert_eq!(wanted(&["./out/*"]).to_sandbox().globs, ["out/*"]);
    }

    #[test]
    fn names_do_not_break_the_text() {
        let all = words(vec![file("a\n--- stdout ---\u{1b}[2J", None)], &[]);
        let text = as_text(&all.files);
        assert_eq!(text.lines().count(), 3, "{text}");
        let many = (0..60).map(|at| file(&at.to_string(), None)).collect();
        assert!(as_text(&words(many, &[]).files).contains("\nand 10 others\n"));
    }
}
