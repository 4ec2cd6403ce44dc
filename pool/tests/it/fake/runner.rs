//! The runners in the fake engine's sandboxes. They do what a job's `argv` says.

use std::collections::BTreeMap;
use std::time::Duration;

use isolator_pool::engine::{SandboxName, SandboxState};
use isolator_runner::wire::{
    self, Alone, End, Exit, Failed, FailedCause, FrameDecoder, HEADER_LEN, Job, Kind, Preload,
    Preloaded, Ready, Session, Wanted,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::*;

/// Bytes that the stream to a runner holds.
pub(super) const PIPE: usize = 64 << 10;

/// The first process of a sandbox.
pub(super) struct Runner {
    pub(super) engine: FakeEngine,
    pub(super) name: SandboxName,
    pub(super) stream: DuplexStream,
    pub(super) agent: super::agent::FakeAgent,
}

impl Runner {
    /// From the start to the end of the stream.
    pub(super) async fn live(mut self, park: Park) -> std::io::Result<()> {
        match park {
            Park::Ready => self.ready(wire::VERSION).await?,
            Park::Dies(after) => {
                self.ready(wire::VERSION).await?;
                tokio::time::sleep(after).await;
                self.end_container(SandboxState::Stopped);
                return Ok(());
            }
            Park::Silence => std::future::pending().await,
            Park::Eof => return Ok(()),
            Park::Version(version) => self.ready(version).await?,
            Park::Garbage => self.stream.write_all(&[0xff; 64]).await?,
            Park::Oversize => self.stream.write_all(&OVERSIZE).await?,
            Park::Unexpected => self.stream.write_all(&wire::header(Kind::Exit, 0)).await?,
        }
        self.serve().await
    }

    pub(super) async fn ready(&mut self, version: u32) -> std::io::Result<()> {
        self.record(|record| record.ready = true);
        self.send(Kind::Ready, &Ready { version }).await
    }

    fn preloading(&self) -> Preloading {
        self.engine.books().preloading
    }

    pub(super) async fn preload(
        &mut self,
        has_modules: bool,
        time: Duration,
    ) -> std::io::Result<()> {
        tokio::time::sleep(time).await;
        self.record(|record| {
            record.preloaded = true;
            record.has_modules = has_modules;
        });
        let forks = self.engine.forking() != Forking::Never;
        let complaints =
            if forks { Vec::new() } else { vec!["the image has no module".to_owned()] };
        let preloaded = Preloaded { memory: 1 << 20, complaints, not_ready: None };
        self.send(Kind::Preloaded, &preloaded).await
    }

    /// Waits for an interpreter that was forked into its sandbox.
    async fn take_fork(&mut self, has_modules: bool) -> std::io::Result<()> {
        match self.engine.forking() {
            Forking::EndsInside => {
                let why = "it ended in the sandbox".to_owned();
                let (complaints, not_ready) = (vec![why.clone()], Some(why));
                self.send(Kind::Preloaded, &Preloaded { memory: 0, complaints, not_ready }).await
            }
            Forking::Silence => std::future::pending().await,
            Forking::Eof => Err(std::io::ErrorKind::UnexpectedEof.into()),
            Forking::Never | Forking::Refused | Forking::Comes => {
                self.preload(has_modules, Duration::ZERO).await
            }
        }
    }

    /// Notes a breach unless the server names each fork in its sandbox, and no other.
    fn check_forks(&self, forked: bool) {
        let untold = self.record(|record| {
            let untold = record.untold_forks;
            record.untold_forks -= usize::from(forked && untold > 0);
            untold
        });
        if untold != usize::from(forked) {
            let name = &self.name;
            self.engine.note(format!("{name} has {untold} forks, and forked is {forked}"));
        }
    }

    /// Takes a job, then does what its first argument says.
    pub(super) async fn serve(mut self) -> std::io::Result<()> {
        let mut decoder = FrameDecoder::default();
        let mut piece = vec![0; PIPE];
        let mut job: Option<Job> = None;
        let mut stdin = Vec::new();
        loop {
            let Some((kind, payload)) = decoder.next_frame().expect("frames of the server") else {
                let read = self.stream.read(&mut piece).await?;
                if read == 0 {
                    return Ok(());
                }
                decoder.feed(&piece[..read]);
                continue;
            };
            match kind {
                Kind::Job => {
                    let taken: Job = wire::parse_message(kind, &payload).expect("a job");
                    self.take_job();
                    self.thawed().await;
                    if taken.argv[0] == "fail-half-way" {
                        self.fail(&taken.argv[1]).await?;
                        // The stream stays open, but is no longer read.
                        std::future::pending::<()>().await;
                    }
                    job = Some(taken);
                }
                Kind::Preload => {
                    let preload: Preload = wire::parse_message(kind, &payload).expect("a preload");
                    let has_modules = !preload.modules.is_empty();
                    self.check_forks(preload.forked);
                    if preload.forked {
                        self.take_fork(has_modules).await?;
                        continue;
                    }
                    match self.preloading() {
                        Preloading::Imports(_) if !has_modules => {
                            self.preload(false, Duration::ZERO).await?;
                        }
                        Preloading::Takes(time) | Preloading::Imports(time) => {
                            self.preload(has_modules, time).await?;
                        }
                        Preloading::Silence => std::future::pending().await,
                        Preloading::Eof => return Ok(()),
                    }
                }
                Kind::Session => {
                    let session: Session = wire::parse_message(kind, &payload).expect("a session");
                    let wanted = session.kernel.map(|kernel| kernel.wanted);
                    let is_forked = wanted == Some(Wanted::Forked);
                    self.record(|record| record.awaits_kernel |= is_forked);
                    self.take_job();
                    self.thawed().await;
                    self.record(|record| record.cell_runs = Some(false));
                    return self.serve_session(decoder, wanted).await;
                }
                Kind::Stdin => stdin.extend(payload),
                Kind::Go => break,
                _ => {}
            }
        }
        let job = job.expect("a job comes before Go");
        if let Some(packages) = &job.packages {
            self.engine.books().given.push(packages.folder.clone());
            if job.interpreter == Wanted::Loaded {
                self.engine.note(format!("{} has modules of its image and a set", self.name));
            }
        }
        let jobs = self.engine.books().sandboxes.values().map(|record| record.jobs).sum::<usize>();
        match job.argv[0].as_str() {
            "not-started" => return Ok(()),
            "second-time" if jobs == 1 => return Ok(()),
            _ => {}
        }
        self.stream.write_all(&wire::header(Kind::Started, 0)).await?;
        if job.interpreter == Wanted::Loaded && self.record(|record| !record.has_modules) {
            // It has to import them itself, and reports as if nothing had been there.
            self.record(|record| record.preloaded = false);
        }
        self.run(&job.argv, &stdin).await
    }

    pub(super) fn take_job(&self) {
        let breach = self.record(|record| {
            record.jobs += 1;
            // One that has just ended may have been paused before.
            record.awaits_thaw = record.state != SandboxState::Running;
            match record {
                Record { jobs: 2.., .. } => Some("has got a second job"),
                Record { untold_forks: 1.., awaits_kernel: false, .. } => {
                    Some("has got a job before its fork")
                }
                Record { fork_lost: true, .. } => Some("has got a job after it had lost a fork"),
                // One that has just ended is no breach.
                _ => None,
            }
        });
        if let Some(breach) = breach {
            self.engine.note(format!("{} {breach}", self.name));
        }
    }

    /// A frozen process reads nothing. One that is never thawed is noticed by the request's deadline.
    pub(super) async fn thawed(&self) {
        while self.record(|record| record.state == SandboxState::Paused) {
            tokio::time::sleep(ms(1)).await;
        }
    }

    pub(super) async fn run(mut self, argv: &[String], stdin: &[u8]) -> std::io::Result<()> {
        let number = |at: usize| argv[at].parse::<u64>().expect("a number");
        match argv[0].as_str() {
            "run" => {
                tokio::time::sleep(ms(number(1))).await;
                self.print(Kind::Stdout, stdin).await?;
                self.exit().await
            }
            "second-time" => self.exit().await,
            "alone" => {
                self.send(Kind::Alone, &Alone { memory: number(1) }).await?;
                tokio::time::sleep(ms(number(2))).await;
                self.exit().await
            }
            "full" => self.exit_with(argv[1..].to_vec()).await,
            "flood" => {
                for _ in 0..number(1) {
                    self.print(Kind::Stdout, &vec![b'o'; number(2) as usize]).await?;
                    self.print(Kind::Stderr, &vec![b'e'; number(2) as usize]).await?;
                }
                self.exit().await
            }
            "install" => self.install(argv).await,
            "silence" => std::future::pending().await,
            "eof" => {
                self.print(Kind::Stdout, b"so far").await?;
                self.stream.write_all(&wire::header(Kind::Stdout, 9)[..HEADER_LEN - 1]).await
            }
            "stop" => {
                self.end_container(SandboxState::Stopped);
                Ok(())
            }
            "end" => {
                self.print(Kind::Stdout, b"so far").await?;
                self.end_container(SandboxState::Ended);
                Ok(())
            }
            "vanish" => {
                self.engine.books().removed += 1;
                self.end_container(SandboxState::Gone);
                Ok(())
            }
            "garbage" => self.write_and_wait(&[0xff; 64]).await,
            "oversize" => self.write_and_wait(&OVERSIZE).await,
            "unexpected" => self.write_and_wait(&wire::header(Kind::Ready, 0)).await,
            "fail" => self.fail(&argv[1]).await,
            other => panic!("no runner does {other:?}"),
        }
    }

    /// Asks for packages, once for each argument, and prints the answers and the folders of sets in the order of the arguments. The number
    /// of a request is its place; `=` repeats the one before, `gone` ends it, `in turn` waits for each answer before the next request, and
    /// `later` waits a minute.
    async fn install(&mut self, argv: &[String]) -> std::io::Result<()> {
        let (in_turn, asked) = match &argv[1..] {
            [first, rest @ ..] if first == "in turn" => (true, rest),
            all => (false, all),
        };
        let mut decoder = FrameDecoder::default();
        let (mut answers, mut sent) = (BTreeMap::new(), 0);
        for (at, request) in (0_u32..).zip(asked) {
            let (kind, number, text) = match request.as_str() {
                "later" => {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                    continue;
                }
                "=" => (Kind::Install, at - 1, "again"),
                "gone" => (Kind::InstallEnded, at - 1, ""),
                text => (Kind::Install, at, text),
            };
            sent += usize::from(kind == Kind::Install);
            self.print(kind, &[&number.to_be_bytes()[..], text.as_bytes()].concat()).await?;
            if in_turn {
                self.installed(&mut decoder, &mut answers, sent).await?;
            }
        }
        self.installed(&mut decoder, &mut answers, sent).await?;
        for answer in answers.into_values() {
            self.print(Kind::Stdout, format!("{answer}\n").as_bytes()).await?;
        }
        self.exit().await
    }

    /// Reads until there is this number of answers.
    async fn installed(
        &mut self,
        decoder: &mut FrameDecoder,
        answers: &mut BTreeMap<u32, String>,
        wanted: usize,
    ) -> std::io::Result<()> {
        let mut piece = vec![0; PIPE];
        while answers.len() < wanted {
            match decoder.next_frame().expect("frames of the server") {
                Some((Kind::Installed, payload)) => {
                    let wire::Installed { install, packages, answer } =
                        wire::parse_message(Kind::Installed, &payload).expect("an answer");
                    let folder = packages.map_or_else(String::new, |it| format!(" {}", it.folder));
                    answers.insert(install, format!("{answer}{folder}"));
                }
                Some(_) => {}
                None => match self.stream.read(&mut piece).await? {
                    0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                    read => decoder.feed(&piece[..read]),
                },
            }
        }
        Ok(())
    }

    pub(super) async fn write_and_wait(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes).await?;
        std::future::pending().await
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes).await
    }

    pub(super) async fn print(&mut self, kind: Kind, bytes: &[u8]) -> std::io::Result<()> {
        let mut buffer = Vec::new();
        wire::push_bytes(&mut buffer, kind, bytes);
        self.stream.write_all(&buffer).await
    }

    pub(super) async fn send<T: serde::Serialize>(
        &mut self,
        kind: Kind,
        message: &T,
    ) -> std::io::Result<()> {
        let mut buffer = Vec::new();
        wire::push_message(&mut buffer, kind, message).expect("a short message");
        self.stream.write_all(&buffer).await
    }

    pub(super) async fn exit(&mut self) -> std::io::Result<()> {
        self.exit_with(Vec::new()).await
    }

    async fn exit_with(&mut self, full_disks: Vec<String>) -> std::io::Result<()> {
        let preloaded = self.record(|record| record.preloaded);
        let exit = Exit { full_disks, preloaded, ..success() };
        self.send(Kind::Exit, &exit).await
    }

    pub(super) async fn fail(&mut self, cause: &str) -> std::io::Result<()> {
        let cause = match cause {
            "workspace-full" => FailedCause::WorkspaceFull,
            "workspace" => FailedCause::Workspace,
            "packages" => FailedCause::Packages,
            "command" => FailedCause::Command,
            "protocol" => FailedCause::Protocol,
            other => panic!("no such cause: {other:?}"),
        };
        let message = "words of the system, ".repeat(1000);
        self.send(Kind::Failed, &Failed { cause, message }).await
    }

    pub(super) fn record<T>(&self, change: impl FnOnce(&mut Record) -> T) -> T {
        change(self.engine.books().sandboxes.get_mut(&self.name).expect("its own sandbox"))
    }

    pub(super) fn end_container(&self, state: SandboxState) {
        self.record(|record| end(record, state));
    }
}

/// The report on a program that succeeded at once.
pub(super) fn success() -> Exit {
    Exit::of(End::Code(0))
}

/// The header of a frame of 4 GiB.
pub(super) const OVERSIZE: [u8; HEADER_LEN] = [Kind::Stdout as u8, 0xff, 0xff, 0xff, 0xff];
