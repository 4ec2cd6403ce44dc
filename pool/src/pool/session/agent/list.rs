//! Lists of entries and processes, which arrive item by item.

use std::sync::Arc;
use std::time::Duration;

use isolator_runner::wire::agent::{Request, StreamEnd};
use serde::de::DeserializeOwned;

use super::Hub;
use super::error::{AgentError, Broken, Subject, TooMany};
use super::messages::{CallKind, Heard};

/// Longest time until all of a list has arrived.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// Most bytes of a list.
const MAX_BYTES: usize = 4 << 20;

/// A list that is asked for.
pub(super) struct List<'a> {
    pub(super) kind: CallKind,
    pub(super) subject: Subject<'a>,
    /// Most items.
    pub(super) most: usize,
    /// The error when there are more.
    pub(super) too_many: TooMany,
}

impl List<'_> {
    /// Receives all items. `takes` says whether there is memory for further bytes.
    pub(super) async fn receive<T: DeserializeOwned>(
        &self,
        hub: &Arc<Hub>,
        request: impl FnOnce(u32) -> Request,
        takes: &mut (dyn FnMut(usize) -> bool + Send),
    ) -> Result<Vec<T>, AgentError> {
        let received = tokio::time::timeout(LIST_TIMEOUT, self.all(hub, request, takes)).await;
        received.unwrap_or(Err(AgentError::ListLate))
    }

    async fn all<T: DeserializeOwned>(
        &self,
        hub: &Arc<Hub>,
        request: impl FnOnce(u32) -> Request,
        takes: &mut (dyn FnMut(usize) -> bool + Send),
    ) -> Result<Vec<T>, AgentError> {
        let fail = |broken: Broken| broken.of(self.subject);
        let (_, mut call) = hub.call(self.kind, request).await.map_err(fail)?;
        let (mut items, mut room) = (Vec::new(), MAX_BYTES);
        loop {
            match call.next().await {
                Heard::Piece(_, body) => {
                    let left = room.checked_sub(body.len()).filter(|_| items.len() < self.most);
                    room = left.ok_or(self.too_many)?;
                    if !takes(body.len()) {
                        return Err(AgentError::NoRoomForList);
                    }
                    items.push(call.parse(&body).map_err(fail)?);
                }
                Heard::End(StreamEnd::Complete) => return Ok(items),
                other => return Err(fail(other.broken())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_list_that_does_not_arrive_is_given_up() {
        let hub = Arc::new(Hub::new());
        let list = List {
            kind: CallKind::Entries,
            subject: Subject::All,
            most: 1,
            too_many: TooMany::Entries,
        };
        let began = tokio::time::Instant::now();
        let received = list.receive::<u32>(&hub, Request::Processes, &mut |_| true).await;
        assert!(matches!(received, Err(AgentError::ListLate)), "{received:?}");
        assert_eq!(began.elapsed(), LIST_TIMEOUT);
    }
}
