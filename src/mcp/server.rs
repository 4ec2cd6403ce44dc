//! The MCP server: receives requests and passes them on. Nothing below `mcp` knows the protocol.

use std::sync::Arc;

use http::request::Parts;
use isolator_pool::pool::admission::Client;
use isolator_pool::quote::quoted;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, CompletionInfo,
    CustomRequest, CustomResult, DiscoverResult, ErrorCode, ErrorData, Implementation,
    InitializeRequestParams, InitializeResult, ListPromptsRequestMethod, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Reference,
    ServerCapabilities, ServerConfig, SubscribeRequestParams, SubscriptionFilter, Tool,
    UnsubscribeRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};

use crate::calls::command::{COMMAND, COMPLETE_CODE};
use crate::calls::{Again, Call, CallOutcome, Clients, Serving, Setup, ToolName};
use crate::current::Current;
use crate::mcp::answers::{Answers, NoSuchTool, ToolCall};
use crate::mcp::caller::{
    ConnectedClient, SESSION_HEADER, TakenArguments, caller, extension, queue_deadline, say_outcome,
};
use crate::mcp::icon::icons;
use crate::mcp::keyed::CallKey;
use crate::mcp::list_changes::{Changes, Session};
use crate::mcp::progress::Progress;
use crate::mcp::render::{self, Answer};
use crate::mcp::resources::{self, Resources};
use crate::mcp::tools;
use crate::metrics::operations::{Method, NO_TOOL, OperationEnd, Operations};
use crate::metrics::reloads::Reloads;
use crate::metrics::{Metrics, Sources};
use crate::notice::Notice;
use crate::request::snippets::Snippets;
use crate::request::understand;
use crate::request::understand::given::Given;
use crate::result::kept::{self, ReadError};
use crate::traces::Origin;

/// The key of a request's `_meta` that says `false` if its caller waits until the program has ended.
const DETACH: &str = "isolator/detach";

/// The server for one client; cheap to clone.
#[derive(Clone)]
pub(crate) struct Server {
    now: Current<Configured>,
    changes: Arc<Changes>,
    operations: Arc<Operations>,
    session: Arc<Session>,
}

/// The state that serves requests which begin under one configuration.
struct Configured {
    setup: Setup,
    snippets: Arc<Snippets>,
    answers: Answers,
    resources: Resources,
    /// The tools at its beginning. Only the names of snippets in them change, and listing those for every call would
    /// take too long.
    tools: Vec<Tool>,
}

impl Server {
    /// A server on running pools, for one client or for several.
    pub(crate) fn new(setup: Setup, clients: Clients) -> Self {
        let snippets = Arc::new(Snippets::new(&setup.config));
        let answers = Answers::new(&setup, Arc::clone(&snippets), clients);
        let tools = ToolName::ALL.into_iter().map(ToolName::as_str);
        let called: Vec<_> = tools.chain([COMPLETE_CODE]).collect();
        Self {
            changes: Changes::new(Arc::clone(&snippets), setup.packages.clone()),
            now: Current::new(Configured::new(setup, snippets, answers)),
            operations: Arc::new(Operations::new(&called)),
            session: Arc::default(),
        }
    }

    /// Serves requests under another configuration from now on. Those that have begun end under theirs. Clients are notified if
    /// that changes the lists of tools or resources.
    pub(crate) fn reconfigure(&self, setup: Setup) {
        let before = self.now.get();
        let snippets = Arc::new(Snippets::new(&setup.config));
        let answers = before.answers.reconfigured(&setup, Arc::clone(&snippets));
        let packages = setup.packages.clone();
        let next = Configured::new(setup, Arc::clone(&snippets), answers);
        let has_other_lists = before.lists() != next.lists();
        self.now.set(next);
        before.setup.packages.replaced(&packages);
        self.changes.reconfigure(snippets, packages, has_other_lists);
    }

