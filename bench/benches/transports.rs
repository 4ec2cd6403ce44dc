//! MCP over HTTP beside MCP over standard input and output: what a warm call costs on each, in turns; and then
//! two hundred HTTP clients at once for a minute, each of which must get its own answer.
//!
//! `cargo bench -p isolator-bench --bench transports -- [CALLS [SECONDS]] [docker|embedded]` takes another number of calls, and of
//! seconds, and another engine than the one that a server would use.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum as _;
use futures_util::future::try_join_all;
use isolator::config::{Config, EngineKind};
use isolator_bench::scenario::PoolShape;
use isolator_bench::stdio_client::StdioClient;
use isolator_bench::{isolator_program, settings};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio_util::task::TaskTracker;

/// Enough for a call to find one that is thawed and has its interpreter.
const POOL: PoolShape = PoolShape { size: 3, hot: 3 };

/// Between two calls of one server, so that its pool is full again.
const REFILL_PAUSE: Duration = Duration::from_millis(400);

const CLIENTS: usize = 200;

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let mut numbers = arguments.iter().filter_map(|argument| argument.parse().ok());
    let (calls, seconds) = (numbers.next().unwrap_or(100), numbers.next().unwrap_or(60));
    let mut engines =
        arguments.iter().filter_map(|argument| EngineKind::from_str(argument, false).ok());
    let engine = engines.next().unwrap_or(EngineKind::Auto);
    let config = Config::parse("{}", None, Path::new("")).expect("the defaults are valid");
    let directory = tempfile::tempdir()?;
    let languages = &BTreeSet::from(["python".to_owned()]);
    let settings = settings::for_servers(&config, engine)?;
    let settings = settings::write(&settings, languages, POOL, directory.path())?;

    let (http, process) = Http::start(&settings, &TaskTracker::new()).await?;
    let stdio = stdio(&settings)?;
    compare(&stdio, &http, u32::try_from(calls)?).await?;
    drop(stdio);
    crowd(&http, Duration::from_secs(seconds)).await?;
    stop(process).await
}

/// A warm call in turns, so that whatever else the machine does hits all alike.
async fn compare(stdio: &StdioClient, http: &Http, calls: u32) -> anyhow::Result<()> {
    let session = http.session().await?;
    let mut took = [const { Vec::new() }; 3];
    for call in 0..calls + 10 {
        let nonce = format!("{call}");
        for (way, times) in took.iter_mut().enumerate() {
            let began = Instant::now();
            let answer = match way {
                0 => through(stdio, &nonce).await?,
                1 => http.modern(&nonce).await?,
                _ => http.legacy(&session, &nonce).await?,
            };
            let time = began.elapsed();
            ensure!(answer == format!("{nonce}\n"), "{answer:?} is not the answer to {nonce:?}");
            // The first ones find the pool half full.
            if call >= 10 {
                times.push(time);
            }
            tokio::time::sleep(REFILL_PAUSE).await;
        }
    }
    let medians = took.map(|times| percentile(times, 50));
    for (way, median) in ["stdio", "HTTP, stateless", "HTTP, session"].iter().zip(medians) {
        let more = (median.as_secs_f64() - medians[0].as_secs_f64()) * 1000.0;
        say(&format!("{way:<16} p50 {:>8.3} ms  {more:+.3} ms", ms(median)));
    }
    Ok(())
}

/// Every second client has a session.
async fn crowd(http: &Http, length: Duration) -> anyhow::Result<()> {
    let client = async |number: usize| {
        let session = if number.is_multiple_of(2) { Some(http.session().await?) } else { None };
        let (began, mut times) = (Instant::now(), Vec::new());
        while began.elapsed() < length {
            let nonce = format!("{number}-{}", times.len());
            let asked = Instant::now();
            let answer = match &session {
                Some(session) => http.legacy(session, &nonce).await?,
                None => http.modern(&nonce).await?,
            };
            ensure!(answer == format!("{nonce}\n"), "{answer:?} is not the answer to {nonce:?}");
            times.push(asked.elapsed());
        }
        Ok(times)
    };
    let began = Instant::now();
    let clients = try_join_all((0..CLIENTS).map(client)).await?;
    let seconds = began.elapsed().as_secs_f64();
    let fewest = clients.iter().map(Vec::len).min().unwrap_or_default();
    let times: Vec<Duration> = clients.into_iter().flatten().collect();
    say(&format!(
        "{CLIENTS} clients: {} answers, none lost or mixed up, {:.1}/s, fewest of a client {fewest}; p50 {:.0} \
         ms, p99 {:.0} ms",
        times.len(),
        times.len() as f64 / seconds,
        ms(percentile(times.clone(), 50)),
        ms(percentile(times, 99)),
    ));
    Ok(())
}

