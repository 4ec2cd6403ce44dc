//! Calls with keys, in the order in which they can come.

use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Notify;
use tokio::time::{advance, sleep, timeout};

use super::store::{MAX_MARKS, MAX_MARKS_OF_ONE};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn idempotency(all: usize) -> Idempotency {
    let this = Idempotency::default();
    let bounds = Bounds { all, of_one: all / 2, keep_for: 600 * SECOND };
    lock(&this.store).set_bounds(bounds);
    this
}

fn asked(client: &str, key: &str, body: &str) -> Asked {
    Asked {
        client: Client::named(client),
        key: Key::read(key).unwrap(),
        digest: RequestDigest::begin("run", &[]).body(body.as_bytes()),
    }
}

fn made(answer: u32, weight: usize) -> Made<u32> {
    Made { answer, weight, outcome: CallOutcome::Ran }
}

/// A program that counts how often it began and was dropped, and takes some seconds.
#[derive(Clone, Default)]
struct Program {
    begun: Arc<AtomicU32>,
    ended: Arc<AtomicU32>,
    dropped: Arc<Notify>,
}

struct OnDrop(Program);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.dropped.notify_one();
    }
}

impl Program {
    fn takes(&self, seconds: u32) -> impl Future<Output = Made<u32>> + Send + 'static {
        let this = self.clone();
        async move {
            let number = this.begun.fetch_add(1, Ordering::SeqCst) + 1;
            let _dropped = OnDrop(this.clone());
            sleep(seconds * SECOND).await;
            this.ended.fetch_add(1, Ordering::SeqCst);
            made(number, 100)
        }
    }

    fn begun(&self) -> u32 {
        self.begun.load(Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn calls_with_one_key_run_once_and_get_one_answer() {
    let keys = idempotency(1 << 20);
    let program = Program::default();
    let call = || keys.once(asked("one", "k", "{}"), SECOND, program.takes(5));
    let (first, second) = tokio::join!(call(), call());
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!((*first.answer, first.is_repeated), (1, false));
    assert_eq!((*second.answer, second.is_repeated), (1, true));
    let third = call().await.unwrap();
    assert_eq!((*third.answer, third.is_repeated, program.begun()), (1, true, 1));
}

#[tokio::test(start_paused = true)]
async fn a_key_stands_for_one_request_of_one_client() {
    let keys = idempotency(1 << 20);
    let program = Program::default();
    let call = |client, body| keys.once(asked(client, "k", body), SECOND, program.takes(1));
    assert_eq!(*call("one", "{}").await.unwrap().answer, 1);
    assert_eq!(call("one", "[]").await.unwrap_err(), KeyRefusal::OtherRequest);
    let other = call("two", "[]").await.unwrap();
    assert_eq!((*other.answer, other.is_repeated), (2, false));
    assert_eq!(*call("one", "{}").await.unwrap().answer, 1);
    assert_eq!(program.begun(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_program_goes_on_for_a_moment_without_a_caller() {
    let keys = idempotency(1 << 20);
    let program = Program::default();
    let call = |seconds| keys.once(asked("one", "k", "{}"), 10 * SECOND, program.takes(seconds));
    // The connection breaks, and the call comes again.
    assert!(timeout(SECOND, call(30)).await.is_err());
    sleep(9 * SECOND).await;
    assert!(timeout(SECOND, call(30)).await.is_err());
    sleep(9 * SECOND).await;
    assert_eq!(*call(30).await.unwrap().answer, 1);
    // It comes too late.
    let call = |seconds| keys.once(asked("one", "l", "{}"), 10 * SECOND, program.takes(seconds));
    assert!(timeout(SECOND, call(30)).await.is_err());
    timeout(11 * SECOND, program.dropped.notified()).await.unwrap();
    timeout(11 * SECOND, program.dropped.notified()).await.unwrap();
    assert_eq!(call(30).await.unwrap_err(), KeyRefusal::Ended);
    assert_eq!(program.begun(), 2);
    assert_eq!(program.ended.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_caller_that_says_so_ends_at_once() {
    let keys = idempotency(1 << 20);
    let program = Program::default();
    let call = || keys.once(asked("one", "k", "{}"), Duration::ZERO, program.takes(30));
    assert!(timeout(SECOND, call()).await.is_err());
    timeout(SECOND, program.dropped.notified()).await.unwrap();
    assert_eq!(call().await.unwrap_err().outcome(), CallOutcome::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_did_not_run_can_be_sent_again() {
    let keys = idempotency(1 << 20);
    let refused = async {
        sleep(SECOND).await;
        let outcome = CallOutcome::NotRun(Again::Later(1));
        Made { answer: 0_u32, weight: 0, outcome }
    };
    let program = Program::default();
    let again = keys.once(asked("one", "k", "{}"), SECOND, program.takes(1));
    let (first, second) = tokio::join!(keys.once(asked("one", "k", "{}"), SECOND, refused), again);
    // The second one waited for the answer of the first.
    assert_eq!((*first.unwrap().answer, *second.unwrap().answer, program.begun()), (0, 0, 0));
    // It may have another body, because nothing was run.
    let third = keys.once(asked("one", "k", "[]"), SECOND, program.takes(1)).await.unwrap();
    assert_eq!((*third.answer, third.is_repeated), (1, false));
}

#[tokio::test(start_paused = true)]
async fn only_so_many_callers_wait_for_an_answer_and_each_can_leave() {
    let keys = idempotency(1 << 20);
    let program = Program::default();
    let call = || Box::pin(keys.once(asked("one", "k", "{}"), SECOND, program.takes(60)));
    let mut calls: Vec<_> = (0..16).map(|_| call()).collect();
    for call in &mut calls {
        assert!(timeout(Duration::from_millis(1), call).await.is_err());
    }
    assert_eq!(call().await.unwrap_err(), KeyRefusal::TooManyWaiting(16));
    calls.truncate(1);
    assert!(timeout(Duration::from_millis(1), call()).await.is_err());
    assert_eq!(*calls.remove(0).await.unwrap().answer, 1);
    assert_eq!(program.begun(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_dropped_leaves_a_mark() {
    // Two answers of a client fit, and three of all clients.
    let keys = idempotency(2 * (2 * (100 + 512) + 300));
    let call = |client: &'static str, key: &'static str| async {
        let once = keys.once(asked(client, key, "{}"), SECOND, async { made(7, 100) }).await;
        once.map(|once| once.is_repeated)
    };
    assert_eq!(call("one", "a").await, Ok(false));
    assert_eq!(call("one", "b").await, Ok(false));
    assert_eq!(call("one", "c").await, Ok(false));
    assert_eq!(call("one", "a").await, Err(KeyRefusal::NotKept), "of its own, the oldest goes");
    assert_eq!(call("two", "a").await, Ok(false));
    assert_eq!(call("two", "b").await, Ok(false));
    assert_eq!((call("two", "a").await, call("two", "b").await), (Ok(true), Ok(true)));
    assert_eq!(call("three", "a").await, Ok(false));
    assert_eq!(call("three", "a").await, Ok(true), "one with less takes from those with more");
    // A large one is not kept, and pushes nothing out.
    let huge = keys.once(asked("three", "b", "{}"), SECOND, async { made(7, 9000) });
    assert!(!huge.await.unwrap().is_repeated);
    assert_eq!(call("three", "b").await, Err(KeyRefusal::NotKept));
    assert_eq!(call("three", "a").await, Ok(true));
    // With time, answers become marks, and marks go.
    advance(601 * SECOND).await;
    assert_eq!(call("three", "a").await, Err(KeyRefusal::NotKept));
    assert_eq!(keys.held(), (0, 0));
    advance(Duration::from_hours(25)).await;
    assert_eq!(call("three", "a").await, Ok(false));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_streams_is_for_its_first_caller_alone() {
    let keys = idempotency(1 << 20);
    let claim = || keys.claim(asked("one", "k", "{}"));
    claim().unwrap().not_run();
    let first = claim().unwrap();
    assert_eq!(claim().err(), Some(KeyRefusal::Streaming));
    first.ran();
    assert_eq!(claim().err(), Some(KeyRefusal::NotKept));
    drop(keys.claim(asked("one", "l", "{}")).unwrap());
    assert_eq!(keys.claim(asked("one", "l", "{}")).err(), Some(KeyRefusal::Ended));
}

#[tokio::test]
async fn a_million_keys_take_bounded_memory() {
    let keys = idempotency(1 << 20);
    for number in 0..1_000_000_u32 {
        let client = if number % 4 == 0 { "other" } else { "greedy" };
        let mut asked = asked(client, "k", "{}");
        asked.key = Key::read(&number.to_string()).unwrap();
        let claim = keys.claim(asked).unwrap();
        claim.answered(made(number, 1000));
    }
    let (answers, bytes) = keys.held();
    assert!(bytes <= 1 << 20 && answers <= bytes / 1500, "{answers} {bytes}");
    let entries = lock(&keys.store).entries();
    assert!(entries <= MAX_MARKS + answers, "{entries}");
    assert!(entries >= MAX_MARKS_OF_ONE, "{entries}");
    // The newest key is known, and the oldest is not.
    let last = keys.claim(asked("greedy", "999999", "{}"));
    assert_eq!(last.err(), Some(KeyRefusal::NotKept));
    assert!(keys.claim(asked("other", "0", "{}")).is_ok());
}

#[tokio::test(start_paused = true)]
async fn other_bounds_hold_for_the_keys_that_are_there() {
    let keys = idempotency(1 << 20);
    let call = || async {
        let once = keys.once(asked("one", "k", "{}"), SECOND, async { made(7, 100) }).await;
        once.map(|once| once.is_repeated)
    };
    assert_eq!(call().await, Ok(false));
    let set = |all, keep_for| {
        lock(&keys.store).set_bounds(Bounds { all, of_one: all, keep_for });
    };
    set(1 << 20, SECOND);
    assert_eq!(call().await, Ok(true));
    set(0, 600 * SECOND);
    assert_eq!(keys.held(), (0, 0));
    assert_eq!(call().await, Err(KeyRefusal::NotKept));
}
