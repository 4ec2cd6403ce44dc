//! Changes a part of an input and keeps the rest valid.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use isolator_runner::wire::Kind;
use serde_json::Value;
use tar::{EntryType, Header};

use crate::frames::{self, Frame};
use crate::tape::{self, Member};

/// The fuzzer's own mutation, which changes bytes without knowing their meaning. The number is the maximal length.
pub type Blind<'a> = &'a mut dyn FnMut(&[u8], usize) -> Vec<u8>;

/// Makes random changes to a stream of frames or to an archive.
pub struct Mutator<'a> {
    state: u64,
    most: usize,
    blind: Blind<'a>,
}

/// All kinds of frames.
const KINDS: [Kind; 35] = [
    Kind::Job,
    Kind::Tar,
    Kind::Stdin,
    Kind::Go,
    Kind::Preload,
    Kind::Ready,
    Kind::Stdout,
    Kind::Stderr,
    Kind::Exit,
    Kind::Failed,
    Kind::Started,
    Kind::Preloaded,
    Kind::File,
    Kind::Content,
    Kind::Alone,
    Kind::Session,
    Kind::Cell,
    Kind::Interrupt,
    Kind::Cancel,
    Kind::Rewind,
    Kind::List,
    Kind::Read,
    Kind::Opened,
    Kind::Shown,
    Kind::ShownContent,
    Kind::Background,
    Kind::CellEnded,
    Kind::Rewound,
    Kind::Listed,
    Kind::ReadEnded,
    Kind::Resting,
    Kind::Install,
    Kind::InstallEnded,
    Kind::Installed,
    Kind::InstallProgress,
];

/// Types of members of an archive.
const TYPES: &[u8] = b"0012555\x0034670gxLKSDV";

/// Names that have a meaning when a layer is unpacked.
const NAMES: [&[u8]; 20] = [
    b"a",
    b"a/",
    b"b",
    b"a/b",
    b"a/b/c",
    b"link/c",
    b".",
    b"./a",
    b"..",
    b"../canary/file",
    b"../../canary/file",
    b"a/../../canary/file",
    b"/canary",
    b"/a/b",
    b".wh.a",
    b".wh.b",
    b"a/.wh.b",
    b".wh..wh..opq",
    b"a/.wh..wh..opq",
    b".wh..wh.plnk",
];

