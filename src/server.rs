//! The MCP server: takes calls, hands them on, words the answers. Nothing below it knows of MCP.

use std::sync::Arc;

use axum::http::request::Parts;
use isolator_pool::admission::Client;
use isolator_pool::output::Watch;
use isolator_pool::pools::Pools;
use isolator_pool::quote::quoted;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CustomRequest, CustomResult,
    ErrorCode, ErrorData, Implementation, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ServerCapabilities,
    ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::answer;
use crate::arguments::{
    self, Arguments, CheckSyntax, GetResult, InvalidArgument, TestCode, required,
};
use crate::budget::Budget;
use crate::config::{Config, Language, ResultsConfig};
use crate::detached::{Detached, Stand};
use crate::explain::Context;
use crate::handles::Capacity;
use crate::progress::Progress;
use crate::report::Report;
use crate::results::{ReadError, Results};
use crate::snippets::Snippets;
use crate::source;
use crate::syntax::{self, Syntax};
use crate::tools::{self, CHECK_SYNTAX, EXECUTE_CODE, GET_RESULT, TEST_CODE, Tested};

/// The server; cheap to clone.
#[derive(Clone)]
pub struct Server {
    config: Arc<Config>,
    snippets: Arc<Snippets>,
    pools: Arc<Pools>,
    in_flight: Budget,
    results: Arc<Results>,
    detached: Arc<Detached<Answer>>,
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

/// What a call comes to. The error is the caller's mistake.
type Answer = Result<CallToolResult, InvalidArgument>;

/// What is known of a call besides its arguments.
struct Call {
    client: Client,
    /// Told what the program prints, where the caller wants to know.
    watch: Option<Watch>,
}

/// Bytes of code, files and input that all requests being served may hold together. Each is held two
/// or three times on its way: as text, as a tar, as frames.
const MAX_IN_FLIGHT: usize = 128 << 20;

/// Bytes of what runs left to be read for a while, unless the operator allows each of them much.
const MAX_KEPT: usize = 64 << 20;

impl Server {
    /// A server on running pools, for one client or for several.
    pub fn new(config: Arc<Config>, pools: Arc<Pools>, clients: Clients) -> Self {
        let of_one = |all: usize| match clients {
            Clients::One => all,
            Clients::Several => all / 2,
        };
        let ResultsConfig { files, output, keep_for, detach_after } = config.results;
        // Whatever the operator allows one run to leave fits in, for every client.
        let of_run = usize::try_from(files).unwrap_or(usize::MAX).saturating_add(2 * output);
        let all = MAX_KEPT.max(of_run.saturating_mul(2));
        let kept = Capacity { all, of_one: of_one(all) };
        let detached = Detached::new(detach_after, keep_for.saturating_add(config.longest_call()));
        Self {
            snippets: Arc::new(Snippets::new(&config)),
            in_flight: Budget::new(MAX_IN_FLIGHT, of_one(MAX_IN_FLIGHT)),
            results: Arc::new(Results::new(kept, keep_for)),
            detached: Arc::new(detached),
            config,
            pools,
        }
    }

