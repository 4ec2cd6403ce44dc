//! A kind of request of an API: it is counted, traced and noted in the audit log under its name, and its jobs are served.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::MethodRouter;
use isolator_pool::pool::admission::Client;
use isolator_pool::run::output::Watch;

use super::Apis;
use crate::audit::Note;
use crate::calls::{Call, CallError, CallOutcome, Calls, Job, Served, Serving};
use crate::result::receipt::ReceiptReport;
use crate::web::set_outcome;

/// The header with the receipt of a program, in JSON.
const RECEIPT: &str = "isolator-receipt";

/// A kind of request.
#[derive(Debug)]
pub(crate) struct Operation {
    /// The method of HTTP.
    pub(crate) method: &'static str,
    /// The path, with names instead of the parts that clients choose.
    pub(crate) route: &'static str,
    /// Its name in the audit log.
    pub(crate) name: &'static str,
}

/// How a request was served, for its trace. An answer has it as an extension.
#[derive(Debug, Clone)]
pub(crate) struct HowServed {
    /// The status of the program or the call.
    pub(crate) status: &'static str,
    /// Whether it has run.
    pub(crate) outcome: CallOutcome,
    /// How its program was served, if one ran.
    pub(crate) receipt: Option<Arc<ReceiptReport>>,
}

impl Operation {
    /// Counts and traces the requests of a route.
    pub(crate) fn observed<S: Clone + Send + Sync + 'static>(
        &'static self,
        apis: &Apis,
        route: MethodRouter<S>,
    ) -> MethodRouter<S> {
        route.layer(from_fn_with_state((apis.clone(), self), observe))
    }

    /// Serves the job that `make` makes of a request of `bytes`, with a line in the audit log. Dropping the future ends the program.
    ///
    /// # Errors
    ///
    /// When nothing has run, or the sandbox failed. The failure of a program is an outcome.
    pub(crate) async fn serve(
        &self,
        serving: &Serving,
        client: &Client,
        bytes: usize,
        watch: Option<Watch>,
        make: impl FnOnce(&Calls, &mut Note) -> Result<Job, CallError>,
    ) -> Result<Served, CallError> {
        let call = Call { client: client.clone(), watch, steps: None, queue_deadline: None };
        let mut note = self.begin(serving, client)?;
        serving.calls.serve_made(bytes, make, &call, &mut note).await
    }

    /// Begins the line of a request in the audit log.
    ///
    /// # Errors
    ///
    /// When the log can't be written, and the operator wants nothing to be served then.
    pub(crate) fn begin(&self, serving: &Serving, client: &Client) -> Result<Note, CallError> {
        match serving.setup.audit.refusal() {
            Some(why) => Err(CallError::NoAudit(why)),
            None => Ok(serving.setup.audit.begin(client, self.name)),
        }
    }
}

impl HowServed {
    /// Adds it to an answer, the outcome and the receipt also as headers.
    pub(crate) fn add_to(self, response: &mut Response) {
        let receipt = self.receipt.as_ref().and_then(|receipt| serde_json::to_vec(&**receipt).ok());
        if let Some(Ok(receipt)) = receipt.map(|receipt| HeaderValue::from_bytes(&receipt)) {
            response.headers_mut().insert(RECEIPT, receipt);
        }
        set_outcome(response, self.outcome);
        response.extensions_mut().insert(self);
    }
}

async fn observe(
    State((apis, operation)): State<(Apis, &'static Operation)>,
    request: Request,
    next: Next,
) -> Response {
    let Serving { operations, setup, .. } = apis.now();
    let Operation { method, route, .. } = operation;
    let counted = operations.requests().begin(method, route);
    let trace = {
        let headers = request.headers();
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        setup.traces.begin_request(method, route, text("traceparent"), text("tracestate"))
    };
    let response = next.run(request).await;
    let status = response.status();
    counted.end(status.as_u16());
    if let Some(trace) = trace {
        let served = response.extensions().get::<HowServed>();
        let receipt = served.and_then(|served| served.receipt.as_deref());
        trace.end_request(status.as_u16(), served.map(|served| served.status), receipt);
    }
    response
}
