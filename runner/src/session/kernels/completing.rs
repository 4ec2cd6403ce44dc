//! Asks a kernel for names that complete a word.

use std::io;
use std::time::{Duration, Instant};

use isolator_runner::wire::Completed;

use super::{Kernels, wait};
use crate::session::channel::Said;

/// How long a kernel may take for its answer. A task of an earlier cell may keep it busy.
const NAMES_TIMEOUT: Duration = Duration::from_millis(300);

/// A kernel that owes as many answers is not asked.
const MAX_LATE: u32 = 4;

impl Kernels {
    /// The names that the word at the end of a text may become; none if the kernel does not say them in time. Its answer is dropped then,
    /// and everything else stays as it is.
    pub(in crate::session) fn complete(&mut self, text: &str) -> Completed {
        if self.is_deaf || self.current.channel.late_names() >= MAX_LATE {
            return Completed::default();
        }
        let until = Instant::now() + NAMES_TIMEOUT;
        let sent = self.current.channel.send(b'Q', &[text.as_bytes()], &[], NAMES_TIMEOUT);
        if sent.is_err() {
            // A part of the message may have been sent.
            self.is_deaf = true;
            return Completed::default();
        }
        match self.names_until(until) {
            Ok(completed) if completed.fits(text) => completed,
            Ok(_) => Completed::default(),
            Err(error) => {
                if error.kind() == io::ErrorKind::TimedOut {
                    self.current.channel.give_up_names();
                }
                Completed::default()
            }
        }
    }

    fn names_until(&mut self, until: Instant) -> io::Result<Completed> {
        loop {
            match self.current.channel.next()? {
                Some(Said::Completed(completed)) => return Ok(completed),
                Some(Said::Loaded) => self.has_loaded(),
                Some(Said::Shown { forms, .. }) => self.early.add(forms),
                Some(Said::TooLong) => self.early.dropped = self.early.dropped.saturating_add(1),
                // The kernel has failed at it, or says what was not asked.
                Some(_) => return Err(io::ErrorKind::InvalidData.into()),
                None if self.current.channel.is_closed || self.current.has_ended() => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                None => {}
            }
            // It may say something without end.
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if !self.current.channel.has_message() {
                wait(&[self.current.channel.fd(), self.current.pidfd()], until)?;
            }
        }
    }
}
