//! Media types: of texts by their names, of everything else by its content.

use crate::result::pictures::Format;

/// Source files, by extension. Other tables have films, palettes and screen recordings under some of them.
const SOURCES: [(&str, &[&str]); 24] = [
    ("text/x-python", &["py", "pyi", "pyw"]),
    ("text/javascript", &["js", "mjs", "cjs", "jsx"]),
    ("text/x-typescript", &["ts", "mts", "cts", "tsx"]),
    ("text/x-go", &["go"]),
    ("text/x-shellscript", &["sh", "bash", "zsh"]),
    ("text/x-ruby", &["rb"]),
    ("text/x-rust", &["rs"]),
    ("text/x-c", &["c", "h"]),
    ("text/x-c++", &["cpp", "cc", "cxx", "hpp"]),
    ("text/x-java", &["java"]),
    ("text/x-kotlin", &["kt", "kts"]),
    ("text/x-csharp", &["cs"]),
    ("text/x-swift", &["swift"]),
    ("text/x-scala", &["scala"]),
    ("text/x-php", &["php"]),
    ("text/x-perl", &["pl", "pm"]),
    ("text/x-r", &["r"]),
    ("text/x-diff", &["diff", "patch"]),
    ("text/vnd.graphviz", &["dot", "gv"]),
    ("text/markdown", &["md"]),
    ("application/sql", &["sql"]),
    ("application/x-tex", &["tex"]),
    ("application/x-ndjson", &["jsonl", "ndjson"]),
    ("application/x-ipynb+json", &["ipynb"]),
];

/// Types of texts besides `text/…`, `…+json` and `…+xml`.
const TEXTS: [&str; 9] = [
    "application/json",
    "application/json5",
    "application/x-ndjson",
    "application/xml",
    "application/sql",
    "application/x-tex",
    "application/x-subrip",
    "application/rtf",
    "message/rfc822",
];

const PLAIN: &str = "text/plain";
const BYTES: &str = "application/octet-stream";

/// The type of a text, by its name.
pub(crate) fn of_text(path: &str) -> &'static str {
    by_name_of_text(path).unwrap_or(PLAIN)
}

/// The type of anything that is not shown as a picture.
pub(crate) fn of(path: &str, content: &[u8]) -> &'static str {
    // No name makes a picture, and nor do first bytes.
    let is_no_picture = |guess: &&'static str| Format::named(guess).is_none();
    let by_name = || mime_guess::from_path(path).first_raw().filter(is_no_picture);
    let begins_like = || infer::get(content).map(|known| known.mime_type()).filter(is_no_picture);
    if plain_text(content).is_some() {
        // A document may consist of letters. Its name must say so, too.
        let is_document =
            |known: &&str| known.starts_with("application/") && by_name() == Some(*known);
        return begins_like().filter(is_document).unwrap_or_else(|| of_text(path));
    }
    if is_in_another_encoding(content) {
        return by_name_of_text(path).unwrap_or(BYTES);
    }
    match begins_like() {
        // Many formats are archives.
        Some(archive @ "application/zip") => by_name().unwrap_or(archive),
        Some(known) => known,
        None => by_name().unwrap_or(BYTES),
    }
}

/// The content as text, if it is one that can be shown.
pub(crate) fn plain_text(content: &[u8]) -> Option<&str> {
    std::str::from_utf8(content).ok().filter(|text| !text.contains('\0'))
}

/// Whether bytes that are not UTF-8 look like a text: UTF-16 has a mark, and older encodings have no control characters.
fn is_in_another_encoding(content: &[u8]) -> bool {
    let is_usual = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b | b' '..);
    content.starts_with(b"\xff\xfe")
        || content.starts_with(b"\xfe\xff")
        || content.iter().all(is_usual)
}

fn by_name_of_text(path: &str) -> Option<&'static str> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let is_it = |known: &&str| extension.eq_ignore_ascii_case(known);
    let source = SOURCES.iter().find(|(_, extensions)| extensions.iter().any(is_it));
    let source = source.map(|(media_type, _)| *media_type);
    source.or_else(|| mime_guess::from_path(name).first_raw().filter(|guess| is_of_text(guess)))
}

fn is_of_text(media_type: &str) -> bool {
    media_type.starts_with("text/")
        || media_type.ends_with("+json")
        || media_type.ends_with("+xml")
        || TEXTS.contains(&media_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_whatever_it_begins_with() {
        let begins = [
            "",
            "BM",
            "II*",
            "MZ",
            "GIF89a",
            "%PDF",
            "PK",
            "#!/bin/sh\n",
            "<?xml ?>",
            "ID3",
            "RIFF    WEBP",
            "{",
        ];
        let names = [
            ("notes", "text/plain"),
            ("notes.dat", "text/plain"),
            ("a.TS", "text/x-typescript"),
            ("go.mod", "text/plain"),
            ("go.sum", "text/plain"),
            ("Main.java", "text/x-java"),
            ("src.d/feed.rss", "application/rss+xml"),
            ("chart.svg", "image/svg+xml"),
            ("data.json", "application/json"),
            ("table.csv", "text/csv"),
            ("page.html", "text/html"),
            ("setup.py", "text/x-python"),
            ("query.sql", "application/sql"),
            ("graph.dot", "text/vnd.graphviz"),
            ("code.scm", "text/plain"),
            ("old.bat", "text/plain"),
            ("a.png", "text/plain"),
            ("a.mp3", "text/plain"),
            ("a.bin", "text/plain"),
            (".ts", "text/x-typescript"),
            ("Makefile", "text/plain"),
            ("letters.docx", "text/plain"),
        ];
        for (name, expected) in names {
            for begin in begins {
                assert_eq!(
                    of(name, format!("{begin} text\n").as_bytes()),
                    expected,
                    "{name} {begin}"
                );
            }
        }
    }

    #[test]
    fn a_document_of_letters_is_one_by_its_beginning_and_its_name() {
        let pdf = b"%PDF-1.4\n1 0 obj << >> endobj\n";
        assert_eq!(of("a.pdf", pdf), "application/pdf");
        assert_eq!(of("a.txt", pdf), "text/plain");
        assert_eq!(of("a.pdf", b"a text"), "text/plain");
    }

    #[test]
    fn other_encodings_go_by_their_names() {
        for content in [&b"BM\xfcnchen\r\n"[..], b"\xff\xfea\0b\0", b"caf\xe9"] {
            assert_eq!(of("a.csv", content), "text/csv");
            assert_eq!(of("a.ts", content), "text/x-typescript");
            assert_eq!(of("a.dat", content), BYTES);
        }
    }

    #[test]
    fn the_content_decides_the_media_type_before_the_name() {
        let zip = b"PK\x03\x04\x14\0\0\0\x08\0\xff";
        assert_eq!(of("a.zip", zip), "application/zip");
        assert_eq!(of("a", zip), "application/zip");
        assert_eq!(of("a.jar", zip), "application/java-archive");
        assert_eq!(of("a.txt", b"\x1f\x8b\x08\0\0\xff"), "application/gzip");
        assert_eq!(of("film.ts", b"\x47\0\x10\xff"), "video/vnd.dlna.mpeg-tts");
        assert_eq!(of("a.dat", b"\0\xff"), BYTES);
        assert_eq!(of("a.csv", b"\0\xff"), "text/csv");
        for broken in [&b"\x89PNG\r\n\x1a\n\0"[..], b"\xff\xd8\xff\xe0\0", b"GIF89a\0\xff"] {
            assert_eq!(of("a.png", broken), BYTES);
        }
    }
}
