//! Splits tar archives into members and joins them again, even if their headers are wrong.

use tar::{EntryType, Header};

const BLOCK: usize = 512;

/// A header and its content.
#[derive(Debug, Clone)]
pub struct Member {
    /// The header. Its checksum is computed when the archive is joined.
    pub header: Header,
    /// As many bytes as the header says, or fewer if the archive ends before.
    pub content: Vec<u8>,
}

impl PartialEq for Member {
    fn eq(&self, other: &Self) -> bool {
        self.header.as_bytes() == other.header.as_bytes() && self.content == other.content
    }
}

impl Member {
    /// A member with the given content.
    pub fn new(kind: EntryType, name: &[u8], link: &[u8], content: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        let mut member = Self { header, content: content.to_vec() };
        member.set_name(name);
        member.set_link(link);
        member
    }

    /// A PAX header with one record. It applies to the member that follows.
    pub fn pax(key: &[u8], value: &[u8]) -> Self {
        let rest = key.len() + value.len() + 3;
        let mut length = rest;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        let content = [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat();
        Self::new(EntryType::XHeader, b"pax", b"", &content)
    }

    /// The name in the header.
    pub fn name(&self) -> &[u8] {
        until_zero(&self.header.as_old().name)
    }

    /// Changes the name in the header. The field has 100 bytes.
    pub fn set_name(&mut self, name: &[u8]) {
        fill(&mut self.header.as_old_mut().name, name);
    }

    /// The target of a link.
    pub fn link(&self) -> &[u8] {
        until_zero(&self.header.as_old().linkname)
    }

    /// Changes the target of a link.
    pub fn set_link(&mut self, link: &[u8]) {
        fill(&mut self.header.as_old_mut().linkname, link);
    }

    /// Changes the content, and the size in the header.
    pub fn set_content(&mut self, content: Vec<u8>) {
        self.header.set_size(content.len() as u64);
        self.content = content;
    }
}

fn until_zero(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn fill(field: &mut [u8], value: &[u8]) {
    field.fill(0);
    let length = value.len().min(field.len());
    field[..length].copy_from_slice(&value[..length]);
}

/// Splits an archive, up to the first part that is not valid.
pub fn split(mut archive: &[u8]) -> Vec<Member> {
    let mut members = Vec::new();
    while let Some((block, rest)) = archive.split_first_chunk::<BLOCK>() {
        if block.iter().all(|byte| *byte == 0) {
            break;
        }
        let header = Header::from_byte_slice(block).clone();
        let size = header.entry_size().unwrap_or(0).min(rest.len() as u64) as usize;
        members.push(Member { header, content: rest[..size].to_vec() });
        archive = &rest[size.next_multiple_of(BLOCK).min(rest.len())..];
    }
    members
}

/// Joins members to an archive, with or without the mark of its end.
pub fn join(members: &[Member], ends: bool) -> Vec<u8> {
    let mut archive = Vec::new();
    for Member { header, content } in members {
        let mut header = header.clone();
        header.set_cksum();
        archive.extend_from_slice(header.as_bytes());
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    if ends {
        archive.resize(archive.len() + 2 * BLOCK, 0);
    }
    archive
}
