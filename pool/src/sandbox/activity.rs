//! ActivityGate for requests that have just begun.
//!
//! Most programs are over within milliseconds, and making a sandbox keeps an engine and a core busy for
//! hundreds. So what is made ahead waits a moment for what is under way. On two cores this takes two
//! thirds off the time of a hot start.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// How long a request is waited for. One that takes longer no longer notices.
const SHORT: Duration = Duration::from_millis(50);

/// How long the answer to one is given to leave. The engine's work would be in its way.
const LEAVING: Duration = Duration::from_millis(5);

/// How long all of them together are. Sandboxes are needed the more the more requests come.
const PATIENCE: Duration = Duration::from_millis(150);

/// After this long without a request none is expected soon. What takes a second of a core and is of use
/// to few programs is left until then: while requests keep coming, it would take from each as much as
/// the rest of a sandbox does many times over.
const CALM: Duration = Duration::from_millis(500);

/// Knows of the requests that have just begun.
#[derive(Debug)]
pub(crate) struct ActivityGate(watch::Sender<Requests>);

#[derive(Debug, Default)]
struct Requests {
    begun: usize,
    /// When the last answer has left.
    left: Option<Instant>,
    /// When one began the last time, or was over.
    last: Option<Instant>,
}

impl ActivityGate {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::default())
    }

    /// Does what a request needs to have quiet for.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let begun = Begun::new(self);
        match tokio::time::timeout(SHORT, &mut work).await {
            Ok(done) => {
                begun.answer();
                done
            }
            Err(_) => {
                drop(begun);
                work.await
            }
        }
    }

    /// Waits until it is over.
    pub(crate) async fn over(&self) {
        // Whichever ends the wait, it was long enough.
        let _ = tokio::time::timeout(PATIENCE, self.all_left()).await;
    }

    /// How long it takes until it is calm, if no request comes; nothing if it is.
    pub(crate) fn until_calm(&self) -> Option<Duration> {
        let calm = self.0.borrow().last? + CALM;
        Some(calm.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    async fn all_left(&self) {
        let mut requests = self.0.subscribe();
        loop {
            // The sender is in `self`.
            let Ok(left) = requests.wait_for(|requests| requests.begun == 0).await.map(|r| r.left)
            else {
                return;
            };
            match left {
                Some(left) if left > Instant::now() => tokio::time::sleep_until(left).await,
                _ => return,
            }
        }
    }
}

/// A request that has just begun.
struct Begun<'a>(&'a ActivityGate);

impl<'a> Begun<'a> {
    fn new(quiet: &'a ActivityGate) -> Self {
        quiet.0.send_modify(|requests| {
            requests.begun += 1;
            requests.last = Some(Instant::now());
        });
        Self(quiet)
    }

    /// It is over and not given up: somebody waits for what came of it.
    fn answer(self) {
        self.0.0.send_modify(|requests| requests.left = Some(Instant::now() + LEAVING));
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|requests| {
            requests.begun -= 1;
            requests.last = Some(Instant::now());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_short_request_is_waited_for_and_a_long_one_is_not() {
        let quiet = ActivityGate::new();
        let began = tokio::time::Instant::now();
        let request = |time| quiet.during(tokio::time::sleep(Duration::from_millis(time)));
        tokio::join!(request(5), quiet.over());
        assert_eq!(began.elapsed(), Duration::from_millis(10));
        let waits = async {
            quiet.over().await;
            assert_eq!(began.elapsed(), Duration::from_millis(60));
        };
        tokio::join!(request(500), waits);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_calm_unless_requests_came_lately() {
        let quiet = ActivityGate::new();
        assert_eq!(quiet.until_calm(), None);
        quiet.during(tokio::time::sleep(Duration::from_millis(5))).await;
        assert_eq!(quiet.until_calm(), Some(CALM));
        tokio::time::advance(CALM).await;
        assert_eq!(quiet.until_calm(), None);
        // One that takes long does not keep everything else from being done.
        let waits = async {
            tokio::time::sleep(SHORT + CALM).await;
            assert_eq!(quiet.until_calm(), None);
        };
        tokio::join!(quiet.during(tokio::time::sleep(CALM * 3)), waits);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_never_stop_coming_are_not_waited_for_for_ever() {
        let quiet = ActivityGate::new();
        let flood = async {
            loop {
                let request = quiet.during(tokio::time::sleep(Duration::from_millis(10)));
                let next = quiet.during(tokio::time::sleep(Duration::from_millis(15)));
                tokio::join!(request, next);
            }
        };
        tokio::select! {
            () = quiet.over() => {}
            () = flood => {}
        }
    }

    #[tokio::test]
    async fn a_request_that_goes_away_leaves_quiet() {
        let quiet = ActivityGate::new();
        let mut request = Box::pin(quiet.during(std::future::pending::<()>()));
        assert!(futures_util::poll!(&mut request).is_pending());
        assert_eq!(quiet.0.borrow().begun, 1);
        drop(request);
        assert_eq!(quiet.0.borrow().begun, 0);
    }
}
