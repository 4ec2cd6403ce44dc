//! What changes as a whole while others use it: whoever takes it keeps what it was then.

use std::sync::Arc;

use tokio::sync::watch;

/// The newest version of a thing; cheap to clone.
#[derive(Debug)]
pub(crate) struct Current<T>(Arc<watch::Sender<Arc<T>>>);

impl<T> Clone for Current<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Current<T> {
    /// The first version.
    pub(crate) fn new(first: T) -> Self {
        Self(Arc::new(watch::Sender::new(Arc::new(first))))
    }

    /// The version of this moment.
    pub(crate) fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.borrow())
    }

    /// Puts another version in its place, for whoever comes from now on.
    pub(crate) fn set(&self, next: T) {
        self.0.send_replace(Arc::new(next));
    }
}
