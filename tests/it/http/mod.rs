//! Streamable HTTP, with the official client and with clients that break the rules.

mod commands;
mod connections;
mod origins;

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::engine::{Engine, Kind, State};
use crate::common::server::{instances, send_signal};
use crate::common::{config, eventually, isolator, run, write_config};
use futures_util::future::join_all;
use reqwest::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Child;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Servers at the same time.
static SLOTS: Semaphore = Semaphore::const_new(2);

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-06-18";

/// A running server. Dropping it kills it.
struct Server {
    child: Child,
    url: String,
    instance: String,
    engine: Box<dyn Engine>,
    home: TempDir,
    client: reqwest::Client,
    token: Option<String>,
    _slot: SemaphorePermit<'static>,
}

/// The clients that may call a server with tokens.
struct Tokens {
    lines: String,
    secrets: Vec<String>,
}

/// Makes tokens as an operator does: a line for the server, and what the client gets.
fn tokens(of: &[(&str, &[&str])]) -> Tokens {
    let home = tempfile::tempdir().expect("a directory");
    let mut tokens = Tokens { lines: "# those who may\n".to_owned(), secrets: Vec::new() };
    for (name, more) in of {
        let made = run(home.path(), &[&["token", name][..], more].concat(), "");
        assert_eq!(made.code, Some(0), "{made:?}");
        tokens.lines.push_str(&made.stdout);
        let words = made.stderr.split_whitespace();
        let secret = words.filter(|word| word.starts_with("isolator_")).collect::<Vec<_>>();
        let [secret] = secret.as_slice() else { panic!("one token: {made:?}") };
        assert!(!made.stdout.contains(secret));
        tokens.secrets.push((*secret).to_owned());
    }
    tokens
}

impl Server {
    async fn start(more: Value) -> Self {
        Self::start_with(more, None).await
    }

    async fn start_with(more: Value, tokens: Option<&Tokens>) -> Self {
        Self::start_at("localhost:0", more, tokens).await
    }

    async fn start_at(address: &str, more: Value, tokens: Option<&Tokens>) -> Self {
        let slot = SLOTS.acquire().await.expect("never closed");
        let home = tempfile::tempdir().expect("a directory");
        let mut settings = config(&["python"], more);
        if let Some(tokens) = tokens {
            fs::write(home.path().join("tokens"), &tokens.lines).expect("writable");
            settings["http"]["tokens"] = json!("tokens");
        }
        write_config(home.path(), &settings);
        let log = home.path().join("log");
        let mut command = isolator(home.path());
        command
            .args(["serve", "--http", address])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).expect("writable"));
        let child = tokio::process::Command::from(command).kill_on_drop(true).spawn();
        let child = child.expect("the server starts");
        let mut url = None;
        eventually("it listens", async || {
            url = url_in(&fs::read_to_string(&log).expect("a log"));
            url.is_some()
        })
        .await;
        let state = crate::common::state(home.path());
        let [instance] = <[String; 1]>::try_from(instances(&state)).expect("one instance");
        Self {
            child,
            url: url.expect("it listens"),
            instance,
            engine: Kind::of(&settings).look(&state).await,
            client: client(None),
            token: tokens.map(|tokens| tokens.secrets[0].clone()),
            home,
            _slot: slot,
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).expect("a log")
    }

    /// Where something other than the protocol is.
    fn at(&self, path: &str) -> String {
        self.url.replace("/mcp", path)
    }

    fn address(&self) -> SocketAddr {
        let (_, rest) = self.url.split_once("://").expect("a URL");
        rest.split('/').next().and_then(|place| place.parse().ok()).expect("an address")
    }

    /// A request that is as it should be, but for what is changed of it.
    fn post(&self, body: &Value) -> RequestBuilder {
        let request = self
            .client
            .post(&self.url)
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json")
            .body(body.to_string());
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// A call of the newest revision.
    fn modern(&self, arguments: Value) -> RequestBuilder {
        self.ask("tools/call", "execute_code", json!({ "arguments": arguments }))
    }

    /// A request of the newest revision, whose method needs a name.
    fn ask(&self, method: &str, name: &str, mut params: Value) -> RequestBuilder {
        params[if method == "resources/read" { "uri" } else { "name" }] = json!(name);
        self.post(&modern(method, params))
            .header("mcp-protocol-version", MODERN)
            .header("mcp-method", method)
            .header("mcp-name", name)
    }

    /// Runs a program and returns what it prints.
    async fn python(&self, code: &str) -> String {
        output(&answer(self.modern(python(code)).send().await.expect("an answer")).await)
    }

    /// Opens a session and returns what names it.
    async fn session(&self) -> String {
        let body = json!({
            "jsonrpc": "2.0", "id": 0, "method": "initialize",
            "params": {
                "protocolVersion": LEGACY, "capabilities": {},
                "clientInfo": { "name": "test", "version": "1" },
            },
        });
        let opened = self.post(&body).send().await.expect("an answer");
        assert_eq!(opened.status(), StatusCode::OK, "{}", self.log());
        let session = opened.headers()["mcp-session-id"].to_str().expect("text").to_owned();
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        let ready = self.legacy(&session, &ready).send().await.expect("an answer");
        assert_eq!(ready.status(), StatusCode::ACCEPTED);
        session
    }

    /// A request of a session.
    fn legacy(&self, session: &str, body: &Value) -> RequestBuilder {
        self.post(body).header("mcp-session-id", session).header("mcp-protocol-version", LEGACY)
    }

    async fn running(&self) -> usize {
        self.engine.in_state(&self.instance, State::Running).await.len()
    }

    /// Ends it in order, and asserts that nothing is left.
    async fn stop(mut self) {
        send_signal(self.child.id().expect("it runs"), "TERM");
        let ended = tokio::time::timeout(crate::common::PATIENCE, self.child.wait()).await;
        let ended = ended.expect("it ends").expect("a status");
        assert!(ended.success(), "{ended}: {}", self.log());
        assert_eq!(self.engine.left(&self.instance).await, [""; 0], "{}", self.log());
    }
}

