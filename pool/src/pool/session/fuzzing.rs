//! What a fuzzer calls of sessions.

use std::time::Duration;

use isolator_runner::wire::{CellRun, FrameDecoder, OutputLimits, WireError};

use super::output::CellOutput;
use super::{CellRequest, ShownThing};
use crate::run::workspace::{WorkspaceBuilder, WorkspaceLimits};

/// What the server keeps of frames that come while a cell runs, which may show so many bytes.
///
/// # Errors
///
/// When the server would say that the runner has broken the protocol.
pub fn shown(frames: &[u8], most: u64) -> Result<Vec<ShownThing>, WireError> {
    let mut output = CellOutput::new(&CellRequest {
        run: CellRun::Code { typescript: false, columns: None },
        workspace: WorkspaceBuilder::new(WorkspaceLimits { files: 0, total: 0 }).build(),
        appended: Vec::new(),
        input: Vec::new(),
        timeout: Duration::ZERO,
        output: OutputLimits { head: 0, tail: 0, kill: 0 },
        shown: most,
        files: None,
        watch: None,
    });
    let mut decoder = FrameDecoder::default();
    decoder.feed(frames);
    while let Some((kind, payload)) = decoder.next_frame()? {
        output.take(kind, &payload)?;
    }
    Ok(output.shown)
}
