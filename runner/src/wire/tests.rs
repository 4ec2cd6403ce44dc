use proptest::prelude::*;

use super::*;

#[test]
fn a_frame_above_the_limit_is_refused_before_it_is_read() {
    let mut decoder = FrameDecoder::default();
    decoder.feed(&[Kind::Stdout as u8, 0xff, 0xff, 0xff, 0xff]);
    assert!(matches!(decoder.next_frame(), Err(WireError::TooLong(_))));
}

#[test]
fn an_unknown_kind_is_refused() {
    let mut decoder = FrameDecoder::default();
    decoder.feed(&[200, 0, 0, 0, 0]);
    assert!(matches!(decoder.next_frame(), Err(WireError::UnknownKind(200))));
}

#[test]
fn a_stream_that_ends_inside_a_frame_is_an_error() {
    let mut stream: &[u8] = &[Kind::Tar as u8, 0, 0, 0, 9, 1, 2];
    assert!(matches!(read_frame(&mut stream), Err(WireError::Io(_))));
}

proptest! {
    #[test]
    fn frames_survive_any_cut(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
        cut in 1_usize..64,
    ) {
        let mut stream = Vec::new();
        for payload in &payloads {
            stream.extend_from_slice(&header(Kind::Stdout, payload.len()));
            stream.extend_from_slice(payload);
        }
        let mut decoder = FrameDecoder::default();
        let mut seen = Vec::new();
        for piece in stream.chunks(cut) {
            decoder.feed(piece);
            while let Some((kind, payload)) = decoder.next_frame().unwrap() {
                prop_assert_eq!(kind, Kind::Stdout);
                seen.push(payload);
            }
        }
        prop_assert_eq!(seen, payloads);
    }

    #[test]
    fn any_bytes_are_frames_or_an_error_but_never_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut decoder = FrameDecoder::default();
        decoder.feed(&bytes);
        while let Ok(Some(_)) = decoder.next_frame() {}
    }
}
