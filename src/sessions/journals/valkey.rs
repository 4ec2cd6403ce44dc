//! The server that keeps journals: connections to it, and the few commands that are used. Each has a deadline, and the server can
//! send only as many bytes as an answer can have.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use isolator_pool::lock::lock;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisError};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::MAX_LIST_BYTES;
use crate::config::JournalServer;
use crate::nodes_key::read_secret;

/// Bytes that the server can send while a connection is made, and in answers to commands that only write.
const SHORT: usize = 64 << 10;

/// How many names the server looks at for each answer with some, the longest that journals have, and how many are taken at most.
const NAMES: usize = 64;
const MAX_NAME: usize = 256;
const MAX_FOUND: usize = 100_000;

/// How many such answers are read at most: those for sixteen million keys.
const MAX_ANSWERS: usize = 1 << 18;

/// The longest time for which a journal is taken to be kept.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// What each line break that the server sends counts for, beyond itself: the parser makes a value of this many bytes out of each, and
/// a list of them that grows.
const VALUE: usize = 128;

/// Why a server can't be used with what is configured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    #[error("{}: the file can't be read", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{}: there is no certificate in PEM in this file of sessions.journals.caFile", .0.display())]
    NoCertificate(PathBuf),
    #[error("{}: the password in this file of sessions.journals.passwordFile is not one line of text", .0.display())]
    NoPassword(PathBuf),
    #[error("sessions.journals.address: the host is no name that a certificate can have")]
    Name(#[from] InvalidDnsNameError),
    #[error("TLS can't be set up")]
    Tls(#[from] rustls::Error),
}

/// Why the server did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ValkeyError {
    #[error("no connection could be made")]
    Connect(#[source] io::Error),
    #[error("it did not answer within {}", crate::duration::shown(*.0))]
    Timeout(Duration),
    /// Its words may be those of a hostile server.
    #[error("{}", isolator_pool::quote::said(&.0.to_string()))]
    Refused(#[from] RedisError),
    /// The journal was removed there, or is another one.
    #[error("the journal is not there as it was written")]
    Changed,
}

impl ValkeyError {
    /// Whether the connection is not there or can't be used any longer. Otherwise the server has refused something.
    pub(super) fn is_of_connection(&self) -> bool {
        match self {
            Self::Connect(_) | Self::Timeout(_) => true,
            Self::Refused(error) => error.code().is_none(),
            Self::Changed => false,
        }
    }
}

/// A server, and how to connect to it.
pub(super) struct Valkey {
    server: JournalServer,
    login: RedisConnectionInfo,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    timeout: Duration,
    /// Connections that have read a journal and can read another one.
    idle: Mutex<Vec<Connection>>,
    tasks: TaskTracker,
}

/// A connection. Its task ends when this is dropped.
pub(super) struct Connection {
    commands: MultiplexedConnection,
    allowance: Arc<AtomicUsize>,
    timeout: Duration,
    _task: DropGuard,
}

impl Valkey {
    pub(super) fn new(
        server: JournalServer,
        user: Option<&str>,
        password: Option<&Path>,
        authorities: Option<&Path>,
        timeout: Duration,
    ) -> Result<Self, ServerError> {
        let mut login = RedisConnectionInfo::default()
            .set_db(i64::from(server.database))
            .set_skip_set_lib_name();
        if let Some(user) = user {
            login = login.set_username(user);
        }
        if let Some(path) = password {
            let bytes = read_secret(path)
                .map_err(|source| ServerError::Unreadable { path: path.into(), source })?;
            let password = std::str::from_utf8(bytes.trim_ascii()).ok();
            let password = password.filter(|it| !it.is_empty() && !it.contains('\n'));
            login =
                login.set_password(password.ok_or_else(|| ServerError::NoPassword(path.into()))?);
        }
        if password.is_some() && server.is_exposed() {
            tracing::warn!(
                "sessions.journals.address: the password goes to another machine without TLS, so machines between them can read it; \
                 use rediss://"
            );
        }
        let tls = match server.has_tls {
            true => Some((connector(authorities)?, name_of(&server.host)?)),
            false => None,
        };
        Ok(Self { server, login, tls, timeout, idle: Mutex::default(), tasks: TaskTracker::new() })
    }

    /// The records of a journal, of up to `most` bytes.
    pub(super) async fn records(
        &self,
        name: &str,
        most: usize,
    ) -> Result<Vec<Vec<u8>>, ValkeyError> {
        let idle = lock(&self.idle).pop();
        if let Some(connection) = idle {
            match connection.records(name, most).await {
                // The server has closed it or was started again, or a machine between has forgotten it and drops what is sent.
                // Those that waited as long are no better.
                Err(error) if error.is_of_connection() => lock(&self.idle).clear(),
                read => return self.keep_idle(connection, read),
            }
        }
        let connection = self.connect().await?;
        let read = connection.records(name, most).await;
        self.keep_idle(connection, read)
    }

    /// Keeps a connection for the next one if it has answered. There are as many as journals can be read at once.
    fn keep_idle<T>(
        &self,
        connection: Connection,
        answered: Result<T, ValkeyError>,
    ) -> Result<T, ValkeyError> {
        if answered.is_ok() {
            lock(&self.idle).push(connection);
        }
        answered
    }

    /// The journals whose names begin with this, which is no pattern: the name of each, its bytes, and how long it is kept.
    pub(super) async fn journals_of(
        &self,
        beginning: &str,
    ) -> Result<Vec<(String, usize, Duration)>, ValkeyError> {
        let connection = self.connect().await?;
        let (mut found, mut cursor) = (Vec::new(), 0);
        for _ in 0..MAX_ANSWERS {
            let (next, mut names) = connection.names(beginning, cursor).await?;
            names.retain(|name| name.starts_with(beginning) && name.len() <= MAX_NAME);
            for (name, (bytes, left)) in names.iter().zip(connection.sizes(&names).await?) {
                // One that has gone meanwhile has no size.
                if let (Some(bytes), Ok(left)) = (bytes, u64::try_from(left)) {
                    let bytes = bytes.try_into().unwrap_or(usize::MAX).min(MAX_LIST_BYTES);
                    found.push((name.clone(), bytes, Duration::from_millis(left).min(LONGEST)));
                }
            }
            cursor = next;
            if cursor == 0 || found.len() > MAX_FOUND {
                break;
            }
        }
        Ok(found)
    }

    /// A connection for commands with short answers.
    pub(super) async fn connect(&self) -> Result<Connection, ValkeyError> {
        let connecting = async {
            let JournalServer { host, port, .. } = &self.server;
            let stream = TcpStream::connect((host.as_str(), *port)).await;
            let stream = stream.map_err(ValkeyError::Connect)?;
            stream.set_nodelay(true).map_err(ValkeyError::Connect)?;
            match &self.tls {
                None => self.begin(stream).await,
                Some((connector, name)) => {
                    let stream = connector.connect(name.clone(), stream).await;
                    self.begin(stream.map_err(ValkeyError::Connect)?).await
                }
            }
        };
        let timed = tokio::time::timeout(self.timeout, connecting).await;
        timed.unwrap_or(Err(ValkeyError::Timeout(self.timeout)))
    }

    async fn begin<S>(&self, stream: S) -> Result<Connection, ValkeyError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let allowance = Arc::new(AtomicUsize::new(SHORT));
        let stream = Bounded { stream, allowance: Arc::clone(&allowance) };
        // The deadlines are ours.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let (commands, driver) =
            MultiplexedConnection::new_with_config(&self.login, stream, config).await?;
        let ended = CancellationToken::new();
        let task = ended.clone().drop_guard();
        self.tasks.spawn(async move {
            let _ = ended.run_until_cancelled(driver).await;
        });
        Ok(Connection { commands, allowance, timeout: self.timeout, _task: task })
    }
}

impl Connection {
    /// The same with another time for each command.
    pub(super) fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The records of a journal, of up to `most` bytes.
    pub(super) async fn records(
        &self,
        name: &str,
        most: usize,
    ) -> Result<Vec<Vec<u8>>, ValkeyError> {
        // Records are as random bytes, of which one in 256 is a line break.
        self.allowance.store(most.saturating_mul(2).saturating_add(SHORT), Ordering::Relaxed);
        let mut command = redis::cmd("LRANGE");
        command.arg(name).arg(0).arg(-1);
        within(self.timeout, command.query_async(&mut self.commands.clone())).await
    }

    /// Some names that begin with this, and the cursor of the next ones, which is 0 at the end.
    pub(super) async fn names(
        &self,
        beginning: &str,
        cursor: u64,
    ) -> Result<(u64, Vec<String>), ValkeyError> {
        self.allowance.store(SHORT, Ordering::Relaxed);
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("MATCH").arg(format!("{beginning}*")).arg("COUNT").arg(NAMES);
        within(self.timeout, command.query_async(&mut self.commands.clone())).await
    }

    /// How much memory each of some journals takes there, and for how many milliseconds it is kept.
    pub(super) async fn sizes(
        &self,
        names: &[String],
    ) -> Result<Vec<(Option<u64>, i64)>, ValkeyError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for name in names {
            pipe.cmd("MEMORY").arg("USAGE").arg(name).cmd("PTTL").arg(name);
        }
        let answers: Vec<Option<i64>> = self.query(&pipe).await?;
        let pairs = answers.as_chunks::<2>().0.iter();
        Ok(pairs
            .map(|[bytes, left]| (bytes.and_then(|it| it.try_into().ok()), left.unwrap_or(-1)))
            .collect())
    }

    /// Writes a journal anew, with its first record.
    pub(super) async fn write(
        &self,
        name: &str,
        record: &[u8],
        keep: Duration,
    ) -> Result<(), ValkeyError> {
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("DEL").arg(name).ignore();
        pipe.cmd("RPUSH").arg(name).arg(record).cmd("PEXPIRE").arg(name).arg(millis(keep));
        let answer: (u64, u64) = self.query(&pipe).await?;
        if answer == (1, 1) { Ok(()) } else { Err(ValkeyError::Changed) }
    }

    /// Adds a record to a journal that has `before`.
    pub(super) async fn append(
        &self,
        name: &str,
        record: &[u8],
        before: u32,
        keep: Duration,
    ) -> Result<(), ValkeyError> {
        let mut pipe = redis::pipe();
        // A journal that has expired or was evicted does not begin in its middle.
        pipe.atomic().cmd("RPUSHX").arg(name).arg(record);
        pipe.cmd("PEXPIRE").arg(name).arg(millis(keep));
        let answer: (u64, u64) = self.query(&pipe).await?;
        if answer == (u64::from(before) + 1, 1) { Ok(()) } else { Err(ValkeyError::Changed) }
    }

    /// Keeps a journal for this time from now on.
    pub(super) async fn keep(&self, name: &str, keep: Duration) -> Result<(), ValkeyError> {
        let mut pipe = redis::pipe();
        pipe.cmd("PEXPIRE").arg(name).arg(millis(keep));
        let answer: (u64,) = self.query(&pipe).await?;
        if answer == (1,) { Ok(()) } else { Err(ValkeyError::Changed) }
    }

    /// Removes journals.
    pub(super) async fn remove(&self, names: &[String]) -> Result<(), ValkeyError> {
        let mut pipe = redis::pipe();
        pipe.cmd("DEL").arg(names);
        let _: (u64,) = self.query(&pipe).await?;
        Ok(())
    }

    async fn query<T: redis::FromRedisValue>(
        &self,
        pipe: &redis::Pipeline,
    ) -> Result<T, ValkeyError> {
        self.allowance.store(SHORT, Ordering::Relaxed);
        let mut commands = self.commands.clone();
        within(self.timeout, pipe.query_async(&mut commands)).await
    }
}

