//! Reads the entries of a tar archive, with their extended headers.
//!
//! The `tar` crate finds the headers. Extended headers are read here, because the crate would read as much
//! into memory as the archive says.

use std::io::{self, Read};

use tar::{Archive, EntryType};

/// Longest extended header, in bytes. Long paths and the attributes of a file fit many times.
const MAX_EXTENSION: u64 = 1 << 20;

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    File,
    Directory,
    SymbolicLink,
    HardLink,
    /// A type that images must not contain, in words.
    Other(&'static str),
}

/// An entry without its content.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) path: Vec<u8>,
    pub(super) kind: EntryKind,
    /// The target of a link.
    pub(super) link: Vec<u8>,
    pub(super) size: u64,
    /// Where the content begins in the archive.
    pub(super) position: u64,
    pub(super) mode: u32,
    pub(super) uid: u64,
    pub(super) gid: u64,
    /// Seconds and nanoseconds since 1970.
    pub(super) mtime: (i64, u32),
}

/// The values of extended headers, which override those of the next header.
#[derive(Default)]
struct Extension {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    sparse: bool,
}

/// Reads a whole archive and calls `visit` with each entry. Returns whether there was an end-of-archive mark.
pub(super) fn for_each<R: Read, E: From<io::Error>>(
    reader: R,
    mut visit: impl FnMut(&Header, &mut dyn Read) -> Result<(), E>,
) -> Result<bool, E> {
    let mut archive = Archive::new(EndDetector { reader, ended: false });
    let mut extension = Extension::default();
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        match entry.header().entry_type() {
            EntryType::GNULongName => extension.path = Some(read_name(&mut entry)?),
            EntryType::GNULongLink => extension.link = Some(read_name(&mut entry)?),
            EntryType::XHeader => extension.read(&read(&mut entry)?)?,
            // It applies to all entries, and has nothing that images need.
            EntryType::XGlobalHeader => {}
            _ => {
                let position = entry.raw_file_position();
                let header = header(entry.header(), std::mem::take(&mut extension), position)?;
                visit(&header, &mut entry)?;
            }
        }
    }
    let mut ending = archive.into_inner();
    let whole = !ending.ended;
    // Bytes after the end are part of the digest.
    io::copy(&mut ending, &mut io::sink())?;
    Ok(whole)
}

/// Notices when there is nothing left to read.
struct EndDetector<R> {
    reader: R,
    ended: bool,
}

impl<R: Read> Read for EndDetector<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.ended |= read == 0 && !buffer.is_empty();
        Ok(read)
    }
}

fn header(header: &tar::Header, extension: Extension, position: u64) -> io::Result<Header> {
    let size = header.entry_size()?;
    if extension.size.is_some_and(|other| other != size) {
        return Err(invalid("an entry states two sizes"));
    }
    let path = extension.path.unwrap_or_else(|| header.path_bytes().into_owned());
    let link = extension.link.or_else(|| header.link_name_bytes().map(|link| link.into_owned()));
    let kind = match header.entry_type() {
        _ if extension.sparse => EntryKind::Other("a sparse file"),
        // Old archives have no type for directories.
        EntryType::Regular if path.ends_with(b"/") => EntryKind::Directory,
        EntryType::Regular | EntryType::Continuous => EntryKind::File,
        EntryType::Directory => EntryKind::Directory,
        EntryType::Symlink => EntryKind::SymbolicLink,
        EntryType::Link => EntryKind::HardLink,
        EntryType::Char => EntryKind::Other("a character device"),
        EntryType::Block => EntryKind::Other("a block device"),
        EntryType::Fifo => EntryKind::Other("a FIFO"),
        EntryType::GNUSparse => EntryKind::Other("a sparse file"),
        _ => EntryKind::Other("of a type that is not known"),
    };
    Ok(Header {
        path,
        kind,
        link: link.unwrap_or_default(),
        size,
        position,
        mode: header.mode()?,
        uid: extension.uid.map_or_else(|| header.uid(), Ok)?,
        gid: extension.gid.map_or_else(|| header.gid(), Ok)?,
        mtime: match extension.mtime {
            Some(mtime) => mtime,
            None => (i64::try_from(header.mtime()?).unwrap_or_default(), 0),
        },
    })
}

fn read(entry: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    entry.take(MAX_EXTENSION + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_EXTENSION {
        return Err(invalid("an extended header is too long"));
    }
    Ok(content)
}

fn read_name(entry: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut name = read(entry)?;
    if name.last() == Some(&0) {
        name.pop();
    }
    Ok(name)
}

impl Extension {
    /// Reads records of the form `length key=value\n`, where the length counts the whole record.
    fn read(&mut self, mut records: &[u8]) -> io::Result<()> {
        while !records.is_empty() {
            let (record, rest) =
                record(records).ok_or_else(|| invalid("a PAX header is damaged"))?;
            records = rest;
            let (key, value) = record;
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(number(value)?),
                b"uid" => self.uid = Some(number(value)?),
                b"gid" => self.gid = Some(number(value)?),
                b"mtime" => self.mtime = Some(time(value)?),
                _ => self.sparse |= key.starts_with(b"GNU.sparse."),
            }
        }
        Ok(())
    }
}

type Record<'a> = (&'a [u8], &'a [u8]);

fn record(records: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let space = records.iter().position(|byte| *byte == b' ')?;
    let length: usize = number(&records[..space]).ok()?.try_into().ok()?;
    let (record, rest) = records.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some(((&record[..equals], &record[equals + 1..]), rest))
}

fn number(value: &[u8]) -> io::Result<u64> {
    let number = str::from_utf8(value).ok().and_then(|value| value.parse().ok());
    number.ok_or_else(|| invalid("a number in a PAX header is not valid"))
}

/// Parses seconds with a fraction.
fn time(value: &[u8]) -> io::Result<(i64, u32)> {
    let value = str::from_utf8(value).unwrap_or_default();
    let (seconds, fraction) = value.split_once('.').unwrap_or((value, ""));
    let seconds: i64 =
        seconds.parse().map_err(|_| invalid("a time in a PAX header is not valid"))?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds = digits.parse().map_err(|_| invalid("a time in a PAX header is not valid"))?;
    // Before 1970 the fraction counts the other way.
    Ok(if seconds < 0 || value.starts_with('-') { (seconds, 0) } else { (seconds, nanoseconds) })
}

fn invalid(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_by_their_length() {
        let mut extension = Extension::default();
        extension.read(b"12 path=a\nb\n20 mtime=12.5000000\n").unwrap();
        assert_eq!(extension.path.as_deref(), Some(b"a\nb".as_slice()));
        assert_eq!(extension.mtime, Some((12, 500_000_000)));
    }

    #[test]
    fn damaged_records_are_refused() {
        for records in ["99 path=a\n", "10 path=a", "x path=a\n", "5 a=b\n", "11 size=-1\n"] {
            assert!(Extension::default().read(records.as_bytes()).is_err(), "{records}");
        }
    }
}
