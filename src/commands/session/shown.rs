//! The things that cells have shown: pictures, pages and values, which `:save` can keep.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use isolator_pool::quote::escaped;

use crate::calls::command::{Bytes, Form, Shown};

/// Bytes of shown things that are held. The oldest are dropped.
const MAX_HELD: usize = 64 << 20;

const PLAIN: &str = "text/plain";

/// Forms that are kept by preference, with the extension of their files.
const EXTENSIONS: [(&str, &str); 8] = [
    ("image/png", "png"),
    ("image/jpeg", "jpg"),
    ("image/svg+xml", "svg"),
    ("text/html", "html"),
    ("text/markdown", "md"),
    ("text/latex", "tex"),
    ("application/json", "json"),
    (PLAIN, "txt"),
];

/// The things that were shown, by number.
#[derive(Debug, Default)]
pub(super) struct Gallery {
    things: VecDeque<(usize, Vec<Form>)>,
    last: usize,
    held: usize,
}

impl Gallery {
    /// Holds a thing. Returns its number.
    pub(super) fn add(&mut self, forms: Vec<Form>) -> usize {
        self.last += 1;
        self.held += size(&forms);
        self.things.push_back((self.last, forms));
        while self.held > MAX_HELD && self.things.len() > 1 {
            if let Some((_, forms)) = self.things.pop_front() {
                self.held -= size(&forms);
            }
        }
        self.last
    }

    /// Writes a thing to a new file. Returns its path.
    ///
    /// # Errors
    ///
    /// When there is no such thing, or it can't be written.
    pub(super) fn save(&self, number: usize, to: Option<&str>) -> anyhow::Result<PathBuf> {
        let found = self.things.iter().find(|(it, _)| *it == number);
        let Some((_, forms)) = found else { bail!("{}", self.missing(number)) };
        let extension =
            |path: &str| Path::new(path).extension().map(|it| it.to_string_lossy().to_lowercase());
        let wanted = to.and_then(extension);
        let has = |kind: &str| forms.iter().find(|(media_type, _)| media_type == kind);
        let by_extension = wanted.and_then(|wanted| {
            EXTENSIONS.iter().filter(|(_, known)| *known == wanted).find_map(|(kind, _)| has(kind))
        });
        let (media_type, Bytes(content)) = by_extension
            .or_else(|| EXTENSIONS.iter().find_map(|(kind, _)| has(kind)))
            .or(forms.first())
            .ok_or_else(|| anyhow!("{number} has no content"))?;
        let usual = || {
            let extension = EXTENSIONS.iter().find(|(kind, _)| kind == media_type);
            format!("shown-{number}.{}", extension.map_or("bin", |(_, it)| it))
        };
        let path = to.map_or_else(|| PathBuf::from(usual()), PathBuf::from);
        let path = if path.is_dir() { path.join(usual()) } else { path };
        let mut file = NewFile::create(&path)?;
        file.write(content)?;
        file.keep();
        Ok(path)
    }

    fn missing(&self, number: usize) -> String {
        match self.things.front() {
            None => "nothing was shown that can be saved".to_owned(),
            Some((first, _)) if number > 0 && number < *first => {
                format!("{number} is not held anymore: the oldest is {first}")
            }
            Some((first, _)) => {
                format!("nothing was shown with the number {number}: use {first} to {}", self.last)
            }
        }
    }
}

fn size(forms: &[Form]) -> usize {
    forms.iter().map(|(media_type, Bytes(content))| media_type.len() + content.len()).sum()
}

/// A new file, which is removed again unless it is kept: half of it would be taken for all of it.
#[derive(Debug)]
pub(super) struct NewFile {
    path: PathBuf,
    file: File,
    is_kept: bool,
}

impl NewFile {
    /// Creates a file. Nothing is ever replaced.
    ///
    /// # Errors
    ///
    /// When it can't be created, or is there.
    pub(super) fn create(path: &Path) -> anyhow::Result<Self> {
        match File::create_new(path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                bail!("{} exists and is not replaced; name another file", path.display())
            }
            created => {
                let file = created.with_context(|| path.display().to_string())?;
                Ok(Self { path: path.to_owned(), file, is_kept: false })
            }
        }
    }

    /// Adds to it.
    ///
    /// # Errors
    ///
    /// When it can't be written.
    pub(super) fn write(&mut self, content: &[u8]) -> anyhow::Result<()> {
        self.file.write_all(content).with_context(|| self.path.display().to_string())
    }

    /// Says that it is whole.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // If it can't be removed, an error has said that it is not whole.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The form of a thing that is text, if it has one, and the others.
