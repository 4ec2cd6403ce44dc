//! The files that come back from a run: pictures are shown, short texts attached, and everything else is linked to
//! and can be read for a while.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use isolator_pool::quote::{first_of, quoted};
use isolator_pool::run::outcome::ChangedFile;

use crate::request::wanted_files::OutputFiles;
use crate::result::forms::{Form, LINK, Room, Seen, most_pictures};
use crate::result::kept::{Item, encoded};
use crate::result::media_type;
use crate::result::order::natural;
use crate::result::pictures::{Format, MAX_PIXELS, MAX_SIDE};
use crate::result::returned::{Attachment, FileReport};

/// Most links in the text. The data has all of them.
const MAX_LINKS: usize = 50;

/// Names in the text for the model. The data has all.
const MAX_NAMED: usize = 50;

/// The files as they come back.
#[derive(Debug, Default)]
pub(crate) struct Returned {
    /// The pictures, texts and links.
    pub attachments: Vec<Attachment>,
    /// All of them.
    pub files: Vec<FileReport>,
    /// Remarks on files that do not come back as the caller asked.
    pub notes: Vec<String>,
}

/// The files that a program left, sorted by how they come back. Its contents are in [`items`](Self::items), to be kept
/// before the answer is made: the answer has their addresses.
#[derive(Debug)]
pub(crate) struct LeftFiles {
    /// Contents to be kept, by the names under which they are read.
    pub items: BTreeMap<String, Item>,
    files: Vec<FileReport>,
    /// Which of the files come back, and how.
    forms: Vec<(usize, Form)>,
    notes: Vec<String>,
}

impl LeftFiles {
    /// Sorts the files. To decode pictures can take a second.
    pub(crate) fn new(
        mut files: Vec<ChangedFile>,
        is_all: bool,
        wanted: &OutputFiles,
        mut room: Room,
    ) -> Self {
        files.sort_unstable_by(|a, b| natural(&a.path, &b.path));
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let (named, mut notes) = wanted.named(&paths);
        let is_named: Vec<bool> = paths.iter().map(|path| named.contains(path)).collect();
        notes.extend(left_out(&files, &is_named, wanted.most()));
        if !is_all {
            notes.push("not all files that the program left could be listed".to_owned());
        }
        let mut forms = Vec::new();
        let (mut unshown, mut items) = (Unshown::default(), BTreeMap::new());
        let mut reports = Vec::with_capacity(files.len());
        for (ChangedFile { path, size, content }, is_named) in files.into_iter().zip(is_named) {
            let mut report = FileReport::named(path, size);
            let seen = content.as_deref().map(|content| room.look(content));
            unshown.add(&report.path, content.as_deref(), seen.as_ref());
            let is_picture = seen.as_ref().is_some_and(Seen::is_picture);
            // A file that only has the name of a picture was not asked for.
            if let (Some(content), Some(seen)) = (content, seen)
                && (is_picture || is_named)
            {
                let media_type = match seen {
                    Seen::Picture(format)
                    | Seen::Unchecked(format)
                    | Seen::TooLarge { format, .. } => format.media_type(),
                    Seen::Broken(_) | Seen::Other => media_type::of(&report.path, &content),
                };
                report.media_type = Some(media_type.to_owned());
                let form = room.form(&seen, &content);
                unshown.add_form(&report.path, &seen, &form);
                forms.push((reports.len(), form));
                items.insert(
                    name(&report.path),
                    Item { content, media_type: media_type.to_owned() },
                );
            }
            reports.push(report);
        }
        notes.extend(unshown.into_notes());
        Self { items, files: reports, forms, notes }
    }

    /// The files for an answer. `base` is how the addresses of what was kept begin; nothing was if it is `None`.
    pub(crate) fn returned(self, base: Option<&str>) -> Returned {
        let Self { mut files, forms, notes, .. } = self;
        let (mut attachments, mut links) = (Vec::new(), 0);
        for (at, form) in forms {
            let report = &mut files[at];
            report.uri = base.map(|base| format!("{base}{}", encoded(&name(&report.path))));
            report.returned = form.returned(report.uri.is_some());
            if matches!(form, Form::Link) {
                links += 1;
            }
            if links <= MAX_LINKS || !matches!(form, Form::Link) {
                attachments.extend(form.attachment(report));
            }
        }
        Returned { attachments, files, notes }
    }
}