fn url_in(log: &str) -> Option<String> {
    let at = log.find("url=\"")? + "url=\"".len();
    log[at..].split('"').next().map(str::to_owned)
}

fn client(certificate: Option<reqwest::Certificate>) -> reqwest::Client {
    builder(certificate).build().expect("a client")
}

fn builder(certificate: Option<reqwest::Certificate>) -> reqwest::ClientBuilder {
    // One provider for the process, whichever test is first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().no_proxy();
    // Those of the machine are not asked, which need not have any.
    builder.tls_certs_only(certificate)
}

fn modern(method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })
}

fn python(code: &str) -> Value {
    json!({ "language": "python", "entrypoint_code": code, "timeout": "2m" })
}

async fn answer(response: Response) -> Value {
    let status = response.status();
    let text = response.text().await.expect("a body");
    assert_eq!(status, StatusCode::OK, "{text}");
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"))
}

fn output(answer: &Value) -> String {
    let stdout = &answer["result"]["structuredContent"]["stdout"];
    stdout.as_str().unwrap_or_else(|| panic!("no output: {answer}")).to_owned()
}

#[tokio::test]
async fn the_newest_revision_needs_no_session() {
    let server = Server::start(json!({})).await;
    let response = server.modern(python("print(6 * 7)")).send().await.expect("an answer");
    assert!(!response.headers().contains_key("mcp-session-id"));
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(output(&answer(response).await), "42\n");
    let discover = server
        .post(&modern("server/discover", json!({})))
        .header("mcp-protocol-version", MODERN)
        .header("mcp-method", "server/discover");
    let discovered = answer(discover.send().await.expect("an answer")).await;
    let versions = discovered["result"]["supportedVersions"].as_array().expect("versions");
    assert!(versions.contains(&json!(MODERN)) && versions.contains(&json!(LEGACY)), "{versions:?}");
    server.stop().await;
}

