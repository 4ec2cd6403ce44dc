//! Runs the script that makes the base image, and stops it so that it can clean up.

use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use isolator_pool::engine::{EngineError, Progress};
use isolator_pool::lock::lock;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStderr, Command};

use super::error::refused;

/// The time that a script has to clean up after it was asked to stop.
const CLEANING: Duration = Duration::from_secs(10);

/// The interval at which its processes are checked.
const LOOK: Duration = Duration::from_millis(20);

/// The script, of which one runs at a time.
#[derive(Default)]
pub(super) struct Script {
    /// A script that was asked to stop.
    stopping: Mutex<Option<Running>>,
}

/// The processes of a script.
struct Running {
    group: Pid,
    /// Their output. If it were closed, the next write would end them before they have cleaned up.
    lines: Lines<BufReader<ChildStderr>>,
}

impl Script {
    /// Runs a script that makes a file. Its standard error goes to `progress`. Dropping the future asks it to stop, and
    /// [`settle`](Self::settle) waits until it has.
    pub(super) async fn run(
        &self,
        script: &Path,
        output: &Path,
        progress: Progress<'_>,
    ) -> Result<(), EngineError> {
        self.settle().await;
        let mut child = Command::new("sh")
            // The modes of the root's files must not depend on the umask of this process.
            .args(["-c", "umask 022 && . \"$0\""])
            .arg(script)
            .arg(output)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(refused)?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let lines = child.stderr.take().map(|stderr| BufReader::new(stderr).lines());
        let running = group.zip(lines).map(|(group, lines)| Running { group, lines });
        let mut stopped = Stopped { script: self, running };
        let mut last = String::new();
        while let Some(running) = &mut stopped.running
            && let Some(line) = running.lines.next_line().await.map_err(refused)?
        {
            progress(&line);
            last = line;
        }
        let status = child.wait().await.map_err(refused)?;
        stopped.running = None;
        if status.success() { Ok(()) } else { Err(refused(format!("{status}: {last}"))) }
    }

    /// Waits until a script that was asked to stop has ended with its children. One that takes too long is killed.
    pub(super) async fn settle(&self) {
        let Some(mut running) = lock(&self.stopping).take() else { return };
        let ended = async {
            // Errors are ignored: the script may have printed anything.
            let _ = tokio::io::copy(running.lines.get_mut(), &mut tokio::io::sink()).await;
            while test_kill_process_group(running.group).is_ok() {
                tokio::time::sleep(LOOK).await;
            }
        };
        if tokio::time::timeout(CLEANING, ended).await.is_err() {
            let _ = kill_process_group(running.group, Signal::KILL);
            let folder = std::env::temp_dir();
            tracing::warn!(
                folder = %folder.display(),
                "the script that makes the base image did not stop in time and was killed; it may have left a folder"
            );
        }
    }
}

/// Asks the script and what it has started to stop, unless they have ended.
struct Stopped<'a> {
    script: &'a Script,
    running: Option<Running>,
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = kill_process_group(running.group, Signal::TERM);
            *lock(&self.script.stopping) = Some(running);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stopped_script_cleans_up_before_the_next_step() {
        let folder = tempfile::tempdir().unwrap();
        let (file, output) = (folder.path().join("script"), folder.path().join("output"));
        let text = "trap 'echo cleaning >&2; sleep 0.2; rm \"$1\"; exit 1' TERM
            touch \"$1\"; echo begun >&2; while :; do sleep 0.05; done";
        std::fs::write(&file, text).unwrap();
        let script = Script::default();
        let begun = tokio::sync::Notify::new();
        let progress = |_: &str| begun.notify_one();
        tokio::select! {
            ended = script.run(&file, &output, &progress) => panic!("{ended:?}"),
            () = begun.notified() => {}
        }
        assert!(output.exists());
        let group = lock(&script.stopping).as_ref().unwrap().group;
        script.settle().await;
        assert!(!output.exists() && test_kill_process_group(group).is_err());
        // The next script is independent.
        std::fs::write(&file, "echo why >&2; exit 3").unwrap();
        let error = script.run(&file, &output, &|_| ()).await.unwrap_err().to_string();
        assert!(error.contains("3: why"), "{error}");
    }
}