/// A remark on files that should come back and are too large.
fn left_out(files: &[ChangedFile], is_named: &[bool], most: u64) -> Option<String> {
    let is_left_out = |(file, is_named): &(&ChangedFile, &bool)| {
        file.content.is_none() && (**is_named || is_named_like_a_picture(&file.path))
    };
    let mut left_out = files.iter().zip(is_named).filter(is_left_out);
    let (first, _) = left_out.next()?;
    Some(format!(
        "{} of the files that should come back, {} among them, are too large: all files \
         together can have {} KiB",
        left_out.count() + 1,
        quoted(&first.path),
        most >> 10
    ))
}

/// Whether the sandbox takes it for a picture by its name.
fn is_named_like_a_picture(path: &str) -> bool {
    mime_guess::from_path(path).iter_raw().any(|guess| Format::named(guess).is_some())
}

/// Files that look like pictures and are not shown: how many, and what the caller should know of the first.
#[derive(Debug, Default)]
struct Unshown {
    broken: usize,
    first_broken: String,
    large: usize,
    first_large: String,
    /// Those for which there is no room, and those that are shown already.
    too_many: Vec<String>,
    same: Vec<String>,
}

impl Unshown {
    fn add(&mut self, path: &str, content: Option<&[u8]>, seen: Option<&Seen>) {
        let why = match seen {
            Some(Seen::TooLarge { width, height, .. }) => {
                if self.large == 0 {
                    self.first_large = format!("{} with {width} × {height} pixels", quoted(path));
                }
                self.large += 1;
                return;
            }
            Some(Seen::Broken(why)) => why,
            Some(Seen::Other) if content.is_some_and(<[u8]>::is_empty) => "it is empty",
            Some(Seen::Other) => "it does not begin like one",
            Some(Seen::Picture(_) | Seen::Unchecked(_)) | None => return,
        };
        if is_named_like_a_picture(path) {
            if self.broken == 0 {
                self.first_broken = format!("{}: {why}", quoted(path));
            }
            self.broken += 1;
        }
    }

    fn add_form(&mut self, path: &str, seen: &Seen, form: &Form) {
        match form {
            Form::Same => self.same.push(quoted(path)),
            Form::Link if matches!(seen, Seen::Picture(_) | Seen::Unchecked(_)) => {
                self.too_many.push(quoted(path));
            }
            _ => {}
        }
    }

    fn into_notes(self) -> impl Iterator<Item = String> {
        let too_many = (!self.too_many.is_empty()).then(|| {
            format!(
                "{} of the pictures are not shown ({}): {}; read them at their addresses, or make fewer in a call",
                self.too_many.len(),
                first_of(self.too_many.iter().cloned(), MAX_NAMED),
                most_pictures()
            )
        });
        let same = (!self.same.is_empty()).then(|| {
            format!(
                "the same picture is shown once: {} is the same as another",
                first_of(self.same.iter().cloned(), MAX_NAMED)
            )
        });
        let broken = (self.broken > 0).then(|| {
            format!(
                "{} of the files are named like pictures, but can't be decoded, and are not shown, among them {}",
                self.broken, self.first_broken
            )
        });
        let large = (self.large > 0).then(|| {
            format!(
                "{} of the pictures are too large to be shown, among them {}: a picture can have {MAX_SIDE} pixels \
                 on each side and {} million in all",
                self.large,
                self.first_large,
                MAX_PIXELS / 1_000_000
            )
        });
        broken.into_iter().chain(large).chain(too_many).chain(same)
    }
}