#[tokio::test]
async fn requests_without_a_valid_token_are_rejected() {
    let tokens = tokens(&[("one", &[]), ("old", &["--expires", "1s"]), ("two", &[])]);
    let server = Server::start_with(json!({}), Some(&tokens)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let body = modern("tools/list", json!({}));
    let call = |authorization: Option<&str>| {
        let mut request = server.client.post(&server.url).body(body.to_string());
        for (name, value) in [
            ("accept", "application/json, text/event-stream"),
            ("content-type", "application/json"),
            ("mcp-protocol-version", MODERN),
            ("mcp-method", "tools/list"),
        ] {
            request = request.header(name, value);
        }
        if let Some(authorization) = authorization {
            request = request.header("authorization", authorization);
        }
        request.send()
    };
    let [one, old, two] = &*tokens.secrets else { panic!("three tokens") };
    for (authorization, error) in [
        (None, None),
        (Some(one.clone()), None),
        (Some(format!("Basic {one}")), None),
        (Some("Bearer nonsense".to_owned()), Some("not known")),
        (Some(format!("Bearer {old}")), Some("expired")),
        (Some("Bearer ".to_owned()), None),
    ] {
        let refused = call(authorization.as_deref()).await.expect("an answer");
        assert_eq!(refused.status(), StatusCode::UNAUTHORIZED, "{authorization:?}");
        let challenge = refused.headers()[WWW_AUTHENTICATE].to_str().expect("text");
        assert!(challenge.starts_with("Bearer realm="), "{challenge}");
        assert_eq!(challenge.contains("error=\"invalid_token\""), error.is_some(), "{challenge}");
        assert!(error.is_none_or(|error| challenge.contains(error)), "{challenge}");
    }
    for known in [format!("Bearer {one}"), format!("bearer {two}")] {
        answer(call(Some(&known)).await.expect("an answer")).await;
    }

    // A session belongs to the client that opened it.
    let session = server.session().await;
    let list = json!({ "jsonrpc": "2.0", "id": 5, "method": "tools/list" });
    let stolen = server.legacy(&session, &list).headers(bearer(two)).send().await;
    assert_eq!(stolen.expect("an answer").status(), StatusCode::NOT_FOUND);
    let own = server.legacy(&session, &list).send().await.expect("an answer");
    assert_eq!(own.status(), StatusCode::OK);

    // What is taken out of the file is refused from then on.
    let line =
        |name: &str| tokens.lines.lines().find(|line| line.starts_with(name)).expect("it is");
    fs::write(server.home.path().join("tokens"), line("two")).expect("writable");
    let refused = call(Some(&format!("Bearer {one}"))).await.expect("an answer");
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    // How the server is, everybody may know.
    let health = server.client.get(server.at("/healthz")).send().await.expect("an answer");
    assert_eq!(health.status(), StatusCode::OK);
    server.stop().await;
}

#[tokio::test]
async fn results_belong_to_their_caller() {
    let tokens = tokens(&[("one", &[]), ("two", &[])]);
    let config = json!({ "results": { "detachAfter": "5s" } });
    let server = Server::start_with(config, Some(&tokens)).await;
    eventually("a sandbox waits", async || {
        let ready = server.client.get(server.at("/readyz")).send().await.expect("an answer");
        ready.status() == StatusCode::OK
    })
    .await;
    let stranger = bearer(&tokens.secrets[1]);

    let mut call = python("open('a', 'w').write('secret')");
    call["output_files"] = json!(["a"]);
    let left = answer(server.modern(call).send().await.expect("an answer")).await;
    let uri = left["result"]["structuredContent"]["files"][0]["uri"].as_str().expect("an address");
    let read = || server.ask("resources/read", uri, json!({}));
    let own = answer(read().send().await.expect("an answer")).await;
    assert_eq!(own["result"]["contents"][0]["text"], "secret", "{own}");
    let stolen = read().headers(stranger.clone()).send().await.expect("an answer");
    let stolen = stolen.text().await.expect("a body");
    assert!(!stolen.contains("secret") && stolen.contains("another client's"), "{stolen}");

    let call = python("import time; time.sleep(6); print('secret')");
    let begun = answer(server.modern(call).send().await.expect("an answer")).await;
    let handle = &begun["result"]["structuredContent"]["handle"];
    assert!(handle.is_string(), "{begun}");
    for more in [json!({}), json!({ "cancel": true })] {
        let mut arguments = json!({ "handle": handle });
        arguments.as_object_mut().expect("it is").extend(more.as_object().expect("it is").clone());
        let fetch = server.ask("tools/call", "get_result", json!({ "arguments": arguments }));
        let stolen = fetch.headers(stranger.clone()).send().await.expect("an answer");
        let stolen = answer(stolen).await;
        assert_eq!(stolen["result"]["isError"], true, "{stolen}");
    }
    eventually("the result is there", async || {
        let arguments = json!({ "arguments": { "handle": handle } });
        let fetch = server.ask("tools/call", "get_result", arguments);
        let fetched = answer(fetch.send().await.expect("an answer")).await;
        fetched["result"]["structuredContent"]["stdout"] == "secret\n"
    })
    .await;
    server.stop().await;
}

fn bearer(token: &str) -> HeaderMap {
    let value = HeaderValue::from_str(&format!("Bearer {token}")).expect("a header");
    HeaderMap::from_iter([(reqwest::header::AUTHORIZATION, value)])
}

#[tokio::test]
async fn invalid_requests_get_the_errors_of_the_specification() {
    let server = Server::start(json!({ "pool": { "size": 0 } })).await;
    let list = modern("tools/list", json!({}));
    let right = || {
        server.post(&list).header("mcp-protocol-version", MODERN).header("mcp-method", "tools/list")
    };
    answer(right().send().await.expect("an answer")).await;
    let replaced = |name: &'static str, value: &str| {
        let value = HeaderValue::from_str(value).expect("a header");
        right().headers(HeaderMap::from_iter([(name.parse().expect("a name"), value)]))
    };
    let legacy = json!({ "jsonrpc": "2.0", "id": 5, "method": "tools/list" });
    let bare = |method| server.client.request(method, &server.url);
    for (what, request, status) in [
        ("a host of nobody", replaced("host", "evil.example"), 403),
        ("a page of somebody else", right().header("origin", "https://evil.example"), 403),
        ("a page from nowhere", right().header("origin", "null"), 403),
        ("no JSON", right().body("{"), 400),
        ("no message", right().body("[]"), 400),
        ("another content type", replaced("content-type", "text/plain"), 415),
        ("one kind of answer only", replaced("accept", "application/json"), 406),
        ("a revision of nobody", replaced("mcp-protocol-version", "1999-01-01"), 400),
        ("another method than it says", replaced("mcp-method", "tools/call"), 400),
        ("an unknown session", server.legacy("no-such-session", &legacy), 404),
        ("neither session nor revision", server.post(&legacy), 400),
        ("another verb", bare(Method::PUT), 405),
        (
            "a stream that no longer exists",
            bare(Method::GET)
                .header("mcp-protocol-version", MODERN)
                .header("accept", "text/event-stream"),
            405,
        ),
        ("too much", right().body(vec![b' '; (32 << 20) + 1]), 413),
    ] {
        let answered = request.send().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = answered.status().as_u16();
        assert_eq!(found, status, "{what}: {}", answered.text().await.expect("a body"));
    }
    for page in ["http://localhost:1234", "http://127.0.0.1:80"] {
        answer(right().header("origin", page).send().await.expect("an answer")).await;
    }
    // Without a length it is noticed as it comes.
    let mut stream = TcpStream::connect(server.address()).await.expect("it listens");
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let piece = [b"100000\r\n", &*vec![b' '; 1 << 20], b"\r\n"].concat();
    for _ in 0..40 {
        // It may have answered and closed by now.
        if stream.write_all(&piece).await.is_err() {
            break;
        }
    }
    assert!(first_line(&mut stream).await.contains("413"));
    let mut stream = TcpStream::connect(server.address()).await.expect("it listens");
    let head =
        format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n", "x".repeat(1 << 17));
    let _ = stream.write_all(head.as_bytes()).await;
    assert!(first_line(&mut stream).await.contains("431"));
    server.stop().await;
}