    /// The setup of requests that begin now.
    pub(crate) fn setup(&self) -> Setup {
        self.now.get().setup.clone()
    }

    /// Everything that serves requests which begin now.
    pub(crate) fn serving(&self) -> Serving {
        let now = self.now.get();
        let (calls, setup) = (now.answers.calls().clone(), now.setup.clone());
        Serving { calls, setup, operations: Arc::clone(&self.operations) }
    }

    /// Lets the calls of commands end that only hold a session, because the server stops.
    pub(crate) fn release_sessions(&self) {
        self.now.get().answers.calls().sessions().release();
    }

    /// The notice that it is about to stop.
    pub(crate) fn notice(&self) -> Notice {
        self.now.get().answers.calls().sessions().notice()
    }

    /// How many sessions are open.
    pub(crate) fn open_sessions(&self) -> usize {
        self.now.get().answers.calls().sessions().counts().open
    }

    /// The same server for another session.
    pub(crate) fn for_another(&self) -> Self {
        Self { session: Arc::default(), ..self.clone() }
    }

    /// Metrics for operators. `engine` is the kind of the engine.
    pub(crate) fn metrics(&self, engine: &'static str, reloads: Arc<Reloads>) -> Metrics {
        let (now, operations) = (self.now.clone(), Arc::clone(&self.operations));
        Metrics::new(move || {
            let now = now.get();
            let Setup { pools, packages, audit, traces, .. } = now.setup.clone();
            Sources {
                engine,
                pools,
                sessions: now.answers.calls().sessions(),
                operations: Arc::clone(&operations),
                audit,
                packages,
                held: now.answers.held(),
                reloads: Arc::clone(&reloads),
                traces,
            }
        })
    }

    /// Counts an operation.
    fn counted<T>(
        &self,
        method: Method,
        run: impl FnOnce() -> Result<T, ErrorData>,
    ) -> Result<T, ErrorData> {
        let operation = self.operations.begin(method);
        let result = run();
        operation.end(end_of(&result));
        result
    }

    /// The changes that clients are notified of.
    pub(crate) fn changes(&self) -> Arc<Changes> {
        Arc::clone(&self.changes)
    }
}

impl Configured {
    fn new(setup: Setup, snippets: Arc<Snippets>, answers: Answers) -> Self {
        let Setup { config, pools, packages, .. } = setup.clone();
        let tools = tools::all(&config, &snippets);
        let sessions = answers.calls().sessions();
        let resources = Resources::new(config, Arc::clone(&snippets), pools, sessions, packages);
        Self { setup, snippets, answers, resources, tools }
    }

    /// The lists that clients get, to compare.
    fn lists(&self) -> Value {
        let (resources, templates) = (self.resources.list(), self.resources.templates());
        json!([tools::all(&self.setup.config, &self.snippets), resources, templates])
    }

    /// The error of a call that names a tool which is not there.
    fn no_such_tool(&self, name: &str) -> ErrorData {
        let listed = ToolName::ALL.into_iter().filter(|tool| tool.is_listed(&self.setup.config));
        let names: Vec<_> = listed.map(ToolName::as_str).collect();
        let message =
            format!("there is no tool {}; the tools are: {}", quoted(name), names.join(", "));
        let data = json!({ "field": "name", "message": message });
        ErrorData::invalid_params(format!("name: {message}"), Some(data))
    }

    async fn read(&self, uri: &str, client: &Client) -> Result<ReadResourceResponse, ErrorData> {
        if !uri.starts_with(kept::PREFIX) {
            return self.resources.read(uri, client).await.map(Into::into);
        }
        let part = self.answers.read(client, uri).map_err(|error| match error {
            ReadError::Lost(lost) => resources::lost(uri, &lost),
            ReadError::Unknown => {
                ErrorData::resource_not_found(error.to_string(), Some(json!({ "uri": uri })))
            }
            ReadError::Range(_) => {
                ErrorData::invalid_params(error.to_string(), Some(json!({ "uri": uri })))
            }
        })?;
        Ok(ReadResourceResult::new(vec![resources::part_of_run(uri, part)]).into())
    }
}

