//! Envelopes: a byte of flags, the length of a message, and the message.
//!
//! The length that a client announces reserves nothing: memory is taken as bytes arrive.

use serde::de::DeserializeOwned;

use super::head::Encoding;
use super::{MAX_MESSAGE, ProtocolError};
use crate::apis::body::MAX_VALUES;
use crate::apis::e2b::data::gzip;
use crate::calls::budget::Share;
use crate::request::values::{count_values, with_short_texts};

/// Bytes before a message: its flags and its length.
pub(in super::super) const PREFIX: usize = 5;

/// Bytes of memory that it keeps for the next message.
const MAX_KEPT: usize = 64 << 10;

/// The flag of a message that is compressed.
pub(super) const COMPRESSED: u8 = 1;

/// The flag of the last message of a stream.
pub(super) const END: u8 = 2;

/// Cuts the messages out of a request that arrives in pieces of any size.
#[derive(Debug)]
pub(in super::super) struct Envelopes {
    encoding: Encoding,
    buffer: Vec<u8>,
    has_ended: bool,
}

impl Envelopes {
    pub(in super::super) const fn new(encoding: Encoding) -> Self {
        Self { encoding, buffer: Vec::new(), has_ended: false }
    }

    /// Bytes that it holds.
    pub(in super::super) const fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Takes the next piece.
    pub(in super::super) fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next message, if all of it is there. None comes after the one that ends the stream.
    ///
    /// # Errors
    ///
    /// When it is not one, or is too long. Nothing can be read after an error.
    pub(in super::super) fn next<T: DeserializeOwned>(
        &mut self,
        share: &mut Share,
    ) -> Result<Option<T>, ProtocolError> {
        let Some((&[flags, a, b, c, d], rest)) = self.buffer.split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        if self.has_ended {
            return Err(ProtocolError::SecondMessage);
        }
        let length = u32::from_be_bytes([a, b, c, d]);
        if flags & !(COMPRESSED | END) != 0 {
            return Err(ProtocolError::Flags(flags));
        }
        if flags & COMPRESSED != 0 && self.encoding == Encoding::Identity {
            return Err(ProtocolError::NotEncoded);
        }
        if length as usize > MAX_MESSAGE {
            return Err(ProtocolError::TooLarge { length: length.into() });
        }
        let Some(message) = rest.get(..length as usize) else { return Ok(None) };
        let parsed = if flags & END != 0 {
            self.has_ended = true;
            None
        } else {
            let encoding =
                if flags & COMPRESSED != 0 { Encoding::Gzip } else { Encoding::Identity };
            Some(parse(message, encoding, share)?)
        };
        self.buffer.drain(..PREFIX + length as usize);
        // What it keeps is not weighed.
        if self.buffer.len() < MAX_KEPT && self.buffer.capacity() > MAX_KEPT {
            self.buffer.shrink_to(MAX_KEPT);
        }
        Ok(parsed)
    }

    /// The request has ended.
    ///
    /// # Errors
    ///
    /// When that was in the middle of a message, or after the one that ends the stream.
    pub(in super::super) fn finish(&self) -> Result<(), ProtocolError> {
        if self.has_ended && !self.buffer.is_empty() {
            return Err(ProtocolError::SecondMessage);
        }
        let Some((&[_, a, b, c, d], rest)) = self.buffer.split_first_chunk::<PREFIX>() else {
            let received = self.buffer.len();
            let is_whole = received == 0;
            let announced = PREFIX as u64;
            return if is_whole {
                Ok(())
            } else {
                Err(ProtocolError::Truncated { received, announced })
            };
        };
        let announced = u32::from_be_bytes([a, b, c, d]).into();
        Err(ProtocolError::Truncated { received: rest.len(), announced })
    }
}

