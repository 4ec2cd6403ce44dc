use futures_util::FutureExt as _;

use super::*;

fn admission(running: usize, queue: usize) -> Arc<Admission> {
    let wait = Duration::from_secs(5);
    Arc::new(Admission::new(
        AdmissionLimits { running, running_of_one: running, queue, wait },
        None,
    ))
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_at_once_and_a_long_wait_ends() {
    let (admission, host) = (admission(1, 1), Client::Host);
    let running = admission.enter(&host).await.unwrap();
    let mut second = Box::pin(admission.enter(&host));
    assert!(futures_util::poll!(&mut second).is_pending());
    assert!(matches!(admission.enter(&host).await, Err(AdmissionError::QueueFull { .. })));
    let refused = second.await.unwrap_err();
    assert!(matches!(refused, AdmissionError::WaitedTooLong { is_own_share: false, .. }));
    assert_eq!(admission.waiting(), 0);
    drop(running);
    assert!(admission.enter(&host).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_request_can_wait_for_less_time_than_others_and_never_for_more() {
    let (admission, host) = (admission(1, 9), Client::Host);
    let _running = admission.enter(&host).await.unwrap();
    for (most, waits) in [(1, 1), (9, 5)] {
        let began = tokio::time::Instant::now();
        let refused = admission.enter_within(&host, Some(Duration::from_secs(most))).await;
        assert!(matches!(refused, Err(AdmissionError::WaitedTooLong { .. })));
        assert_eq!(began.elapsed().as_secs(), waits);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_says_when_the_waiting_requests_will_be_served() {
    let (admission, ran) = (admission(1, 40), Arc::default());
    let first = line_up(&admission, "a", 41, &ran);
    tokio::time::sleep(Duration::from_millis(105)).await;
    let second = line_up(&admission, "b", 10, &ran);
    tokio::task::yield_now().await;
    // In the full queue, the one with most requests loses one.
    drop(admission.enter(&Client::Host).await);
    let mut refused = Vec::new();
    for task in first.into_iter().chain(second) {
        refused.extend(task.await.unwrap().err());
    }
    let [error @ AdmissionError::QueueFull { served_in: Some(time), .. }] = &refused[..] else {
        panic!("{refused:?}");
    };
    assert_eq!(*time, Duration::from_millis(410));
    assert!(error.to_string().ends_with("try again in about a second"), "{error}");
}

#[tokio::test]
async fn a_waiter_that_gives_up_frees_its_place() {
    let (admission, host) = (admission(1, 1), Client::Host);
    let _running = admission.enter(&host).await.unwrap();
    {
        let mut waiter = Box::pin(admission.enter(&host));
        assert!(futures_util::poll!(&mut waiter).is_pending());
        assert_eq!(admission.waiting(), 1);
    }
    assert_eq!(admission.waiting(), 0);
}

#[tokio::test]
async fn closing_refuses_waiting_and_new_requests() {
    let (admission, host) = (admission(1, 1), Client::Host);
    let _running = admission.enter(&host).await.unwrap();
    let mut waiter = Box::pin(admission.enter(&host));
    assert!(futures_util::poll!(&mut waiter).is_pending());
    admission.close();
    assert!(matches!(waiter.await, Err(AdmissionError::Closed)));
    assert!(matches!(admission.enter(&host).await, Err(AdmissionError::Closed)));
}

/// Lets `count` requests of a client wait, and notes the client's name when each has run.
fn line_up(
    admission: &Arc<Admission>,
    name: &'static str,
    count: usize,
    ran: &Arc<Mutex<Vec<&'static str>>>,
) -> Vec<tokio::task::JoinHandle<Result<(), AdmissionError>>> {
    let one = || {
        let (admission, ran) = (Arc::clone(admission), Arc::clone(ran));
        #[expect(clippy::disallowed_methods, reason = "a test waits for its tasks")]
        tokio::spawn(async move {
            let _admitted = admission.enter(&Client::named(name)).await?;
            tokio::time::sleep(Duration::from_millis(10)).await;
            lock(&ran).push(name);
            Ok(())
        })
    };
    std::iter::repeat_with(one).take(count).collect()
}

#[tokio::test(start_paused = true)]
async fn a_flooding_client_is_served_no_more_than_others() {
    let admission = admission(2, 100);
    let ran = Arc::default();
    let mut requests = line_up(&admission, "flood", 50, &ran);
    tokio::time::sleep(Duration::from_millis(5)).await;
    requests.extend(line_up(&admission, "other", 3, &ran));
    for request in requests {
        request.await.unwrap().unwrap();
    }
    let ran = lock(&ran).clone();
    // Two had begun before; from then on every second one is the other's.
    let last = ran.iter().rposition(|name| *name == "other").unwrap();
    assert!(last <= 7, "{ran:?}");
    assert_eq!((ran.len(), admission.running(), admission.waiting()), (53, 0, 0));
    assert!(lock(&admission.turns).clients.is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_client_leaves_slots_for_others_unless_it_is_the_host() {
    let wait = Duration::from_secs(5);
    let limits = AdmissionLimits { running: 4, running_of_one: 3, queue: 10, wait };
    let admission = Admission::new(limits, None);
    let (one, other) = (Client::named("one"), Client::named("other"));
    let mut running = Vec::new();
    for _ in 0..3 {
        running.push(admission.enter(&one).await.unwrap());
    }
    let mut fourth = Box::pin(admission.enter(&one));
    assert!(futures_util::poll!(&mut fourth).is_pending());
    // The other does not wait behind it, and what it gives back is not for the one.
    drop(admission.enter(&other).await.unwrap());
    assert!(futures_util::poll!(&mut fourth).is_pending());
    assert_eq!((admission.running(), admission.waiting()), (3, 1));
    running.pop();
    running.push(fourth.await.unwrap());
    let refused = admission.enter(&one).await.unwrap_err();
    // One slot was free all the time, and not for this client.
    let (served_in, is_own_share) = (None, true);
    assert_eq!(
        refused,
        AdmissionError::WaitedTooLong { running: 3, wait, served_in, is_own_share }
    );
    drop(running);

    let host = Client::Host;
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(admission.enter(&host).await.unwrap());
    }
    assert_eq!(admission.running(), 4);
}

#[tokio::test(start_paused = true)]
async fn limits_that_change_hold_for_those_that_wait() {
    let (admission, host) = (admission(1, 10), Client::Host);
    let limits = |running| AdmissionLimits {
        running,
        running_of_one: running,
        queue: 1,
        wait: Duration::from_secs(5),
    };
    let first = admission.enter(&host).await.unwrap();
    let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(admission.enter(&host))).collect();
    for one in &mut waiting {
        assert!(futures_util::poll!(one).is_pending());
    }
    admission.set_limits(limits(3));
    assert_eq!((admission.running(), admission.waiting()), (3, 1));
    // One that runs ends, and three may run no longer.
    admission.set_limits(limits(2));
    drop(first);
    assert_eq!((admission.running(), admission.waiting()), (2, 1));
    assert!(matches!(admission.enter(&host).await, Err(AdmissionError::QueueFull { .. })));
    drop(waiting.remove(0).await.unwrap());
    assert_eq!((admission.running(), admission.waiting()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_admits_a_client_with_fewer_requests_in_it() {
    let admission = admission(1, 10);
    let ran = Arc::default();
    let flood = line_up(&admission, "flood", 11, &ran);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!((admission.running(), admission.waiting()), (1, 10));
    let full = admission.enter(&Client::named("flood")).await;
    assert!(matches!(full, Err(AdmissionError::QueueFull { .. })));
    let others = line_up(&admission, "other", 7, &ran);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(admission.waiting(), 10, "no more than there are places");
    let count = async |requests: Vec<tokio::task::JoinHandle<Result<(), _>>>| {
        let mut served = 0;
        for request in requests {
            served += usize::from(request.await.unwrap().is_ok());
        }
        served
    };
    assert_eq!((count(flood).await, count(others).await), (1 + 5, 5), "half for each");
}

#[tokio::test(start_paused = true)]
async fn the_turn_of_a_request_that_is_gone_goes_to_the_next() {
    let admission = admission(1, 10);
    let host = Client::Host;
    let running = admission.enter(&host).await.unwrap();
    let mut gone = Box::pin(admission.enter(&host));
    let mut next = Box::pin(admission.enter(&host));
    assert!(futures_util::poll!(&mut gone).is_pending());
    assert!(futures_util::poll!(&mut next).is_pending());
    drop(running);
    // It has the turn, but has not noticed.
    drop(gone);
    let admitted = next.await.unwrap();
    assert_eq!((admission.running(), admission.waiting()), (1, 0));
    drop(admitted);
    assert_eq!(admission.running(), 0);
}

#[tokio::test]
async fn resting_slots_are_called_back_for_clients_that_can_use_them() {
    let limits =
        AdmissionLimits { running: 3, running_of_one: 2, queue: 0, wait: Duration::from_secs(5) };
    let admission = Admission::new(limits, None);
    let (a, b) = (Client::named("a"), Client::named("b"));
    let mut slots = Vec::new();
    for client in [&a, &a, &b] {
        let mut slot = admission.enter(client).await.unwrap();
        slot.rest();
        slots.push(slot);
    }
    assert_eq!((admission.running(), admission.clients()), (0, Vec::new()));
    let wanted = |slots: &[Admitted]| -> Vec<bool> {
        slots.iter().map(|slot| slot.wanted().now_or_never().is_some()).collect()
    };
    assert_eq!(wanted(&slots), [false; 3]);
    // It has as many as it may, so that of the other client would not help. There is no queue, but a slot is there in a moment.
    let mut waiting = Box::pin(admission.enter(&a));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    assert_eq!(wanted(&slots), [true, false, false]);
    // One that is used again is wanted again when it rests.
    slots[0].work();
    assert_eq!((wanted(&slots)[0], admission.running()), (false, 1));
    slots[0].rest();
    assert_eq!(wanted(&slots), [false, true, false]);
    drop(slots.remove(1));
    let admitted = waiting.await.unwrap();
    assert_eq!(admission.running(), 1);
    drop((admitted, slots));
    assert_eq!((admission.running(), admission.waiting()), (0, 0));
}

#[tokio::test]
async fn resting_slots_are_not_called_back_for_the_server_which_has_its_own() {
    let wait = Duration::from_secs(5);
    let limits = AdmissionLimits { running: 4, running_of_one: 4, queue: 9, wait };
    let admission = Admission::with_server_slots(limits);
    let mut slot = admission.enter(&Client::named("a")).await.unwrap();
    slot.rest();
    let mut of_server = Vec::new();
    for _ in 0..SERVER_RUNNING {
        of_server.push(admission.enter(&Client::Server).await.unwrap());
    }
    let mut waiting = Box::pin(admission.enter(&Client::Server));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    assert!(slot.wanted().now_or_never().is_none());
    drop(of_server);
    assert!(waiting.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn programs_of_the_server_never_wait_for_those_of_clients() {
    let wait = Duration::from_secs(5);
    let limits = AdmissionLimits { running: 2, running_of_one: 2, queue: 10, wait };
    let admission = Admission::with_server_slots(limits);
    let server = Client::Server;
    // All slots of clients are taken by programs that wait for the server.
    let mut clients = Vec::new();
    for name in ["one", "other"] {
        clients.push(admission.enter(&Client::named(name)).await.unwrap());
    }
    let first = admission.enter(&server).await.unwrap();
    let second = admission.enter(&server).await.unwrap();
    let (host, mut waiting) = (Client::Host, Box::pin(admission.enter(&server)));
    let mut of_host = Box::pin(admission.enter(&host));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    assert!(futures_util::poll!(&mut of_host).is_pending());
    // Each gives its slot to its own kind.
    drop(first);
    let third = waiting.await.unwrap();
    assert!(futures_util::poll!(&mut of_host).is_pending());
    clients.pop();
    let of_host = of_host.await.unwrap();
    drop((second, third, of_host, clients));
    assert_eq!((admission.running(), admission.waiting()), (0, 0));
    assert!(lock(&admission.turns).clients.is_empty());
}