/// The first line of an answer; nothing if there is none.
async fn first_line(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut piece = [0; 1024];
    while !text.contains(&b'\n') {
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => break,
            Ok(count) => text.extend_from_slice(&piece[..count]),
        }
    }
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn silent_connections_are_closed() {
    let http = json!({ "idleTimeout": "5s" });
    let server = Server::start(json!({ "http": http, "pool": { "size": 0 } })).await;
    let began = Instant::now();
    let body = async {
        let mut stream = TcpStream::connect(server.address()).await.expect("it listens");
        let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{";
        stream.write_all(head.as_bytes()).await.expect("it reads");
        (first_line(&mut stream).await, began.elapsed())
    };
    let head = async {
        let mut stream = TcpStream::connect(server.address()).await.expect("it listens");
        stream.write_all(b"POST /mcp HTTP/1.1\r\nhost: loc").await.expect("it reads");
        (first_line(&mut stream).await, began.elapsed())
    };
    let ((body, after), (_, head_after)) = tokio::join!(body, head);
    assert!(body.contains("408"), "{body:?}");
    assert!(after < Duration::from_secs(30) && head_after < Duration::from_secs(30));
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_vanishes_leaves_no_program_running() {
    let server = Server::start(json!({ "pool": { "size": 0 } })).await;
    let endless = python("import time; time.sleep(100)");
    let seen = async || eventually("it runs", async || server.running().await == 1).await;
    let gone = async || eventually("it is gone", async || server.running().await == 0).await;
    {
        let mut call = Box::pin(server.modern(endless.clone()).send());
        tokio::select! {
            answered = &mut call => panic!("{answered:?}"),
            () = seen() => {}
        }
    }
    gone().await;

    // It could come back to a session, so it takes a moment.
    let session = server.session().await;
    let call = json!({
        "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": { "name": "execute_code", "arguments": endless },
    });
    let began = server.legacy(&session, &call).send().await.expect("the head of an answer");
    seen().await;
    drop(began);
    gone().await;
    server.stop().await;
}

#[tokio::test]
async fn answers_are_never_mixed_up() {
    const CLIENTS: usize = 20;
    const CALLS: usize = 3;
    let server = Server::start(json!({ "pool": { "size": 3 } })).await;
    let client = async |number: usize| {
        for call in 0..CALLS {
            let nonce = format!("{number}-{call}");
            assert_eq!(server.python(&format!("print({nonce:?})")).await, format!("{nonce}\n"));
        }
    };
    join_all((0..CLIENTS).map(client)).await;
    server.stop().await;
}

#[tokio::test]
async fn a_flooding_client_does_not_starve_others() {
    const FLOOD: usize = 12;
    // Whatever the name of a token is, its client is one of several.
    let tokens = tokens(&[("127.0.0.1", &[]), ("other", &[])]);
    let requests = json!({ "maxRunning": 2, "maxRunningPerClient": 2 });
    let settings = json!({ "requests": requests, "pool": { "size": 0 } });
    let server = Server::start_with(settings, Some(&tokens)).await;
    let began = Instant::now();
    let call = async |token: &str| {
        let call = server.modern(python("import time; time.sleep(0.5)"));
        answer(call.headers(bearer(token)).send().await.expect("an answer")).await;
        began.elapsed()
    };
    let other = async {
        eventually("the flood is there", async || server.running().await == 2).await;
        call(&tokens.secrets[1]).await
    };
    let flood = join_all((0..FLOOD).map(|_| call(&tokens.secrets[0])));
    let (mut flood, other) = tokio::join!(flood, other);
    flood.sort();
    let before = flood.iter().filter(|time| **time < other).count();
    assert!(before <= 5, "{before} of {FLOOD} were served first");
    server.stop().await;
}

#[tokio::test]
async fn a_client_with_long_runs_leaves_a_slot_for_others() {
    let tokens = tokens(&[("host", &[]), ("other", &[])]);
    let settings = json!({ "requests": { "maxRunning": 2 }, "pool": { "size": 0 } });
    let server = Server::start_with(settings, Some(&tokens)).await;
    let call = async |token: &str, code: &str| {
        let call = server.modern(python(code)).headers(bearer(token));
        answer(call.send().await.expect("an answer")).await
    };
    let slow = join_all((0..3).map(|_| call(&tokens.secrets[0], "import time; time.sleep(600)")));
    let other = async {
        eventually("the slow one runs", async || server.running().await == 1).await;
        output(&call(&tokens.secrets[1], "print('x')").await)
    };
    tokio::select! {
        answers = slow => panic!("the slow ones have ended: {answers:?}"),
        printed = other => assert_eq!(printed, "x\n"),
    }
    server.stop().await;
}

#[tokio::test]
async fn without_tokens_all_addresses_of_this_machine_are_one_client() {
    let settings = json!({ "requests": { "maxRunning": 2 }, "pool": { "size": 0 } });
    let mut server = Server::start(settings).await;
    let mut from = |address: [u8; 4]| {
        server.client =
            builder(None).local_address(IpAddr::from(address)).build().expect("a client");
        server.modern(python("import time; time.sleep(2)"))
    };
    let began = Instant::now();
    let calls = [from([127, 0, 0, 2]), from([127, 0, 0, 3])].map(async |call: RequestBuilder| {
        answer(call.send().await.expect("an answer")).await;
    });
    join_all(calls).await;
    assert!(began.elapsed() >= Duration::from_secs(4), "one ran after the other");
    server.stop().await;
}

#[tokio::test]
async fn the_server_reports_readiness_and_stops_when_all_are_answered() {
    let mut server = Server::start(json!({ "pool": { "size": 1 } })).await;
    let look = async |path| {
        let response = server.client.get(server.at(path)).send().await.expect("an answer");
        (response.status(), response.text().await.expect("a body"))
    };
    assert_eq!(look("/healthz").await, (StatusCode::OK, "ok\n".to_owned()));
    eventually("it is ready", async || look("/readyz").await.0 == StatusCode::OK).await;

    let long = server.modern(python("import time; time.sleep(3); print('done')")).send();
    let long = async { output(&answer(long.await.expect("an answer")).await) };
    let stop = async {
        eventually("it runs", async || {
            look("/readyz").await.0 == StatusCode::OK && server.running().await >= 1
        })
        .await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        send_signal(server.child.id().expect("it runs"), "TERM");
        eventually("it says so", async || look("/readyz").await.1.contains("shutting down")).await;
        // Calls are served for as long as the notice takes, here no time.
        eventually("calls are refused", async || {
            let late = server.modern(python("pass")).send().await.expect("an answer");
            answer(late).await.to_string().contains("shutting down")
        })
        .await;
    };
    let (long, ()) = tokio::join!(long, stop);
    assert_eq!(long, "done\n");
    let ended = server.child.wait().await.expect("a status");
    assert!(ended.success(), "{}", server.log());
    assert_eq!(server.engine.left(&server.instance).await, [""; 0]);
}

#[tokio::test]
async fn with_a_certificate_only_tls_is_spoken() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]);
    let made = made.expect("a certificate");
    let keys = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: String| -> PathBuf {
        let path = keys.path().join(name);
        fs::write(&path, text).expect("writable");
        path
    };
    let certificate = file("certificate.pem", made.cert.pem());
    let key = file("key.pem", made.signing_key.serialize_pem());
    let tls = json!({ "certificate": certificate, "key": key });
    let mut server = Server::start(json!({ "pool": { "size": 0 }, "http": { "tls": tls } })).await;
    assert!(server.url.starts_with("https://"), "{}", server.url);
    let known = reqwest::Certificate::from_pem(made.cert.pem().as_bytes()).expect("a certificate");
    server.client = client(Some(known));
    assert_eq!(server.python("print('hi')").await, "hi\n");
    let plain = client(None).get(server.at("/healthz").replace("https", "http")).send().await;
    assert!(plain.is_err(), "{plain:?}");
    server.stop().await;
}

