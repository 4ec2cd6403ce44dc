//! Processes of a sandbox that are killed when the time of their client is over, whether it is still connected or not.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use isolator_pool::lock::lock;
use isolator_pool::pool::pools::Pools;
use tokio_util::sync::CancellationToken;

use crate::sessions::OpenSession;

/// Timers that may be there before those of ended processes are looked for. No agent has more processes.
const MANY: usize = 128;

/// The timers of a sandbox's processes, by the numbers of the processes.
#[derive(Debug, Default)]
pub(super) struct Deadlines(Arc<Mutex<HashMap<u32, CancellationToken>>>);

impl Deadlines {
    /// A process was started. Its number is a new one, so a timer for an earlier process with this number ends.
    pub(super) async fn started(
        &self,
        session: &Arc<OpenSession>,
        pid: u32,
        timeout: Option<Duration>,
        pools: &Pools,
    ) {
        self.ended(pid);
        let Some(timeout) = timeout else { return };
        if lock(&self.0).len() >= MANY {
            self.forget_ended(session).await;
        }
        let cancelled = CancellationToken::new();
        lock(&self.0).insert(pid, cancelled.clone());
        let (timers, session) = (Arc::downgrade(&self.0), Arc::clone(session));
        pools.track(async move {
            tokio::select! {
                () = tokio::time::sleep(timeout) => {}
                () = cancelled.cancelled() => return,
                _ = session.session.ended() => return,
            }
            let Some(timers) = timers.upgrade() else { return };
            {
                let mut timers = lock(&timers);
                // Without its entry, the number may be that of another process.
                if cancelled.is_cancelled() || timers.remove(&pid).is_none() {
                    return;
                }
            }
            if let Err(error) = session.session.signal(pid, libc::SIGKILL).await {
                tracing::debug!(%error, "a process was not killed at its deadline");
            }
        });
    }

    /// A process has ended.
    pub(super) fn ended(&self, pid: u32) {
        if let Some(timer) = lock(&self.0).remove(&pid) {
            timer.cancel();
        }
    }

    /// Ends the timers of processes that have ended while no client was attached.
    async fn forget_ended(&self, session: &OpenSession) {
        let Ok(processes) = session.session.processes().await else { return };
        lock(&self.0).retain(|pid, timer| {
            let is_there = processes.iter().any(|process| process.pid == *pid);
            if !is_there {
                timer.cancel();
            }
            is_there
        });
    }
}
