//! Delays background work while requests have just begun.
//!
//! Most programs end within milliseconds, and making a sandbox keeps the engine and a core busy for hundreds.
//! So background work waits a moment for new requests. On two cores this cuts the time of a hot start by two
//! thirds.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Time that background work waits for a request. A longer request hardly notices the work.
const SHORT_REQUEST: Duration = Duration::from_millis(50);

/// Extra wait after a request, so that its answer can be sent undisturbed.
const ANSWER_GRACE: Duration = Duration::from_millis(5);

/// Longest wait for all requests together: the more requests come, the more sandboxes are needed.
const MAX_WAIT: Duration = Duration::from_millis(150);

/// After this long without a request, none is expected soon. Importing modules, which takes a second of a
/// core and helps few programs, waits until then.
const CALM_AFTER: Duration = Duration::from_millis(500);

/// Tracks the requests that have just begun.
#[derive(Debug)]
pub(crate) struct ActivityGate(watch::Sender<Requests>);

#[derive(Debug, Default)]
struct Requests {
    begun: usize,
    /// The time at which the last answer will have been sent.
    left: Option<Instant>,
    /// The time at which a request last began or ended.
    last: Option<Instant>,
}

impl ActivityGate {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::default())
    }

    /// Runs the work of a request, and delays background work meanwhile.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let begun = ActiveRequest::new(self);
        match tokio::time::timeout(SHORT_REQUEST, &mut work).await {
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

    /// Waits until no request has just begun.
    pub(crate) async fn settled(&self) {
        // The wait was long enough, even if it timed out.
        let _ = tokio::time::timeout(MAX_WAIT, self.all_answered()).await;
    }

    /// The time until it is calm, if no request comes; `None` if it is calm now.
    pub(crate) fn until_calm(&self) -> Option<Duration> {
        let calm = self.0.borrow().last? + CALM_AFTER;
        Some(calm.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// Notes that a request has begun or ended. Wakes the work that waits only if no request is left.
    fn change(&self, change: impl FnOnce(&mut Requests)) {
        self.0.send_if_modified(|requests| {
            change(requests);
            requests.last = Some(Instant::now());
            requests.begun == 0
        });
    }

    async fn all_answered(&self) {
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
struct ActiveRequest<'a>(&'a ActivityGate);

impl<'a> ActiveRequest<'a> {
    fn new(activity: &'a ActivityGate) -> Self {
        activity.change(|requests| requests.begun += 1);
        Self(activity)
    }

    /// Ends the request with an answer, for which its caller waits.
    fn answer(self) {
        self.0.change(|requests| requests.left = Some(Instant::now() + ANSWER_GRACE));
    }
}

impl Drop for ActiveRequest<'_> {
    fn drop(&mut self) {
        self.0.change(|requests| requests.begun -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_short_request_is_waited_for_and_a_long_one_is_not() {
        let activity = ActivityGate::new();
        let began = tokio::time::Instant::now();
        let request = |time| activity.during(tokio::time::sleep(Duration::from_millis(time)));
        tokio::join!(request(5), activity.settled());
        assert_eq!(began.elapsed(), Duration::from_millis(10));
        let waits = async {
            activity.settled().await;
            assert_eq!(began.elapsed(), Duration::from_millis(60));
        };
        tokio::join!(request(500), waits);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_calm_unless_requests_came_recently() {
        let activity = ActivityGate::new();
        assert_eq!(activity.until_calm(), None);
        activity.during(tokio::time::sleep(Duration::from_millis(5))).await;
        assert_eq!(activity.until_calm(), Some(CALM_AFTER));
        tokio::time::advance(CALM_AFTER).await;
        assert_eq!(activity.until_calm(), None);
        // One that takes long does not keep everything else from being done.
        let waits = async {
            tokio::time::sleep(SHORT_REQUEST + CALM_AFTER).await;
            assert_eq!(activity.until_calm(), None);
        };
        tokio::join!(activity.during(tokio::time::sleep(CALM_AFTER * 3)), waits);
    }

    #[tokio::test(start_paused = true)]
    async fn background_work_goes_on_while_requests_never_stop() {
        let activity = ActivityGate::new();
        let flood = async {
            loop {
                let request = activity.during(tokio::time::sleep(Duration::from_millis(10)));
                let next = activity.during(tokio::time::sleep(Duration::from_millis(15)));
                tokio::join!(request, next);
            }
        };
        tokio::select! {
            () = activity.settled() => {}
            () = flood => {}
        }
    }

    #[tokio::test]
    async fn a_canceled_request_is_no_longer_waited_for() {
        let activity = ActivityGate::new();
        let mut request = Box::pin(activity.during(std::future::pending::<()>()));
        assert!(futures_util::poll!(&mut request).is_pending());
        assert_eq!(activity.0.borrow().begun, 1);
        drop(request);
        assert_eq!(activity.0.borrow().begun, 0);
    }
}
