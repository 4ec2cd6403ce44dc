//! When a session ends: after its idle timeout, at its greatest age, or at the deadline that its client has set.

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use isolator_pool::lock::lock;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::gone::Why;

/// A time that a client sets for a session, at which it ends or is paused whether it is used or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline {
    pub at: Instant,
    /// The time that the client gave, from which `at` was computed.
    pub after: Duration,
    pub action: AtDeadline,
}

/// What happens to a session at its deadline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum AtDeadline {
    /// It ends.
    #[default]
    End,
    /// It is paused: frozen until its client resumes it, or until its greatest age.
    Pause,
}

impl Deadline {
    /// The deadline that is `after` from now.
    pub(crate) fn after(after: Duration, action: AtDeadline) -> Self {
        Self { at: Instant::now() + after, after, action }
    }
}

/// The deadline is later than the greatest age of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the session can live {most:?} longer at most")]
pub(crate) struct TooLate {
    /// How long it can live from now on.
    pub most: Duration,
}

/// The end of a session as its client and the server have set it.
#[derive(Debug)]
pub(super) struct Lifetime {
    pub(super) opened: Instant,
    /// The same as a time of the clock.
    pub(super) opened_at: SystemTime,
    pub(super) max_age: Duration,
    settings: Mutex<Settings>,
    changed: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Settings {
    deadline: Option<Deadline>,
    /// How long it can be unused, if that ends it.
    idle_timeout: Option<Duration>,
    is_paused: bool,
}

/// The next end of a session.
#[derive(Debug, Clone)]
pub(super) struct NextEnd {
    pub(super) at: Instant,
    pub(super) why: Why,
    pub(super) kind: EndKind,
}

/// A kind of end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndKind {
    /// Only when no call uses the session.
    IfUnused,
    /// At its deadline, used or not.
    Deadline(AtDeadline),
}

impl Lifetime {
    /// A session with a deadline has no idle timeout.
    pub(super) fn new(
        idle_timeout: Duration,
        max_age: Duration,
        deadline: Option<Deadline>,
    ) -> Self {
        let idle_timeout = deadline.is_none().then_some(idle_timeout);
        let settings = Settings { deadline, idle_timeout, is_paused: false };
        Self {
            opened: Instant::now(),
            opened_at: SystemTime::now(),
            max_age,
            settings: Mutex::new(settings),
            changed: Notify::new(),
        }
    }

    /// The time of its greatest age.
    pub(super) fn oldest(&self) -> Instant {
        self.opened + self.max_age
    }

    /// When it ends, if it is last used at `used`.
    pub(super) fn next_end(&self, used: Instant) -> NextEnd {
        let Settings { deadline, idle_timeout, is_paused } = *lock(&self.settings);
        // A client that has set its end can use it without a pause, as by the output of a process that it follows.
        let kind = match deadline {
            Some(_) if !is_paused => EndKind::Deadline(AtDeadline::End),
            _ => EndKind::IfUnused,
        };
        let age = NextEnd { at: self.oldest(), why: Why::TooOld(self.max_age), kind };
        if is_paused {
            return age;
        }
        let idle = idle_timeout.map(|timeout| NextEnd {
            at: used + timeout,
            why: Why::Idle(timeout),
            kind: EndKind::IfUnused,
        });
        let deadline = deadline.map(|deadline| NextEnd {
            at: deadline.at,
            why: Why::Deadline(deadline.after),
            kind: EndKind::Deadline(deadline.action),
        });
        // Each of the two prolongs the life that the other gives.
        let own = match (idle, deadline) {
            (Some(idle), Some(deadline)) if idle.at > deadline.at => Some(idle),
            (idle, deadline) => deadline.or(idle),
        };
        own.filter(|own| own.at <= age.at).unwrap_or(age)
    }

    /// Sets the deadline. From then on it has no idle timeout, unless the deadline only `extends` its life.
    ///
    /// # Errors
    ///
    /// When it would be older than it can be.
    pub(super) fn set_deadline(&self, deadline: Deadline, extends: bool) -> Result<(), TooLate> {
        let oldest = self.oldest();
        if deadline.at > oldest {
            return Err(TooLate { most: oldest.saturating_duration_since(Instant::now()) });
        }
        let mut settings = lock(&self.settings);
        if !extends {
            settings.idle_timeout = None;
        }
        let is_later = settings.deadline.is_none_or(|before| before.at < deadline.at);
        if !extends || is_later || settings.is_paused {
            settings.deadline = Some(deadline);
        }
        settings.is_paused = false;
        drop(settings);
        self.changed.notify_one();
        Ok(())
    }

