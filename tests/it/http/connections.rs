//! Clients that take connections and answers, and give none back.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::{MODERN, Server, bearer, first_line, modern, output, python, tokens};
use crate::common::eventually;

/// Addresses of one place: this machine, as it calls itself.
const GREEDY: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];

/// Another address of this machine, as others call it.
fn other() -> Ipv4Addr {
    let table = fs::read_to_string("/proc/net/fib_trie").expect("a table of addresses");
    let mut last = None;
    for line in table.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok().filter(|address| !address.is_loopback());
        } else if let (Some(address), true) = (last, line == "/32 host LOCAL") {
            return address;
        }
    }
    panic!("this machine has no address beside its loopback ones: {table}");
}

/// Connects from an address, with little room for what it does not read.
async fn connect(server: &Server, from: Ipv4Addr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("small");
    socket.bind((IpAddr::V4(from), 0).into()).expect("an address of this machine");
    socket.connect(server.address()).await.expect("it listens")
}

/// The status line that a health check is answered with.
async fn health(stream: &mut TcpStream) -> String {
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    // It may have been closed by now.
    let _ = stream.write_all(request).await;
    first_line(stream).await
}

#[tokio::test]
async fn one_address_leaves_connections_for_others() {
    let http = json!({ "maxConnections": 8, "maxConnectionsPerAddress": 4 });
    let settings = json!({ "http": http, "pool": { "size": 0 } });
    let server = Server::start_at("0.0.0.0:0", settings, Some(&tokens(&[("ci", &[])]))).await;
    let mut greedy = Vec::new();
    for address in GREEDY.into_iter().cycle().take(4) {
        greedy.push(connect(&server, address).await);
    }
    for address in GREEDY.into_iter().cycle().take(20) {
        let mut refused = connect(&server, address).await;
        assert!(first_line(&mut refused).await.contains("503"));
    }
    assert!(health(&mut connect(&server, other()).await).await.contains("200"));
    for stream in &mut greedy {
        assert!(health(stream).await.contains("200"), "those that it has are served");
    }
    drop(greedy);
    eventually("it can connect again", async || {
        health(&mut connect(&server, GREEDY[0]).await).await.contains("200")
    })
    .await;
    server.stop().await;
}

/// Asks for 16 MiB, and reads no more than the beginning of the answer.
async fn ask_for_much(server: &Server, token: &str) -> TcpStream {
    let mut stream = connect(server, GREEDY[0]).await;
    let code = "import sys; sys.stdout.write('x' * (8 << 20))";
    let body = modern("tools/call", json!({ "name": "execute_code", "arguments": python(code) }));
    let body = body.to_string();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\naccept: application/json, text/event-stream\r\n\
         mcp-protocol-version: {MODERN}\r\nmcp-method: tools/call\r\nmcp-name: execute_code\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.expect("it reads");
    assert!(first_line(&mut stream).await.contains("200"), "{}", server.log());
    stream
}

/// How many connections the server has that are open in both directions, as the kernel tells.
fn count_open(server: &Server) -> usize {
    let port = format!(":{:04X}", server.address().port());
    let table = fs::read_to_string("/proc/net/tcp").expect("a table of connections");
    let open = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next(), fields.nth(1));
        local.is_some_and(|local| local.ends_with(&port)) && state == Some("01")
    };
    table.lines().filter(open).count()
}

#[tokio::test]
async fn unread_answers_are_bounded() {
    let tokens = tokens(&[("greedy", &[]), ("other", &[])]);
    let settings = |write_timeout| {
        json!({
            "http": { "writeTimeout": write_timeout },
            "limits": { "maxOutputKB": 16384, "killOutputMB": 64 },
            "requests": { "maxInFlightMB": 64 },
            "pool": { "size": 0 },
        })
    };
    let server = Server::start_with(settings("1m"), Some(&tokens)).await;
    let [greedy, other] = &tokens.secrets[..] else { panic!("two tokens") };
    let call = async |token: &str| {
        let call = server.modern(python("print('x')")).headers(bearer(token));
        call.send().await.expect("an answer")
    };
    // Two answers of more than 16 MiB are more than half of the budget, which is all that a client can have.
    let unread = [ask_for_much(&server, greedy).await, ask_for_much(&server, greedy).await];
    assert_eq!(call(greedy).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(output(&super::answer(call(other).await).await), "x\n");
    drop(unread);
    eventually("its answers are gone", async || call(greedy).await.status() == StatusCode::OK)
        .await;
    server.stop().await;

    let server = Server::start_with(settings("1s"), Some(&tokens)).await;
    let mut stream = ask_for_much(&server, greedy).await;
    eventually("the server gives up", async || count_open(&server) == 0).await;
    let mut rest = Vec::new();
    // What was on its way arrives, or the connection is reset.
    let _ = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await;
    assert!(rest.len() < 16 << 20, "{} bytes", rest.len());
    server.stop().await;
}
