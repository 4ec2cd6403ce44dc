//! Tools as processes: started with few variables, watched, bounded, and never left behind.
//!
//! A tool and its children are one process group, which is killed when its build is cancelled. Standard input is the file
//! whose lock keeps the folder of the build: if this process is killed, the folder stays until the tool has ended, too.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use isolator_pool::engine::Progress;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, setpriority_process};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::error::BuildError;
use super::processes;
use super::secrets::Secrets;
use super::watch::Watch;
use crate::config::Config;
use crate::packages::target::Target;

/// Longest line that is looked at, in bytes.
const LONGEST_LINE: u64 = 8 * 1024;

/// Bytes of a tool's output that are kept: its end, where the reason of a failure is.
const KEPT: usize = 16 * 1024;

/// Bytes of it that people see.
const SHOWN: usize = 4 * 1024;

/// The nice value of tools.
const PRIORITY: i32 = 10;

/// How long to wait, after the end of a tool, for streams that its children hold open.
const STREAMS_CLOSE: Duration = Duration::from_secs(2);

/// The tools that resolve and install one set. Each has a module.
pub(super) struct Tools<'t> {
    pub config: &'t Config,
    pub target: &'t Target,
    pub watch: &'t Watch<'t>,
    /// The folder for their downloads.
    pub cache: &'t Path,
    pub deadline: Deadline,
}

/// A tool's call.
pub(super) struct Call<'c> {
    pub tool: &'static str,
    pub program: PathBuf,
    /// Its arguments. All users of the machine can see them.
    pub arguments: Vec<OsString>,
    /// All its variables. Only this user can see them.
    pub env: BTreeMap<String, OsString>,
    /// The folder in which it runs.
    pub folder: &'c Path,
    /// Bytes of memory that each of its processes reserves and does not use.
    pub reserved: u64,
    pub watch: &'c Watch<'c>,
    /// Credentials, which must not be shown.
    pub secrets: &'c Secrets,
    /// The progress that a line means, if any.
    pub progress: fn(&str) -> Option<String>,
}

/// A tool that failed, with the end of its output.
#[derive(Debug)]
pub(super) struct Failed {
    pub status: ExitStatus,
    /// The end of its output, without credentials.
    pub said: String,
}

/// The end of a tool's output.
#[derive(Default)]
struct Said {
    lines: VecDeque<String>,
    bytes: usize,
    dropped: bool,
}

impl Said {
    fn push(&mut self, line: String) {
        self.bytes += line.len() + 1;
        self.lines.push_back(line);
        while self.bytes > KEPT
            && let Some(first) = self.lines.pop_front()
        {
            self.bytes -= first.len() + 1;
            self.dropped = true;
        }
    }

    /// The last lines, as many as people want to read.
    fn last(&self, most: usize) -> String {
        let mut shown: Vec<&str> = Vec::new();
        let mut bytes = 0;
        for line in self.lines.iter().rev() {
            bytes += line.len() + 1;
            if bytes > most {
                shown.push("…");
                break;
            }
            shown.push(line);
        }
        shown.reverse();
        shown.join("\n")
    }
}

/// Kills a tool and its children when it is dropped.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        let Some(group) = self.0.take() else { return };
        // Before its end makes them the children of others.
        let with_descendants = processes::of_tool(group).pids;
        let killed = kill_process_group(group, Signal::KILL);
        let killed =
            with_descendants.into_iter().map(|pid| kill_process(pid, Signal::KILL)).chain([killed]);
        for error in killed.filter_map(Result::err).filter(|error| *error != Errno::SRCH) {
            tracing::warn!(%error, "a tool that installs packages could not be ended");
        }
    }
}

