//! Results that can be read for a while: files that a caller asked for, and output too long for the answer. They
//! are kept in memory and read as resources, in ranges if they are long.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use isolator_pool::pool::admission::Client;
use isolator_pool::quote::quoted;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::node::{LostHandle, Node, Thing};
use crate::result::handles::{Capacity, Handles, KeepError};

/// The beginning of their addresses.
pub(crate) const PREFIX: &str = "isolator://runs/";

/// The addresses as a template: a stream or a file of a run, or a range of it.
pub(crate) const TEMPLATE: &str = "isolator://runs/{run}/{+item}{?offset,length}";

/// Most bytes of one read, and the default.
const MAX_READ: u64 = 1 << 20;

/// Bytes that a run counts in addition to its results, because many small runs cost time, too.
const RUN_OVERHEAD: usize = 4096;

/// Most bytes of the names of a run's results.
pub(crate) const MAX_NAMES: usize = 5 << 20;

/// The results of runs.
#[derive(Debug)]
pub(crate) struct Results {
    runs: Handles<BTreeMap<String, Item>>,
}

/// Something that a run left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    pub content: Vec<u8>,
    pub media_type: String,
}

/// A range of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub content: PartContent,
    /// Media type of the whole.
    pub media_type: String,
    /// Where it begins, in bytes.
    pub offset: usize,
    /// Size of the whole, in bytes.
    pub total: usize,
    /// Where to read on, if it is not the last.
    pub next: Option<String>,
}

/// The content of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PartContent {
    /// Whole characters.
    Text(String),
    /// Bytes in base64, of a result that is not UTF-8.
    Base64(String),
}

/// Why a result can't be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// No result has this name.
    #[error(
        "there is no such result: it has expired, was dropped for newer ones, or is another client's"
    )]
    Unknown,
    /// Another node has made its address, or this one before it was started again.
    #[error("the result is gone: {0}")]
    Lost(Box<LostHandle>),
    /// The range is wrong.
    #[error("{0}")]
    Range(String),
}

impl Results {
    /// Keeps up to `capacity`, for `keep_for`.
    pub(crate) fn new(node: &Node, capacity: Capacity, keep_for: Duration) -> Self {
        Self { runs: Handles::new(node, capacity, keep_for) }
    }

    /// Changes the maximum, and how long later results are kept.
    pub(crate) fn set_bounds(&self, capacity: Capacity, keep_for: Duration) {
        self.runs.set_bounds(capacity, keep_for);
    }

    /// Keeps the results of a client's run, by names. Returns the beginning of their addresses.
    ///
    /// # Errors
    ///
    /// When it is more than can be kept.
    pub(crate) fn keep(
        &self,
        client: &Client,
        items: BTreeMap<String, Item>,
    ) -> Result<String, KeepError> {
        let contents = items.iter().map(|(name, item)| name.len() + item.content.len());
        let weight = RUN_OVERHEAD + contents.sum::<usize>();
        Ok(format!("{PREFIX}{}/", self.runs.keep_newest(client, weight, items)?))
    }

    /// Number of runs with kept results, and their bytes.
    pub(crate) fn held(&self) -> (usize, usize) {
        self.runs.held()
    }

    /// Reads a client's result, or a range of it.
    pub(crate) fn read(&self, client: &Client, uri: &str) -> Result<Part, ReadError> {
        let (address, query) = uri.split_once('?').unwrap_or((uri, ""));
        let path = address.strip_prefix(PREFIX).ok_or(ReadError::Unknown)?;
        let (run, name) = path.split_once('/').ok_or(ReadError::Unknown)?;
        let name = percent_decode_str(name).decode_utf8().map_err(|_| ReadError::Unknown)?;
        let lost = || match self.runs.lost(run, Thing::Result) {
            Some(lost) => ReadError::Lost(lost),
            None => ReadError::Unknown,
        };
        let items = self.runs.get(client, run).ok_or_else(lost)?;
        let item = items.get(name.as_ref()).ok_or(ReadError::Unknown)?;
        item.read(address, &Range::parse(query)?)
    }
}

/// A name as it is written in an address.
pub(crate) fn encoded(name: &str) -> String {
    const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');
    utf8_percent_encode(name, PLAIN).to_string()
}

impl Item {
    fn read(&self, address: &str, &Range { offset, length }: &Range) -> Result<Part, ReadError> {
        let total = self.content.len();
        let start = usize::try_from(offset).ok().filter(|start| *start <= total);
        let start = start.ok_or_else(|| {
            ReadError::Range(format!("offset: {offset} is past the end, which is at {total}"))
        })?;
        let length = usize::try_from(length.min(MAX_READ)).unwrap_or(usize::MAX);
        let end = start.saturating_add(length).min(total);
        let (start, end, content) = match std::str::from_utf8(&self.content) {
            Ok(text) => {
                let (start, end) = whole_characters(text, start, end);
                (start, end, PartContent::Text(text[start..end].to_owned()))
            }
            Err(_) => (start, end, PartContent::Base64(BASE64.encode(&self.content[start..end]))),
        };
        let next = (end < total).then(|| format!("{address}?offset={end}"));
        Ok(Part { content, media_type: self.media_type.clone(), offset: start, total, next })
    }
}

/// The range without half a character at its ends, but with at least one character, so that reading on ends.
fn whole_characters(text: &str, start: usize, end: usize) -> (usize, usize) {
    let start = text.floor_char_boundary(start);
    let whole = text.floor_char_boundary(end);
    let end =
        if whole <= start && start < end { text.ceil_char_boundary(start + 1) } else { whole };
    (start, end)
}