/// The only message of a whole request.
///
/// # Errors
///
/// When there is none, or another one follows.
pub(in super::super) fn only<T: DeserializeOwned>(
    body: &[u8],
    encoding: Encoding,
    share: &mut Share,
) -> Result<T, ProtocolError> {
    let mut envelopes = Envelopes::new(encoding);
    envelopes.push(body);
    let Some(message) = envelopes.next(share)? else {
        envelopes.finish()?;
        return Err(ProtocolError::NoMessage);
    };
    // The message that ends the stream may be there or not.
    match envelopes.next::<serde::de::IgnoredAny>(share)? {
        None => envelopes.finish().map(|()| message),
        Some(_) => Err(ProtocolError::SecondMessage),
    }
}

/// A message in JSON. If it is compressed, its share grows by what it becomes.
///
/// # Errors
///
/// When it is not one, is too long, or there is no room for it.
pub(in super::super) fn parse<T: DeserializeOwned>(
    message: &[u8],
    encoding: Encoding,
    share: &mut Share,
) -> Result<T, ProtocolError> {
    if encoding == Encoding::Identity {
        return read(message);
    }
    let message = gzip::decompressed(message, MAX_MESSAGE).map_err(ProtocolError::Gzip)?;
    if message.len() > MAX_MESSAGE {
        return Err(ProtocolError::TooLarge { length: message.len() as u64 });
    }
    if !share.grow(message.len()) {
        return Err(ProtocolError::NoRoom);
    }
    read(&message)
}