impl Call<'_> {
    /// Runs the tool until `deadline`. Dropping the future kills it and its children.
    ///
    /// # Errors
    ///
    /// When it can't be started or takes too long. That it fails is the inner error.
    pub(super) async fn run(
        self,
        deadline: Deadline,
        say: Progress<'_>,
    ) -> Result<Result<(), Failed>, BuildError> {
        let (tool, program) = (self.tool, &self.program);
        let no_tool = |error| BuildError::NoTool { tool, program: program.clone(), error };
        // Keeps the folder of the build as long as the tool runs.
        let lock = self.watch.building.lock().try_clone().map_err(no_tool)?;
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .env_clear()
            .envs(&self.env)
            .current_dir(self.folder)
            .stdin(Stdio::from(lock))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(no_tool)?;
        let group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
        // Requests come first. Processes that the tool starts from now on inherit its priority.
        if let Some(pid) = group.0
            && let Err(error) = setpriority_process(Some(pid), PRIORITY)
        {
            tracing::debug!(%error, tool = self.tool, "a tool runs with the server's priority");
        }
        let said = std::sync::Mutex::new(Said::default());
        let follow = self.follow(&mut child, &said, say);
        let watched = self.watch.during_tool(self.tool, self.reserved, group.0, follow);
        let ended = tokio::time::timeout_at(deadline.at, watched).await;
        // Ends children that it has left behind.
        drop(group);
        // After that, it can't write into folders that are being removed.
        let _ = tokio::time::timeout(STREAMS_CLOSE, child.wait()).await;
        let said = said.into_inner().unwrap_or_default();
        match ended {
            Ok(Err(reached)) => Err(reached),
            Err(_) => {
                let mut last = said.last(SHOWN / 4);
                if last.is_empty() {
                    last = format!("{} has said nothing", self.tool);
                }
                Err(BuildError::Timeout { after: deadline.after, last })
            }
            Ok(Ok(Err(error))) => {
                Err(BuildError::Unwatched { tool, error, said: said.last(SHOWN) })
            }
            Ok(Ok(Ok(status))) => {
                if status.success() {
                    return Ok(Ok(()));
                }
                Ok(Err(Failed { status, said: said.last(SHOWN) }))
            }
        }
    }

    /// Reads its output until it ends.
    async fn follow(
        &self,
        child: &mut Child,
        said: &std::sync::Mutex<Said>,
        say: Progress<'_>,
    ) -> io::Result<ExitStatus> {
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let read = async {
            tokio::join!(self.listen(stdout, said, say), self.listen(stderr, said, say));
        };
        tokio::pin!(read);
        let status = tokio::select! {
            () = &mut read => child.wait().await?,
            status = child.wait() => {
                let status = status?;
                // A child that lives on must not make this wait.
                let _ = tokio::time::timeout(STREAMS_CLOSE, &mut read).await;
                status
            }
        };
        Ok(status)
    }

    async fn listen(
        &self,
        stream: Option<impl AsyncRead + Unpin>,
        said: &std::sync::Mutex<Said>,
        say: Progress<'_>,
    ) {
        let Some(stream) = stream else { return };
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        loop {
            line.clear();
            // A longer line counts as several.
            match (&mut stream).take(LONGEST_LINE).read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = self.secrets.hide(String::from_utf8_lossy(&line).trim_end());
            if text.is_empty() {
                continue;
            }
            if let Some(line) = (self.progress)(&text) {
                say(&line);
            }
            tracing::debug!(tool = self.tool, "{text}");
            if let Ok(mut said) = said.lock() {
                said.push(text);
            }
        }
    }
}

/// The time when a build has to end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    at: tokio::time::Instant,
    after: Duration,
}

impl Deadline {
    /// A deadline after this time from now.
    pub(super) fn after(after: Duration) -> Self {
        // A century later is never.
        let now = tokio::time::Instant::now();
        let at = now.checked_add(after).unwrap_or(now + Duration::from_secs(3_000_000_000));
        Self { at, after }
    }

