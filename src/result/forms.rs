//! How the files of a run come back, and how much an answer can hold of each kind.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::result::kept::encoded;
use crate::result::media_type::plain_text;
use crate::result::pictures::{Decoding, Format, Refusal};
use crate::result::returned::{Attachment, FileReport};

/// Largest picture that is shown, how many are, and how much of all of them. A host hands them to its model, and
/// many take no message of more than 16 MiB, in which a picture is a third larger.
pub(super) const MAX_PICTURE: usize = 2 << 20;
pub(super) const MAX_PICTURES: usize = 10;
const MAX_SHOWN: usize = 6 << 20;

/// Longest text that is attached, and how much of all of them. A model reads all of it.
pub(super) const MAX_TEXT: usize = 16 * 1024;
const MAX_TEXTS: usize = 64 * 1024;

/// Most texts that are attached. The data has all of them.
pub(super) const MAX_ATTACHED: usize = 50;

/// The content of a file, with regard to pictures.
#[derive(Debug)]
pub(super) enum Seen {
    /// A picture that can be shown, if there is room.
    Picture(Format),
    /// Begins like one, and was not decoded because enough others were.
    Unchecked(Format),
    /// A picture with too many pixels.
    TooLarge { format: Format, width: u32, height: u32 },
    /// Begins like a picture and can't be decoded, and why.
    Broken(String),
    /// Anything else.
    Other,
}

impl Seen {
    /// Whether it comes back without a pattern that names it.
    pub(super) const fn is_picture(&self) -> bool {
        matches!(self, Self::Picture(_) | Self::Unchecked(_) | Self::TooLarge { .. })
    }
}

/// How a content comes back.
#[derive(Debug)]
pub(super) enum Form {
    /// A picture, in base64.
    Picture(String),
    Text(String),
    /// A picture that is in the answer already.
    Same,
    /// Something to be read.
    Link,
}

const IMAGE: &str = "image";
const TEXT: &str = "text";
pub(super) const LINK: &str = "link";

impl Form {
    /// The word for it in the report.
    pub(super) fn returned(&self, is_kept: bool) -> Option<&'static str> {
        match self {
            Self::Picture(_) => Some(IMAGE),
            Self::Text(_) => Some(TEXT),
            Self::Same | Self::Link => is_kept.then_some(LINK),
        }
    }

    /// The attachment of the answer; none if it can't be read anywhere.
    pub(super) fn attachment(
        self,
        FileReport { path, size, uri, media_type, .. }: &FileReport,
    ) -> Option<Attachment> {
        let media_type = media_type.clone().unwrap_or_default();
        match self {
            Self::Picture(base64) => Some(Attachment::Picture { base64, media_type }),
            Self::Text(text) => {
                // Nothing can be read at the address of a text that was not kept.
                let uri = uri.clone().unwrap_or_else(|| format!("file:{}", encoded(path)));
                Some(Attachment::Text { text, uri, media_type })
            }
            Self::Same => None,
            Self::Link => {
                let (uri, path) = (uri.clone()?, path.clone());
                Some(Attachment::Link { uri, path, size: *size, media_type })
            }
        }
    }
}

/// How much more an answer can hold.
pub(crate) struct Room {
    pictures: usize,
    shown: usize,
    /// Hashes of the pictures in the answer.
    seen: HashSet<u64>,
    hasher: RandomState,
    decoding: Decoding,
    texts: usize,
    text: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            pictures: MAX_PICTURES,
            shown: MAX_SHOWN,
            seen: HashSet::new(),
            hasher: RandomState::new(),
            decoding: Decoding::default(),
            texts: MAX_ATTACHED,
            text: MAX_TEXTS,
        }
    }
}

/// How many pictures an answer has, for a note.
pub(super) fn most_pictures() -> String {
    format!(
        "an answer has up to {MAX_PICTURES} of them, of {} MiB each and {} MiB together",
        MAX_PICTURE >> 20,
        MAX_SHOWN >> 20
    )
}

impl Room {
    /// Decodes what begins like a picture.
    pub(super) fn look(&mut self, content: &[u8]) -> Seen {
        // A text can begin like one.
        let Some(format) = Format::of(content).filter(|_| plain_text(content).is_none()) else {
            return Seen::Other;
        };
        match self.decoding.check(format, content) {
            Ok(()) => Seen::Picture(format),
            Err(Refusal::NoRoom) => Seen::Unchecked(format),
            Err(Refusal::TooLarge { width, height }) => Seen::TooLarge { format, width, height },
            Err(Refusal::Broken(why)) => Seen::Broken(why),
        }
    }

    /// How it comes back, if it does.
    pub(super) fn form(&mut self, seen: &Seen, content: &[u8]) -> Form {
        match seen {
            Seen::Picture(_) if self.seen.contains(&self.hasher.hash_one(content)) => {
                return Form::Same;
            }
            Seen::Picture(_)
                if self.pictures > 0 && content.len() <= MAX_PICTURE.min(self.shown) =>
            {
                self.seen.insert(self.hasher.hash_one(content));
                self.pictures -= 1;
                self.shown -= content.len();
                return Form::Picture(BASE64.encode(content));
            }
            Seen::Other if self.texts > 0 && content.len() <= MAX_TEXT.min(self.text) => {
                if let Some(text) = plain_text(content) {
                    self.texts -= 1;
                    self.text -= text.len();
                    return Form::Text(text.to_owned());
                }
            }
            _ => {}
        }
        Form::Link
    }
}