fn read<T: DeserializeOwned>(message: &[u8]) -> Result<T, ProtocolError> {
    if count_values(message, MAX_VALUES) > MAX_VALUES {
        return Err(ProtocolError::TooManyValues);
    }
    if let Some(short) = with_short_texts(message) {
        serde_json::from_slice::<T>(&short)?;
    }
    Ok(serde_json::from_slice(message)?)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use isolator_pool::pool::admission::Client;

    use super::*;
    use crate::calls::budget::Budget;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Text {
        text: String,
    }

    /// A share that can grow to `most` bytes.
    fn share(most: usize) -> Share {
        Budget::new(most, most).share(&Client::named("a"))
    }

    fn envelope(flags: u8, message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[flags], &length[..], message].concat()
    }

    fn text(text: &str) -> Vec<u8> {
        serde_json::json!({ "text": text }).to_string().into_bytes()
    }

    #[test]
    fn messages_are_the_same_however_their_bytes_arrive() {
        let texts = ["a", "", "some longer text"];
        let all = texts.iter().flat_map(|it| envelope(0, &text(it)));
        let sent: Vec<u8> = all.chain(envelope(END, b"{}")).collect();
        for size in [1, 2, 3, 7, 1000] {
            let mut envelopes = Envelopes::new(Encoding::Identity);
            let mut found = Vec::new();
            for piece in sent.chunks(size) {
                envelopes.push(piece);
                while let Some(Text { text }) = envelopes.next(&mut share(MAX_MESSAGE)).unwrap() {
                    found.push(text);
                }
            }
            envelopes.finish().unwrap();
            assert_eq!(found, texts);
        }
    }

    #[test]
    fn the_memory_of_a_long_message_is_not_kept() {
        let mut envelopes = Envelopes::new(Encoding::Identity);
        envelopes.push(&envelope(0, format!(r#"{{"text":"{}"}}"#, "x".repeat(1 << 20)).as_bytes()));
        envelopes.push(&[0]);
        assert!(envelopes.next::<Text>(&mut share(MAX_MESSAGE)).unwrap().is_some());
        assert!(envelopes.len() == 1 && envelopes.buffer.capacity() <= MAX_KEPT);
    }

    #[test]
    fn an_announced_length_reserves_no_memory() {
        let mut envelopes = Envelopes::new(Encoding::Identity);
        envelopes.push(&[0]);
        envelopes.push(&u32::try_from(MAX_MESSAGE).unwrap().to_be_bytes());
        envelopes.push(b"{}");
        assert!(envelopes.next::<Text>(&mut share(MAX_MESSAGE)).unwrap().is_none());
        assert!(envelopes.buffer.capacity() < 100);
        let error = envelopes.finish().unwrap_err();
        assert!(matches!(error, ProtocolError::Truncated { received: 2, .. }), "{error}");
        let too_long = [&[0][..], &u32::MAX.to_be_bytes()].concat();
        let error = only::<Text>(&too_long, Encoding::Identity, &mut share(0)).unwrap_err();
        assert!(matches!(error, ProtocolError::TooLarge { length: 0xffff_ffff }), "{error}");
    }

    #[test]
    fn envelopes_that_break_the_protocol_are_refused() {
        let bomb = gzip::compressed(&vec![b' '; MAX_MESSAGE + 9]);
        let many = format!("[{}0]", "0,".repeat(MAX_VALUES));
        for (sent, encoding, expected) in [
            (vec![], Encoding::Identity, "no message"),
            (vec![0, 0, 0], Encoding::Identity, "3 of the 5"),
            (envelope(4, b"{}"), Encoding::Identity, "0x04"),
            (envelope(0xff, b"{}"), Encoding::Gzip, "0xff"),
            (envelope(COMPRESSED, b"{}"), Encoding::Identity, "Connect-Content-Encoding"),
            (envelope(COMPRESSED, b"{}"), Encoding::Gzip, "decompressed"),
            (envelope(COMPRESSED, b""), Encoding::Gzip, "decompressed"),
            (envelope(END, b"{}"), Encoding::Identity, "no message"),
            (envelope(0, b"{"), Encoding::Identity, "JSON"),
            (envelope(0, b"7"), Encoding::Identity, "JSON"),
            (envelope(0, many.as_bytes()), Encoding::Identity, "100000"),
            (envelope(0, b""), Encoding::Identity, "JSON"),
            (envelope(0, b"\xff"), Encoding::Identity, "JSON"),
            (envelope(0, "{\"a\":".repeat(1000).as_bytes()), Encoding::Identity, "JSON"),
            (envelope(0, &text("a")).repeat(2), Encoding::Identity, "more than one"),
            ([envelope(0, &text("a")), vec![0]].concat(), Encoding::Identity, "1 of the 5"),
            (
                [envelope(0, &text("a")), envelope(END, b"{}").repeat(2)].concat(),
                Encoding::Identity,
                "more than one",
            ),
            (envelope(COMPRESSED, &bomb), Encoding::Gzip, "can have"),
        ] {
            let message =
                only::<Text>(&sent, encoding, &mut share(MAX_MESSAGE)).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} for {expected}");
        }
    }

    #[test]
    fn compressed_messages_are_read() {
        let packed = envelope(COMPRESSED, &gzip::compressed(&text("packed")));
        let mut envelopes = Envelopes::new(Encoding::Gzip);
        envelopes.push(&[packed, envelope(0, &text("plain"))].concat());
        assert_eq!(
            envelopes.next::<Text>(&mut share(MAX_MESSAGE)).unwrap().unwrap().text,
            "packed"
        );
        assert_eq!(envelopes.next::<Text>(&mut share(MAX_MESSAGE)).unwrap().unwrap().text, "plain");
        let whole = gzip::compressed(&text("whole"));
        assert_eq!(parse::<Text>(&whole, Encoding::Gzip, &mut share(100)).unwrap().text, "whole");
    }

    #[test]
    fn a_compressed_message_counts_with_the_bytes_that_it_becomes() {
        let long = text(&"a".repeat(10_000));
        let packed = gzip::compressed(&long);
        let mut some = share(long.len());
        assert!(parse::<Text>(&packed, Encoding::Gzip, &mut some).is_ok() && !some.grow(1));
        let error = parse::<Text>(&packed, Encoding::Gzip, &mut share(long.len() - 1)).unwrap_err();
        assert!(matches!(error, ProtocolError::NoRoom), "{error}");
        // What is not compressed has been counted as it came.
        assert!(parse::<Text>(&long, Encoding::Identity, &mut share(0)).is_ok());
    }
}