    /// Waits for something until then.
    ///
    /// # Errors
    ///
    /// [`BuildError::Timeout`], with the current step.
    pub(super) async fn bound<T>(
        self,
        doing: &str,
        future: impl Future<Output = T>,
    ) -> Result<T, BuildError> {
        let ended = tokio::time::timeout_at(self.at, future).await;
        ended.map_err(|_| BuildError::Timeout { after: self.after, last: doing.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use isolator_pool::engine::limits::ByteSize;

    use super::*;
    use crate::packages::build::watch::Bounds;
    use crate::packages::store::Store;

    /// Runs a script as a tool, in the folder of a build. Returns its result and the progress.
    async fn run(
        script: &str,
        after: Duration,
    ) -> (Result<Result<(), Failed>, BuildError>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), None).unwrap();
        let building = store.begin(MIB).unwrap();
        let bounds =
            Bounds { set: 4 * MIB, disk: 16 * MIB, memory: ByteSize::bytes(64 * MIB), tasks: 20 };
        let watch = Watch::new(&building, bounds, None);
        let mut secrets = Secrets::default();
        secrets.add("very secret");
        let call = Call {
            tool: "sh",
            program: "/bin/sh".into(),
            arguments: ["-c", script].map(Into::into).to_vec(),
            env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".into())]),
            folder: building.folder(),
            reserved: 0,
            watch: &watch,
            secrets: &secrets,
            progress: |line| line.strip_prefix("step ").map(str::to_owned),
        };
        let steps = Mutex::new(Vec::new());
        let say = |line: &str| steps.lock().unwrap().push(line.to_owned());
        let ended = call.run(Deadline::after(after), &say).await.and_then(|ended| {
            let reached =
                ended.as_ref().err().and_then(|it| watch.explain("sh", it.status, &it.said));
            reached.map_or(Ok(ended), Err)
        });
        (ended, steps.into_inner().unwrap())
    }

    const MIB: u64 = 1 << 20;

    const LONG: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn output_of_tools_is_bounded_and_has_no_credentials() {
        let script =
            "echo step the very secret; seq 1 100000; echo the end is very secret >&2; exit 3";
        let (ended, steps) = run(script, LONG).await;
        assert_eq!(steps, ["the ***"]);
        let Failed { status, said } = ended.unwrap().unwrap_err();
        assert_eq!(status.code(), Some(3));
        assert!(said.len() <= SHOWN + 10 && said.contains("the end is ***"), "{said}");
        assert!(run("exit 0", LONG).await.0.unwrap().is_ok());
    }

    #[tokio::test]
    async fn children_end_with_a_tool_that_takes_too_long() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        // One that has left its group as well.
        for start in ["sleep", "setsid sleep"] {
            let script = format!("{start} 600 & echo $! > {}; echo waiting; wait", file.display());
            let (ended, _) = run(&script, Duration::from_secs(2)).await;
            let Err(BuildError::Timeout { last, .. }) = ended else { panic!("{ended:?}") };
            assert_eq!(last, "waiting");
            has_ended(&std::fs::read_to_string(&file).unwrap()).await;
        }
    }

    async fn has_ended(child: &str) {
        let status = format!("/proc/{}/status", child.trim());
        for _ in 0..100 {
            match std::fs::read_to_string(&status) {
                // A zombie waits for the process that adopted it.
                Ok(text) if !text.contains("State:\tZ") => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                _ => return,
            }
        }
        panic!("the child still runs");
    }

    #[tokio::test]
    async fn a_tool_that_brings_too_much_is_ended_early() {
        let deep = "for i in $(seq 2000); do mkdir d && cd d || exit; done; sleep 600";
        let many = "for i in $(seq 1000); do head -c 1000000 /dev/zero > $i; done; sleep 600";
        // A file that is written before the kernel has the bound can be longer.
        let long = "until [ $(ulimit -f) != unlimited ]; do sleep 0.01; done; exec head -c 5000000 /dev/zero > x";
        let forks = "for i in $(seq 100); do sleep 600 & done; wait";
        for (script, expected) in [
            (deep, "folders in folders"),
            (many, "more than 16 MiB"),
            (forks, "more than 20 processes"),
            (long, "a file has more than 4 MiB"),
        ] {
            let (ended, _) = run(script, LONG).await;
            let Err(BuildError::Refused(why)) = ended else { panic!("{script}: {ended:?}") };
            assert!(why.contains(expected), "{why}");
        }
        // More than its bound, and less than the kernel's for each process.
        let hungry = "(head -c 75000000 /dev/zero; sleep 600) | tail";
        let (ended, _) = run(hungry, LONG).await;
        let Err(BuildError::Memory { most: 64, .. }) = ended else { panic!("{ended:?}") };
    }

    #[tokio::test]
    async fn a_child_that_keeps_the_streams_open_does_not_delay_the_build() {
        let began = std::time::Instant::now();
        let (ended, _) = run("sleep 600 & exit 0", LONG).await;
        assert!(ended.unwrap().is_ok());
        assert!(began.elapsed() < Duration::from_secs(15));
    }
}
