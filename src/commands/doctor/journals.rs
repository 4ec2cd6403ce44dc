//! Whether the server that keeps journals of sessions can be used, if the configuration names one.

use isolator_pool::error_chain::error_chain;

use super::findings::Findings;
use crate::config::{Config, JournalsConfig};
use crate::sessions::journals::{ProbeError, Probed, probe};

/// Checks the files, the connection and the rights of its user.
pub(super) async fn journals(config: &Config, findings: &mut Findings) {
    let journals = &config.sessions.journals;
    let (Some(address), Some(server)) = (&journals.address, &journals.server) else { return };
    findings.part("sessions.journals");
    match probe(journals, config.node.node()).await {
        Ok(probed) => {
            findings.fine(&format!(
                "{address}: a journal can be written, read and removed on this server"
            ));
            if let Probed::NotCounted(error) = probed {
                let why = error_chain(&error);
                findings.warn(
                    &format!(
                        "{address}: journals from before this node was started again can't be counted: {why}"
                    ),
                    NO_COUNT,
                );
            }
        }
        Err(error) => findings.missing(&format!("{address}: {}", error_chain(&error)), fix(&error)),
    }
    if server.is_exposed() {
        let read = what_is_exposed(journals);
        findings.warn(
            &format!("{address}: machines between this one and the server can read {read}"),
            "use rediss://, or a network that only the nodes and the server have",
        );
    }
}

/// Advice if only counting fails, and what that costs.
const NO_COUNT: &str = "give the user the commands SCAN, MEMORY and PTTL, too; without them, those journals do not count for \
    sessions.journals.maxMB, so after a restart this node's can take more there until the old ones have expired";

/// What nodes send unsealed.
const fn what_is_exposed(journals: &JournalsConfig) -> &'static str {
    match journals.password_file {
        Some(_) => "the password, and which journals change",
        None => "which journals change",
    }
}

const fn fix(error: &ProbeError) -> &'static str {
    match error {
        ProbeError::Files(_) => "fix what the error says; all nodes need the same key",
        ProbeError::Connect(_) => {
            "start the server, and compare its address, user and password with sessions.journals.address, user and passwordFile; with \
             TLS, caFile must have the certificate that has issued the server's"
        }
        ProbeError::Commands(_) => {
            "give the user the commands MULTI, EXEC, DEL, RPUSH, RPUSHX, PEXPIRE and LRANGE for keys that begin with \
             isolator:journal:, and the server memory"
        }
        ProbeError::Other => {
            "something else changes these keys: give the nodes a database of their own"
        }
        ProbeError::Seal(_) | ProbeError::Random => "try again",
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::path::Path;

    use serde_json::json;
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// A command, or `None` at the end of the connection.
    async fn command(stream: &mut BufStream<TcpStream>) -> Option<Vec<Vec<u8>>> {
        let mut words = Vec::new();
        for _ in 0..number(stream).await? {
            let mut word = vec![0; number(stream).await? + 2];
            stream.read_exact(&mut word).await.ok()?;
            word.truncate(word.len() - 2);
            words.push(word);
        }
        Some(words)
    }

    /// The number after a sign.
    async fn number(stream: &mut BufStream<TcpStream>) -> Option<usize> {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        line.get(1..)?.trim_end().parse().ok()
    }

    fn list(values: &[Vec<u8>]) -> Vec<u8> {
        [format!("*{}\r\n", values.len()).as_bytes(), &values.concat()].concat()
    }

    fn text(value: &[u8]) -> Vec<u8> {
        [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
    }

    /// A server with one journal whose user has no right to one of the commands.
    async fn serve(listener: &TcpListener, refused: &str) -> Infallible {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufStream::new(stream);
            let (mut records, mut queued) = (Vec::new(), None::<Vec<Vec<u8>>>);
            while let Some(words) = command(&mut stream).await {
                let name = str::from_utf8(&words[0]).unwrap();
                let answer = match name {
                    "MULTI" => b"+OK\r\n".to_vec(),
                    "EXEC" => list(&queued.take().unwrap_or_default()),
                    _ if name == refused => b"-NOPERM no right to that\r\n".to_vec(),
                    "RPUSH" | "RPUSHX" => {
                        records.push(text(&words[2]));
                        format!(":{}\r\n", records.len()).into_bytes()
                    }
                    "LRANGE" => list(&records),
                    "SCAN" => list(&[text(b"0"), list(&[])]),
                    "DEL" | "PEXPIRE" | "MEMORY" | "PTTL" => b":1\r\n".to_vec(),
                    other => panic!("{other}"),
                };
                let sent = match &mut queued {
                    Some(queued) => {
                        queued.push(answer);
                        b"+QUEUED\r\n".to_vec()
                    }
                    None => answer,
                };
                if name == "MULTI" {
                    queued = Some(Vec::new());
                }
                stream.write_all(&sent).await.unwrap();
                stream.flush().await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn rights_to_count_are_asked_for_only_with_a_name_and_are_not_required() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        std::fs::write(&key, "k".repeat(64)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("redis://{}", listener.local_addr().unwrap());
        let said = async |name: Option<&str>, refused: &str| {
            let mut config =
                json!({ "sessions": { "journals": { "address": address, "keyFile": key } } });
            if let Some(name) = name {
                config["node"] = json!({ "name": name });
            }
            let config = Config::parse(&config.to_string(), None, Path::new("")).unwrap();
            let mut findings = Findings::recorded();
            tokio::select! {
                () = super::journals(&config, &mut findings) => {}
                never = serve(&listener, refused) => match never {},
            }
            findings.said()
        };
        let fine = "  ok       ";
        let warned = "  warning  ";
        let missing = "  MISSING  ";
        for (name, refused, expected) in [
            (None, "", vec![fine]),
            (None, "SCAN", vec![fine]),
            (None, "RPUSHX", vec![missing]),
            (Some("n1"), "", vec![fine]),
            (Some("n1"), "SCAN", vec![fine, warned]),
            (Some("n1"), "MEMORY", vec![fine, warned]),
            (Some("n1"), "DEL", vec![missing]),
        ] {
            let said = said(name, refused).await;
            for kind in [fine, warned, missing] {
                assert_eq!(said.contains(kind), expected.contains(&kind), "{refused}: {said}");
            }
            assert_eq!(
                said.contains("do not count for sessions.journals.maxMB"),
                said.contains(warned)
            );
        }
    }

    #[tokio::test]
    async fn a_password_is_exposed_only_where_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        std::fs::write(&key, "k".repeat(64)).unwrap();
        let warned = async |more: &str| {
            let mut journals =
                json!({ "address": "redis://192.0.2.1", "keyFile": key, "timeout": "100ms" });
            if !more.is_empty() {
                journals["passwordFile"] = json!(more);
            }
            let config = json!({ "sessions": { "journals": journals } }).to_string();
            let config = Config::parse(&config, None, Path::new("")).unwrap();
            let mut findings = Findings::recorded();
            super::journals(&config, &mut findings).await;
            findings.said()
        };
        let without = warned("").await;
        assert!(without.contains("can read which journals change"), "{without}");
        let with = warned("/no/password").await;
        assert!(with.contains("can read the password, and which journals change"), "{with}");
    }
}