fn percentile(mut times: Vec<Duration>, percent: usize) -> Duration {
    times.sort_unstable();
    times.get(times.len() * percent / 100).copied().unwrap_or_default()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn arguments(nonce: &str) -> Value {
    json!({ "language": "python", "entrypoint_code": format!("print({nonce:?})") })
}

fn isolator(settings: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(isolator_program()?);
    command.arg("--config").arg(settings).arg("serve").env("RUST_LOG", "isolator=info,warn");
    Ok(command)
}

fn stdio(settings: &Path) -> anyhow::Result<StdioClient> {
    let mut command = isolator(settings)?;
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child?;
    let streams = (child.stdout.take(), child.stdin.take());
    let (Some(output), Some(input)) = streams else { bail!("the server has no streams") };
    Ok(StdioClient::new(output, input))
}

async fn through(stdio: &StdioClient, nonce: &str) -> anyhow::Result<String> {
    let answer = stdio.call_tool("execute_code", &arguments(nonce)).await?;
    output(&json!({ "result": answer }))
}

fn output(answer: &Value) -> anyhow::Result<String> {
    let stdout = answer["result"]["structuredContent"]["stdout"].as_str();
    Ok(stdout.with_context(|| format!("no output: {answer}"))?.to_owned())
}

/// A server that is reached over HTTP.
struct Http {
    url: String,
    client: reqwest::Client,
}

impl Http {
    async fn start(settings: &Path, tasks: &TaskTracker) -> anyhow::Result<(Self, Child)> {
        // Nothing is encrypted here, but the client wants to know how it would be.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut command = isolator(settings)?;
        command.args(["--http", "127.0.0.1:0"]).stderr(Stdio::piped()).stdin(Stdio::null());
        let mut process = command.kill_on_drop(true).spawn()?;
        let mut log = BufReader::new(process.stderr.take().context("a log")?).lines();
        let url = loop {
            let line = log.next_line().await?.context("the server ended")?;
            if let Some((_, rest)) = line.split_once("url=\"") {
                break rest.split('"').next().unwrap_or_default().to_owned();
            }
        };
        // It must not wait for somebody who reads what it says.
        tasks.spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
        let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build()?;
        Ok((Self { url, client }, process))
    }

    async fn post(
        &self,
        body: &Value,
        headers: &[(&str, &str)],
    ) -> anyhow::Result<reqwest::Response> {
        let mut request = self
            .client
            .post(&self.url)
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Ok(request.body(body.to_string()).send().await?)
    }

    async fn modern(&self, nonce: &str) -> anyhow::Result<String> {
        let body = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {
                "name": "execute_code", "arguments": arguments(nonce),
                "_meta": {
                    "io.modelcontextprotocol/protocolVersion": MODERN,
                    "io.modelcontextprotocol/clientInfo": { "name": "bench", "version": "1" },
                    "io.modelcontextprotocol/clientCapabilities": {},
                },
            },
        });
        let headers = [
            ("mcp-protocol-version", MODERN),
            ("mcp-method", "tools/call"),
            ("mcp-name", "execute_code"),
        ];
        output(&serde_json::from_str(&self.post(&body, &headers).await?.text().await?)?)
    }

    async fn session(&self) -> anyhow::Result<String> {
        let body = json!({
            "jsonrpc": "2.0", "id": 0, "method": "initialize",
            "params": {
                "protocolVersion": LEGACY, "capabilities": {},
                "clientInfo": { "name": "bench", "version": "1" },
            },
        });
        let opened = self.post(&body, &[]).await?;
        let session =
            opened.headers().get("mcp-session-id").context("a session")?.to_str()?.to_owned();
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        self.post(&ready, &[("mcp-session-id", &session), ("mcp-protocol-version", LEGACY)])
            .await?;
        Ok(session)
    }

    async fn legacy(&self, session: &str, nonce: &str) -> anyhow::Result<String> {
        let body = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": "execute_code", "arguments": arguments(nonce) },
        });
        let headers = [("mcp-session-id", session), ("mcp-protocol-version", LEGACY)];
        let stream = self.post(&body, &headers).await?.text().await?;
        let events = stream.lines().filter_map(|line| line.strip_prefix("data:"));
        let mut answers = events.filter_map(|data| serde_json::from_str::<Value>(data).ok());
        output(&answers.find(|event| event.get("id").is_some()).context("no answer")?)
    }
}

async fn stop(mut process: Child) -> anyhow::Result<()> {
    let pid = process.id().context("it runs")?;
    Command::new("kill").args(["-TERM", &pid.to_string()]).status().await?;
    ensure!(process.wait().await?.success(), "the server did not end well");
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the figures are for the terminal")]
fn say(line: &str) {
    println!("{line}");
}
