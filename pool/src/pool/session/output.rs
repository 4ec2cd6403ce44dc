//! The output of a cell while it runs, and the things that it shows. The runner's word on limits is not trusted.

use std::fmt;
use std::sync::Arc;

use isolator_runner::wire::session::{MAX_MEDIA_TYPE, MAX_SHOWN, SHOWN_OVERHEAD};
use isolator_runner::wire::{self, Kind, Shown, WireError};

use super::{CellRequest, ShownThing};
use crate::run::output::Output;

/// Most bytes that processes of earlier cells can have printed.
const MAX_BACKGROUND: usize = 16 * 1024;

/// A callback for the things that a cell shows, as they come. It must not block.
#[derive(Clone)]
pub struct ShownWatch(Arc<OnShown>);

type OnShown = dyn Fn(ShownThing) + Send + Sync;

impl ShownWatch {
    /// Wraps a callback.
    pub fn new(on_shown: impl Fn(ShownThing) + Send + Sync + 'static) -> Self {
        Self(Arc::new(on_shown))
    }
}

impl fmt::Debug for ShownWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShownWatch")
    }
}

/// The output of a cell so far.
pub(super) struct CellOutput {
    pub(super) output: Output,
    pub(super) shown: Vec<ShownThing>,
    watch: Option<ShownWatch>,
    /// Whether the last form of the last thing has begun.
    is_last: bool,
    /// Bytes that the last form still lacks.
    missing: u64,
    shown_left: u64,
    pub(super) background: Vec<u8>,
}

impl CellOutput {
    pub(super) fn new(request: &CellRequest) -> Self {
        Self {
            output: Output::new(request.output, request.watch.clone(), request.files.as_ref()),
            shown: Vec::new(),
            watch: request.shown_watch.clone(),
            is_last: true,
            missing: 0,
            shown_left: request.shown,
            background: Vec::new(),
        }
    }

    /// Takes a frame of what a cell prints, shows and leaves.
    ///
    /// # Errors
    ///
    /// When it is not one, or more than was asked for.
    pub(super) fn take(&mut self, kind: Kind, payload: &[u8]) -> Result<(), WireError> {
        let taken = match kind {
            Kind::Background => {
                let room = MAX_BACKGROUND.saturating_sub(self.background.len());
                self.background.extend_from_slice(&payload[..payload.len().min(room)]);
                Some(())
            }
            Kind::Shown => self.begin_form(wire::parse_message(kind, payload)?),
            Kind::ShownContent => self.go_on(payload),
            _ => return self.output.take(kind, payload),
        };
        taken.ok_or(WireError::Unexpected(kind))
    }

    fn begin_form(&mut self, shown: Shown) -> Option<()> {
        let Shown { thing, occasion, media_type, size, is_last } = shown;
        let left = self.shown_left.checked_sub(size.checked_add(SHOWN_OVERHEAD)?)?;
        if self.missing > 0 || media_type.len() > MAX_MEDIA_TYPE || thing >= MAX_SHOWN {
            return None;
        }
        let index = thing as usize;
        if index == self.shown.len() {
            self.shown.push(ShownThing { occasion, forms: Vec::new() });
        }
        // Forms of one thing follow each other.
        let last = self.shown.len().checked_sub(1).filter(|last| *last == index)?;
        self.shown_left = left;
        self.missing = size;
        self.is_last = is_last;
        self.shown[last].forms.push((media_type, Vec::new()));
        self.pass_on();
        Some(())
    }

    /// Passes on the last thing to the watch, once it is complete.
    fn pass_on(&mut self) {
        if let Some(ShownWatch(on_shown)) = &self.watch
            && self.is_last
            && self.missing == 0
            && let Some(thing) = self.shown.last_mut()
            && !thing.forms.is_empty()
        {
            on_shown(std::mem::take(thing));
        }
    }

    fn go_on(&mut self, payload: &[u8]) -> Option<()> {
        self.missing = self.missing.checked_sub(payload.len() as u64)?;
        let (_, content) = self.shown.last_mut()?.forms.last_mut()?;
        content.extend_from_slice(payload);
        self.pass_on();
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use isolator_runner::wire::{CellRun, Occasion, OutputLimits};

    use super::*;
    use crate::run::workspace::{WorkspaceBuilder, WorkspaceLimits};

    fn output(shown: u64) -> CellOutput {
        let limits = OutputLimits { head: 10, tail: 10, kill: 100 };
        CellOutput::new(&CellRequest {
            run: CellRun::code(),
            workspace: WorkspaceBuilder::new(WorkspaceLimits { files: 1, total: 1 }).build(),
            appended: Vec::new(),
            input: Vec::new(),
            timeout: Duration::from_secs(1),
            output: limits,
            shown,
            files: None,
            watch: None,
            shown_watch: None,
            interrupt: None,
            context: 0,
            keeps_session: false,
        })
    }

    fn shown(thing: u32, size: u64) -> Vec<u8> {
        let media_type = "text/plain".to_owned();
        let (occasion, is_last) = (Occasion::Result, true);
        serde_json::to_vec(&Shown { thing, occasion, media_type, size, is_last }).unwrap()
    }

    #[test]
    fn forms_of_one_thing_belong_together() {
        let mut output = output(1000);
        for (thing, text) in [(0, "a"), (0, "bc"), (1, "")] {
            output.take(Kind::Shown, &shown(thing, text.len() as u64)).unwrap();
            output.take(Kind::ShownContent, text.as_bytes()).unwrap();
        }
        let sizes: Vec<Vec<_>> = output
            .shown
            .iter()
            .map(|it| it.forms.iter().map(|(_, it)| it.len()).collect())
            .collect();
        assert_eq!(sizes, [vec![1, 2], vec![0]]);
    }

    #[test]
    fn a_runner_that_says_too_much_is_an_error() {
        assert!(output(100).take(Kind::Shown, &shown(0, 1)).is_err());
        assert!(output(1000).take(Kind::Shown, &shown(1, 1)).is_err());
        assert!(output(1000).take(Kind::Shown, &shown(0, u64::MAX)).is_err());
        assert!(output(1000).take(Kind::ShownContent, b"x").is_err());
        assert!(output(1000).take(Kind::Ready, b"{}").is_err());
        let mut short = output(1000);
        short.take(Kind::Shown, &shown(0, 2)).unwrap();
        assert!(short.take(Kind::Shown, &shown(1, 2)).is_err());
        assert!(short.take(Kind::ShownContent, b"abc").is_err());
        let mut background = output(0);
        for _ in 0..10 {
            background.take(Kind::Background, &[b'x'; 10_000]).unwrap();
        }
        assert_eq!(background.background.len(), MAX_BACKGROUND);
    }
}