/// Refuses a cursor, because every list has only one page.
fn all_at_once(request: Option<PaginatedRequestParams>) -> Result<(), ErrorData> {
    match request.and_then(|request| request.cursor) {
        None => Ok(()),
        Some(_) => Err(ErrorData::invalid_params("cursor: every list has only one page", None)),
    }
}

/// How an operation with this result has ended.
fn end_of<T>(result: &Result<T, ErrorData>) -> OperationEnd {
    result.as_ref().err().map_or(OperationEnd::Fine, |error| OperationEnd::of_code(error.code.0))
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
            .with_instructions(tools::instructions(&self.now.get().setup.config))
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let negotiated = self.counted(Method::Initialize, || self.negotiate_initialize(&request));
        context.peer.set_peer_info(request);
        negotiated
    }

    async fn discover(
        &self,
        _context: RequestContext<RoleServer>,
    ) -> Result<DiscoverResult, ErrorData> {
        self.counted(Method::Discover, || {
            let versions = self.supported_protocol_versions().into_owned();
            Ok(DiscoverResult::from_server_info(versions, self.get_info()))
        })
    }

    async fn ping(&self, _context: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.counted(Method::Ping, || Ok(()))
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        self.counted(Method::ListTools, || {
            all_at_once(request)?;
            let now = self.now.get();
            Ok(ListToolsResult::with_all_items(tools::all(&now.setup.config, &now.snippets)))
        })
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.now.get().tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        self.counted(Method::ListResources, || {
            all_at_once(request)?;
            Ok(ListResourcesResult::with_all_items(self.now.get().resources.list()))
        })
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        self.counted(Method::ListTemplates, || {
            all_at_once(request)?;
            Ok(ListResourceTemplatesResult::with_all_items(self.now.get().resources.templates()))
        })
    }

    /// rmcp would answer with an empty list, although the server has no prompts.
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
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let operation = self.operations.begin(Method::ReadResource);
        let read = self.now.get().read(&request.uri, &caller(&context).client).await;
        operation.end(end_of(&read));
        read
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        self.counted(Method::Complete, || {
            let CompleteRequestParams { r#ref, argument, .. } = &request;
            // There are no prompts.
            let Reference::Resource(template) = r#ref else {
                return Ok(CompleteResult::new(CompletionInfo::default()));
            };
            let now = self.now.get();
            let completion = now.resources.complete(&template.uri, &argument.name, &argument.value);
            Ok(CompleteResult::new(completion))
        })
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        let wanted = requested.resource_subscriptions.iter().flatten();
        let now = self.now.get();
        let accepted = wanted.filter(|uri| now.resources.check_subscribable(uri).is_ok());
        let filter = SubscriptionFilter::builder()
            .tools_list_changed()
            .resources_list_changed()
            .resource_subscriptions(accepted);
        Some(filter.build())
    }

    async fn listen(&self, listener: SubscriptionContext) -> Result<(), ErrorData> {
        self.changes.tell(&listener).await;
        Ok(())
    }

    /// Older clients are notified without subscribing.
    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.changes.tell_session(&self.session, context.peer);
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.now.get().resources.check_subscribable(&request.uri)?;
        self.session.subscribe(request.uri);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.session.unsubscribe(&request.uri);
        Ok(())
    }

    /// A call whose parameters have the wrong shape does not reach `call_tool`.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method == "tools/call" {
            let client = caller(&context).client;
            let now = self.now.get();
            now.setup.audit.begin(&client, NO_TOOL).answered("invalid_arguments");
            self.operations.begin_call(NO_TOOL).end(OperationEnd::InvalidParams);
            say_outcome(&context, CallOutcome::NotRun(Again::Never));
            let message = "params: a name (text) and arguments (an object) are required";
            let data = json!({ "field": "params", "message": message });
            return Err(ErrorData::invalid_params(message, Some(data)));
        }
        let message = format!("there is no method {}", quoted(&request.method));
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, None))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        mut context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let operation = self.operations.begin_call(&request.name);
        let now = self.now.get();
        let arguments = match extension::<TakenArguments>(&context) {
            Some(taken) => Given::Object(taken.take()),
            None => Value::Object(request.arguments.unwrap_or_default()).into(),
        };
        let trace = now.setup.traces.begin(|| {
            let mut called = now.tools.iter().map(|tool| &*tool.name).chain([COMPLETE_CODE]);
            let parts = context.extensions.get::<Parts>();
            let protocol_session = parts.and_then(|parts| parts.headers.get(SESSION_HEADER));
            let protocol_session = protocol_session.and_then(|value| value.to_str().ok());
            Origin {
                tool: called.find(|name| **name == request.name),
                version: context.protocol_version().map(|version| version.to_string()),
                request: context.id.to_string(),
                protocol_session: protocol_session.map(ToOwned::to_owned),
                session: understand::named_session(&arguments),
                traceparent: context.meta.get_traceparent(),
                tracestate: context.meta.get_tracestate(),
            }
        });
        // Older clients name their session only here.
        let is_bound = understand::named_session(&arguments).is_some();
        let ConnectedClient { client, gone } = caller(&context);
        let version = context.protocol_version();
        let options = context.meta.remove(COMMAND);
        let progress = Progress::wanted(&context, options.is_some());
        let call = Call {
            client,
            watch: progress.as_ref().map(Progress::watch),
            steps: progress.as_ref().map(Progress::steps),
            queue_deadline: queue_deadline(&context, progress.is_some()),
        };
        let waits = context.meta.get(DETACH) == Some(&Value::Bool(false));
        let progress_sent = async {
            match &progress {
                Some(progress) => progress.tell().await,
                None => std::future::pending().await,
            }
        };
        // get_result runs nothing, and each call of it may have another answer.
        let is_fetched = request.name == ToolName::GetResult.as_str();
        let key = if is_fetched { Ok(None) } else { CallKey::of(&context) };
        let name = request.name.clone().into_owned();
        let asked = ToolCall { name, arguments, call, waits, options };
        let answered = now.answers.answer_keyed(key, asked);
        let cancelled = |why| (Err(ErrorData::internal_error(why, None)), OperationEnd::Cancelled);
        let (answer, end) = tokio::select! {
            biased;
            // The client reads no answer to a cancelled call; dropping the other branch ends the
            // program and removes its sandbox.
            () = context.ct.cancelled() => cancelled("the call was cancelled"),
            () = gone.cancelled() => cancelled("the client has disconnected"),
            answer = answered => match answer {
                Ok(answer) => {
                    let end = if answer.is_failure { OperationEnd::ToolError } else { OperationEnd::Fine };
                    (Ok(answer), end)
                }
                Err(NoSuchTool) => (Err(now.no_such_tool(&request.name)), OperationEnd::InvalidParams),
            },
            never = progress_sent => match never {},
        };
        operation.end(end);
        if !is_fetched {
            let outcome = match (&answer, end) {
                (Ok(answer), _) => answer.outcome,
                (Err(_), OperationEnd::Cancelled) => CallOutcome::Unknown,
                (Err(_), _) => CallOutcome::NotRun(Again::Never),
            };
            say_outcome(&context, if is_bound { outcome.here() } else { outcome });
        }
        if let Some(trace) = trace {
            let answer = answer.as_ref().ok();
            let receipt = answer.and_then(|answer| answer.receipt.as_ref());
            let error = Some(end.error_type()).filter(|error| !error.is_empty());
            trace.end(error, answer.map(|answer| answer.status), receipt.filter(|_| !is_fetched));
        }
        answer.map(|Answer { result, .. }| render::for_version(result, version.as_ref()).into())
    }
}
