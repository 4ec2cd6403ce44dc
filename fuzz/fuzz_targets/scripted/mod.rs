//! An engine with a single runner, which sends the server what the fuzzer has made up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use isolator_fuzz_inputs::seeds::KNOBS;
use isolator_pool::engine::images::{Former, ImageBuilder};
use isolator_pool::engine::limits::{ByteSize, CpuShare, FixedLimits, LimitKind, Resources};
use isolator_pool::engine::preload::{Interpreter, Preload};
use isolator_pool::engine::{
    Call, Channel, Engine, EngineError, Image, LabelFilter, ListedSandbox, Progress, RootAccess,
    SandboxName, SandboxSpec, SandboxState, Unsupported, Warning, refused,
};
use isolator_pool::packages::PackageSet;
use tokio::runtime::{Builder, Runtime};

pub(crate) const WORKDIR: &str = "/workspace";

/// An engine with a single runner, which sends the input.
pub(crate) struct Scripted {
    output: Mutex<Option<BoxStream<'static, Result<Bytes, EngineError>>>>,
    state: SandboxState,
}

pub(crate) const RESOURCES: Resources =
    Resources { memory: ByteSize::mib(64), cpu: CpuShare::millis(1000) };

/// The specification of the sandboxes.
pub(crate) fn spec(knobs: &[u8; KNOBS]) -> SandboxSpec {
    let preload = Preload {
        interpreter: Interpreter::Python,
        argv: vec!["program".to_owned()],
        env: BTreeMap::new(),
        modules: if knobs[2] & 16 == 0 { Vec::new() } else { vec!["numpy".to_owned()] },
        memory: ByteSize::mib(1),
        fork: true,
    };
    SandboxSpec {
        image: Image::default(),
        resources: RESOURCES,
        limits: FixedLimits {
            pids: 1,
            open_files: 1,
            workspace: ByteSize::mib(1),
            tmp: ByteSize::mib(1),
            inodes: 1,
            shm: ByteSize::mib(1),
        },
        workdir: WORKDIR.to_owned(),
        user: (1, 1),
        network: "none".to_owned(),
        cap_drop: Vec::new(),
        root: RootAccess::ReadOnly,
        runtime: None,
        preload: (knobs[2] & 8 != 0).then_some(preload),
        packages: None,
        allow_unlimited: false,
    }
}

/// A runtime whose clock is paused, and jumps ahead when all tasks are waiting.
pub(crate) fn paused_runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime can be made")
}

/// An engine whose runner says this.
pub(crate) fn scripted(knobs: &[u8; KNOBS], stream: &[u8]) -> Scripted {
    use SandboxState::{Ended, Gone, Paused, Running, Stopped};
    let cut = if knobs[1] == 0 { stream.len().max(1) } else { usize::from(knobs[1]) };
    let pieces: Vec<_> = stream.chunks(cut).map(|it| Ok(Bytes::copy_from_slice(it))).collect();
    let pieces = stream::iter(pieces);
    let output = match knobs[2] >> 5 & 3 {
        1 => pieces.chain(stream::pending()).boxed(),
        2 => {
            let address = String::new();
            let broken = EngineError::Unreachable { address, cause: "".into() };
            pieces.chain(stream::iter([Err(broken)])).boxed()
        }
        _ => pieces.boxed(),
    };
    let state = [Running, Paused, Stopped, Ended, Gone][usize::from(knobs[2] & 7) % 5];
    Scripted { output: Mutex::new(Some(output)), state }
}

#[async_trait]
impl Engine for Scripted {
    async fn check(&self) -> Result<String, EngineError> {
        Ok(String::new())
    }

    async fn warnings(&self) -> Result<Vec<Warning>, EngineError> {
        Ok(Vec::new())
    }

    fn supports(&self, _: &SandboxSpec) -> Result<(), Unsupported> {
        Ok(())
    }

    fn unenforced(&self) -> Vec<LimitKind> {
        Vec::new()
    }

    async fn prepare(&self, _: &SandboxSpec) -> Result<(), EngineError> {
        Ok(())
    }

    async fn find_image(&self, _: &str) -> Result<Option<Image>, EngineError> {
        Ok(Some(Image::default()))
    }

    async fn pull_image(&self, _: &str, _: Progress<'_>) -> Result<(), EngineError> {
        Ok(())
    }

    async fn create(&self, _: &SandboxName, _: &SandboxSpec) -> Result<(), EngineError> {
        Ok(())
    }

    async fn bind(&self, _: &SandboxName, _: &Arc<PackageSet>) -> Result<String, EngineError> {
        Ok(String::new())
    }

    async fn arm(&self, _: &SandboxName) -> Result<Channel, EngineError> {
        let output = self.output.lock().ok().and_then(|mut output| output.take());
        let output = output.ok_or(refused(Call::Arm, ""))?;
        Ok(Channel { input: Box::new(tokio::io::sink()), output })
    }

    async fn pause(&self, _: &SandboxName) -> Result<(), EngineError> {
        Ok(())
    }

    async fn resume(&self, _: &SandboxName) -> Result<(), EngineError> {
        Ok(())
    }

    async fn update(&self, _: &SandboxName, _: Resources, _: u32) -> Result<(), EngineError> {
        Ok(())
    }

    async fn state(&self, _: &SandboxName) -> Result<SandboxState, EngineError> {
        Ok(self.state)
    }

    async fn remove(&self, _: &SandboxName) -> Result<(), EngineError> {
        Ok(())
    }

    async fn list(&self) -> Result<Vec<ListedSandbox>, EngineError> {
        Ok(Vec::new())
    }

    async fn sweep_shared(&self, _: LabelFilter<'_>) -> Result<usize, EngineError> {
        Ok(0)
    }
}

#[async_trait]
impl ImageBuilder for Scripted {
    fn makes(&self, _: &str) -> bool {
        false
    }

    async fn build(&self, _: &str, _: Former, _: Progress<'_>) -> Result<(), EngineError> {
        Ok(())
    }
}
