//! Runs the real binary's server, with a client on its standard input and output.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rmcp::model::{
    CallToolResult, ErrorData, ListToolsResult, ReadResourceResult, ResourceContents, Tool,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Child;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::answer::{Answer, conform, text_of};
use super::client::{Client, PendingCall, RequestError};
use super::engine::{Engine, Kind, State};
use super::process::Process;
use super::{config, eventually, isolator, shown, write_config};

/// Servers at the same time in one test process. More would only wait for each other: the engine
/// makes few sandboxes a second.
static SLOTS: Semaphore = Semaphore::const_new(2);

/// Longest time that a server may take to remove everything and end.
const STOP: Duration = Duration::from_secs(60);

/// A running server. [`Server::stop`] ends it in order; dropping it, as a panic does, kills it and
/// removes what it had.
pub(crate) struct Server {
    client: Option<Client>,
    child: Child,
    directory: PathBuf,
    state: PathBuf,
    /// The value of its label on the engine.
    pub(crate) instance: String,
    /// The advertised tool that runs programs.
    pub(crate) tool: Tool,
    /// All advertised tools.
    pub(crate) tools: Vec<Tool>,
    /// A look at what it has on its engine.
    pub(crate) engine: Box<dyn Engine>,
    waits: usize,
    stopped: bool,
    _home: TempDir,
    _slot: Option<SemaphorePermit<'static>>,
}

impl Server {
    /// Starts a server with a configuration.
    pub(crate) async fn start(config: &Value) -> Self {
        let slot = SLOTS.acquire().await.expect("never closed");
        let home = tempfile::tempdir().expect("a directory");
        let state = home.path().join("state");
        Self::start_in(home, state, config, Some(slot)).await
    }