pub(super) fn divided(thing: &Shown) -> (Option<&[u8]>, Vec<&Form>) {
    let (plain, others): (Vec<_>, Vec<_>) =
        thing.forms.iter().partition(|(media_type, _)| media_type == PLAIN);
    (plain.first().map(|(_, Bytes(content))| content.as_slice()), others)
}

/// The form for which there is a line besides the text: a picture, or a page whose text says nothing of it. Tables have a page, too,
/// and their text is enough.
pub(super) fn besides_text<'a>(plain: Option<&[u8]>, others: &[&'a Form]) -> Option<&'a Form> {
    let picture = others.iter().find(|(kind, _)| kind.starts_with("image/"));
    let says_nothing =
        |text: &[u8]| text.starts_with(b"<") && text.trim_ascii_end().ends_with(b">");
    let is_needed = plain.is_none_or(says_nothing);
    picture.or(others.first().filter(|_| is_needed)).copied()
}

/// A description of a form for people. Its media type is the program's choice.
pub(super) fn describe((media_type, Bytes(content)): &Form) -> String {
    let kind = match media_type.split_once('/') {
        Some(("image", _)) => "picture ",
        Some((_, "html")) => "page ",
        _ => "",
    };
    let size = match content.len() {
        1 => "1 byte".to_owned(),
        bytes if bytes < 1000 => format!("{bytes} bytes"),
        bytes if bytes < 1_000_000 => format!("{} KB", bytes.div_ceil(1000)),
        bytes => format!("{:.1} MB", bytes as f64 / 1e6),
    };
    format!("{kind}{}, {size}", escaped(media_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(media_type: &str, content: &str) -> Form {
        (media_type.to_owned(), Bytes(content.as_bytes().to_vec()))
    }

    #[test]
    fn shown_things_are_saved_in_the_form_of_the_file_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let mut gallery = Gallery::default();
        let empty = gallery.save(1, None).unwrap_err().to_string();
        assert!(empty.contains("nothing was shown"), "{empty}");
        let forms = vec![form("text/html", "<b>"), form("text/plain", "b"), form("image/png", "P")];
        assert_eq!(gallery.add(forms), 1);
        for (name, content) in
            [("a.html", "<b>"), ("b.txt", "b"), ("c.png", "P"), ("d", "P"), ("e.xyz", "P")]
        {
            gallery.save(1, Some(&at(name))).unwrap();
            assert_eq!(std::fs::read_to_string(at(name)).unwrap(), content, "{name}");
        }
        let path = gallery.save(1, folder.path().to_str()).unwrap();
        assert_eq!(path, folder.path().join("shown-1.png"));
        let again = gallery.save(1, folder.path().to_str()).unwrap_err().to_string();
        assert!(again.contains("is not replaced"), "{again}");
        let unknown = gallery.save(2, None).unwrap_err().to_string();
        assert!(unknown.contains("use 1 to 1"), "{unknown}");
    }

    #[test]
    fn the_oldest_are_dropped_when_they_are_too_many() {
        let mut gallery = Gallery::default();
        for _ in 0..5 {
            gallery.add(vec![("image/png".to_owned(), Bytes(vec![0; MAX_HELD / 3]))]);
        }
        assert!(gallery.held <= MAX_HELD);
        let gone = gallery.save(1, None).unwrap_err().to_string();
        assert!(gone.contains("is not held anymore"), "{gone}");
    }

    #[test]
    fn only_a_picture_or_a_page_without_text_has_a_line() {
        let (picture, page) = (form("image/png", "P"), form("text/html", "<b>"));
        let of = |plain: Option<&str>, others: &[&Form]| {
            besides_text(plain.map(str::as_bytes), others).map(|(kind, _)| kind.clone())
        };
        assert_eq!(of(Some("<Figure>"), &[&page, &picture]).as_deref(), Some("image/png"));
        assert_eq!(of(Some("   a\n0  1"), &[&page]), None);
        assert_eq!(of(Some("<HTML object>\n"), &[&page]).as_deref(), Some("text/html"));
        assert_eq!(of(None, &[&page]).as_deref(), Some("text/html"));
        assert_eq!(of(Some("x"), &[]), None);
    }

    #[test]
    fn a_media_type_can_t_forge_a_line() {
        assert_eq!(describe(&form("image/png", "x")), "picture image/png, 1 byte");
        assert_eq!(
            describe(&("text/html".to_owned(), Bytes(vec![0; 12_001]))),
            "page text/html, 13 KB"
        );
        assert_eq!(describe(&form("a\n\u{1b}[2J/b", "")), "a\\n\\u001b[2J/b, 0 bytes");
    }
}
