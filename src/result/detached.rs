//! Detached runs: they take longer than a host waits for an answer, and their caller fetches the result with a
//! handle.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::node::{LostHandle, Node, Thing};
use crate::result::handles::{Capacity, Handles};
use crate::result::so_far::SoFar;

/// Maximum runs that have not ended. A run that has ended weighs as much as its result.
const MOST_RUNNING: usize = 256;

/// Runs whose callers have a handle instead of an answer.
#[derive(Debug)]
pub(crate) struct Detached<T> {
    after: Mutex<Duration>,
    weigh: fn(&T) -> usize,
    runs: Arc<Handles<Run<T>>>,
    tasks: TaskTracker,
}

/// A detached run. When it is dropped, the program ends if it has not yet.
#[derive(Debug)]
struct Run<T> {
    result: watch::Receiver<Option<T>>,
    task: OnceLock<AbortOnDropHandle<()>>,
    so_far: Arc<SoFar>,
}

/// The state of a run.
#[derive(Debug)]
pub(crate) enum RunState<T> {
    /// It has ended, with this result.
    Ended(T),
    /// It is still running.
    Running {
        handle: String,
        /// The output of its program.
        so_far: Arc<SoFar>,
    },
    /// It has no result and never will: its caller ended it, or the server lost it.
    Gone {
        /// The output of its program.
        so_far: Arc<SoFar>,
    },
}

