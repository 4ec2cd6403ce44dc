//! The pictures that hosts pass on to a model. Its API refuses a whole conversation for one picture that it can't decode, so
//! each is decoded here before it is shown.

use std::fmt::Display;
use std::io::Cursor;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use memchr::memmem::rfind;

/// Most pixels on a side of a picture, and of the whole. APIs of models refuse longer sides, and make smaller whatever
/// has more than about two million pixels.
pub(crate) const MAX_SIDE: u32 = 8000;
pub(crate) const MAX_PIXELS: u64 = 24_000_000;

/// Most pixels that are decoded for an answer. A picture of a few kilobytes can have millions.
const MAX_DECODED: u64 = 4 * MAX_PIXELS;

/// The server decodes one picture at a time, because each can take two hundred megabytes for a moment.
static DECODING: Mutex<()> = Mutex::new(());

/// The formats that hosts show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Png,
    Jpeg,
    Gif,
    WebP,
}

/// Why a picture is not shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No host could show it.
    Broken(String),
    /// It has more pixels than a model can be shown.
    TooLarge { width: u32, height: u32 },
    /// The other pictures of the answer have too many pixels already.
    NoRoom,
}

/// How much is still decoded for an answer.
#[derive(Debug)]
pub(crate) struct Decoding {
    pixels: u64,
}

impl Default for Decoding {
    fn default() -> Self {
        Self { pixels: MAX_DECODED }
    }
}

impl Format {
    /// The format by the first bytes, which say nothing of the rest.
    pub(crate) fn of(content: &[u8]) -> Option<Self> {
        match content {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            _ => None,
        }
    }

    /// The format by a media type.
    pub(crate) fn named(media_type: &str) -> Option<Self> {
        let all = [Self::Png, Self::Jpeg, Self::Gif, Self::WebP];
        all.into_iter().find(|format| format.media_type() == media_type)
    }

    /// Its media type.
    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Gif => "image/gif",
            Self::WebP => "image/webp",
        }
    }
}

impl Decoding {
    /// Decodes a picture, to see whether that can be done. It can take a tenth of a second and more.
    pub(crate) fn check(&mut self, format: Format, content: &[u8]) -> Result<(), Refusal> {
        let _one_at_a_time = DECODING.lock().unwrap_or_else(PoisonError::into_inner);
        let decode = || match format {
            Format::Png => self.png(content),
            Format::Jpeg => self.jpeg(content),
            Format::Gif => self.gif(content),
            Format::WebP => self.webp(content),
        };
        // A mistake of a decoder costs this picture, and not the answer.
        catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|_| {
            tracing::warn!(
                format = format.media_type(),
                "a decoder of pictures panicked over a program's file"
            );
            Err(broken("its decoder failed"))
        })
    }

    /// Makes room for a picture of this size.
    fn reserve(&mut self, width: u32, height: u32) -> Result<(), Refusal> {
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 {
            return Err(broken("it has no pixels"));
        }
        if width.max(height) > MAX_SIDE || pixels > MAX_PIXELS {
            return Err(Refusal::TooLarge { width, height });
        }
        self.pixels = self.pixels.checked_sub(pixels).ok_or(Refusal::NoRoom)?;
        Ok(())
    }

    /// Line by line, and to the last chunk: a program that died may have left all but the end.
    fn png(&mut self, content: &[u8]) -> Result<(), Refusal> {
        let mut decoder = png::Decoder::new(Cursor::new(content));
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        // A palette must be there, too.
        decoder.set_transformations(png::Transformations::EXPAND);
        let info = decoder.read_header_info().map_err(broken)?;
        let (width, height) = (info.width, info.height);
        self.reserve(width, height)?;
        let mut reader = decoder.read_info().map_err(broken)?;
        while reader.next_interlaced_row().map_err(broken)?.is_some() {}
        reader.finish().map_err(broken)
    }

    /// Its decoder fills in what is missing, so the end is looked for here. In the data of a scan the two bytes can't occur.
    fn jpeg(&mut self, content: &[u8]) -> Result<(), Refusal> {
        let mut decoder = zune_jpeg::JpegDecoder::new(Cursor::new(content));
        decoder.decode_headers().map_err(broken)?;
        let info = decoder.info().ok_or_else(|| broken("it has no header"))?;
        self.reserve(info.width.into(), info.height.into())?;
        if rfind(content, b"\xff\xd9") < rfind(content, b"\xff\xda") {
            return Err(broken("it ends too early"));
        }
        decoder.decode().map_err(broken)?;
        Ok(())
    }

    /// Its first frame, and the form of all others.
    fn gif(&mut self, content: &[u8]) -> Result<(), Refusal> {
        let mut options = gif::DecodeOptions::new();
        options.check_frame_consistency(true);
        if let Some(limit) = NonZeroU64::new(MAX_PIXELS) {
            options.set_memory_limit(gif::MemoryLimit::Bytes(limit));
        }
        let mut decoder = options.clone().read_info(content).map_err(broken)?;
        self.reserve(decoder.width().into(), decoder.height().into())?;
        decoder.read_next_frame().map_err(broken)?.ok_or_else(|| broken("it has no frame"))?;
        options.skip_frame_decoding(true);
        let mut decoder = options.read_info(content).map_err(broken)?;
        while decoder.next_frame_info().map_err(broken)?.is_some() {}
        Ok(())
    }

    /// Its first frame. The decoder does without what is missing after that.
    fn webp(&mut self, content: &[u8]) -> Result<(), Refusal> {
        let size = content.get(4..8).and_then(|size| size.try_into().ok()).map(u32::from_le_bytes);
        if size.is_none_or(|size| u64::from(size) + 8 > content.len() as u64) {
            return Err(broken("it ends too early"));
        }
        let mut decoder = image_webp::WebPDecoder::new(Cursor::new(content)).map_err(broken)?;
        let (width, height) = decoder.dimensions();
        self.reserve(width, height)?;
        let size = decoder.output_buffer_size().ok_or_else(|| broken("it is too large"))?;
        decoder.read_image(&mut vec![0; size]).map_err(broken)
    }
}

