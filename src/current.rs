//! A value that is replaced as a whole while others use it: a user keeps the version that it has taken.

use std::sync::Arc;

use tokio::sync::watch;

/// The newest version of a value; cheap to clone.
#[derive(Debug)]
pub(crate) struct Current<T>(Arc<watch::Sender<Arc<T>>>);

impl<T> Clone for Current<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Current<T> {
    /// A value with its first version.
    pub(crate) fn new(first: T) -> Self {
        Self(Arc::new(watch::Sender::new(Arc::new(first))))
    }

    /// The newest version.
    pub(crate) fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.borrow())
    }

    /// Replaces it. Users that have the version before keep that.
    pub(crate) fn set(&self, next: T) {
        self.0.send_replace(Arc::new(next));
    }
}