/// A part that was read of something longer, without half a character at its end. `address` is that of the whole.
///
/// # Errors
///
/// When the range begins after the end.
pub(crate) fn part_of(
    mut content: Vec<u8>,
    total: u64,
    range: &Range,
    address: &str,
    media_type: String,
) -> Result<Part, ReadError> {
    let offset = range.offset;
    if offset > total {
        return Err(ReadError::Range(format!(
            "offset: {offset} is past the end, which is at {total}"
        )));
    }
    let cut = match std::str::from_utf8(&content) {
        // Only the last character is not whole.
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => content.len(),
    };
    let end = offset + cut as u64;
    let is_last = end >= total || cut == 0;
    if !is_last {
        content.truncate(cut);
    }
    let content = match String::from_utf8(content) {
        Ok(text) => PartContent::Text(text),
        Err(error) => PartContent::Base64(BASE64.encode(error.as_bytes())),
    };
    let next = (!is_last).then(|| format!("{address}?offset={end}"));
    let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Ok(Part { content, media_type, offset: number(offset), total: number(total), next })
}

/// A range in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    /// Where it begins.
    pub offset: u64,
    length: u64,
}

impl Range {
    /// Maximum bytes to read.
    pub(crate) fn bytes(&self) -> u64 {
        self.length.min(MAX_READ)
    }

    /// Reads it from the query of an address.
    pub(crate) fn parse(query: &str) -> Result<Self, ReadError> {
        let mut range = Self { offset: 0, length: MAX_READ };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let number = value.parse().map_err(|_| {
                ReadError::Range(format!("{}: must be a number of bytes", quoted(name)))
            });
            match name {
                "offset" => range.offset = number?,
                "length" => range.length = number?,
                _ => {
                    let message =
                        format!("{}: unknown; only offset and length are allowed", quoted(name));
                    return Err(ReadError::Range(message));
                }
            }
        }
        Ok(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn results(name: &str, content: &[u8]) -> (Results, Client, String) {
        let results =
            Results::new(&Node::default(), Capacity { all: 1 << 24, of_one: 1 << 24 }, MINUTE);
        let client = Client::named("one");
        let item = Item { content: content.to_vec(), media_type: "text/plain".to_owned() };
        let items = BTreeMap::from([(name.to_owned(), item)]);
        let address = results.keep(&client, items).unwrap() + &encoded(name);
        (results, client, address)
    }

    /// The text that is read, and the address of the rest.
    fn read(results: &Results, client: &Client, uri: &str) -> (String, Option<String>) {
        let Part { content, next, .. } = results.read(client, uri).unwrap();
        let (PartContent::Text(text) | PartContent::Base64(text)) = content;
        (text, next)
    }

    #[tokio::test]
    async fn a_result_is_read_in_ranges_until_its_end() {
        let text = "aü€".repeat(100);
        let (results, client, address) = results("stdout", text.as_bytes());
        assert_eq!(read(&results, &client, &address), (text.clone(), None));
        for length in [1, 2, 3, 7, 599] {
            let (mut whole, mut uri) = (String::new(), Some(address.clone()));
            while let Some(next) = uri {
                let mark = if next.contains('?') { '&' } else { '?' };
                let (part, next) = read(&results, &client, &format!("{next}{mark}length={length}"));
                whole.push_str(&part);
                uri = next;
            }
            assert_eq!(whole, text, "{length}");
        }
        let (last, next) = read(&results, &client, &format!("{address}?offset=594&length=6"));
        assert_eq!((last.as_str(), next), ("aü€", None));
        assert_eq!(
            read(&results, &client, &format!("{address}?offset=600")),
            (String::new(), None)
        );
    }

    #[tokio::test]
    async fn no_read_is_longer_than_a_message_should_be() {
        let (results, client, address) = results("files/data.bin", &[0xff; (1 << 20) + 5]);
        let (first, next) = read(&results, &client, &format!("{address}?length=99999999"));
        assert_eq!(BASE64.decode(first).unwrap().len(), 1 << 20);
        let (rest, end) = read(&results, &client, &next.unwrap());
        assert_eq!((BASE64.decode(rest).unwrap(), end), (vec![0xff; 5], None));
    }

    #[tokio::test]
    async fn any_name_of_a_file_makes_an_address() {
        for name in ["files/a b.csv", "files/ü/?x=1#y%2f", "files/\u{1b}[31m\n", "files/../../x"] {
            let (results, client, address) = results(name, b"here");
            assert!(address.bytes().all(|byte| byte.is_ascii_graphic()), "{address}");
            assert_eq!(read(&results, &client, &address).0, "here", "{address}");
        }
    }

    #[tokio::test]
    async fn an_unknown_result_and_an_invalid_range_are_different_errors() {
        let (results, client, address) = results("stdout", b"0123456789");
        let stranger = Client::named("two");
        let unknown = ["isolator://pool", PREFIX, "isolator://runs/0/stdout", "file:///etc/passwd"];
        for uri in unknown.map(str::to_owned).into_iter().chain([address.replace("stdout", "x")]) {
            assert!(matches!(results.read(&client, &uri), Err(ReadError::Unknown)), "{uri}");
        }
        assert!(matches!(results.read(&stranger, &address), Err(ReadError::Unknown)));
        for query in ["offset=11", "offset=-1", "length=x", "offset", "limit=1"] {
            let read = results.read(&client, &format!("{address}?{query}"));
            assert!(matches!(read, Err(ReadError::Range(_))), "{query}");
        }
    }
}