const PAX_KEYS: [&[u8]; 8] =
    [b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime", b"GNU.sparse.major", b"comment"];

const NUMBERS: [u64; 12] = [
    0,
    1,
    511,
    512,
    4096,
    65_535,
    1 << 31,
    (1 << 32) - 1,
    1 << 33,
    1 << 62,
    u64::MAX - 1,
    u64::MAX,
];

const MODES: [u32; 8] = [0o644, 0o755, 0, 0o7777, 0o4755, 0o2755, 0o1777, 0o000];

impl<'a> Mutator<'a> {
    /// A mutator whose results have at most `most` bytes.
    pub fn new(seed: u32, most: usize, blind: Blind<'a>) -> Self {
        Self { state: (u64::from(seed) << 1) | 1, most, blind }
    }

    /// Changes a stream of frames, and the contents of frames.
    pub fn stream(&mut self, stream: &[u8]) -> Vec<u8> {
        let (mut frames, rest) = frames::split(stream);
        if frames.is_empty() || self.below(12) == 0 {
            return (self.blind)(stream, self.most);
        }
        for _ in 0..=self.below(3) {
            self.frame(&mut frames);
        }
        let mut stream = frames::join(&frames, rest);
        stream.truncate(self.most);
        stream
    }

    fn frame(&mut self, frames: &mut Vec<Frame>) {
        let Some(at) = self.index(frames.len()) else { return };
        match self.below(17) {
            0 => drop(frames.remove(at)),
            1 => frames.insert(at, frames[at].clone()),
            2 => {
                let to = self.below(frames.len());
                frames.swap(at, to);
            }
            3 => frames[at].kind = self.one(&KINDS) as u8,
            // Kernels have other kinds than runners.
            6 => {
                let other = self.below(frames.len());
                frames[at].kind = frames[other].kind;
            }
            4 => {
                let kind = self.one(&KINDS) as u8;
                frames.insert(at, Frame { kind, payload: Vec::new() });
            }
            5 => {
                let middle = self.below(frames[at].payload.len() + 1);
                let payload = frames[at].payload.split_off(middle);
                frames.insert(at + 1, Frame { kind: frames[at].kind, payload });
            }
            _ => {
                let Frame { kind, payload } = &frames[at];
                let changed = match payload.first() {
                    Some(b'{' | b'[') => self.json(payload),
                    _ if *kind == Kind::Tar as u8 => self.archive(payload),
                    _ => self.blind(payload),
                };
                frames[at].payload = changed;
            }
        }
    }

    /// Changes an archive or its compression.
    pub fn archive(&mut self, archive: &[u8]) -> Vec<u8> {
        let plain = unpacked(archive, self.most);
        let mut members = tape::split(plain.as_deref().unwrap_or(archive));
        if members.is_empty() || self.below(12) == 0 {
            return self.blind(archive);
        }
        for _ in 0..=self.below(3) {
            self.member(&mut members);
        }
        let ends = self.below(8) > 0;
        let changed = tape::join(&members, ends);
        if changed.len() > self.most {
            return self.blind(archive);
        }
        match self.below(if plain.is_some() { 4 } else { 24 }) {
            0 => gzip(&changed),
            1 => zstd::encode_all(changed.as_slice(), 1).unwrap_or(changed),
            _ => changed,
        }
    }

    fn member(&mut self, members: &mut Vec<Member>) {
        let Some(at) = self.index(members.len()) else { return };
        let other = self.below(members.len());
        match self.below(18) {
            0 => drop(members.remove(at)),
            1 => {
                let copy = members[other].clone();
                members.insert(at, copy);
            }
            2 => members.swap(at, other),
            3 => {
                let kind = EntryType::new(self.one(TYPES));
                let name = self.name(members);
                let link = self.name(members);
                members.insert(at, Member::new(kind, &name, &link, b""));
            }
            4 => {
                let key = self.one(&PAX_KEYS);
                let value = match self.below(3) {
                    0 => self.one(&NUMBERS).to_string().into_bytes(),
                    1 => self.name(members),
                    _ => self.blind(b"1.5"),
                };
                members.insert(at, Member::pax(key, &value));
            }
            5 | 6 => members[at].header.set_entry_type(EntryType::new(self.one(TYPES))),
            7 | 8 => {
                let name = self.name(members);
                members[at].set_name(&name);
            }
            9 | 10 => {
                let link = self.name(members);
                members[at].set_link(&link);
            }
            11 => {
                let name = self.blind(members[at].name());
                members[at].set_name(&name);
            }
            12 => {
                // A name that is too long for a header.
                let name = [self.name(members), self.name(members)].join(&b"/"[..]);
                let name = name.repeat(1 + self.below(40));
                members.insert(at, Member::new(EntryType::GNULongName, b"long", b"", &name));
            }
            13 => self.number(&mut members[at].header),
            14 => {
                let header = self.blind(members[at].header.as_bytes());
                if let Ok(header) = header.try_into() {
                    let header: [u8; 512] = header;
                    members[at].header = Header::from_byte_slice(&header).clone();
                }
            }
            _ => {
                let content = match members[at].content.first() {
                    Some(b'{' | b'[') => self.json(&members[at].content),
                    _ => self.blind(&members[at].content),
                };
                members[at].set_content(content);
            }
        }
    }

    fn number(&mut self, header: &mut Header) {
        let number = self.one(&NUMBERS);
        match self.below(5) {
            0 => header.set_mode(self.one(&MODES)),
            1 => header.set_uid(number),
            2 => header.set_gid(number),
            3 => header.set_mtime(number),
            // The content stays the same, so the header's size is wrong.
            _ => header.set_size(number),
        }
    }

    fn name(&mut self, members: &[Member]) -> Vec<u8> {
        let Some(at) = self.index(members.len()) else { return Vec::new() };
        let name = members[at].name();
        match self.below(5) {
            0 => name.to_vec(),
            1 => [name, b"/", self.one(&NAMES)].concat(),
            2 => members[at].link().to_vec(),
            _ => self.one(&NAMES).to_vec(),
        }
    }

    /// Changes one value. If this is not JSON, changes bytes.
    fn json(&mut self, json: &[u8]) -> Vec<u8> {
        let parsed = if self.below(3) == 0 { None } else { serde_json::from_slice(json).ok() };
        let Some(mut value): Option<Value> = parsed else { return self.blind(json) };
        self.value(&mut value);
        serde_json::to_vec(&value).unwrap_or_default()
    }

    /// Changes a value, or one inside of it.
    fn value(&mut self, value: &mut Value) {
        let inside = match value {
            Value::Array(values) => values.len(),
            Value::Object(values) => values.len(),
            _ => 0,
        };
        if inside > 0 && self.below(6) > 0 {
            let at = self.below(inside);
            let part = match value {
                Value::Array(values) => values.get_mut(at),
                Value::Object(values) => values.values_mut().nth(at),
                _ => None,
            };
            return part.into_iter().for_each(|part| self.value(part));
        }
        *value = match self.below(8) {
            0 => Value::Null,
            1 => Value::from(self.one(&NUMBERS)),
            2 => Value::from(-1),
            3 => Value::from(self.below(2) == 0),
            4 => Value::from(Vec::<Value>::new()),
            5 => Value::from(String::from_utf8_lossy(self.one(&NAMES))),
            6 => Value::from(vec![value.take(); 1 + self.below(4)]),
            _ => {
                let text = value.as_str().unwrap_or_default();
                let text = (self.blind)(text.as_bytes(), text.len() + 64);
                Value::from(String::from_utf8_lossy(&text))
            }
        };
    }

    fn blind(&mut self, bytes: &[u8]) -> Vec<u8> {
        (self.blind)(bytes, self.most.min(2 * bytes.len() + 64))
    }

    fn one<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn index(&mut self, length: usize) -> Option<usize> {
        (length > 0).then(|| self.below(length))
    }

    /// A random number below `bound`, by xorshift.
    fn below(&mut self, bound: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 16) as usize % bound.max(1)
    }
}

