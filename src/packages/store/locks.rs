//! Locks of the store, which end with their process. A process that is stopped, or a node that the volume has lost, keeps its own, so
//! no one is waited for without an end.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, retry_on_intr};

use super::StoreError;

/// How long another process may hold a lock that is waited for. Each is held briefly.
const WAIT: Duration = Duration::from_secs(30);

/// The shortest and the longest pause between two tries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Locks a file, and waits for that unless the operation says not to.
///
/// # Errors
///
/// [`StoreError::InUse`] if another process has the lock and it is not waited for, and [`StoreError::Locked`] if it has it for too long.
pub(super) fn take(
    file: &File,
    path: &Path,
    operation: FlockOperation,
    name: &str,
) -> Result<(), StoreError> {
    take_within(file, path, operation, name, WAIT)
}

fn take_within(
    file: &File,
    path: &Path,
    operation: FlockOperation,
    name: &str,
    wait: Duration,
) -> Result<(), StoreError> {
    let (attempt, waits) = match operation {
        FlockOperation::LockExclusive => (FlockOperation::NonBlockingLockExclusive, true),
        FlockOperation::LockShared => (FlockOperation::NonBlockingLockShared, true),
        other => (other, false),
    };
    let until = Instant::now() + wait;
    let mut pause = PAUSE.0;
    loop {
        match retry_on_intr(|| flock(file, attempt)) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if !waits => return Err(StoreError::InUse(name.to_owned())),
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                thread::sleep(pause);
                pause = (pause * 2).min(PAUSE.1);
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(StoreError::Locked { path: path.to_owned(), wait });
            }
            Err(error) => return Err(StoreError::io(path, error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_a_hung_process_has_is_not_waited_for_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let (one, other) = (File::create(&path).unwrap(), File::create(&path).unwrap());
        let wait = Duration::from_millis(100);
        let take = |file, operation| take_within(file, &path, operation, "lock", wait);
        take(&one, FlockOperation::LockExclusive).unwrap();
        for operation in [FlockOperation::LockExclusive, FlockOperation::LockShared] {
            assert!(matches!(take(&other, operation), Err(StoreError::Locked { .. })));
        }
        let at_once = FlockOperation::NonBlockingLockExclusive;
        assert!(matches!(take(&other, at_once), Err(StoreError::InUse(_))));
        thread::scope(|scope| {
            scope.spawn(|| take(&other, FlockOperation::LockShared).unwrap());
            thread::sleep(wait / 4);
            flock(&one, FlockOperation::Unlock).unwrap();
        });
    }
}
