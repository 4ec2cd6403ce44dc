//! The part of sessions that a fuzzer calls.

use std::time::Duration;

use isolator_runner::wire::{CellRun, FrameDecoder, OutputLimits, WireError};

use super::output::CellOutput;
use super::{CellRequest, ShownThing};
use crate::run::workspace::{WorkspaceBuilder, WorkspaceLimits};

/// The things that the server keeps from the frames of a cell, which may show up to `most` bytes.
///
/// # Errors
///
/// When the runner has broken the protocol.
pub fn shown(frames: &[u8], most: u64) -> Result<Vec<ShownThing>, WireError> {
    let mut output = CellOutput::new(&CellRequest {
        run: CellRun::code(),
        workspace: WorkspaceBuilder::new(WorkspaceLimits { files: 0, total: 0 }).build(),
        appended: Vec::new(),
        input: Vec::new(),
        timeout: Duration::ZERO,
        output: OutputLimits { head: 0, tail: 0, kill: 0 },
        shown: most,
        files: None,
        watch: None,
        shown_watch: None,
        interrupt: None,
        context: 0,
        keeps_session: false,
    });
    let mut decoder = FrameDecoder::default();
    decoder.feed(frames);
    while let Some((kind, payload)) = decoder.next_frame()? {
        output.take(kind, &payload)?;
    }
    Ok(output.shown)
}