impl<T: Clone + Send + Sync + 'static> Detached<T> {
    /// Waits for a run for `after` before it is detached, and then keeps its handle for `keep_for`, which must be
    /// longer than the longest run. Results take as many bytes as `weigh` says, and have to fit into `capacity`. Handles have the
    /// name of the node.
    pub(crate) fn new(
        node: &Node,
        after: Duration,
        keep_for: Duration,
        capacity: Capacity,
        weigh: fn(&T) -> usize,
    ) -> Self {
        let runs = Arc::new(Handles::new(node, capacity, keep_for));
        Self { after: Mutex::new(after), weigh, runs, tasks: TaskTracker::new() }
    }

    /// Changes all of this for runs that come from now on.
    pub(crate) fn set_bounds(&self, after: Duration, keep_for: Duration, capacity: Capacity) {
        *lock(&self.after) = after;
        self.runs.set_bounds(capacity, keep_for);
    }

    fn after(&self) -> Duration {
        *lock(&self.after)
    }

    /// Waits for a client's run, and detaches it if that takes too long. If there is no room for another handle, it
    /// waits until the end. `so_far` takes what the run's program prints. Dropping the future ends a program that is
    /// not detached.
    pub(crate) async fn run_or_detach<F>(
        &self,
        client: &Client,
        so_far: Arc<SoFar>,
        run: F,
    ) -> RunState<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut run = Box::pin(run);
        if let Ok(result) = timeout(self.after(), &mut run).await {
            return RunState::Ended(result);
        }
        let (sender, result) = watch::channel(None);
        let kept = Run { result, task: OnceLock::new(), so_far: Arc::clone(&so_far) };
        let weight_of_running = self.runs.capacity().all / MOST_RUNNING;
        let handle = match self.runs.keep(client, weight_of_running, kept) {
            Ok(handle) => handle,
            Err(error) => {
                tracing::warn!(%error, "a long run can't be detached");
                return RunState::Ended(run.await);
            }
        };
        let (weigh, runs, own) = (self.weigh, Arc::downgrade(&self.runs), handle.clone());
        let task = self.tasks.spawn(async move {
            let result = run.await;
            let weight = weigh(&result);
            sender.send_replace(Some(result));
            if let Some(runs) = runs.upgrade() {
                runs.weigh(&own, weight, |run| run.result.borrow().is_some());
            }
        });
        let task = AbortOnDropHandle::new(task);
        // If the handle is gone already, dropping the task ends the run.
        let _ = self.runs.get(client, &handle).map(|run| run.task.set(task));
        RunState::Running { handle, so_far }
    }

    /// Waits for a client's detached run, as long as before. `None` for a handle that is unknown, has expired,
    /// or is another client's. Dropping the future changes nothing.
    pub(crate) async fn wait(&self, client: &Client, handle: &str) -> Option<RunState<T>> {
        let run = self.runs.get(client, handle)?;
        let (mut result, so_far) = (run.result.clone(), Arc::clone(&run.so_far));
        let waited = timeout(self.after(), result.wait_for(Option::is_some)).await;
        Some(match waited.map(|ended| ended.ok().and_then(|result| result.clone())) {
            Ok(Some(result)) => RunState::Ended(result),
            Ok(None) => RunState::Gone { so_far },
            Err(_) => RunState::Running { handle: handle.to_owned(), so_far },
        })
    }

    /// Why a handle that leads to no run is lost, if a node has made it.
    pub(crate) fn lost(&self, handle: &str) -> Option<Box<LostHandle>> {
        self.runs.lost(handle, Thing::Run)
    }

    /// Number of detached runs, and their bytes.
    pub(crate) fn held(&self) -> (usize, usize) {
        self.runs.held()
    }

    /// Ends a client's detached run, unless it has ended already. `None` as before.
    pub(crate) fn end(&self, client: &Client, handle: &str) -> Option<RunState<T>> {
        let run = self.runs.get(client, handle)?;
        if let Some(result) = run.result.borrow().clone() {
            return Some(RunState::Ended(result));
        }
        if let Some(task) = run.task.get() {
            task.abort();
        }
        Some(RunState::Gone { so_far: Arc::clone(&run.so_far) })
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Notify;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn text(stand: Option<RunState<&'static str>>) -> &'static str {
        let Some(RunState::Ended(text)) = stand else { panic!("{stand:?}") };
        text
    }

    /// Runs of which one client can have 128, or two that have ended.
    fn detached<T: Clone + Send + Sync + 'static>(after: u32) -> Detached<T> {
        let capacity = Capacity { all: 16 << 10, of_one: 8 << 10 };
        Detached::new(&Node::default(), after * SECOND, 600 * SECOND, capacity, |_| 4 << 10)
    }

    async fn takes(seconds: u32) -> &'static str {
        tokio::time::sleep(seconds * SECOND).await;
        "done"
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_run_is_answered_and_a_long_one_has_a_handle_for_its_caller() {
        let detached = detached(45);
        let (one, two) = (Client::named("one"), Client::named("two"));
        assert_eq!(
            text(Some(detached.run_or_detach(&one, Arc::default(), takes(44)).await)),
            "done"
        );
        let RunState::Running { handle, .. } =
            detached.run_or_detach(&one, Arc::default(), takes(100)).await
        else {
            panic!()
        };
        assert!(
            detached.wait(&two, &handle).await.is_none() && detached.end(&two, &handle).is_none()
        );
        assert!(
            matches!(detached.wait(&one, &handle).await, Some(RunState::Running { handle: same, .. }) if same == handle)
        );
        assert_eq!(text(detached.wait(&one, &handle).await), "done");
        assert_eq!(
            text(detached.wait(&one, &handle).await),
            "done",
            "the result can be fetched again"
        );
        tokio::time::advance(600 * SECOND).await;
        assert!(detached.wait(&one, &handle).await.is_none());
    }

    /// Tells when it is dropped.
    struct Dropped(Arc<Notify>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_ends_with_its_call_its_caller_s_word_or_the_server() {
        let client = Client::named("one");
        let ended = Arc::new(Notify::new());
        let forever = || {
            let dropped = Dropped(Arc::clone(&ended));
            async move {
                let _dropped = dropped;
                std::future::pending().await
            }
        };
        let detached = detached::<()>(45);
        timeout(SECOND, detached.run_or_detach(&client, Arc::default(), forever()))
            .await
            .unwrap_err();
        timeout(SECOND, ended.notified()).await.expect("a call that is given up ends its run");

        let RunState::Running { handle, .. } =
            detached.run_or_detach(&client, Arc::default(), forever()).await
        else {
            panic!()
        };
        assert!(matches!(detached.end(&client, &handle), Some(RunState::Gone { .. })));
        timeout(SECOND, ended.notified()).await.expect("the caller's word ends it");
        assert!(matches!(detached.wait(&client, &handle).await, Some(RunState::Gone { .. })));

        let RunState::Running { .. } =
            detached.run_or_detach(&client, Arc::default(), forever()).await
        else {
            panic!()
        };
        drop(detached);
        timeout(SECOND, ended.notified()).await.expect("so does the end of the server");
    }

    #[tokio::test(start_paused = true)]
    async fn more_than_can_be_kept_is_waited_for() {
        let detached = detached(1);
        let client = Client::named("one");
        for _ in 0..MOST_RUNNING / 2 {
            assert!(matches!(
                detached.run_or_detach(&client, Arc::default(), takes(500)).await,
                RunState::Running { .. }
            ));
        }
        assert_eq!(
            text(Some(detached.run_or_detach(&client, Arc::default(), takes(3)).await)),
            "done"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn results_are_weighed_and_the_oldest_go_but_never_a_run() {
        let detached = detached(1);
        let client = Client::named("one");
        let mut handles = Vec::new();
        for seconds in [50, 2, 3, 4] {
            let run = detached.run_or_detach(&client, Arc::default(), takes(seconds)).await;
            let RunState::Running { handle, .. } = run else { panic!("{run:?}") };
            handles.push(handle);
        }
        tokio::time::advance(5 * SECOND).await;
        assert!(matches!(
            detached.wait(&client, &handles[0]).await,
            Some(RunState::Running { .. })
        ));
        assert!(detached.wait(&client, &handles[1]).await.is_none(), "the oldest result");
        assert!(
            detached.wait(&client, &handles[2]).await.is_none(),
            "the run weighs something, too"
        );
        assert_eq!(text(detached.wait(&client, &handles[3]).await), "done");
    }
}