async fn within<T>(
    timeout: Duration,
    asked: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, ValkeyError> {
    match tokio::time::timeout(timeout, asked).await {
        Ok(answered) => Ok(answered?),
        Err(_) => Err(ValkeyError::Timeout(timeout)),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX >> 1).max(1)
}

fn read(path: &Path) -> Result<Vec<u8>, ServerError> {
    std::fs::read(path).map_err(|source| ServerError::Unreadable { path: path.into(), source })
}

fn name_of(host: &str) -> Result<ServerName<'static>, InvalidDnsNameError> {
    ServerName::try_from(host.to_owned())
}

fn connector(authorities: Option<&Path>) -> Result<TlsConnector, ServerError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = match authorities {
        None => builder.with_platform_verifier()?.with_no_client_auth(),
        Some(path) => {
            let bytes = read(path)?;
            let mut roots = RootCertStore::empty();
            let found = CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok);
            let (added, _) = roots.add_parsable_certificates(found);
            if added == 0 {
                return Err(ServerError::NoCertificate(path.into()));
            }
            builder.with_root_certificates(roots).with_no_client_auth()
        }
    };
    Ok(Arc::new(config).into())
}

/// A stream of which only so many bytes are read, and only so many values.
struct Bounded<S> {
    stream: S,
    /// Bytes that can still be read.
    allowance: Arc<AtomicUsize>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = &buffer.filled()[before..];
        let breaks = read.iter().filter(|byte| **byte == b'\n').count();
        let bytes = read.len() + breaks * VALUE;
        let left = self.allowance.load(Ordering::Relaxed).checked_sub(bytes);
        let Some(left) = left else {
            let message = "the server has sent more than it was asked for";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, message)));
        };
        self.allowance.store(left, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn read(sent: &[u8], allowance: usize) -> io::Result<usize> {
        let allowance = Arc::new(AtomicUsize::new(allowance));
        Bounded { stream: sent, allowance }.read_to_end(&mut Vec::new()).await
    }

    #[tokio::test]
    async fn a_server_can_send_neither_more_bytes_nor_more_values_than_were_asked_for() {
        let record: Vec<u8> = (0..=u8::MAX).cycle().take(1 << 20).collect();
        assert_eq!(read(&record, 2 * record.len()).await.unwrap(), record.len());
        assert!(read(&record, record.len() - 1).await.is_err());
        assert!(read(&b"_\r\n".repeat(10_000), 1 << 20).await.is_err());
    }

    #[tokio::test]
    async fn a_journal_is_read_again_if_a_connection_that_waited_is_dead() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server =
            JournalServer { host: "127.0.0.1".to_owned(), port, database: 0, has_tls: false };
        let valkey = Valkey::new(server, None, None, None, Duration::from_secs(1)).unwrap();
        let served = async {
            let mut open = Vec::new();
            // Each connection answers once, and stays open.
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
                stream.write_all(b"*1\r\n$1\r\na\r\n").await.unwrap();
                open.push(stream);
            }
        };
        let read = async {
            for _ in 0..2 {
                assert_eq!(valkey.records("name", 1).await.unwrap(), [b"a"]);
            }
        };
        tokio::select! {
            () = read => {}
            never = served => match never {},
        }
    }
}
