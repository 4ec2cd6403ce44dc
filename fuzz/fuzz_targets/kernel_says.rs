//! Sends the runner anything that the kernel of a session could send, in pieces of any size. The runner takes no more than was
//! sent, and the server takes whatever the runner passes on.

#![no_main]

mod fuzzer;
mod knobs;
// These modules of the runner are not part of its library, so they are included by their paths.
#[allow(dead_code)]
#[path = "../../runner/src/session/channel.rs"]
mod channel;
#[allow(dead_code)]
#[path = "../../runner/src/frame_writer.rs"]
mod frame_writer;
#[allow(dead_code)]
#[path = "../../runner/src/poll.rs"]
mod poll;
#[allow(dead_code)]
#[path = "../../runner/src/session/shown.rs"]
mod shown;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;

use isolator_fuzz_inputs::seeds::KNOBS;
use isolator_pool::fuzzing;
use isolator_runner::wire::HEADER_LEN;
use isolator_runner::wire::Kind;
use isolator_runner::wire::Occasion;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};

use channel::{Channel, Said};
use frame_writer::FrameWriter;
use shown::ShownSoFar;

/// Most characters of a text that is no content.
const LONGEST_TEXT: usize = 200;

fuzz_target!(|input: &[u8]| {
    let Some((knobs, stream)) = input.split_first_chunk::<KNOBS>() else { return };
    let most = [0, 150, 1000, 1 << 20][usize::from(knobs[0] & 3)];
    let cut = if knobs[1] == 0 { stream.len().max(1) } else { usize::from(knobs[1]) };
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets can be made");
    let mut channel = Channel::new(ours.into()).expect("a socket can be set up");
    let mut sent = tempfile::tempfile().expect("a file can be made");
    let mut to_server = FrameWriter::new(File::try_clone(&sent).expect("a file can be cloned"));
    let mut shown = ShownSoFar::new(most);
    let mut taken = 0;
    let mut things = 0;
    'stream: for piece in stream.chunks(cut) {
        theirs.write_all(piece).expect("a socket is written");
        loop {
            match channel.next() {
                Ok(Some(Said::Shown { is_result, forms })) => {
                    things += 1;
                    taken += forms.iter().map(|(_, content)| content.len()).sum::<usize>();
                    assert!(taken <= stream.len(), "{taken} bytes of {}", stream.len());
                    let occasion = if is_result { Occasion::Result } else { Occasion::Cell };
                    shown.pass_on(occasion, forms, &mut to_server).expect("a file is written");
                }
                Ok(Some(Said::TooLong)) => shown.dropped += 1,
                Ok(Some(Said::Ready(text))) => assert!(text.chars().count() <= LONGEST_TEXT),
                Ok(Some(Said::Completed(completed))) => {
                    let length = completed.names.iter().map(String::len).sum::<usize>();
                    assert!(length <= stream.len(), "{length} bytes of {}", stream.len());
                }
                Ok(Some(
                    Said::Loaded | Said::Started(_) | Said::Prepared(_) | Said::Ended { .. },
                )) => {}
                Ok(None) => break,
                // Nothing more of it is taken.
                Err(_) => break 'stream,
            }
        }
        assert_eq!(channel.sender, Some(rustix::process::getpid()));
    }
    to_server.send_empty(Kind::Go).expect("a file is written");
    sent.seek(SeekFrom::Start(0)).expect("a file has a beginning");
    let mut frames = Vec::new();
    sent.read_to_end(&mut frames).expect("a file is read");
    frames.truncate(frames.len() - HEADER_LEN);
    let kept = fuzzing::shown(&frames, most).expect("the server takes what the runner passes on");
    assert!(kept.len() <= things);
    let content = kept.iter().flat_map(|thing| &thing.forms).map(|(_, content)| content.len());
    assert!(content.sum::<usize>() as u64 <= most);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    knobs::mutate(data, size, max_size, seed)
});