    /// Serves one call.
    async fn call(&self, name: &str, arguments: Value, call: Call) -> Answer {
        match (name, &self.config.test_code) {
            (EXECUTE_CODE, _) if call.watch.is_some() => self.execute_code(arguments, call).await,
            (EXECUTE_CODE, _) => self.execute_or_detach(arguments, call).await,
            (GET_RESULT, _) => self.get_result(arguments, call).await,
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

    /// A caller that follows the progress of a program waits for its end; others are not kept waiting for
    /// longer than they are likely to.
    async fn execute_or_detach(&self, arguments: Value, call: Call) -> Answer {
        let client = call.client.clone();
        let server = self.clone();
        let stand = self
            .detached
            .attend(&client, async move { server.execute_code(arguments, call).await });
        self.stand(stand.await)
    }

    async fn get_result(&self, arguments: Value, Call { client, .. }: Call) -> Answer {
        let GetResult { handle, cancel } = arguments::parse(arguments)?;
        let handle = required(handle, "handle", "what execute_code answered with")?;
        let stand = match cancel {
            true => self.detached.end(&client, &handle),
            false => self.detached.wait(&client, &handle).await,
        };
        stand.map_or_else(|| Ok(answer::unknown_handle()), |stand| self.stand(stand))
    }

    fn stand(&self, stand: Stand<Answer>) -> Answer {
        match stand {
            Stand::Ended(answer) => answer,
            Stand::GoesOn(handle) => Ok(answer::of_running(handle, self.config.results.keep_for)),
            Stand::Gone => Ok(answer::gone()),
        }
    }

    async fn execute_code(&self, arguments: Value, Call { client, watch }: Call) -> Answer {
        let arguments = Arguments::parse(arguments)?;
        let mut share = self.in_flight.share(&client);
        if !share.grow(arguments.weight()) {
            return Ok(answer::too_much_at_once(MAX_IN_FLIGHT));
        }
        let mut request = source::resolve(arguments, &self.config, &self.snippets)?;
        let found = self.config.policies.check(&request.language.name, request.unchecked).await;
        if !found.is_empty() {
            return Ok(answer::of_report(&Report::refused(found), Vec::new()));
        }
        request.run.watch = watch;
        let executed = self.pools.execute(&request.language.name, &client, &request.run).await;
        let (outcome, receipt) = match executed {
            Ok(executed) => executed,
            Err(error) => return Ok(answer::sandbox_fault(&error)),
        };
        let context = Context {
            config: &self.config,
            language: &request.language,
            timeout: request.run.timeout,
            resources: request.run.resources,
        };
        let keep = (&*self.results, &client);
        Ok(answer::of_run(outcome, &receipt, &context, &request.wanted, keep))
    }

    async fn check_syntax(&self, arguments: Value, Call { client, .. }: Call) -> Answer {
        let CheckSyntax { language, code } = arguments::parse(arguments)?;
        let language = required(language, "language", "the language of the code")?;
        let code = required(code, "code", "the source of the program")?;
        let mut share = self.in_flight.share(&client);
        if !share.grow(code.len()) {
            return Ok(answer::too_much_at_once(MAX_IN_FLIGHT));
        }
        let language = source::language(&language, &self.config)?;
        let checked = self.syntax_of(&language, &code, &client).await?;
        Ok(checked.map_or_else(|no_verdict| no_verdict, |syntax| answer::of_data(&syntax)))
    }

    async fn test_code(
        &self,
        arguments: Value,
        Call { client, watch }: Call,
        language: &Arc<Language>,
    ) -> Answer {
        let arguments: TestCode = arguments::parse(arguments)?;
        let mut share = self.in_flight.share(&client);
        if !share.grow(arguments.code.as_ref().map_or(0, String::len)) {
            return Ok(answer::too_much_at_once(MAX_IN_FLIGHT));
        }
        let (code, mut request) = source::resolve_test(arguments, language, &self.config)?;
        match self.syntax_of(language, &code, &client).await? {
            Ok(Syntax { valid: true, .. }) => {}
            Ok(invalid) => return Ok(answer::of_data(&Tested::invalid(invalid))),
            Err(no_verdict) => return Ok(no_verdict),
        }
        let found = self.config.policies.check(&language.name, request.unchecked).await;
        if !found.is_empty() {
            return Ok(answer::of_data(&Tested::forbidden(found)));
        }
        request.run.watch = watch;
        Ok(match self.pools.execute(&language.name, &client, &request.run).await {
            Ok((outcome, _)) => answer::of_data(&Tested::executed(&outcome)),
            Err(error) => answer::sandbox_fault(&error),
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
            Err(error) => return Ok(Err(answer::sandbox_fault(&error))),
        };
        Ok(syntax::verdict(check, &outcome, code)
            .map_err(|error| answer::no_verdict(&error, &outcome)))
    }
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
        let capabilities = ServerCapabilities::builder().enable_resources().enable_tools().build();
        let implementation = Implementation::new("isolator", env!("CARGO_PKG_VERSION"))
            .with_title("Isolator")
            .with_description(env!("CARGO_PKG_DESCRIPTION"));
        ServerConfig::new(capabilities)
            .with_server_info(implementation)
            .with_instructions(tools::instructions(&self.config))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all(&self.config, &self.snippets)))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::all(&self.config, &self.snippets).into_iter().find(|tool| tool.name == name)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let data = Some(json!({ "uri": request.uri }));
        let contents = self.results.read(&caller(&context).client, &request.uri);
        let contents = contents.map_err(|error| match error {
            ReadError::Unknown => ErrorData::resource_not_found(error.to_string(), data),
            ReadError::Range(_) => ErrorData::invalid_params(error.to_string(), data),
        })?;
        Ok(ReadResourceResult::new(vec![contents]).into())
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
        let version = context.protocol_version();
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
                Ok(result) => Ok(answer::understood(result, version.as_ref()).into()),
                Err(error) => Err(invalid(&error)),
            },
            never = told => match never {},
        }
    }
}
