//! Shows an operator how far a long step is: as one line that changes on a terminal, and as a few lines elsewhere.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use isolator_pool::engine::images::ImageProvider;
use isolator_pool::engine::{EngineError, Image};
use isolator_pool::lock::lock;
use isolator_pool::quote::escaped;

use crate::commands::complain;

/// How often the line on a terminal changes if nothing happens, for the time in it.
const TICK: Duration = Duration::from_millis(200);

/// Shortest time between two lines elsewhere.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// Finds an image, or has it built or pulled. Says nothing if it is there.
///
/// # Errors
///
/// The engine's.
pub(super) async fn ensure_image(
    images: &ImageProvider,
    name: &str,
    is_quiet: bool,
) -> Result<Image, EngineError> {
    if is_quiet {
        return images.ensure(name, &|_| ()).await;
    }
    let steps = Steps::new(match images.is_built(name) {
        true => format!("the image {name} is built, which is done once and takes some minutes"),
        false => format!("the image {name} is pulled, which is done once"),
    });
    images.ensure(name, &|line| steps.show(line)).await
}

/// What is shown of a long step. Dropping it takes its line off the terminal.
pub(super) struct Steps {
    began: Instant,
    /// Said before the first step.
    title: String,
    shown: Mutex<Shown>,
}

enum Shown {
    Nothing,
    OnTerminal(ProgressBar),
    Lines { last: Instant },
}

impl Steps {
    /// Nothing is said before the first step.
    pub(super) fn new(title: String) -> Self {
        Self { began: Instant::now(), title, shown: Mutex::new(Shown::Nothing) }
    }

    /// Shows what is being done now. It is a stranger's text: a package manager's or a registry's.
    pub(super) fn show(&self, line: &str) {
        let line: String = escaped(line.trim()).chars().take(200).collect();
        if line.is_empty() {
            return;
        }
        let mut shown = lock(&self.shown);
        if matches!(*shown, Shown::Nothing) {
            complain(&format!("isolator: {}; Ctrl-C stops it", self.title));
            *shown = Self::begin();
        }
        let is_step = line.starts_with("step ");
        match &mut *shown {
            Shown::OnTerminal(bar) if is_step => bar.println(self.timed(&line)),
            Shown::OnTerminal(bar) => bar.set_message(line),
            Shown::Lines { last } if is_step || last.elapsed() >= BETWEEN_LINES => {
                *last = Instant::now();
                complain(&self.timed(&line));
            }
            Shown::Lines { .. } | Shown::Nothing => {}
        }
    }

    fn begin() -> Shown {
        if !std::io::stderr().is_terminal() {
            return Shown::Lines { last: Instant::now() };
        }
        let bar = ProgressBar::new_spinner();
        // A style that can't be read would be a mistake here; the usual one does as well.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(TICK);
        Shown::OnTerminal(bar)
    }

    fn timed(&self, line: &str) -> String {
        format!("isolator: {:>4} s: {line}", self.began.elapsed().as_secs())
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        match &*lock(&self.shown) {
            Shown::OnTerminal(bar) => bar.finish_and_clear(),
            Shown::Lines { .. } | Shown::Nothing => {}
        }
    }
}
