//! The messages of `process.Process`.

use std::collections::BTreeMap;

use isolator_pool::pool::session::agent::{ProcessEnd, ProcessInfo, StartProcess, TerminalSize};
use isolator_runner::wire::End;
use libc::{SIGKILL, SIGTERM};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::InvalidField;
use crate::apis::e2b::data::connect::json::{Base64, Number, append_base64};

#[derive(Debug, Default, Deserialize)]
pub(in super::super) struct StartRequest {
    process: Option<ProcessConfig>,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
struct ProcessConfig {
    cmd: Option<String>,
    args: Option<Vec<String>>,
    envs: Option<BTreeMap<String, String>>,
    cwd: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Pty {
    size: Option<Size>,
}

#[derive(Debug, Deserialize)]
struct Size {
    cols: Option<Number>,
    rows: Option<Number>,
}

/// A process, by one of its names.
#[derive(Debug, Default, Deserialize)]
struct ProcessSelector {
    pid: Option<Number>,
    tag: Option<String>,
}

/// The process that a message is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Selected {
    Pid(u32),
    Tag(String),
}

/// A message that only names a process.
#[derive(Debug, Default, Deserialize)]
pub(in super::super) struct OfProcess {
    process: Option<ProcessSelector>,
}

#[derive(Debug, Default, Deserialize)]
pub(in super::super) struct UpdateRequest {
    process: Option<ProcessSelector>,
    pty: Option<Pty>,
}

#[derive(Debug, Default, Deserialize)]
pub(in super::super) struct SendInputRequest {
    process: Option<ProcessSelector>,
    input: Option<ProcessInput>,
}

#[derive(Debug, Default, Deserialize)]
struct ProcessInput {
    stdin: Option<Base64>,
    pty: Option<Base64>,
}

#[derive(Debug, Default, Deserialize)]
pub(in super::super) struct SendSignalRequest {
    process: Option<ProcessSelector>,
    signal: Option<Signal>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Signal {
    Name(String),
    Number(i64),
}

#[derive(Debug, Default, Deserialize)]
pub(in super::super) struct StreamInputRequest {
    start: Option<OfProcess>,
    data: Option<InputData>,
    keepalive: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
struct InputData {
    input: Option<ProcessInput>,
}

/// A part of a stream of input.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum InputPart {
    Start(Selected),
    Data(Vec<u8>),
    KeepAlive,
}

impl StartRequest {
    /// The process to start. `env` are the variables of all processes of the sandbox, which the request can change.
    pub(in super::super) fn into_process(
        self,
        env: &BTreeMap<String, String>,
    ) -> Result<StartProcess, InvalidField> {
        let ProcessConfig { cmd, args, envs, cwd } = self.process.unwrap_or_default();
        let cmd = cmd.filter(|cmd| !cmd.is_empty());
        let cmd =
            cmd.ok_or(InvalidField::new("process.cmd", "is required: the program to start"))?;
        let mut argv = vec![cmd];
        argv.extend(args.unwrap_or_default());
        if argv.iter().any(|argument| argument.contains('\0')) {
            return Err(InvalidField::new("process.args", "can't contain a zero byte"));
        }
        let mut env = env.clone();
        for (name, value) in envs.unwrap_or_default() {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                let problem = "needs names without '=', and no zero bytes";
                return Err(InvalidField::new("process.envs", problem));
            }
            env.insert(name, value);
        }
        let terminal = self.pty.map(Pty::into_size).transpose()?;
        Ok(StartProcess {
            argv,
            env,
            cwd: cwd.filter(|cwd| !cwd.is_empty()),
            // Old clients don't say it, and expect that they can send input.
            keep_stdin: self.stdin.unwrap_or(true),
            terminal,
            tag: self.tag.filter(|tag| !tag.is_empty()),
        })
    }
}

impl Pty {
    fn into_size(self) -> Result<TerminalSize, InvalidField> {
        let side = |number: Option<Number>| {
            let number = number.unwrap_or_default().0;
            u16::try_from(number).ok().filter(|number| *number > 0)
        };
        let size = self.size.and_then(|size| Some((side(size.rows)?, side(size.cols)?)));
        let (rows, columns) =
            size.ok_or(InvalidField::new("pty.size", "needs rows and cols, each from 1 to 65535"))?;
        Ok(TerminalSize { rows, columns })
    }
}

fn selected(selector: Option<ProcessSelector>) -> Result<Selected, InvalidField> {
    match selector.unwrap_or_default() {
        ProcessSelector { pid: Some(Number(pid @ 1..)), tag: None } => Ok(Selected::Pid(pid)),
        ProcessSelector { pid: None, tag: Some(tag) } if !tag.is_empty() => Ok(Selected::Tag(tag)),
        _ => Err(InvalidField::new("process", "has to name a process: by pid or by tag")),
    }
}

impl OfProcess {
    pub(in super::super) fn selected(self) -> Result<Selected, InvalidField> {
        selected(self.process)
    }
}

impl UpdateRequest {
    pub(in super::super) fn into_size(self) -> Result<(Selected, TerminalSize), InvalidField> {
        let selected = selected(self.process)?;
        let pty = self.pty.ok_or(InvalidField::new("pty", "is required: the new size"))?;
        Ok((selected, pty.into_size()?))
    }
}

impl ProcessInput {
    fn into_bytes(self) -> Result<Vec<u8>, InvalidField> {
        match self {
            Self { stdin: Some(bytes), pty: None } | Self { stdin: None, pty: Some(bytes) } => {
                Ok(bytes.0)
            }
            _ => Err(InvalidField::new("input", "needs either stdin or pty")),
        }
    }
}

impl SendInputRequest {
    pub(in super::super) fn into_input(self) -> Result<(Selected, Vec<u8>), InvalidField> {
        let selected = selected(self.process)?;
        Ok((selected, self.input.unwrap_or_default().into_bytes()?))
    }
}

impl SendSignalRequest {
    pub(in super::super) fn into_signal(self) -> Result<(Selected, i32), InvalidField> {
        let selected = selected(self.process)?;
        let signal = match self.signal {
            Some(Signal::Name(name)) if name == "SIGNAL_SIGTERM" => Some(SIGTERM),
            Some(Signal::Name(name)) if name == "SIGNAL_SIGKILL" => Some(SIGKILL),
            Some(Signal::Number(15)) => Some(SIGTERM),
            Some(Signal::Number(9)) => Some(SIGKILL),
            _ => None,
        };
        let problem = "has to be SIGNAL_SIGTERM (15) or SIGNAL_SIGKILL (9)";
        Ok((selected, signal.ok_or(InvalidField::new("signal", problem))?))
    }
}

impl StreamInputRequest {
    pub(in super::super) fn into_part(self) -> Result<InputPart, InvalidField> {
        match self {
            Self { start: Some(start), data: None, keepalive: None } => {
                start.selected().map(InputPart::Start)
            }
            Self { start: None, data: Some(data), keepalive: None } => {
                data.input.unwrap_or_default().into_bytes().map(InputPart::Data)
            }
            Self { start: None, data: None, keepalive: Some(_) } => Ok(InputPart::KeepAlive),
            _ => Err(InvalidField::new("event", "has to be one of start, data and keepalive")),
        }
    }
}

/// The answer to `List`.
#[derive(Debug, Serialize)]
pub(in super::super) struct ListResponse {
    processes: Vec<ListedProcess>,
}

#[derive(Debug, Serialize)]
struct ListedProcess {
    config: ListedConfig,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
}

#[derive(Debug, Serialize)]
struct ListedConfig {
    cmd: String,
    args: Vec<String>,
    envs: BTreeMap<String, String>,
    cwd: String,
}

impl ListResponse {
    pub(in super::super) fn new(processes: Vec<ProcessInfo>) -> Self {
        let listed = |process: ProcessInfo| {
            let ProcessInfo { pid, argv, env: envs, cwd, tag, .. } = process;
            let mut argv = argv.into_iter();
            let cmd = argv.next().unwrap_or_default();
            ListedProcess {
                config: ListedConfig { cmd, args: argv.collect(), envs, cwd },
                pid,
                tag,
            }
        };
        Self { processes: processes.into_iter().map(listed).collect() }
    }
}

/// The stream to which output belongs.
#[derive(Debug, Clone, Copy)]
pub(in super::super) enum OutputKind {
    Stdout,
    Stderr,
    Terminal,
}

/// The first event of a process.
pub(in super::super) fn started(pid: u32) -> Vec<u8> {
    json!({"event": {"start": {"pid": pid}}}).to_string().into_bytes()
}

/// An event that keeps the stream alive.
pub(in super::super) fn keepalive() -> Vec<u8> {
    json!({"event": {"keepalive": {}}}).to_string().into_bytes()
}

/// An event with output. It is most of the traffic, so it is written without a tree of values.
pub(in super::super) fn output(kind: OutputKind, bytes: &[u8]) -> Vec<u8> {
    let name = match kind {
        OutputKind::Stdout => "stdout",
        OutputKind::Stderr => "stderr",
        OutputKind::Terminal => "pty",
    };
    let mut text = String::with_capacity(bytes.len() / 3 * 4 + 48);
    text.push_str("{\"event\":{\"data\":{\"");
    text.push_str(name);
    text.push_str("\":\"");
    append_base64(&mut text, bytes);
    text.push_str("\"}}}");
    text.into_bytes()
}

/// The last event of a process. A process that a signal has ended has no exit code, which clients expect as -1.
pub(in super::super) fn ended(end: ProcessEnd) -> Vec<u8> {
    let (code, exited, status) = match end.end {
        End::Code(code) => (code, true, format!("exit status {code}")),
        End::Signal(signal) => (-1, false, format!("signal: {}", name_of_signal(signal))),
    };
    let mut event = json!({"exitCode": code, "exited": exited, "status": &status});
    if code != 0 {
        event["error"] = status.into();
    }
    json!({"event": {"end": event}}).to_string().into_bytes()
}

/// The words for a signal, as clients compare them.
fn name_of_signal(signal: i32) -> String {
    let name = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        6 => "aborted",
        8 => "floating point exception",
        SIGKILL => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        14 => "alarm clock",
        SIGTERM => "terminated",
        31 => "bad system call",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::Value;

    use super::*;

    fn read<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_command_of_the_newest_client_is_understood() {
        let request: StartRequest = read(json!({
            "process": {"cmd": "/bin/bash", "args": ["-l", "-c", "echo"], "envs": {"A": "2"}, "cwd": "sub"},
            "stdin": false,
            "something": "new",
        }));
        let env =
            BTreeMap::from([("A".to_owned(), "1".to_owned()), ("B".to_owned(), "3".to_owned())]);
        let start = request.into_process(&env).unwrap();
        assert_eq!(start.argv, ["/bin/bash", "-l", "-c", "echo"]);
        assert_eq!((start.env["A"].as_str(), start.env["B"].as_str()), ("2", "3"));
        assert_eq!(start.cwd.as_deref(), Some("sub"));
        assert!(!start.keep_stdin && start.terminal.is_none() && start.tag.is_none());
        let terminal: StartRequest = read(json!({
            "process": {"cmd": "sh", "args": null, "envs": null, "cwd": null},
            "pty": {"size": {"cols": "80", "rows": 24}}, "tag": "t", "stdin": null,
        }));
        let terminal = terminal.into_process(&BTreeMap::new()).unwrap();
        assert_eq!(terminal.terminal, Some(TerminalSize { rows: 24, columns: 80 }));
        assert!(terminal.keep_stdin && terminal.tag.as_deref() == Some("t"));
    }

    #[test]
    fn processes_that_can_not_be_started_are_refused() {
        for (request, field) in [
            (json!({}), "process.cmd"),
            (json!({"process": {"cmd": ""}}), "process.cmd"),
            (json!({"process": {"cmd": "a\0b"}}), "process.args"),
            (json!({"process": {"cmd": "a", "args": ["\0"]}}), "process.args"),
            (json!({"process": {"cmd": "a", "envs": {"A=B": "c"}}}), "process.envs"),
            (json!({"process": {"cmd": "a", "envs": {"": "c"}}}), "process.envs"),
            (json!({"process": {"cmd": "a", "envs": {"A": "\0"}}}), "process.envs"),
            (json!({"process": {"cmd": "a"}, "pty": {}}), "pty.size"),
            (json!({"process": {"cmd": "a"}, "pty": {"size": {"rows": 0, "cols": 1}}}), "pty.size"),
            (
                json!({"process": {"cmd": "a"}, "pty": {"size": {"rows": 1, "cols": 65536}}}),
                "pty.size",
            ),
        ] {
            let refused = read::<StartRequest>(request.clone()).into_process(&BTreeMap::new());
            assert!(refused.unwrap_err().to_string().starts_with(field), "{request}");
        }
        for wrong in
            [json!({"process": 1}), json!({"process": {"args": "a"}}), json!({"stdin": "yes"})]
        {
            assert!(serde_json::from_value::<StartRequest>(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_process_is_named_by_exactly_one_of_pid_and_tag() {
        let of = |value| read::<OfProcess>(json!({"process": value})).selected();
        assert_eq!(of(json!({"pid": 7})), Ok(Selected::Pid(7)));
        assert_eq!(of(json!({"pid": "7"})), Ok(Selected::Pid(7)));
        assert_eq!(of(json!({"tag": "a"})), Ok(Selected::Tag("a".to_owned())));
        for wrong in [
            json!({}),
            json!(null),
            json!({"pid": 0}),
            json!({"tag": ""}),
            json!({"pid": 1, "tag": "a"}),
        ] {
            assert!(of(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn input_and_signals_are_read() {
        let process = json!({"pid": 7});
        let input = |value| {
            read::<SendInputRequest>(json!({"process": process.clone(), "input": value}))
                .into_input()
        };
        assert_eq!(input(json!({"stdin": "aGk="})).unwrap().1, b"hi");
        assert_eq!(input(json!({"pty": ""})).unwrap().1, b"");
        assert!(input(json!({})).is_err() && input(json!({"stdin": "", "pty": ""})).is_err());
        let signal = |value| {
            read::<SendSignalRequest>(json!({"process": process.clone(), "signal": value}))
                .into_signal()
        };
        for (value, number) in [
            (json!("SIGNAL_SIGKILL"), 9),
            (json!(9), 9),
            (json!("SIGNAL_SIGTERM"), 15),
            (json!(15), 15),
        ] {
            assert_eq!(signal(value).unwrap().1, number);
        }
        for wrong in [json!(null), json!(0), json!(19), json!("SIGNAL_UNSPECIFIED"), json!("9")] {
            assert!(signal(wrong.clone()).is_err(), "{wrong}");
        }
        let part = |value| read::<StreamInputRequest>(value).into_part();
        assert_eq!(part(json!({"keepalive": {}})), Ok(InputPart::KeepAlive));
        assert_eq!(
            part(json!({"start": {"process": {"pid": 3}}})),
            Ok(InputPart::Start(Selected::Pid(3)))
        );
        let data = json!({"data": {"input": {"stdin": "aGk="}}});
        assert_eq!(part(data), Ok(InputPart::Data(b"hi".to_vec())));
        assert!(part(json!({})).is_err() && part(json!({"start": {}, "keepalive": {}})).is_err());
    }

    #[test]
    fn events_have_the_form_that_clients_expect() {
        let parsed = |event: Vec<u8>| serde_json::from_slice::<Value>(&event).unwrap();
        assert_eq!(parsed(started(7)), json!({"event": {"start": {"pid": 7}}}));
        for (kind, name) in [
            (OutputKind::Stdout, "stdout"),
            (OutputKind::Stderr, "stderr"),
            (OutputKind::Terminal, "pty"),
        ] {
            assert_eq!(parsed(output(kind, b"hi")), json!({"event": {"data": {name: "aGk="}}}));
        }
        let end = |end| parsed(ended(ProcessEnd { end }))["event"]["end"].clone();
        let fine = json!({"exitCode": 0, "exited": true, "status": "exit status 0"});
        assert_eq!(end(End::Code(0)), fine);
        let failed = json!({"exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3"});
        assert_eq!(end(End::Code(3)), failed);
        let killed = json!({"exitCode": -1, "exited": false, "status": "signal: killed", "error": "signal: killed"});
        assert_eq!(end(End::Signal(9)), killed);
    }
}