fn broken(why: impl Display) -> Refusal {
    Refusal::Broken(why.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;

    use super::*;

    /// Small pictures: of each format, and of its rarer forms.
    const PICTURES: &[(Format, &str)] = &[
        (
            Format::Png,
            "iVBORw0KGgoAAAANSUhEUgAAABQAAAAMCAIAAADtbgqsAAAAQ0lEQVR4nJ3Ltw0AIAwEwCfHkv1npUOIYIyla08BqFIWDYCSGVkLzNn8WrL9smfHd8ye6ZYDB5HjE50T7ZkzgZPLTQe77wX4rOH0KwAAAABJRU5ErkJggg==",
        ),
        (
            Format::Png,
            "iVBORw0KGgoAAAANSUhEUgAAABQAAAAMBAMAAACQIoDIAAAAMFBMVEXGyKXGoISEvmlIyDwSyA8woCDGeGOEeEJIeCQSeAnGPDKEPCGoCgdIPBISPAUwCgL/YuBtAAAAVUlEQVR4nD3MMQ7CMBAAwYl1ffj/F/wJeoTEA6LIBR2Frwfl6LzlFLsVPKEljsQVNfeh5j40BgyaVXRTpcqlSfN7gW8Pd4/3xyT6dhuFylAnzDW78AdZsiOZx08ahgAAAABJRU5ErkJggg==",
        ),
        (
            Format::Jpeg,
            "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/2wBDARweHigjKE4rK06kbl1upKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKT/wgARCAAMABQDASIAAhEBAxEB/8QAFgABAQEAAAAAAAAAAAAAAAAAAwQA/8QAFgEBAQEAAAAAAAAAAAAAAAAAAgME/9oADAMBAAIQAxAAAAGRXaRm1uWj/8QAGBABAQEBAQAAAAAAAAAAAAAAAAECERL/2gAIAQEAAQUCmUw8JEjj/8QAGBEAAgMAAAAAAAAAAAAAAAAAAAECAxP/2gAIAQMBAT8BhYaM/8QAFhEAAwAAAAAAAAAAAAAAAAAAAAER/9oACAECAQE/AU6Q/8QAFBABAAAAAAAAAAAAAAAAAAAAIP/aAAgBAQAGPwJf/8QAFhABAQEAAAAAAAAAAAAAAAAAAQAQ/9oACAEBAAE/IcQgQQL/2gAMAwEAAgADAAAAECDf/8QAFREBAQAAAAAAAAAAAAAAAAAAAAH/2gAIAQMBAT8Qui//xAAUEQEAAAAAAAAAAAAAAAAAAAAQ/9oACAECAQE/EBf/xAAZEAEAAwEBAAAAAAAAAAAAAAAAMVFhESH/2gAIAQEAAT8QxYPGFRXccP/Z",
        ),
        (
            Format::Jpeg,
            "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/wAALCAAMABQBAREA/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIhMUEGE1FhByJxFDKBkaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhIWGh4iJipKTlJWWl5iZmqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/9oACAEBAAA/AMmO09qtR2ftVhbLjpU8Ua+lW4ok9KsrEmOlf//Z",
        ),
        (
            Format::Jpeg,
            "/9j/7gAOQWRvYmUAZAAAAAAA/9sAQwAbEhQXFBEbFxYXHhwbIChCKyglJShROj0wQmBVZWRfVV1baniZgWpxkHNbXYW1hpCeo6utq2eAvMm6pseZqKuk/8AAFAgADAAUBEMRAE0RAFkRAEsRAP/EAB8AAAEFAQEBAQEBAAAAAAAAAAABAgMEBQYHCAkKC//EALUQAAIBAwMCBAMFBQQEAAABfQECAwAEEQUSITFBBhNRYQcicRQygZGhCCNCscEVUtHwJDNicoIJChYXGBkaJSYnKCkqNDU2Nzg5OkNERUZHSElKU1RVVldYWVpjZGVmZ2hpanN0dXZ3eHl6g4SFhoeIiYqSk5SVlpeYmZqio6Slpqeoqaqys7S1tre4ubrCw8TFxsfIycrS09TV1tfY2drh4uPk5ebn6Onq8fLz9PX29/j5+v/aAA4EQwBNAFkASwAAPwDGs+1Z39m/7Nc7Gm6umrcs+1H9m/7NWI7Xd2orYi+4KP7N/wBmpxp2R92iuLs+1dR5EfpVe1AOKK3LPtR5EfpWxaxqccUVsRfcFHkR+lascEewcUV//9k=",
        ),
        (
            Format::Gif,
            "R0lGODdhFAAMAIIAAKi+hTC+Jqh4VDB4GKg8KqgKBzA8DDAKAiwAAAAAFAAMAAAIVAAPCBxIsIDBgwgJKkTI0KCBhxAjEphIsWLEixUzTrwoUWPFASBDihRAsqRJkShNqiSJcuTKkgAGBJhJc6ZJADhzAqjJM4DOnzt7zgT6U+hQojkDAgA7",
        ),
        (
            Format::Gif,
            "R0lGODdhFAAMAIIAAKi+hTC+Jqh4VDB4GKg8KqgKBzA8DDAKAiwAAAAAFAAMAAAIVAAPCBxIsIDBgwgJKkTI0KCBhxAjEphIsWLEixUzTrwoUWPFASBDihRAsqRJkShNqiSJcuTKkgAGBJhJc6ZJADhzAqjJM4DOnzt7zgT6U+hQojkDAgAh+QQBAAAIACwAAAAAFAAMAIKQvnJIvjlygj6QUDBIUBhyHg5yAAAAAAAIXwAPCDxgoMCAgwcBKFQ4sCFBgwgHLGToUGBBiAMECJhY0WIBjBo5dryIMOTCjg8/HtS4kWLFiwZZCgjg0uFFAjhZBtiJ8mbOmTsD9CyAsyhQniOJFiUQFCnKpUybNgwIADs=",
        ),
        (
            Format::WebP,
            "UklGRl4AAABXRUJQVlA4IFIAAADQAwCdASoUAAwALtGIxGIkLCwsDADQS2AE6ZQjgAKkoPme57B1G3IA/vRdBchE+yK44skyjGh5dkaKu3KgrzhhTu86VF1GDaio0iNTs3b460AA",
        ),
        (
            Format::WebP,
            "UklGRjAAAABXRUJQVlA4TCMAAAAvE8ACALkyRPQ/dlH/6H+ASNumIu5f79jpMExATABcDpY/AAA=",
        ),
        (
            Format::WebP,
            "UklGRuYAAABXRUJQVlA4WAoAAAACAAAAEwAACwAAQU5JTQYAAAAAAAAAAABBTk1GVAAAAAAAAAAAABMAAAsAAAAAAAJWUDggPAAAAFABAJ0BKhQADAAHQJYlsAAExYAA/rT8L/E3yeon+q3Uy7kOE08Or6eBa6Y38znKdbzh/zEwu6HuK7gAAEFOTUZeAAAAAAAAAAAAEwAACwAAAAAAAFZQOCBGAAAAtAIAnQEqFAAMAD9xoMZYgwCAAALglsAJ0ygAVjoAAP7hJ/sMNz+e0VcxJsLx5kp6iPiRNolVD+00FtbQKYtu/4JBNYAAAA==",
        ),
    ];

    /// A picture that can be shown.
    pub(crate) fn picture() -> Vec<u8> {
        BASE64.decode(PICTURES[0].1).unwrap()
    }

    /// A PNG that has only the header of one so large.
    pub(crate) fn png_of(width: u32, height: u32) -> Vec<u8> {
        let mut png = Vec::new();
        drop(png::Encoder::new(&mut png, width, height).write_header().unwrap());
        png
    }

    fn check(format: Format, content: &[u8]) -> Result<(), Refusal> {
        Decoding::default().check(format, content)
    }

    #[test]
    fn each_format_is_shown_while_it_is_whole() {
        for (format, base64) in PICTURES {
            let whole = BASE64.decode(base64).unwrap();
            assert_eq!(
                (Format::of(&whole), check(*format, &whole)),
                (Some(*format), Ok(())),
                "{base64}"
            );
            assert_eq!(Format::named(format.media_type()), Some(*format));
            for end in 4..whole.len() {
                let shown = check(*format, &whole[..end]);
                assert!(matches!(shown, Err(Refusal::Broken(_))), "{format:?} {end}: {shown:?}");
            }
        }
    }

    #[test]
    fn first_bytes_alone_make_no_picture() {
        let begun: [&[u8]; 6] = [
            b"\x89PNG\r\n\x1a\n",
            b"\xff\xd8\xff\xe0 is followed by anything \xff\xda and \xff\xd9",
            b"GIF89a is how a GIF begins",
            b"GIF89a\0\0\0\0\0\0\0;",
            b"RIFF\x10\0\0\0WEBPVP8 \0\0\0\0",
            b"RIFF\xff\xff\xff\xffWEBPVP8X\x0a\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff",
        ];
        for content in begun {
            let format = Format::of(content).unwrap();
            assert!(matches!(
                check(format, content),
                Err(Refusal::Broken(_) | Refusal::TooLarge { .. })
            ));
        }
        for other in [&b""[..], b"\x89PNG", b"GIF90a", b"RIFF----WAVE", b"BM", b"II*\0"] {
            assert_eq!(Format::of(other), None);
        }
    }

    #[test]
    fn pixels_are_limited_for_each_picture_and_for_all() {
        let large = [(20_000, 9000), (8001, 1), (1, 8001), (8000, 8000), (u32::MAX >> 1, 1)];
        for (width, height) in large {
            let refusal = check(Format::Png, &png_of(width, height));
            assert_eq!(refusal, Err(Refusal::TooLarge { width, height }));
        }
        let mut decoding = Decoding::default();
        let size = png_of(8000, 3000);
        // Their data is missing, but the room for them was used.
        for _ in 0..MAX_DECODED / MAX_PIXELS {
            assert!(matches!(decoding.check(Format::Png, &size), Err(Refusal::Broken(_))));
        }
        assert_eq!(decoding.check(Format::Png, &size), Err(Refusal::NoRoom));
    }
}
