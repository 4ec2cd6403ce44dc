//! A check that journals can be kept on the server of a configuration: with its files, its user and that user's rights.

use std::time::Duration;

use isolator_pool::pool::admission::Client;

use super::valkey::{Connection, ValkeyError};
use super::{OpenError, SealError, server};
use crate::config::JournalsConfig;
use crate::node::Node;

/// How long the server keeps the journal of the check, if it can't be removed.
const KEEP: Duration = Duration::from_secs(10);

/// Bytes of that journal at most.
const MAX_BYTES: usize = 4096;

/// What can be done on the server.
#[derive(Debug)]
pub(crate) enum Probed {
    /// All that this node needs.
    All,
    /// Journals can be kept, but a node with a name can't count those from before it was started again.
    NotCounted(ValkeyError),
}

/// Why journals can't be kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// A file of the configuration can't be used.
    #[error(transparent)]
    Files(#[from] OpenError),
    /// No connection can be made, or the server lets this user not in.
    #[error("the server can't be used")]
    Connect(#[source] ValkeyError),
    /// The user can't do what is needed.
    #[error("a journal can't be written, read and removed there")]
    Commands(#[source] ValkeyError),
    /// It has sent another journal back.
    #[error("the server has sent back another journal than was written")]
    Other,
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error("the kernel returned no random bytes")]
    Random,
}

/// Writes, reads and removes a journal, if the configuration names a server. With a name, also counts it.
///
/// # Errors
///
/// When that can't be done.
pub(crate) async fn probe(config: &JournalsConfig, node: &Node) -> Result<Probed, ProbeError> {
    let Some((key, valkey)) = server(config)? else { return Ok(Probed::All) };
    let handle = node.new_handle().map_err(|_| ProbeError::Random)?;
    let key = key.of_session(&Client::Server, &handle).ok_or(SealError::Seal)?;
    let records = [0, 1].map(|at| key.seal([0; _], at, b"check".to_vec()));
    let [first, second] = records;
    let (first, second) = (first?, second?);
    let connection = valkey.connect().await.map_err(ProbeError::Connect)?;
    let name = &key.name;
    let done = async {
        connection.write(name, &first, KEEP).await?;
        connection.append(name, &second, 1, KEEP).await?;
        let read = connection.records(name, MAX_BYTES).await?;
        // If it fails because the connection has, so does what comes next.
        let counted = match node.name() {
            Some(_) => count(&connection, name).await,
            None => Ok(()),
        };
        connection.remove(std::slice::from_ref(name)).await?;
        Ok((read, counted))
    };
    let (read, counted) = done.await.map_err(ProbeError::Commands)?;
    if read != [first, second] {
        return Err(ProbeError::Other);
    }
    Ok(counted.map_or_else(Probed::NotCounted, |()| Probed::All))
}

/// Does what a node with a name does when it was started again.
async fn count(connection: &Connection, name: &str) -> Result<(), ValkeyError> {
    connection.names(name, 0).await?;
    connection.sizes(&[name.to_owned()]).await?;
    Ok(())
}
