//! The MCP server: takes calls, hands them on, words the answers. Nothing below it knows of MCP.

use std::sync::Arc;

use axum::http::request::Parts;
use isolator_pool::admission::Client;
use isolator_pool::outcome::Outcome;
use isolator_pool::pools::{ExecuteError, Pools};
use isolator_pool::quote::quoted;
use isolator_pool::run::{RunError, Watch};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestParams, CompleteResult,
    ContentBlock, CustomRequest, CustomResult, ErrorCode, ErrorData, Implementation,
    ListPromptsRequestMethod, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
    Reference, ServerCapabilities, ServerConfig, SubscribeRequestParams, SubscriptionFilter, Tool,
    UnsubscribeRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{RoleServer, ServerHandler};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::arguments::{self, Arguments, CheckSyntax, InvalidArgument, TestCode, required};
use crate::budget::Budget;
use crate::changes::{Changes, Session};
use crate::config::{Config, Language};
use crate::explain::Context;
use crate::icon::icons;
use crate::progress::Progress;
use crate::report::Report;
use crate::resources::Resources;
use crate::snippets::Snippets;
use crate::source;
use crate::syntax::{self, Syntax};
use crate::tools::{self, CHECK_SYNTAX, EXECUTE_CODE, TEST_CODE, Tested};

/// The server, as one client has it; cheap to clone.
#[derive(Clone)]
pub struct Server {
    config: Arc<Config>,
    snippets: Arc<Snippets>,
    pools: Arc<Pools>,
    resources: Resources,
    changes: Arc<Changes>,
    in_flight: Budget,
    session: Arc<Session>,
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

/// What is known of a call besides its arguments.
struct Call {
    client: Client,
    /// Told what the program prints, where the caller wants to know.
    watch: Option<Watch>,
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
        let snippets = Arc::new(Snippets::new(&config));
        let resources =
            Resources::new(Arc::clone(&config), Arc::clone(&snippets), Arc::clone(&pools));
        Self {
            changes: Changes::new(Arc::clone(&snippets)),
            snippets,
            resources,
            in_flight: Budget::new(MAX_IN_FLIGHT, most_of_one),
            config,
            pools,
            session: Arc::default(),
        }
    }

    /// The same server for another session.
    pub fn for_another(&self) -> Self {
        Self { session: Arc::default(), ..self.clone() }
    }

    /// What changes between the calls.
    pub fn changes(&self) -> Arc<Changes> {
        Arc::clone(&self.changes)
    }

    /// Serves one call. The outer error is the caller's mistake.
    async fn call(
        &self,
        name: &str,
        arguments: Value,
        call: Call,
    ) -> Result<CallToolResult, InvalidArgument> {
        match (name, &self.config.test_code) {
            (EXECUTE_CODE, _) => self.execute_code(arguments, call).await,
            (CHECK_SYNTAX, _) => self.check_syntax(arguments, call).await,
            (TEST_CODE, Some(language)) => self.test_code(arguments, call, language).await,
            _ => {
                let tools = tools::all(&self.config, &self.snippets);
                let names: Vec<_> = tools.iter().map(|tool| &*tool.name).collect();
                let name = quoted(name);
                let message = format!("there is no tool {name}; there is: {}", names.join(", "));
                Err(InvalidArgument::new("name", message))
            }
        }
    }

