//! A kernel of Python that loads what cells need, while the session is open and nothing is asked of it.

use std::os::fd::BorrowedFd;

use super::Kernels;

impl Kernels {
    /// Whether it still loads.
    pub(in crate::session) fn is_loading(&self) -> bool {
        self.is_loading
    }

    /// Notes that it has loaded everything.
    pub(in crate::session) fn has_loaded(&mut self) {
        self.is_loading = false;
    }

    /// The descriptor on which it says that it has loaded everything, while it has not.
    pub(in crate::session) fn loading_fd(&self) -> Option<BorrowedFd<'_>> {
        self.is_loading.then(|| self.current.channel.fd())
    }

    /// Reads what a kernel that loads has said. Returns whether it loads no longer. One that is gone or says something else does not: the
    /// next cell reports it.
    pub(in crate::session) fn ends_loading(&mut self) -> bool {
        if !self.is_loading {
            return false;
        }
        let said = self.current.channel.next();
        self.is_loading = matches!(said, Ok(None)) && !self.current.channel.is_closed;
        !self.is_loading
    }
}