#[test]
fn unsafe_or_missing_settings_are_reported_before_startup() {
    let home = tempfile::tempdir().expect("a directory");
    for (http, address, hints) in [
        (json!({}), "0.0.0.0:0", &["other machines", "isolator token"][..]),
        (json!({ "tokens": "none" }), "127.0.0.1:0", &["http.tokens", "none"]),
        (
            json!({ "tls": { "certificate": "a", "key": "b" } }),
            "127.0.0.1:0",
            &["http.tls", "no such file"],
        ),
        (json!({ "allowedOrigins": ["agent.example"] }), "127.0.0.1:0", &["allowedOrigins[0]"]),
        (json!({}), "192.0.2.1:80", &["other machines"]),
        (json!({}), "nonsense", &["nonsense", "a port, or ADDRESS:PORT"]),
        (json!({}), ":99999", &["from 0 to 65535"]),
    ] {
        write_config(home.path(), &config(&["python"], json!({ "http": http })));
        let refused = run(home.path(), &["serve", "--http", address], "");
        assert_ne!(refused.code, Some(0), "{http} {address}: {refused:?}");
        for hint in hints {
            assert!(refused.stderr.contains(hint), "{http}, no {hint:?} in {}", refused.stderr);
        }
        assert!(instances(&crate::common::state(home.path())).is_empty());
    }
}