    async fn execute_code(
        &self,
        arguments: Value,
        Call { client, watch }: Call,
    ) -> Result<CallToolResult, InvalidArgument> {
        let arguments = Arguments::parse(arguments)?;
        let mut share = self.in_flight.share(&client);
        if !share.grow(arguments.weight()) {
            return Ok(too_much_at_once());
        }
        let mut request = source::resolve(arguments, &self.config, &self.snippets)?;
        let found = self.config.policies.check(&request.language.name, request.unchecked).await;
        if !found.is_empty() {
            return Ok(answer(&Report::refused(found)));
        }
        request.run.watch = watch;
        let executed = self.pools.execute(&request.language.name, &client, &request.run).await;
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

    async fn check_syntax(
        &self,
        arguments: Value,
        Call { client, .. }: Call,
    ) -> Result<CallToolResult, InvalidArgument> {
        let CheckSyntax { language, code } = arguments::parse(arguments)?;
        let language = required(language, "language", "the language of the code")?;
        let code = required(code, "code", "the source of the program")?;
        let mut share = self.in_flight.share(&client);
        if !share.grow(code.len()) {
            return Ok(too_much_at_once());
        }
        let language = source::language(&language, &self.config)?;
        let checked = self.syntax_of(&language, &code, &client).await?;
        Ok(checked.map_or_else(|no_verdict| no_verdict, |syntax| as_data(&syntax)))
    }

    async fn test_code(
        &self,
        arguments: Value,
        Call { client, watch }: Call,
        language: &Arc<Language>,
    ) -> Result<CallToolResult, InvalidArgument> {
        let arguments: TestCode = arguments::parse(arguments)?;
        let mut share = self.in_flight.share(&client);
        if !share.grow(arguments.code.as_ref().map_or(0, String::len)) {
            return Ok(too_much_at_once());
        }
        let (code, mut request) = source::resolve_test(arguments, language, &self.config)?;
        match self.syntax_of(language, &code, &client).await? {
            Ok(Syntax { valid: true, .. }) => {}
            Ok(invalid) => return Ok(as_data(&Tested::invalid(invalid))),
            Err(no_verdict) => return Ok(no_verdict),
        }
        let found = self.config.policies.check(&language.name, request.unchecked).await;
        if !found.is_empty() {
            return Ok(as_data(&Tested::forbidden(found)));
        }
        request.run.watch = watch;
        Ok(match self.pools.execute(&language.name, &client, &request.run).await {
            Ok((outcome, _)) => as_data(&Tested::executed(&outcome)),
            Err(error) => sandbox_fault(&error),
        })
    }

    /// Checks a program's syntax in a sandbox of its own. The inner error is the answer where there is no
    /// verdict.
    async fn syntax_of(
        &self,
        language: &Language,
        code: &str,
        client: &Client,
    ) -> Result<Result<Syntax, CallToolResult>, InvalidArgument> {
        let (check, request) = syntax::request(language, code, &self.config)?;
        let outcome = match self.pools.execute(&language.name, client, &request).await {
            Ok((outcome, _)) => outcome,
            Err(error) => return Ok(Err(sandbox_fault(&error))),
        };
        Ok(syntax::verdict(check, &outcome, code).map_err(|error| no_verdict(&error, &outcome)))
    }
}

/// An answer that is data and nothing else. What it says of a program is no failure of the tool.
fn as_data(data: &impl Serialize) -> CallToolResult {
    let text = serde_json::to_string(data).and_then(|text| Ok((serde_json::to_value(data)?, text)));
    match text {
        Ok((value, text)) => {
            let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
            result.structured_content = Some(value);
            result
        }
        Err(error) => {
            tracing::error!(%error, "an answer could not be written as JSON");
            CallToolResult::error(vec![ContentBlock::text("The answer could not be written.")])
        }
    }
}

fn no_verdict(error: &syntax::NoVerdict, outcome: &Outcome) -> CallToolResult {
    tracing::warn!(%error, status = outcome.status.as_str(), "a syntax check has no verdict");
    let text = format!("Syntax check failed: {error}\n\nThe program may be valid or not.");
    CallToolResult::error(vec![ContentBlock::text(text)])
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

/// A list has one page, so there is none that a cursor could stand for.
fn all_at_once(request: Option<PaginatedRequestParams>) -> Result<(), ErrorData> {
    match request.and_then(|request| request.cursor) {
        None => Ok(()),
        Some(_) => Err(ErrorData::invalid_params("cursor: no list has a second page", None)),
    }
}

/// Without a word of the transport it is the host, whose end is the transport's.
fn caller(context: &RequestContext<RoleServer>) -> Caller {
    let request = context.extensions.get::<Parts>();
    let caller = request.and_then(|parts| parts.extensions.get::<Caller>()).cloned();
    caller.unwrap_or_else(|| Caller { client: Client::host(), gone: CancellationToken::new() })
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_resources()
            .enable_tools()
            .enable_resources_list_changed()
            .enable_resources_subscribe()
            .enable_tool_list_changed()
            .build();
        let implementation = Implementation::new("isolator", env!("CARGO_PKG_VERSION"))
            .with_title("Isolator")
            .with_description(env!("CARGO_PKG_DESCRIPTION"))
            .with_icons(icons());
        ServerConfig::new(capabilities)
            .with_server_info(implementation)
            .with_instructions(tools::instructions(&self.config))
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        all_at_once(request)?;
        Ok(ListToolsResult::with_all_items(tools::all(&self.config, &self.snippets)))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::all(&self.config, &self.snippets).into_iter().find(|tool| tool.name == name)
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        all_at_once(request)?;
        Ok(ListResourcesResult::with_all_items(self.resources.list()))
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        all_at_once(request)?;
        Ok(ListResourceTemplatesResult::with_all_items(self.resources.templates()))
    }

    /// The protocol's implementation would answer with an empty list, though none is declared.
    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.resources.read(&request.uri).map(Into::into)
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let completion = match &request.r#ref {
            Reference::Resource(template) => {
                let argument = &request.argument;
                self.resources.complete(&template.uri, &argument.name, &argument.value)
            }
            // There are no prompts.
            _ => Default::default(),
        };
        Ok(CompleteResult::new(completion))
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        let wanted = requested.resource_subscriptions.iter().flatten();
        let told = wanted.filter(|uri| self.resources.is_told_of(uri).is_ok());
        let accepted = SubscriptionFilter::builder()
            .tools_list_changed()
            .resources_list_changed()
            .resource_subscriptions(told);
        Some(accepted.build())
    }

    async fn listen(&self, listener: SubscriptionContext) -> Result<(), ErrorData> {
        self.changes.tell(&listener).await;
        Ok(())
    }

    /// Older clients are told without having asked.
    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.changes.tell_session(&self.session, context.peer);
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.resources.is_told_of(&request.uri)?;
        self.session.want(request.uri);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.session.forget(&request.uri);
        Ok(())
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
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let Caller { client, gone } = caller(&context);
        let progress = Progress::wanted(&context);
        let call = Call { client, watch: progress.as_ref().map(Progress::watch) };
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
            result = self.call(&request.name, arguments, call) => match result {
                Ok(result) => Ok(result.into()),
                Err(error) => Err(invalid(&error)),
            },
            never = told => match never {},
        }
    }
}
