//! Undoing cells, with processes that only give answers instead of a kernel's.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Child, Command};

use super::*;

/// The answer of a kernel that can't do what it was asked.
const DEAF: &[u8] = b"e\0\0\0\x05\0\0\0\0\0";

/// The answer of a kernel that is the session again, but makes no checkpoint.
const RESUMED: &[u8] = b"p\0\0\0\x01\x01";

/// What a kernel says when it has loaded what cells need.
const LOADED: &[u8] = b"l\0\0\0\0";

/// The answer of a kernel that begins a cell without a checkpoint.
const STARTED: &[u8] = b"s\0\0\0\x01\x01";

/// The other side of a [`KernelProcess`]: a process that does nothing, and its end of the channel.
struct Behind {
    process: Child,
    channel: UnixStream,
}

impl Behind {
    fn end(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// The kind of the next message, and its payload.
    fn asked(&mut self) -> (u8, Vec<u8>) {
        let mut header = [0; 5];
        self.channel.read_exact(&mut header).unwrap();
        let [kind, length @ ..] = header;
        let mut payload = vec![0; u32::from_be_bytes(length) as usize];
        self.channel.read_exact(&mut payload).unwrap();
        (kind, payload)
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A process of a kernel that gives these answers, whatever it is asked. It has no list of other processes: all processes of this
/// machine that are missing from such a list would be killed.
fn process(depth: u32, answers: &[u8]) -> (KernelProcess, Behind) {
    let process = Command::new("sleep").arg("60").spawn().unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let channel = Channel::new(ours.into()).unwrap();
    theirs.write_all(answers).unwrap();
    let pid = Pid::from_child(&process);
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let behind = Behind { process, channel: theirs };
    (KernelProcess { pid, pidfd, channel, depth, found: None }, behind)
}

fn kernels(checkpoints: Vec<KernelProcess>, current: KernelProcess, is_prepared: bool) -> Kernels {
    Kernels {
        interpreter: Interpreter::Python,
        current,
        checkpoints,
        most: 8,
        is_prepared,
        is_refused: false,
        is_deaf: false,
        is_loading: false,
        early: Early::default(),
        own_pipes: [None, None],
        resumed_pipes: [None, None],
        neighbours: HashSet::new(),
    }
}

#[test]
fn cells_of_a_checkpoint_that_does_not_answer_count_as_undone() {
    let (oldest, _oldest) = process(1, RESUMED);
    let (deaf, _deaf) = process(2, DEAF);
    let (gone, mut behind_gone) = process(3, b"");
    let (current, _current) = process(4, b"");
    behind_gone.end();
    let mut kernels = kernels(vec![oldest, deaf, gone], current, false);
    assert_eq!(kernels.undo(), Some(3));
    assert_eq!((kernels.current.depth, kernels.checkpoints.len()), (1, 0));
    assert!(!kernels.is_deaf);
}

#[test]
fn a_checkpoint_that_does_not_answer_is_killed() {
    let (deaf, mut behind) = process(1, DEAF);
    let (current, _current) = process(2, b"");
    let mut kernels = kernels(vec![deaf], current, false);
    assert_eq!(kernels.undo(), None);
    assert!(!behind.process.wait().unwrap().success());
}

#[test]
fn a_cell_that_does_not_begin_reports_the_undone_cells_if_its_checkpoint_is_gone() {
    let (same, mut behind) = process(2, RESUMED);
    let (current, _current) = process(2, b"");
    assert_eq!(kernels(vec![same], current, true).undo_prepared(), Some(0));
    // The cell follows.
    assert_eq!([behind.asked(), behind.asked()], [(b'R', vec![]), (b'P', vec![1])]);

    let (oldest, mut behind) = process(1, RESUMED);
    let (deaf, _deaf) = process(2, DEAF);
    let (current, _current) = process(2, b"");
    let mut kernels = kernels(vec![oldest, deaf], current, true);
    assert_eq!(kernels.undo_prepared(), Some(1));
    assert_eq!([behind.asked(), behind.asked()], [(b'R', vec![]), (b'P', vec![0])]);
    assert_eq!((kernels.current.depth, kernels.is_prepared), (1, false));
    // Nothing was made for the next cell.
    assert_eq!(kernels.undo_prepared(), None);
}

#[test]
fn a_state_in_which_no_cell_begins_is_left_if_there_is_an_older_one() {
    let (oldest, _oldest) = process(1, RESUMED);
    let (same, _same) = process(2, RESUMED);
    let (current, _current) = process(2, b"");
    let mut several = kernels(vec![oldest, same], current, true);
    assert!(several.kill_unfit());
    assert_eq!(several.undo(), Some(1));

    let (only, _only) = process(2, RESUMED);
    let (current, _current) = process(2, b"");
    let mut single = kernels(vec![only], current, true);
    assert!(single.kill_unfit());
    assert_eq!(single.undo(), Some(0));
}

#[test]
fn the_checkpoint_of_the_next_cell_is_not_given_up() {
    let (older, _older) = process(1, b"");
    let (prepared, _prepared) = process(2, b"");
    let (current, _current) = process(2, b"");
    let mut kernels = kernels(vec![older, prepared], current, true);
    assert!(kernels.give_up_oldest());
    assert!(!kernels.give_up_oldest());
    assert_eq!(kernels.checkpoints.len(), 1);
    // The cell has begun, and it is old when the next one comes.
    kernels.is_prepared = false;
    assert!(kernels.give_up_oldest());
    assert!(!kernels.give_up_oldest());
}

#[test]
fn a_cell_whose_checkpoint_is_gone_asks_for_another_and_reports_if_there_is_none() {
    for is_gone in [false, true] {
        let (prepared, mut behind_prepared) = process(1, b"");
        let (current, mut behind) = process(1, STARTED);
        if is_gone {
            behind_prepared.end();
        }
        let mut kernels = kernels(vec![prepared], current, true);
        let code = Code {
            number: 2,
            typescript: false,
            columns: None,
            env: &BTreeMap::new(),
            for_program: false,
            source: b"x",
        };
        let begun = kernels.begin(&code).unwrap();
        assert_eq!(begun.no_checkpoint, is_gone.then_some(NoCheckpoint::Threads));
        assert_eq!(behind.asked(), (b'C', vec![0, 0, 0, 2, u8::from(is_gone), b'x']));
        kernels.go();
        assert_eq!(behind.asked(), (b'G', vec![]));
        assert_eq!(kernels.checkpoints.len(), usize::from(!is_gone));
        assert_eq!(kernels.current.depth, 2);
    }
}

#[test]
fn the_first_checkpoint_is_made_when_the_kernel_has_loaded_what_cells_need() {
    let (current, mut behind) = process(0, b"");
    let mut kernels = kernels(vec![], current, false);
    kernels.is_loading = true;
    kernels.prepare(Follows::Pause);
    assert!(!kernels.ends_loading());
    assert!(kernels.loading_fd().is_some());
    behind.channel.write_all(LOADED).unwrap();
    behind.channel.write_all(RESUMED).unwrap();
    assert!(kernels.ends_loading());
    assert!(!kernels.ends_loading() && kernels.loading_fd().is_none());
    kernels.prepare(Follows::Pause);
    assert_eq!(behind.asked(), (b'P', vec![0]), "nothing was asked before");
}

#[test]
fn a_kernel_that_could_make_no_checkpoint_is_asked_again_by_the_next_cell() {
    let (current, mut behind) = process(1, RESUMED);
    let mut kernels = kernels(vec![], current, false);
    kernels.prepare(Follows::Pause);
    assert_eq!(behind.asked(), (b'P', vec![0]));
    // It would not answer.
    kernels.prepare(Follows::Pause);
    assert!(!kernels.is_deaf);
    let (env, source) = (&BTreeMap::new(), b"x");
    let code =
        Code { number: 2, typescript: false, columns: None, env, for_program: false, source };
    behind.channel.write_all(&[STARTED, RESUMED].concat()).unwrap();
    assert_eq!(kernels.begin(&code).unwrap().no_checkpoint, Some(NoCheckpoint::Threads));
    assert_eq!(behind.asked(), (b'C', vec![0, 0, 0, 2, 1, b'x']));
    kernels.prepare(Follows::Pause);
    assert_eq!(behind.asked(), (b'P', vec![0]));
}

#[test]
fn a_kernel_that_does_not_do_what_it_was_asked_is_not_asked_again() {
    let (current, mut behind) = process(1, DEAF);
    let mut kernels = kernels(vec![], current, false);
    for _ in 0..2 {
        kernels.prepare(Follows::Pause);
        assert!(kernels.is_deaf);
    }
    assert_eq!(behind.asked(), (b'P', vec![0]));
    drop(kernels);
    assert!(behind.channel.read_exact(&mut [0]).is_err(), "it was asked once");
}

#[test]
fn a_kernel_that_loads_is_not_waited_for_if_it_is_gone_or_a_cell_comes() {
    let (current, behind) = process(0, b"");
    let mut gone = kernels(vec![], current, false);
    gone.is_loading = true;
    drop(behind);
    assert!(gone.ends_loading());

    let (current, mut behind) = process(0, &[LOADED, STARTED].concat());
    let mut asked = kernels(vec![], current, false);
    asked.is_loading = true;
    let (env, source) = (&BTreeMap::new(), b"x");
    let code =
        Code { number: 1, typescript: false, columns: None, env, for_program: false, source };
    assert_eq!(asked.begin(&code).unwrap().no_checkpoint, Some(NoCheckpoint::Threads));
    assert_eq!(behind.asked().0, b'C');
    assert!(!asked.is_loading());
}