/// The list of files for a model.
pub(crate) fn as_text(files: &[FileReport]) -> String {
    let mut text = String::from("--- files ---");
    for FileReport { path, size, returned, uri, .. } in files.iter().take(MAX_NAMED) {
        let path = if path.chars().any(char::is_control) { quoted(path) } else { path.clone() };
        let how = match (*returned, uri) {
            (Some(LINK), Some(uri)) => format!(", read it at {uri}"),
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

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;

    use super::*;
    use crate::result::forms::{MAX_ATTACHED, MAX_PICTURE, MAX_PICTURES, MAX_TEXT};
    use crate::result::pictures::tests::{picture, png_of};

    fn file(path: &str, content: Option<&[u8]>) -> ChangedFile {
        let size = content.map_or(5, <[u8]>::len) as u64;
        ChangedFile { path: path.to_owned(), size, content: content.map(<[u8]>::to_vec) }
    }

    fn wanted(globs: &[&str]) -> OutputFiles {
        let globs = globs.iter().map(|&glob| glob.to_owned()).collect();
        OutputFiles::new(globs, "/workspace", 10 << 20).unwrap()
    }

    fn words(files: Vec<ChangedFile>, globs: &[&str]) -> Returned {
        let left = LeftFiles::new(files, true, &wanted(globs), Room::default());
        let base = (!left.items.is_empty()).then_some("isolator://runs/1/");
        left.returned(base)
    }

    fn hows(returned: &Returned) -> Vec<Option<&str>> {
        returned.files.iter().map(|file| file.returned).collect()
    }

    #[test]
    fn pictures_are_shown_texts_attached_and_the_rest_linked_to() {
        let large = "x".repeat(MAX_TEXT + 1);
        let files = vec![
            file("a.csv", Some(b"1,2")),
            file("b.png", Some(&picture())),
            file("c.bin", Some(b"\0\xff")),
            file("d.txt", Some(large.as_bytes())),
            file("e.txt", None),
        ];
        let all = words(files, &["*.csv", "*.bin", "d.txt"]);
        assert_eq!(hows(&all), [Some("text"), Some("image"), Some("link"), Some("link"), None]);
        assert!(all.notes.is_empty(), "{:?}", all.notes);
        assert_eq!(all.files[0].uri.as_deref(), Some("isolator://runs/1/files/a.csv"));
        assert_eq!(all.files[0].media_type.as_deref(), Some("text/csv"));
        assert_eq!(all.attachments.len(), 4);
        let Attachment::Picture { base64, media_type } = &all.attachments[1] else {
            panic!("{:?}", all.attachments)
        };
        assert_eq!((media_type.as_str(), BASE64.decode(base64).unwrap()), ("image/png", picture()));
        let Attachment::Link { path, size, .. } = &all.attachments[2] else {
            panic!("{:?}", all.attachments)
        };
        assert_eq!((path.as_str(), *size), ("c.bin", 2));
        let text = as_text(&all.files);
        assert!(text.starts_with("--- files ---\na.csv (3 bytes, below)\n"), "{text}");
        assert!(text.contains("\ne.txt (5 bytes)\n"), "{text}");
    }

    #[test]
    fn a_picture_is_what_can_be_decoded_as_one() {
        let half = &picture()[..60];
        let all = words(
            vec![
                file("a.png", Some(b"<script>")),
                file("b.png", Some(b"text")),
                file("c.jpg", Some(half)),
                file("d.gif", Some(b"GIF89a is a text")),
                file("e.txt", Some(b"GIF89a is a text")),
                file("f.png", Some(b"")),
                file("g", Some(&picture())),
                file("h.bin", Some(half)),
            ],
            &["b*", "d*", "e*", "h*"],
        );
        let expected = [
            None,
            Some("text"),
            None,
            Some("text"),
            Some("text"),
            None,
            Some("image"),
            Some("link"),
        ];
        assert_eq!(hows(&all), expected);
        let types: Vec<_> =
            all.files.iter().filter_map(|file| file.media_type.as_deref()).collect();
        assert_eq!(
            types,
            ["text/plain", "text/plain", "text/plain", "image/png", "application/octet-stream"]
        );
        let [note] = &all.notes[..] else { panic!("{:?}", all.notes) };
        assert!(
            note.starts_with("5 of the files") && note.contains("\"a.png\": it does not"),
            "{note}"
        );
        let only_half = words(vec![file("c.jpg", Some(half)), file("d", Some(half))], &[]);
        assert!(only_half.attachments.is_empty(), "{only_half:?}");
        assert!(only_half.notes[0].starts_with("1 of the files"), "{:?}", only_half.notes);
        assert!(only_half.notes[0].contains("\"c.jpg\": "), "{:?}", only_half.notes);
    }

    #[test]
    fn a_picture_with_too_many_pixels_is_linked_to() {
        let all = words(vec![file("a.png", Some(&png_of(20_000, 9000)))], &[]);
        assert_eq!(hows(&all), [Some("link")]);
        assert_eq!(all.files[0].media_type.as_deref(), Some("image/png"));
        assert!(all.notes[0].contains("\"a.png\" with 20000 × 9000 pixels"), "{:?}", all.notes);
    }

    #[test]
    fn an_answer_holds_only_so_much() {
        // Bytes after the end of a picture are ignored.
        let png = |at: u8, size: usize| {
            let png = picture();
            [&png[..], &vec![at; size - png.len()]].concat()
        };
        let files = (0..12).map(|at| file(&format!("{at}.png"), Some(&png(at, 1000)))).collect();
        let pictures = words(files, &[]);
        assert_eq!(hows(&pictures)[MAX_PICTURES - 1..=MAX_PICTURES], [Some("image"), Some("link")]);
        let names: Vec<_> = pictures.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(
            (names[2], names[10]),
            ("2.png", "10.png"),
            "they are in the order in which people count"
        );
        let [note] = &pictures.notes[..] else { panic!("{:?}", pictures.notes) };
        assert!(
            note.contains("2 of the pictures") && note.contains("\"10.png\", \"11.png\""),
            "{note}"
        );
        let files =
            (0..4).map(|at| file(&format!("{at}.png"), Some(&png(at, MAX_PICTURE)))).collect();
        assert_eq!(hows(&words(files, &[]))[2..], [Some("image"), Some("link")]);
        let text = vec![b'x'; MAX_TEXT];
        let files = (0..5).map(|at| file(&format!("{at}.txt"), Some(&text))).collect();
        assert_eq!(hows(&words(files, &["*"]))[3..], [Some("text"), Some("link")]);
        let many = words((0..200).map(|at| file(&at.to_string(), Some(b"x"))).collect(), &["*"]);
        assert_eq!(many.attachments.len(), MAX_ATTACHED + MAX_LINKS);
        assert!(many.files.iter().all(|file| file.uri.is_some()));
    }

    #[test]
    fn the_same_picture_is_shown_once() {
        let all =
            words(vec![file("a.png", Some(&picture())), file("b.png", Some(&picture()))], &[]);
        assert_eq!(hows(&all), [Some("image"), Some("link")]);
        assert_eq!(all.attachments.len(), 1);
        assert!(all.notes[0].contains("\"b.png\" is the same as another"), "{:?}", all.notes);
    }

    #[test]
    fn patterns_that_match_nothing_or_too_much_are_reported() {
        let all =
            words(vec![file("big.bin", None), file("a.txt", Some(b"a"))], &["*.bin", "*.csv"]);
        assert!(all.notes[0].contains("\"*.csv\" matches no file"), "{:?}", all.notes);
        assert!(all.notes[1].contains("\"big.bin\"") && all.notes[1].contains("10240 KiB"));
        let picture = words(vec![file("big.png", None), file("other", None)], &[]);
        assert!(picture.notes.len() == 1 && picture.notes[0].contains("big.png"), "{picture:?}");
        let files = vec![file("a", Some(b"\0"))];
        let unkept = LeftFiles::new(files, false, &wanted(&["a"]), Room::default()).returned(None);
        assert_eq!(hows(&unkept), [None]);
        assert!(unkept.attachments.is_empty() && unkept.notes.len() == 1, "{unkept:?}");
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