/// The first `most` bytes of the content, if this is compressed.
fn unpacked(archive: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    let mut most_of = |reader: &mut dyn Read| {
        // If the data is damaged, use what comes before the damage.
        let _ = reader.take(most as u64).read_to_end(&mut plain);
    };
    match archive {
        [0x1f, 0x8b, ..] => most_of(&mut GzDecoder::new(archive)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => most_of(&mut zstd::Decoder::new(archive).ok()?),
        _ => return None,
    }
    Some(plain)
}

/// Compresses with gzip.
pub fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(plain).and_then(|()| encoder.finish()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds;

    #[test]
    fn what_is_put_together_is_what_was_taken_apart() {
        for (target, name, seed) in seeds::all() {
            match target {
                "archive" => {
                    let plain = unpacked(&seed, usize::MAX).unwrap_or(seed);
                    let members = tape::split(&plain);
                    assert!(!members.is_empty(), "{name}");
                    assert_eq!(tape::join(&members, true), plain, "{name}");
                }
                _ => {
                    let knobs = seeds::knobs(target);
                    let (frames, rest) = frames::split(&seed[knobs..]);
                    assert!(!frames.is_empty() && rest.is_empty(), "{name}");
                    assert_eq!(frames::join(&frames, rest), seed[knobs..], "{name}");
                }
            }
        }
    }

    #[test]
    fn whatever_is_changed_stays_within_its_bound() {
        for (target, name, seed) in seeds::all() {
            let mut input = seed;
            for number in 0..500 {
                let mut blind = |bytes: &[u8], most: usize| {
                    let mut bytes = bytes.to_vec();
                    bytes.extend_from_slice(b"{x");
                    bytes.truncate(most);
                    bytes
                };
                let mut mutator = Mutator::new(number, 20_000, &mut blind);
                input = match target {
                    "archive" => mutator.archive(&input),
                    _ => mutator.stream(&input),
                };
                assert!(input.len() <= 20_000, "{target} {name}");
            }
        }
    }
}