    /// Pauses it; returns false if it is paused already.
    pub(super) fn pause(&self) -> bool {
        let was_paused = std::mem::replace(&mut lock(&self.settings).is_paused, true);
        self.changed.notify_one();
        !was_paused
    }

    /// Pauses it if its deadline is still the one that has passed; returns whether it is paused.
    pub(super) fn pause_if_due(&self, at: Instant) -> bool {
        let mut settings = lock(&self.settings);
        settings.is_paused |= settings.deadline.is_some_and(|deadline| deadline.at <= at);
        settings.is_paused
    }

    /// Whether its client has set its end, so that no other session takes its place before.
    pub(super) fn has_deadline(&self) -> bool {
        lock(&self.settings).deadline.is_some()
    }

    /// Takes back the pause. A deadline that has passed begins again.
    pub(super) fn resume(&self) {
        let mut settings = lock(&self.settings);
        settings.is_paused = false;
        if let Some(deadline) = settings.deadline.filter(|deadline| deadline.at <= Instant::now()) {
            let again = Deadline::after(deadline.after, deadline.action);
            settings.deadline = Some(Deadline { at: again.at.min(self.oldest()), ..again });
        }
        drop(settings);
        self.changed.notify_one();
    }

    pub(super) fn is_paused(&self) -> bool {
        lock(&self.settings).is_paused
    }

    /// Waits until it is not paused. Only the task that waits for changes may wait.
    pub(super) async fn resumed(&self) {
        while self.is_paused() {
            self.changed().await;
        }
    }

    /// Waits until its end was changed. Only one task may wait.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn lifetime(deadline: Option<Duration>) -> Lifetime {
        let deadline = deadline.map(|after| Deadline::after(after, AtDeadline::End));
        Lifetime::new(10 * MINUTE, 60 * MINUTE, deadline)
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_replaces_the_idle_timeout() {
        let session = lifetime(Some(5 * MINUTE));
        let end = session.next_end(Instant::now() + 30 * MINUTE);
        assert_eq!(end.at, session.opened + 5 * MINUTE);
        assert_eq!(end.kind, EndKind::Deadline(AtDeadline::End));
        let idle = lifetime(None);
        assert_eq!(idle.next_end(idle.opened).at, idle.opened + 10 * MINUTE);
        idle.set_deadline(Deadline::after(MINUTE, AtDeadline::End), true).unwrap();
        assert_eq!(idle.next_end(idle.opened).at, idle.opened + 10 * MINUTE);
        let end = idle.next_end(idle.opened + 55 * MINUTE);
        assert_eq!(end.at, idle.oldest());
        assert_eq!(end.kind, EndKind::Deadline(AtDeadline::End), "however long it is used");
        idle.set_deadline(Deadline::after(MINUTE, AtDeadline::End), false).unwrap();
        assert_eq!(idle.next_end(idle.opened).at, idle.opened + MINUTE);
    }

    #[tokio::test(start_paused = true)]
    async fn an_extension_never_shortens_a_life_and_none_exceeds_the_greatest_age() {
        let session = lifetime(Some(20 * MINUTE));
        session.set_deadline(Deadline::after(MINUTE, AtDeadline::End), true).unwrap();
        assert_eq!(session.next_end(session.opened).at, session.opened + 20 * MINUTE);
        session.set_deadline(Deadline::after(MINUTE, AtDeadline::End), false).unwrap();
        assert_eq!(session.next_end(session.opened).at, session.opened + MINUTE);
        let late = Deadline::after(61 * MINUTE, AtDeadline::End);
        assert_eq!(session.set_deadline(late, false), Err(TooLate { most: 60 * MINUTE }));
        assert_eq!(session.next_end(session.opened).at, session.opened + MINUTE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_session_has_only_its_greatest_age_and_goes_on_with_its_whole_time() {
        let session = lifetime(Some(MINUTE));
        assert!(session.pause() && !session.pause() && session.is_paused());
        assert_eq!(session.next_end(session.opened).at, session.oldest());
        tokio::time::advance(2 * MINUTE).await;
        session.resume();
        assert_eq!(session.next_end(session.opened).at, Instant::now() + MINUTE);
        session.pause();
        session.set_deadline(Deadline::after(MINUTE / 2, AtDeadline::End), true).unwrap();
        assert_eq!(session.next_end(session.opened).at, Instant::now() + MINUTE / 2);
    }
}
