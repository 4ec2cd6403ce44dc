//! rmcp's manager of protocol sessions. If this server is a node, their ids have its name, and are handles like all others.

use futures_util::Stream;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::WorkerTransport;
use rmcp::transport::streamable_http_server::session::ServerSseMessage;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, LocalSessionWorker, SessionConfig,
    create_local_session,
};
use rmcp::transport::streamable_http_server::{SessionId, SessionManager};

use crate::node::Node;

/// The protocol sessions of a node.
#[derive(Debug)]
pub(super) struct Manager {
    /// rmcp's own.
    pub(super) local: LocalSessionManager,
    pub(super) node: Node,
}

/// The error of a request of a protocol session.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManagerError {
    #[error(transparent)]
    Local(#[from] LocalSessionManagerError),
    /// The kernel has no random bytes for an id.
    #[error("the kernel returned no random bytes: {0}")]
    Random(#[from] getrandom::Error),
}

impl Manager {
    pub(super) fn new(config: SessionConfig, node: Node) -> Self {
        let mut local = LocalSessionManager::default();
        local.session_config = config;
        Self { local, node }
    }
}

impl SessionManager for Manager {
    type Error = ManagerError;
    type Transport = WorkerTransport<LocalSessionWorker>;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), ManagerError> {
        if self.node.name().is_none() {
            return Ok(self.local.create_session().await?);
        }
        let id = SessionId::from(self.node.new_handle()?);
        let config = self.local.session_config.clone();
        let (handle, worker) = create_local_session(SessionId::clone(&id), config);
        self.local.sessions.write().await.insert(SessionId::clone(&id), handle);
        Ok((id, WorkerTransport::spawn(worker)))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, ManagerError> {
        Ok(self.local.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, ManagerError> {
        Ok(self.local.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), ManagerError> {
        Ok(self.local.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, ManagerError> {
        Ok(self.local.create_stream(id, message).await?)
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), ManagerError> {
        Ok(self.local.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, ManagerError> {
        Ok(self.local.create_standalone_stream(id).await?)
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, ManagerError> {
        Ok(self.local.resume(id, last_event_id).await?)
    }
}
