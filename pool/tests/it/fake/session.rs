//! The runner of a session in a fake sandbox. It does what the code of a cell says.

use std::time::Duration;

use isolator_runner::wire::{
    self, Cell, CellEnd, CellEnded, End, FrameDecoder, KernelFork, KillReason, Kind, Listed,
    Opened, Rewind, Rewound, Wanted,
};
use tokio::io::AsyncReadExt;

use super::Forking;
use super::runner::{PIPE, Runner, success};

/// How long rewinding takes.
const REWINDS_IN: Duration = Duration::from_millis(20);

impl Runner {
    /// Serves a session until the stream ends or a cell ends it.
    pub(super) async fn serve_session(
        mut self,
        mut decoder: FrameDecoder,
        wanted: Option<Wanted>,
    ) -> std::io::Result<()> {
        let preloaded = wanted != Some(Wanted::New);
        let opened = Opened { preloaded, memory: Some(1 << 20), ..Opened::default() };
        self.send(Kind::Opened, &opened).await?;
        if wanted == Some(Wanted::Forked) && !self.take_kernel(&mut decoder).await? {
            return Ok(());
        }
        self.write(&wire::header(Kind::Resting, 0)).await?;
        let (mut cell, mut code) = (None::<Cell>, Vec::new());
        loop {
            let Some((kind, payload)) = self.next_frame(&mut decoder).await? else { return Ok(()) };
            match kind {
                Kind::Cell => cell = Some(wire::parse_message(kind, &payload).expect("a cell")),
                Kind::Stdin => code.extend(payload),
                Kind::Go => {
                    let code = String::from_utf8(std::mem::take(&mut code)).expect("text");
                    let cell = cell.take().expect("a cell comes before Go");
                    self.thawed().await;
                    if !self.cell(&cell, &code, &mut decoder).await? {
                        return Ok(());
                    }
                }
                Kind::Rewind => {
                    let Rewind { cells } = wire::parse_message(kind, &payload).expect("a rewind");
                    let rewound =
                        Rewound { cells, files: None, checkpoints: 1, is_alive: cells < 5 };
                    tokio::time::sleep(REWINDS_IN).await;
                    self.send(Kind::Rewound, &rewound).await?;
                    self.write(&wire::header(Kind::Resting, 0)).await?;
                }
                Kind::List => {
                    self.send(Kind::Listed, &Listed { more: false }).await?;
                    self.write(&wire::header(Kind::Resting, 0)).await?;
                }
                // Too late for the cell that it was meant for.
                Kind::Interrupt | Kind::Cancel | Kind::Tar => {}
                other => panic!("no session takes {other:?}"),
            }
        }
    }

    /// Waits for the kernel that is forked into its sandbox. Returns whether the session goes on.
    async fn take_kernel(&mut self, decoder: &mut FrameDecoder) -> std::io::Result<bool> {
        let Some((kind, payload)) = self.next_frame(decoder).await? else { return Ok(false) };
        assert_eq!(kind, Kind::KernelFork, "nothing else comes before it");
        let KernelFork { comes } = wire::parse_message(kind, &payload).expect("a message");
        let forks = self.record(|record| std::mem::take(&mut record.untold_forks));
        if forks < usize::from(comes) {
            self.engine.note(format!("{} was promised a kernel that is not there", self.name));
        }
        let not_ready = match self.engine.forking() {
            Forking::EndsInside if comes => Some("it ended in the sandbox".to_owned()),
            Forking::Silence if comes => std::future::pending().await,
            Forking::Eof if comes => return Ok(false),
            _ => None,
        };
        let opened = Opened { preloaded: true, memory: Some(2 << 20), not_ready, version: None };
        self.send(Kind::Opened, &opened).await?;
        Ok(true)
    }

    async fn next_frame(
        &mut self,
        decoder: &mut FrameDecoder,
    ) -> std::io::Result<Option<(Kind, Vec<u8>)>> {
        let mut piece = vec![0; PIPE];
        loop {
            match decoder.next_frame().expect("frames of the server") {
                Some((kind @ (Kind::Agent | Kind::EndAgent), payload)) => {
                    self.thawed().await;
                    self.agent(kind, &payload).await?;
                    continue;
                }
                Some(frame) => return Ok(Some(frame)),
                None => {}
            }
            let read = self.stream.read(&mut piece).await?;
            if read == 0 {
                return Ok(None);
            }
            decoder.feed(&piece[..read]);
        }
    }

    /// Tells whether the session goes on.
    async fn cell(
        &mut self,
        cell: &Cell,
        code: &str,
        decoder: &mut FrameDecoder,
    ) -> std::io::Result<bool> {
        self.record(|record| record.cell_runs = Some(true));
        let (what, number) = code.split_once(' ').unwrap_or((code, "0"));
        self.write(&wire::header(Kind::Started, 0)).await?;
        self.print(Kind::Stdout, format!("cell {}", cell.number).as_bytes()).await?;
        let mut ended = ended();
        match what {
            "sleep" => {
                let time = Duration::from_millis(number.parse().expect("a number"));
                tokio::select! {
                    () = tokio::time::sleep(time) => {}
                    frame = self.next_frame(decoder) => match frame?.map(|(kind, _)| kind) {
                        Some(Kind::Cancel) => {
                            ended.exit.killed = Some(KillReason::Cancelled);
                            ended.exit.end = End::Signal(9);
                            ended.undone = 1;
                        }
                        Some(Kind::Interrupt) => ended.end = Some(CellEnd::Interrupted),
                        _ => return Ok(false),
                    },
                }
            }
            // Its kernel does not answer.
            "unrest" => {}
            // It answers late, and the runner reads nothing before.
            "rest-in" => {}
            "end" => ended.is_alive = false,
            "eof" => return Ok(false),
            "silence" => std::future::pending().await,
            "garbage" => self.write(&[0xff; 64]).await?,
            "unexpected" => self.write(&wire::header(Kind::Ready, 0)).await?,
            other => panic!("no cell does {other:?}"),
        }
        self.record(|record| record.cell_runs = Some(false));
        self.send(Kind::CellEnded, &ended).await?;
        if what == "rest-in" {
            tokio::time::sleep(Duration::from_millis(number.parse().expect("a number"))).await;
        }
        if ended.is_alive && what != "unrest" {
            self.write(&wire::header(Kind::Resting, 0)).await?;
        }
        Ok(ended.is_alive)
    }
}

fn ended() -> CellEnded {
    CellEnded {
        exit: success(),
        end: Some(CellEnd::Ended),
        undone: 0,
        undone_files: None,
        no_checkpoint: None,
        checkpoints: 1,
        is_alive: true,
        memory: Some(2 << 20),
        background_dropped: 0,
        shown_dropped: 0,
        is_kernel_gone: false,
    }
}
