//! Kernels of sessions that are forked into their sandboxes: whatever comes of a fork, the session has a kernel or ends with the
//! reason.

use std::collections::BTreeMap;

use isolator_pool::engine::Call;
use isolator_pool::engine::limits::CpuShare;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::OpenReceipt;
use isolator_pool::pool::session::{
    EndReason, KernelCommand, Session, SessionError, SessionRequest,
};
use tokio::time::{Instant, timeout};

use crate::fake::{
    Fault, Forking, KERNEL_VERSION, POOL, RESOURCES, Setup, World, ms, run_for, secs, started,
};
use crate::sessions::run;

/// A world with a template, and with a pool that is full.
async fn world() -> World {
    let setup = Setup { size: 2, preload: true, ..Setup::default() };
    let world = World::start_with(setup, |engine| engine.forks(Forking::Comes));
    world.fill().await;
    assert!(world.engine.has_template());
    world
}

/// The request for a session whose kernel can be a fork.
fn request() -> SessionRequest {
    let words = |all: &[&str]| all.iter().map(|&word| word.to_owned()).collect();
    let kernel = KernelCommand {
        interpreter: Interpreter::Python,
        argv: words(&["run", "kernel.py"]),
        waiting: words(&["run"]),
        env: BTreeMap::new(),
    };
    SessionRequest {
        kernel: Some(kernel),
        resources: RESOURCES,
        packages: None,
        installer: None,
        checkpoints: 2,
        max_queue: None,
    }
}

async fn open(world: &World, request: &SessionRequest) -> (Session, OpenReceipt) {
    world.open_session(POOL, &Client::Host, request).await.expect("a session")
}

/// Opens a session and runs cells. Returns how many kernels were forked for it.
async fn forks_for(world: &World, request: &SessionRequest) -> usize {
    let before = world.engine.forked();
    let (session, _) = open(world, request).await;
    // Those for the sandbox that takes the place of this one come later.
    let forked = world.engine.forked() - before;
    for number in 1..=2 {
        assert_eq!(run(&session, "sleep 5").await.expect("it has a kernel").cell, number);
    }
    let is_open = session.opened().interpreter.clone();
    assert_eq!(is_open.is_some(), request.kernel.is_some());
    drop(session);
    world.fill().await;
    forked
}

#[tokio::test(start_paused = true)]
async fn a_session_is_open_before_its_kernel_has_come_and_its_first_cell_waits_for_it() {
    let world = world().await;
    world.engine.delay(Call::Preload, ms(300));
    let began = Instant::now();
    let (session, _) = open(&world, &request()).await;
    assert!(began.elapsed() < ms(100), "{:?}", began.elapsed());
    let interpreter = session.opened().interpreter.clone().expect("its template says it");
    assert!(interpreter.contains(KERNEL_VERSION), "{interpreter}");
    assert_eq!(run(&session, "sleep 5").await.expect("a cell").cell, 1);
    assert!(began.elapsed() >= ms(300), "{:?}", began.elapsed());
    assert_eq!(session.memory(), 2 << 20);
    drop(session);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_without_its_fork_has_the_interpreter_that_waits() {
    for fault in [None, Some(Fault::Broken), Some(Fault::Hang)] {
        let world = world().await;
        match fault {
            None => world.engine.forks(Forking::Refused),
            Some(fault) => world.engine.fault(Call::Preload, fault),
        }
        let (session, _) = open(&world, &request()).await;
        world.engine.heal();
        for number in 1..=2 {
            let cell = run(&session, "sleep 5").await.expect("it has a kernel");
            assert_eq!(cell.cell, number, "{fault:?}");
        }
        // Nothing says that its template is at fault.
        assert_eq!(world.engine.given_up(), 0, "{fault:?}");
        drop(session);
        world.fill().await;
        world.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_template_whose_kernel_does_not_get_ready_is_given_up_unless_the_limits_may_be_why() {
    for (cpu, given_up) in [(None, 1), (Some(CpuShare::millis(10)), 0)] {
        let world = world().await;
        world.engine.forks(Forking::EndsInside);
        let mut request = request();
        request.resources.cpu = cpu.unwrap_or(request.resources.cpu);
        let (session, _) = open(&world, &request).await;
        assert_eq!(run(&session, "sleep 5").await.expect("it has another").cell, 1);
        assert_eq!(world.engine.given_up(), given_up);
        drop(session);
        world.engine.heal();
        world.fill().await;
        world.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_runner_is_lost_over_its_kernel_ends_with_the_reason() {
    for forking in [Forking::Eof, Forking::Silence] {
        let world = world().await;
        world.engine.forks(forking);
        let (session, _) = open(&world, &request()).await;
        let ran = timeout(secs(60), run(&session, "sleep 5")).await.expect("an answer");
        let Err(SessionError::Ended(EndReason::Lost(_))) = ran else {
            panic!("{forking:?}: {ran:?}")
        };
        world.engine.heal();
        started(world.run(&run_for(5)).await);
        world.fill().await;
        world.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_kernel_is_forked_only_for_a_session_that_can_use_it() {
    let world = world().await;
    assert_eq!(forks_for(&world, &request()).await, 1);
    let with = |change: &dyn Fn(&mut KernelCommand)| {
        let mut request = request();
        request.kernel.iter_mut().for_each(change);
        request
    };
    let own_variables = with(&|kernel| drop(kernel.env.insert("A".to_owned(), "1".to_owned())));
    let other_command = with(&|kernel| kernel.waiting.push("-O".to_owned()));
    let other_interpreter = with(&|kernel| kernel.interpreter = Interpreter::Node);
    let no_kernel = SessionRequest { kernel: None, ..request() };
    for request in [own_variables, other_command, other_interpreter, no_kernel] {
        assert_eq!(forks_for(&world, &request).await, 0, "{request:?}");
    }
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_closed_while_its_kernel_is_forked_leaves_nothing() {
    for forking in [Forking::Comes, Forking::Refused, Forking::EndsInside, Forking::Silence] {
        for moment in (0..60).step_by(7) {
            let world = world().await;
            world.engine.delay(Call::Preload, ms(40));
            world.engine.forks(forking);
            let (session, _) = open(&world, &request()).await;
            tokio::time::sleep(ms(moment)).await;
            session.close();
            assert!(matches!(session.ended().await, EndReason::Closed), "{forking:?} {moment}");
            drop(session);
            world.engine.heal();
            world.engine.delay(Call::Preload, ms(0));
            world.fill().await;
            world.end().await;
        }
    }
}
