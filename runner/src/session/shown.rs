//! The things that a cell shows, up to a limit.

use std::fs::File;
use std::io;

use isolator_runner::wire::session::{MAX_SHOWN, SHOWN_OVERHEAD};
use isolator_runner::wire::{Kind, Occasion, Shown};

use crate::frame_writer::FrameWriter;

/// The things that a cell has shown.
pub(super) struct ShownSoFar {
    things: u32,
    /// Bytes that may still be sent.
    left: u64,
    pub(super) dropped: u32,
}

impl ShownSoFar {
    /// None yet. Up to `left` bytes can be sent.
    pub(super) fn new(left: u64) -> Self {
        Self { things: 0, left, dropped: 0 }
    }

    /// Sends those forms of a thing for which there is room.
    pub(super) fn pass_on(
        &mut self,
        occasion: Occasion,
        forms: Vec<(String, Vec<u8>)>,
        to_server: &mut FrameWriter<File>,
    ) -> io::Result<()> {
        let (thing, mut is_sent, mut is_whole) = (self.things, false, true);
        for (media_type, content) in forms {
            let size = content.len() as u64;
            let left = self.left.checked_sub(size + SHOWN_OVERHEAD).filter(|_| thing < MAX_SHOWN);
            let Some(left) = left else {
                is_whole = false;
                continue;
            };
            self.left = left;
            is_sent = true;
            to_server.queue_message(Kind::Shown, &Shown { thing, occasion, media_type, size })?;
            to_server.queue(Kind::ShownContent, &content)?;
        }
        self.things += u32::from(is_sent);
        self.dropped += u32::from(!is_sent || !is_whole);
        Ok(())
    }
}
