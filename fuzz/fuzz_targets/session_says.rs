//! Sends the server anything that the runner of a session could send, in pieces of any size. What the server keeps of it stays
//! within the limits of each call, every call ends in time, and so does the session.

#![no_main]

mod fuzzer;
mod knobs;
mod scripted;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use isolator_fuzz_inputs::seeds::KNOBS;
use isolator_pool::engine::images::{ImageProvider, PullPolicy};
use isolator_pool::engine::instance::Instance;
use isolator_pool::pool::PoolSize;
use isolator_pool::pool::admission::{AdmissionLimits, Client};
use isolator_pool::pool::pools::{PoolSpec, Pools, PoolsLimits};
use isolator_pool::pool::session::{
    CellOutcome, CellRequest, CellRun, EndReason, Session, SessionError, SessionRequest,
};
use isolator_pool::pool::sizing::Size;
use isolator_pool::run::workspace::{WorkspaceBuilder, WorkspaceLimits};
use isolator_pool::{OutputLimits, WantedFiles};
use isolator_runner::wire::{MAX_FILES, MAX_PATH};
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use tempfile::TempDir;
use tokio::time::Instant;

use scripted::{RESOURCES, paused_runtime, scripted, spec};

/// The longest time for all calls together: arming and opening, two cells, and three short calls.
const LONGEST: Duration = Duration::from_secs(3 * 20 + 25 + 2 * (35 + 10 + 15) + 3 * 20 + 60);

/// Bytes of the longest text about what went wrong. The journal of a session that is gone keeps it for a day.
const LONGEST_REASON: usize = 2000;

const READ: u64 = 100;
const MAX_BACKGROUND: usize = 16 * 1024;
const POOL: &str = "pool";

/// The values with which a server registers itself.
static INSTANCE: LazyLock<(TempDir, Arc<Instance>)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let instance = Instance::register(folder.path()).expect("an instance can be registered");
    (folder, Arc::new(instance))
});

fuzz_target!(|input: &[u8]| {
    let Some((knobs, stream)) = input.split_first_chunk::<KNOBS>() else { return };
    paused_runtime().block_on(async {
        let began = Instant::now();
        let pools = pools(knobs, stream);
        let request = SessionRequest {
            kernel: None,
            resources: RESOURCES,
            packages: None,
            installer: None,
            checkpoints: 2,
            max_queue: None,
        };
        match pools.open_session(POOL, &Client::Host, &request).await {
            Ok((session, _)) => use_it(&session, knobs).await,
            Err(error) => drop(error.to_string()),
        }
        pools.close(Duration::from_secs(60)).await.expect("everything can be removed");
        assert!(began.elapsed() <= LONGEST, "it took {:?}", began.elapsed());
    });
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    knobs::mutate(data, size, max_size, seed)
});

/// Asks for everything at once, so that the answers can come at once, too.
async fn use_it(session: &Session, knobs: &[u8; KNOBS]) {
    if let Some(interpreter) = &session.opened().interpreter {
        assert!(interpreter.chars().count() <= 100);
    }
    let code = cell(CellRun::code(), knobs);
    let program = CellRun::Program {
        argv: vec!["program".to_owned()],
        env: BTreeMap::new(),
        cwd: String::new(),
    };
    let program = cell(program, knobs);
    let (ran, ran_too, rewound, listed, read) = tokio::join!(
        session.run(code.clone(), |_| {}),
        session.run(program.clone(), |_| {}),
        session.rewind(1, |_| {}),
        session.list(),
        session.read("file", 0, READ),
    );
    for (ran, request) in [(ran, code), (ran_too, program)] {
        match ran {
            Ok(outcome) => check(&outcome, &request),
            Err(error) => check_error(&error),
        }
    }
    rewound.err().iter().for_each(check_error);
    match listed {
        Ok((files, _)) => {
            assert!(files.len() <= MAX_FILES);
            assert!(files.iter().all(|file| file.path.len() <= MAX_PATH));
        }
        Err(error) => check_error(&error),
    }
    match read {
        Ok(part) => assert!(part.content.len() as u64 <= READ),
        Err(error) => check_error(&error),
    }
    assert!(session.memory() <= RESOURCES.memory.as_bytes());
    session.close();
    check_reason(&session.ended().await);
}

fn check(cell: &CellOutcome, request: &CellRequest) {
    let OutputLimits { head, tail, .. } = request.output;
    for stream in [&cell.outcome.stdout, &cell.outcome.stderr] {
        assert!(stream.head.len() <= head && stream.tail.len() <= tail);
    }
    let forms = || cell.shown.iter().flat_map(|thing| &thing.forms);
    assert!(forms().map(|(_, content)| content.len() as u64).sum::<u64>() <= request.shown);
    assert!(forms().all(|(media_type, _)| media_type.len() <= 200));
    assert!(cell.background.len() <= MAX_BACKGROUND);
    let files = &cell.outcome.files;
    let most = request.files.as_ref().map_or(0, |wanted| wanted.most);
    assert!(files.len() <= request.files.as_ref().map_or(0, |_| MAX_FILES));
    assert!(
        files.iter().flat_map(|file| &file.content).map(Vec::len).sum::<usize>() as u64 <= most
    );
}

fn check_error(error: &SessionError) {
    match error {
        SessionError::Ended(reason) => check_reason(reason),
        error => assert!(error.to_string().len() <= LONGEST_REASON, "{error}"),
    }
}

fn check_reason(reason: &EndReason) {
    assert!(reason.to_string().len() <= LONGEST_REASON, "{reason}");
}

fn cell(run: CellRun, knobs: &[u8; KNOBS]) -> CellRequest {
    const SIZES: [usize; 4] = [0, 3, 64, 4096];
    let size = |shift: u8| SIZES[usize::from(knobs[0] >> shift & 3)];
    let files = [None, Some(0), Some(10), Some(10_000)][usize::from(knobs[0] >> 4 & 3)];
    CellRequest {
        run,
        workspace: WorkspaceBuilder::new(WorkspaceLimits { files: 0, total: 0 }).build(),
        appended: Vec::new(),
        input: Vec::new(),
        timeout: Duration::from_secs(10),
        output: OutputLimits { head: size(0), tail: size(2), kill: 1 << 20 },
        shown: size(6) as u64,
        files: files.map(|most| WantedFiles { globs: Vec::new(), pictures: true, most }),
        watch: None,
        shown_watch: None,
        interrupt: None,
        context: 0,
        keeps_session: false,
    }
}

fn pools(knobs: &[u8; KNOBS], stream: &[u8]) -> Pools {
    let engine = Arc::new(scripted(knobs, stream));
    let images = ImageProvider::new(engine.clone(), engine.clone(), PullPolicy::Never);
    // None are made ahead: there is only one runner.
    let size = PoolSize { size: Size::Fixed(0), hot: 0, max_age: Duration::from_secs(1 << 20) };
    let admission =
        AdmissionLimits { running: 8, running_of_one: 8, queue: 8, wait: Duration::from_secs(60) };
    let limits = PoolsLimits { admission, refills: 1, memory: None };
    let specs = BTreeMap::from([(POOL.to_owned(), PoolSpec { sandbox: spec(knobs), size })]);
    let instance = Arc::clone(&INSTANCE.1);
    Pools::start(engine, images, instance, limits, specs).expect("the engine can do everything")
}
