//! How long the answers of APIs took: `http.server.request.duration` of OpenTelemetry's conventions for HTTP.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use isolator_pool::counts::Times;
use isolator_pool::lock::lock;

/// The status that stands for requests whose client did not wait for the answer.
const CANCELLED: u16 = 499;

/// A kind of request and answer. Clients choose none of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestKind {
    pub method: &'static str,
    /// The path, with names instead of the parts that clients choose.
    pub route: &'static str,
    /// The status of the answer.
    pub status: u16,
}

/// How long requests of APIs took, by kind.
#[derive(Debug, Default)]
pub(crate) struct Requests(Mutex<BTreeMap<RequestKind, Arc<Times>>>);

impl Requests {
    /// Begins to count a request.
    pub(crate) fn begin(&self, method: &'static str, route: &'static str) -> Counted<'_> {
        let kind = RequestKind { method, route, status: CANCELLED };
        Counted { requests: self, began: Instant::now(), kind }
    }

    /// The times of each kind that there was.
    pub(crate) fn kinds(&self) -> Vec<(RequestKind, Arc<Times>)> {
        lock(&self.0).iter().map(|(kind, times)| (*kind, Arc::clone(times))).collect()
    }
}

/// A request that is being counted. If it is dropped before its end, its client did not wait.
#[derive(Debug)]
pub(crate) struct Counted<'a> {
    requests: &'a Requests,
    began: Instant,
    kind: RequestKind,
}

impl Counted<'_> {
    /// It was answered.
    pub(crate) fn end(mut self, status: u16) {
        self.kind.status = status;
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let times = Arc::clone(lock(&self.requests.0).entry(self.kind).or_default());
        times.add(self.began.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_counted_once_by_its_answer() {
        let requests = Requests::default();
        requests.begin("POST", "/run_code").end(200);
        requests.begin("POST", "/run_code").end(200);
        requests.begin("POST", "/run_code").end(504);
        drop(requests.begin("GET", "/api/v2/runtimes"));
        let kinds = requests.kinds().into_iter();
        let found: Vec<_> =
            kinds.map(|(kind, times)| (kind.route, kind.status, times.count())).collect();
        let expected =
            [("/api/v2/runtimes", CANCELLED, 1), ("/run_code", 200, 2), ("/run_code", 504, 1)];
        assert_eq!(found, expected);
    }
}
