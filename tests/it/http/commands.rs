//! `isolator run` and `isolator session` with `--server URL`: a server with TLS and tokens, and servers that break the rules.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Server, tokens};
use crate::common::{Finished, run};
use serde_json::json;
use std::fs;
use std::time::{Duration, Instant};

/// Runs a program with these options.
fn run_at(home: &std::path::Path, url: &str, options: &[&str]) -> Finished {
    let arguments = ["run", "--server", url, "--language", "python"];
    run(home, &[&arguments, options, &["-"]].concat(), "print(6 * 7)")
}

#[tokio::test]
async fn commands_use_a_server_with_a_token_and_a_certificate_of_its_own() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]);
    let made = made.expect("a certificate");
    let files = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = files.path().join(name);
        fs::write(&path, text).expect("writable");
        path.to_str().expect("UTF-8").to_owned()
    };
    let certificate = file("certificate.pem", &made.cert.pem());
    let key = file("key.pem", &made.signing_key.serialize_pem());
    let tokens = tokens(&[("one", &[])]);
    let token = file("token", &tokens.secrets[0]);
    let tls = json!({ "certificate": certificate, "key": key });
    let server = Server::start_with(json!({ "http": { "tls": tls } }), Some(&tokens)).await;
    let home = files.path();

    let options = ["--token-file", &token, "--ca-file", &certificate];
    let ran = run_at(home, &server.url, &options);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "42\n"), "{ran:?}");
    let session = ["session", "--server", &server.url];
    let cells = "x = 40\n# %%\nimport sys; print('err', file=sys.stderr)\nx + 2\n";
    let ran = run(home, &[&session[..], &options].concat(), cells);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "42\n"), "{ran:?}");
    assert_eq!(ran.stderr, "err\n");

    for (options, promised) in [
        (&options[2..], "401 Unauthorized: a bearer token is required"),
        (&options[..2], "can't be reached"),
        (&["--token-file", &certificate, "--ca-file", &certificate], "token"),
    ] {
        let refused = run_at(home, &server.url, options);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(125), ""), "{refused:?}");
        assert!(refused.stderr.contains(promised), "{refused:?}");
        assert!(!refused.stderr.contains("may have run"), "{refused:?}");
    }
    server.stop().await;
}

/// A server that answers each connection in its own way. Returns its URL, and how many connections it got.
fn start(
    answer: impl Fn(usize, TcpStream) + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || answer(number, stream));
        }
    });
    (address, count)
}

/// Reads the head of a request, and as much of its body as came with it.
fn read_request(stream: &mut TcpStream) {
    let _ = stream.read(&mut [0; 64 << 10]);
}

#[test]
fn a_redirect_is_refused_and_not_followed() {
    let (other, others) = start(|_, _| {});
    let (address, _) = start(move |_, mut stream| {
        read_request(&mut stream);
        let _ = write!(
            stream,
            "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://{other}/mcp\r\ncontent-length: 0\r\n\r\n"
        );
    });
    let home = tempfile::tempdir().expect("a directory");
    let refused = run_at(home.path(), &format!("http://{address}/mcp"), &[]);
    assert_eq!(refused.code, Some(125), "{refused:?}");
    assert!(refused.stderr.contains("307 Temporary Redirect"), "{refused:?}");
    assert_eq!(others.load(Ordering::SeqCst), 0);
}

#[test]
fn a_silent_server_is_named_and_given_up() {
    let (address, _) = start(|_, stream| {
        std::thread::sleep(Duration::from_secs(60));
        drop(stream);
    });
    let home = tempfile::tempdir().expect("a directory");
    let began = Instant::now();
    let refused = run_at(home.path(), &format!("http://{address}/mcp"), &[]);
    assert!(began.elapsed() < Duration::from_secs(30), "{refused:?}");
    assert_eq!(refused.code, Some(125), "{refused:?}");
    let name = format!("the server at http://{address}/mcp");
    for promised in [format!("waiting for {name}"), format!("{name} can't be reached")] {
        assert!(refused.stderr.contains(&promised), "{refused:?}");
    }
    assert!(!refused.stderr.contains("may have run"), "{refused:?}");
}

#[test]
fn an_endless_answer_is_bounded() {
    let (address, _) = start(|number, mut stream| {
        read_request(&mut stream);
        if number == 0 {
            let body = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
                 connection: close\r\n\r\n{body}"
            );
            return;
        }
        let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n");
        while stream.write_all(&[b'x'; 64 << 10]).is_ok() {}
    });
    let home = tempfile::tempdir().expect("a directory");
    let refused = run_at(home.path(), &format!("http://{address}/mcp"), &[]);
    assert_eq!(refused.code, Some(125), "{refused:?}");
    assert!(refused.stderr.contains("the answer has more than 64 MiB"), "{refused:?}");
    assert!(refused.stderr.contains("the program may have run there"), "{refused:?}");
}

#[test]
fn a_server_cannot_forge_lines() {
    let (address, _) = start(|_, mut stream| {
        read_request(&mut stream);
        let body = r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"a\nisolator: \u001b[2Jforged"}}"#;
        let length = body.len();
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
    });
    let home = tempfile::tempdir().expect("a directory");
    let refused = run_at(home.path(), &format!("http://{address}/mcp"), &[]);
    assert!(refused.stderr.contains(r"a\nisolator: \u001b[2Jforged"), "{refused:?}");
    assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
}
