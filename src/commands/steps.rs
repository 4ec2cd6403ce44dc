//! Shows an operator how far a long step is: as one line that changes on a terminal, and as a few lines elsewhere.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use isolator_pool::engine::images::{ImageProvider, STEP};
use isolator_pool::engine::{EngineError, Image};
use isolator_pool::lock::lock;
use isolator_pool::quote::escaped;

use crate::calls::command::Piece;
use crate::commands::complain;
use crate::commands::server::OnPiece;

/// How often the line on a terminal changes if nothing happens, for the time in it.
const TICK: Duration = Duration::from_millis(200);

/// Shortest time between two lines elsewhere.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// How many of the last lines are shown if the step fails and they were not. The reason is usually among them.
const LAST_LINES: usize = 20;

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
    let steps = Steps::of_image(images, name);
    steps.follow(images.ensure(name, &|line| steps.show(line))).await
}

/// The display of a long step. Dropping it takes its line off the terminal.
pub(super) struct Steps {
    began: Instant,
    /// The thing that is made.
    what: String,
    /// The remark about it before the first step.
    how: &'static str,
    shown: Mutex<Shown>,
    /// The last lines, if they are shown when it fails.
    last: Option<Mutex<VecDeque<String>>>,
}

enum Shown {
    Nothing,
    OnTerminal(ProgressBar),
    Lines {
        last: Instant,
    },
    /// All lines, as they are.
    All,
}

impl Steps {
    /// Nothing is said before the first step.
    pub(super) fn new(what: String, how: &'static str) -> Self {
        Self { began: Instant::now(), what, how, shown: Mutex::new(Shown::Nothing), last: None }
    }

    /// The same for the packages that were named, or that a program depends on.
    pub(super) fn of_packages(names: &[String]) -> Arc<Self> {
        let what = match names {
            [] => "the set of packages for the program".to_owned(),
            names => format!("the set of packages for {}", names.join(", ")),
        };
        Arc::new(Self::new(what, "is built, which is done once"))
    }

    /// The same for an image.
    pub(super) fn of_image(images: &ImageProvider, name: &str) -> Self {
        let how = match images.is_built(name) {
            true => "is built, which is done once and takes some minutes",
            false => "is pulled, which is done once",
        };
        let mut steps = Self::new(format!("the image {name}"), how);
        steps.last = Some(Mutex::default());
        steps
    }

    /// The same with all lines, if they are wanted.
    pub(super) fn verbose(mut self, is_verbose: bool) -> Self {
        if is_verbose {
            (self.shown, self.last) = (Mutex::new(Shown::All), None);
        }
        self
    }

    /// Receives the steps of the packages of a call; an empty one ends them.
    pub(super) fn on_piece(self: &Arc<Self>) -> Arc<OnPiece> {
        let steps = Arc::clone(self);
        Arc::new(move |piece| match piece {
            Piece::Step(step) if step.is_empty() => {
                steps.clear();
                *lock(&steps.shown) = Shown::Nothing;
            }
            Piece::Step(step) => steps.show(&step),
            // All of it is in the answer.
            Piece::Stdout(_) | Piece::Stderr(_) => {}
        })
    }

    /// Waits for the work whose steps are shown. If it fails, the last lines are shown. If this future is dropped, a
    /// line says that it was ended.
    pub(super) async fn follow<T, E>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let mut unfinished = Unfinished(Some(self));
        let ended = work.await;
        unfinished.0 = None;
        if ended.is_err() {
            self.tell_last_lines();
        }
        ended
    }

    /// Shows what is being done now. It is foreign text, of a package manager or a registry.
    pub(super) fn show(&self, line: &str) {
        let line: String = escaped(line.trim()).chars().take(200).collect();
        if line.is_empty() {
            return;
        }
        let mut shown = lock(&self.shown);
        if matches!(*shown, Shown::Nothing) {
            complain(&format!("isolator: {} {}; Ctrl-C stops it", self.what, self.how));
            *shown = Self::begin();
        }
        if let Some(last) = &self.last {
            let mut last = lock(last);
            last.push_back(line.clone());
            if last.len() > LAST_LINES {
                last.pop_front();
            }
        }
        let is_step = line.starts_with(STEP);
        match &mut *shown {
            Shown::OnTerminal(bar) if is_step => bar.println(self.timed(&line)),
            Shown::OnTerminal(bar) => bar.set_message(line),
            Shown::Lines { last } if is_step || last.elapsed() >= BETWEEN_LINES => {
                *last = Instant::now();
                complain(&self.timed(&line));
            }
            Shown::All => complain(&line),
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

    /// Takes the line off the terminal. Returns whether anything was shown.
    fn clear(&self) -> bool {
        match &*lock(&self.shown) {
            Shown::OnTerminal(bar) => bar.finish_and_clear(),
            Shown::Lines { .. } | Shown::All => {}
            Shown::Nothing => return false,
        }
        true
    }

    fn tell_unfinished(&self) {
        if self.clear() {
            complain(&format!("isolator: stopped: {} is not finished", self.what));
        }
    }

    fn tell_last_lines(&self) {
        let Some(last) = self.last.as_ref().filter(|_| self.clear()) else { return };
        lock(last).drain(..).for_each(|line| complain(&format!("  {line}")));
    }
}

/// Says when it is dropped that the steps have not come to their end.
struct Unfinished<'a>(Option<&'a Steps>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(steps) = self.0 {
            steps.tell_unfinished();
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.clear();
    }
}
