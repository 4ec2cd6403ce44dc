//! The MCP server: takes calls, hands them on, words the answers. Nothing below it knows of MCP.

use std::sync::Arc;

use axum::http::request::Parts;
use isolator_pool::admission::Client;
use isolator_pool::pools::{ExecuteError, Pools};
use isolator_pool::quote::quoted;
use isolator_pool::run::{RunError, Watch};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CustomRequest,
    CustomResult, ErrorCode, ErrorData, Implementation, ListToolsResult, PaginatedRequestParams,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::arguments::{Arguments, InvalidArgument};
use crate::budget::Budget;
use crate::config::Config;
use crate::explain::Context;
use crate::progress::Progress;
use crate::report::Report;
use crate::snippets::Snippets;
use crate::{source, tool};

/// The server; cheap to clone.
#[derive(Clone)]
pub struct Server {
    config: Arc<Config>,
    snippets: Arc<Snippets>,
    pools: Arc<Pools>,
    in_flight: Budget,
}

/// Who a call is from, and whether anybody is left to hear of it; put beside a request by a transport with
/// several clients.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Who it is.
    pub client: Client,
    /// Cancelled when the client has gone and will not come back for the answer.
    pub gone: CancellationToken,
}

/// Longest message, in bytes: the largest request with all its files in base64, and room for its
/// code and its standard input.
pub const MAX_MESSAGE: usize = 32 << 20;

/// How many clients a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clients {
    /// The host that started it.
    One,
    /// Whoever calls; each shall leave something to the others.
    Several,
}

/// Bytes of code, files and input that all requests being served may hold together. Each is held two
/// or three times on its way: as text, as a tar, as frames.
const MAX_IN_FLIGHT: usize = 128 << 20;

impl Server {
    /// A server on running pools, for one client or for several.
    pub fn new(config: Arc<Config>, pools: Arc<Pools>, clients: Clients) -> Self {
        let most_of_one = match clients {
            Clients::One => MAX_IN_FLIGHT,
            Clients::Several => MAX_IN_FLIGHT / 2,
        };
        Self {
            snippets: Arc::new(Snippets::new(&config)),
            in_flight: Budget::new(MAX_IN_FLIGHT, most_of_one),
            config,
            pools,
        }
    }

    /// Runs one call. The outer error is the caller's mistake.
    async fn execute_code(
        &self,
        client: &Client,
        arguments: Value,
        watch: Option<Watch>,
    ) -> Result<CallToolResult, InvalidArgument> {
        let arguments = Arguments::parse(arguments)?;
        let mut share = self.in_flight.share(client);
        if !share.grow(arguments.weight()) {
            return Ok(too_much_at_once());
        }
        let mut request = source::resolve(arguments, &self.config, &self.snippets)?;
        request.run.watch = watch;
        let executed = self.pools.execute(&request.language.name, client, &request.run).await;
        let (outcome, receipt) = match executed {
            Ok(executed) => executed,
            Err(error) => return Ok(sandbox_fault(&error)),
        };
        let context = Context {
            config: &self.config,
            language: &request.language,
            timeout: request.run.timeout,
            resources: request.run.resources,
        };
        Ok(answer(&Report::new(&outcome, &receipt, &context)))
    }
}

fn answer(report: &Report) -> CallToolResult {
    let content = vec![ContentBlock::text(report.to_text())];
    let mut result = if report.is_failure() {
        CallToolResult::error(content)
    } else {
        CallToolResult::success(content)
    };
    match serde_json::to_value(report) {
        Ok(value) => result.structured_content = Some(value),
        Err(error) => tracing::error!(%error, "a report could not be written as JSON"),
    }
    result
}

/// The sandbox, not the program, has failed: the model shall not look for the mistake in its code.
fn sandbox_fault(error: &ExecuteError) -> CallToolResult {
    tracing::warn!(%error, "a call got no sandbox");
    let advice = match error {
        ExecuteError::Admission(_) => "The program did not run.",
        ExecuteError::Run(RunError::WorkspaceFull(_)) => {
            "The program did not run. Send less, or ask the operator for a larger workspace."
        }
        _ => {
            "The sandbox failed, not the program, which may not have run. Try again; if it goes on, \
             tell the operator to run `isolator doctor`."
        }
    };
    CallToolResult::error(vec![ContentBlock::text(format!("Sandbox error: {error}\n\n{advice}"))])
}

fn too_much_at_once() -> CallToolResult {
    let text = format!(
        "Sandbox error: the requests being served hold more than {} MiB together\n\nThe program did \
         not run. Try again in a moment.",
        MAX_IN_FLIGHT >> 20
    );
    CallToolResult::error(vec![ContentBlock::text(text)])
}

fn invalid(error: &InvalidArgument) -> ErrorData {
    let data = json!({ "field": error.field, "message": error.message });
    ErrorData::invalid_params(error.to_string(), Some(data))
}

/// Without a word of the transport it is the host, whose end is the transport's.
fn caller(context: &RequestContext<RoleServer>) -> Caller {
    let request = context.extensions.get::<Parts>();
    let caller = request.and_then(|parts| parts.extensions.get::<Caller>()).cloned();
    caller.unwrap_or_else(|| Caller { client: Client::host(), gone: CancellationToken::new() })
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let implementation = Implementation::new("isolator", env!("CARGO_PKG_VERSION"))
            .with_title("Isolator")
            .with_description(env!("CARGO_PKG_DESCRIPTION"));
        ServerConfig::new(capabilities)
            .with_server_info(implementation)
            .with_instructions(tool::instructions(&self.config))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = vec![tool::execute_code(&self.config, &self.snippets)];
        Ok(ListToolsResult::with_all_items(tools))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        (name == tool::EXECUTE_CODE).then(|| tool::execute_code(&self.config, &self.snippets))
    }

    /// A call whose parameters have the wrong shape does not reach `call_tool`.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method == "tools/call" {
            let message = "params: a name (text) and arguments (an object) are required";
            let data = json!({ "field": "params", "message": message });
            return Err(ErrorData::invalid_params(message, Some(data)));
        }
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if request.name != tool::EXECUTE_CODE {
            let message = format!(
                "name: there is no tool {}; there is: {}",
                quoted(&request.name),
                tool::EXECUTE_CODE
            );
            return Err(ErrorData::invalid_params(message, Some(json!({ "field": "name" }))));
        }
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let Caller { client, gone } = caller(&context);
        let progress = Progress::wanted(&context);
        let watch = progress.as_ref().map(Progress::watch);
        let told = async {
            match &progress {
                Some(progress) => progress.tell().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            // Nobody reads the answer to a cancelled call; dropping the other branch ends the
            // program and removes its sandbox.
            () = context.ct.cancelled() => {
                Err(ErrorData::internal_error("the call was cancelled", None))
            }
            () = gone.cancelled() => Err(ErrorData::internal_error("the client has gone", None)),
            result = self.execute_code(&client, arguments, watch) => match result {
                Ok(result) => Ok(result.into()),
                Err(error) => Err(invalid(&error)),
            },
            never = told => match never {},
        }
    }
}
