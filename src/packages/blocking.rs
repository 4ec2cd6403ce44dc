//! Work that reads or writes files, on threads that may block.

use std::any::Any;

use tokio::task::JoinError;

type Work = Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>;

/// Runs work on a thread that may block. The task is boxed, so that it is compiled once and not for each kind of work.
///
/// # Errors
///
/// When the work panicked, or the process ends.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let work: Work = Box::new(|| Box::new(work()));
    let done = tokio::task::spawn_blocking(work).await?;
    Ok(*done.downcast().expect("this work returns this type"))
}