    /// Starts a server beside another, with whom it shares the place of its state.
    pub(crate) async fn start_beside(other: &Self, config: &Value) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        Self::start_in(home, other.state.clone(), config, None).await
    }

    /// Starts a server with one language, one paused sandbox, and `more` in its configuration.
    pub(crate) async fn with(language: &str, more: Value) -> Self {
        Self::start(&config(&[language], more)).await
    }

    /// Starts a server with Python only.
    pub(crate) async fn python() -> Self {
        Self::with("python", json!({})).await
    }

    async fn start_in(
        home: TempDir,
        state: PathBuf,
        config: &Value,
        slot: Option<SemaphorePermit<'static>>,
    ) -> Self {
        let directory = home.path().to_owned();
        write_config(&directory, config);
        fs::create_dir(directory.join("prompts")).expect("writable");
        let before = instances(&state);
        let mut command = isolator(&directory);
        let log = File::create(directory.join("log")).expect("writable");
        command
            .arg("serve")
            .env("XDG_STATE_HOME", &state)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log);
        let mut command = tokio::process::Command::from(command);
        let mut child = command.kill_on_drop(true).spawn().expect("the server starts");
        let client = match Client::open(&mut child).await {
            Ok(client) => client,
            Err(error) => panic!("{error}; the server's log:\n{}", log_in(&directory)),
        };
        // The server has taken its identity before it answers.
        let mut new = instances(&state);
        new.retain(|instance| !before.contains(instance));
        let [instance] = new.as_slice() else { panic!("one new instance, not {new:?}") };
        let tools = client.request::<ListToolsResult>("tools/list", json!({}));
        let tools = tools.await.expect("the tools").tools;
        let tool = tools.iter().find(|tool| tool.name == "execute_code").expect("the tool").clone();
        let languages = tool.input_schema["properties"]["language"]["enum"].as_array();
        let engine = Kind::of(config).look(&state).await;
        let size = config["pool"]["size"].as_u64().expect("the configuration gives one");
        Self {
            instance: instance.clone(),
            client: Some(client),
            child,
            directory,
            state,
            waits: languages.map_or(0, Vec::len) * usize::try_from(size).expect("it is small"),
            tool,
            tools,
            engine,
            stopped: false,
            _home: home,
            _slot: slot,
        }
    }

    fn client(&self) -> &Client {
        self.client.as_ref().expect("it is there until the server stops")
    }

    /// The folder that the configuration is relative to.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The log of the server so far.
    pub(crate) fn log(&self) -> String {
        log_in(&self.directory)
    }

    /// The server's process.
    pub(crate) fn process(&self) -> Process {
        let pid = self.child.id().expect("it was not waited for yet");
        Process::find(pid).expect("the server runs")
    }

    /// Waits until all pools, whose sandboxes must all be paused ones, are full; returns the
    /// identifiers.
    pub(crate) async fn wait_until_ready(&self) -> Vec<String> {
        self.engine.until_paused(&self.instance, self.waits).await
    }

    /// Its sandboxes in a state.
    pub(crate) async fn sandboxes(&self, state: State) -> Vec<String> {
        self.engine.in_state(&self.instance, state).await
    }

    /// Calls a tool.
    pub(crate) async fn call_tool(
        &self,
        name: &str,
        arguments: Value,
    ) -> Result<CallToolResult, RequestError> {
        self.client().call_tool(name, arguments).await
    }

    /// Reads a resource that has one part.
    pub(crate) async fn read(&self, uri: &str) -> Result<ResourceContents, RequestError> {
        let read = self.client().request("resources/read", json!({ "uri": uri })).await;
        let ReadResourceResult { contents: mut parts, .. } = read?;
        assert_eq!(parts.len(), 1, "{parts:?}");
        Ok(parts.remove(0))
    }

    /// Runs a program; the call must reach a sandbox.
    pub(crate) async fn call(&self, arguments: Value) -> Answer {
        let shown = shown(&arguments);
        match self.call_tool("execute_code", arguments).await {
            Ok(result) => Answer::new(result, &Value::Object((*self.output_schema()).clone())),
            Err(error) => panic!("{shown}: {error}; the server's log:\n{}", self.log()),
        }
    }

    /// Calls a tool that answers with data, as the text and beside it; checks it against its schema.
    pub(crate) async fn data(&self, name: &str, arguments: Value) -> Value {
        let shown = shown(&arguments);
        let result = match self.call_tool(name, arguments).await {
            Ok(result) => result,
            Err(error) => panic!("{shown}: {error}; the server's log:\n{}", self.log()),
        };
        let text = text_of(&result);
        assert_eq!(result.is_error, Some(false), "{shown}: {text}");
        let data = result.structured_content.unwrap_or_else(|| panic!("{shown}: no data"));
        let schema = self.tool(name).output_schema.clone().expect("an output schema");
        conform(&data, &Value::Object((*schema).clone()), "structuredContent");
        let same: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{shown}: {text}"));
        assert_eq!(same, data);
        data
    }

    /// An advertised tool.
    pub(crate) fn tool(&self, name: &str) -> &Tool {
        self.tools.iter().find(|tool| tool.name == name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// Runs a Python program.
    pub(crate) async fn run_python(&self, code: &str) -> Answer {
        self.call(json!({ "language": "python", "entrypoint_code": code })).await
    }

    /// Runs a Python program with further arguments.
    pub(crate) async fn run_python_with(&self, code: &str, mut more: Value) -> Answer {
        more["language"] = json!("python");
        more["entrypoint_code"] = json!(code);
        self.call(more).await
    }

    /// Makes a call that no sandbox can take, and returns the text that says so.
    pub(crate) async fn call_without_sandbox(&self, arguments: Value) -> String {
        let result = self.call_tool("execute_code", arguments).await.expect("a tool error");
        assert_eq!(result.is_error, Some(true), "{result:?}");
        let text = text_of(&result);
        assert!(text.starts_with("Sandbox error: "), "{text}");
        text
    }

    /// Makes a call whose arguments can't be used, and returns what the answer says of it as data.
    pub(crate) async fn refusal(&self, name: &str, arguments: Value) -> Value {
        let shown = shown(&arguments);
        let result = self.call_tool(name, arguments).await;
        let result = result.unwrap_or_else(|error| panic!("{shown}: an answer, not {error}"));
        assert_eq!(result.is_error, Some(true), "{shown}: {result:?}");
        let text = text_of(&result);
        let data = result.structured_content.unwrap_or_else(|| panic!("{shown}: no data"));
        let schema = self.tool(name).output_schema.clone().expect("an output schema");
        conform(&data, &Value::Object((*schema).clone()), "structuredContent");
        assert_eq!(data["status"], "invalid_arguments", "{shown}: {text}");
        let said = [&data["field"], &data["message"]].map(|part| part.as_str().expect("a text"));
        assert_eq!(text, format!("Invalid arguments: {}", said.join(": ")), "{shown}");
        data
    }

    /// Makes a call that is an error of the protocol.
    pub(crate) async fn call_raw(&self, name: &str, arguments: Value) -> ErrorData {
        let shown = shown(&arguments);
        match self.call_tool(name, arguments).await {
            Err(RequestError::Protocol(error)) => error,
            other => panic!("{shown}: a protocol error, not {other:?}"),
        }
    }

    /// Starts a call without waiting for its answer.
    pub(crate) async fn begin(&self, arguments: Value) -> PendingCall {
        self.client().begin("execute_code", arguments).await.expect("it can be sent")
    }

    fn output_schema(&self) -> std::sync::Arc<rmcp::model::JsonObject> {
        self.tool.output_schema.clone().expect("an output schema")
    }

    /// Closes the server's standard input, as a host does, and asserts that it ends well and
    /// leaves nothing.
    pub(crate) async fn stop(mut self) {
        drop(self.client.take());
        self.end().await;
    }

    /// Ends the server with a signal, such as "TERM", and asserts the same.
    pub(crate) async fn stop_by(mut self, signal: &str) {
        send_signal(self.process().pid, signal);
        self.end().await;
    }

    /// Kills the server, which then can't remove anything.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.expect("it can be killed");
    }

    async fn end(&mut self) {
        let ended = tokio::time::timeout(STOP, self.child.wait()).await;
        let status = ended.expect("the server ends").expect("it can be waited for");
        assert!(status.success(), "{status}; the server's log:\n{}", self.log());
        self.engine.assert_nothing_left(&self.instance).await;
        self.stopped = true;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.stopped {
            return;
        }
        // The test has failed, or wants it so. What cleans up after a crash is made for this.
        let _ = self.child.start_kill();
        while let Ok(None) = self.child.try_wait() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = isolator(&self.directory)
            .arg("gc")
            .env("XDG_STATE_HOME", &self.state)
            .stdout(Stdio::null())
            .status();
        if std::thread::panicking() {
            // The test harness shows it with the failed test.
            #[allow(clippy::print_stderr)]
            {
                eprintln!("the server's log:\n{}", self.log());
            }
        }
    }
}

fn log_in(directory: &Path) -> String {
    fs::read_to_string(directory.join("log")).unwrap_or_default()
}

/// The instances that are registered in a place for state.
pub(crate) fn instances(state: &Path) -> Vec<String> {
    let Ok(files) = fs::read_dir(state.join("isolator/instances")) else { return Vec::new() };
    files
        .filter_map(|file| {
            let path = file.ok()?.path();
            let is_lock = path.extension().is_some_and(|extension| extension == "lock");
            is_lock.then_some(())?;
            Some(path.file_stem()?.to_str()?.to_owned())
        })
        .collect()
}

/// Sends a signal to a process.
pub(crate) fn send_signal(process: u32, signal: &str) {
    let mut kill = std::process::Command::new("kill");
    let status = kill.args([&format!("-{signal}"), &process.to_string()]).status();
    assert!(status.expect("kill starts").success());
}

/// Waits until a program that was started with [`Server::begin`] runs: its sandbox is thawed.
pub(crate) async fn until_running(server: &Server, count: usize) {
    eventually(&format!("{count} running sandboxes"), async || {
        server.sandboxes(State::Running).await.len() >= count
    })
    .await;
}
