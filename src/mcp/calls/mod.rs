//! The calls of the tools: what each tool does, from its arguments to its answer. Independent of the transport.

mod bounds;
mod checks;
mod packages;
mod policies;
mod sessions;

use std::sync::Arc;

use isolator_pool::pool::admission::Client;
use isolator_pool::pool::counts::Failure;
use isolator_pool::pool::pools::Pools;
use isolator_pool::quote::quoted;
use isolator_pool::run::output::Watch;
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::Value;

use self::bounds::Bounds;
use crate::audit::{Audit, Note};
use crate::config::Config;
use crate::mcp::budget::Budget;
use crate::mcp::tool_result;
use crate::mcp::tools::{
    self, CHECK_SYNTAX, CLOSE_SESSION, EXECUTE_CODE, GET_RESULT, INTERRUPT_SESSION, OPEN_SESSION,
    REWIND_SESSION, RUN_COMMAND, TEST_CODE,
};
use crate::metrics::Held;
use crate::packages::Packages;
use crate::request::arguments::{Arguments, GetResult, InvalidArgument, required};
use crate::request::resolve;
use crate::request::snippets::{self, Snippets};
use crate::request::understand::{self, given::Given};
use crate::result::detached::{Detached, RunState};
use crate::result::explain::{Caller, Context, PackagesAdvice};
use crate::result::kept::{Part, ReadError, Results};

use crate::result::report::Report;
use crate::result::so_far::SoFar;
use crate::sessions::Sessions;
use crate::traces::Traces;

/// What calls need; cheap to clone.
#[derive(Clone)]
pub(crate) struct Calls {
    config: Arc<Config>,
    snippets: Arc<Snippets>,
    pools: Arc<Pools>,
    in_flight: Budget,
    results: Arc<Results>,
    detached: Arc<Detached<Answer>>,
    sessions: Sessions,
    audit: Audit,
    packages: Packages,
    clients: Clients,
}

/// What a configuration brings to the calls that begin with it.
#[derive(Clone)]
pub(crate) struct Setup {
    /// The configuration.
    pub config: Arc<Config>,
    /// Its pools.
    pub pools: Arc<Pools>,
    /// Its sets of packages.
    pub packages: Packages,
    /// Its audit log.
    pub audit: Audit,
    /// The traces of the server, which are the same for all.
    pub traces: Traces,
}

/// How many clients a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clients {
    /// The host that started it.
    One,
    /// Any number, each limited so that it leaves something for the others.
    Several,
}

/// The result of a call. An error is the caller's mistake.
pub(crate) type Answer = Result<CallToolResult, InvalidArgument>;

/// Receives what is being done before a program can start, in a line for people; an empty line when that is over.
pub(crate) type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// What is known of a call besides its arguments.
pub(crate) struct Call {
    /// Who calls.
    pub client: Client,
    /// Receives what the program prints, if the caller follows its progress.
    pub progress: Option<Watch>,
    /// Receives what is done before that.
    pub steps: Option<Tell>,
    /// Whether the caller waits until the program has ended, however long that takes.
    pub waits_for_the_end: bool,
}

/// What an answer says of a call of which no program has run.
fn status_of(answer: &Answer) -> &str {
    let Ok(result) = answer else { return "invalid_arguments" };
    let status = result.structured_content.as_ref().and_then(|data| data["status"].as_str());
    let usual = if result.is_error == Some(true) { "error" } else { "success" };
    status.unwrap_or(usual)
}

/// Bytes of an answer.
fn weight(answer: &Answer) -> usize {
    let Ok(result) = answer else { return 0 };
    let texts = result.content.iter().map(|block| match block {
        ContentBlock::Text(text) => text.text.len(),
        ContentBlock::Image(image) => image.data.len(),
        other => serde_json::to_vec(other).map_or(0, |json| json.len()),
    });
    let data = result.structured_content.as_ref().map(Value::to_string);
    let meta = result.meta.as_ref().map(|meta| Value::Object(meta.0.clone()).to_string());
    texts.sum::<usize>() + [data, meta].into_iter().flatten().map(|json| json.len()).sum::<usize>()
}

impl Calls {
    /// For one client or for several.
    pub(crate) fn new(setup: Setup, snippets: Arc<Snippets>, clients: Clients) -> Self {
        let Setup { config, pools, packages, audit, .. } = setup;
        let Bounds { in_flight, kept, detached } = Bounds::of(&config, clients);
        let (after, capacity, keep_for) = detached;
        let has_one = clients == Clients::One;
        Self {
            snippets,
            in_flight: Budget::new(in_flight.0, in_flight.1),
            results: Arc::new(Results::new(kept.0, kept.1)),
            sessions: Sessions::new(config.sessions, has_one, Arc::clone(&pools)),
            audit,
            packages,
            detached: Arc::new(Detached::new(after, keep_for, capacity, weight)),
            config,
            pools,
            clients,
        }
    }

    /// For calls that begin under another configuration. What is kept, and all sessions, are the same.
    pub(crate) fn reconfigured(&self, setup: Setup, snippets: Arc<Snippets>) -> Self {
        let Setup { config, pools, packages, audit, .. } = setup;
        let Bounds { in_flight, kept, detached } = Bounds::of(&config, self.clients);
        self.in_flight.set_limits(in_flight.0, in_flight.1);
        self.results.set_bounds(kept.0, kept.1);
        self.detached.set_bounds(detached.0, detached.2, detached.1);
        let has_one = self.clients == Clients::One;
        let sessions = self.sessions.reconfigured(config.sessions, has_one, Arc::clone(&pools));
        Self { config, snippets, pools, packages, audit, sessions, ..self.clone() }
    }

    /// The sessions of all clients.
    pub(crate) fn sessions(&self) -> Sessions {
        self.sessions.clone()
    }

    /// Whether sessions are offered.
    fn has_sessions(&self) -> bool {
        // Those from before another configuration can still be used.
        self.opens_sessions() || self.sessions.is_any_open()
    }

    /// Whether there can be new ones.
    fn opens_sessions(&self) -> bool {
        self.config.sessions.max > 0
    }

    /// Serves one call. Dropping the future ends the program and removes its sandbox, unless it was detached.
    ///
    /// # Errors
    ///
    /// When there is no such tool. Any other failure is an answer, because hosts show those to their model.
    pub(crate) async fn call(&self, name: &str, arguments: Given, call: Call) -> Answer {
        if let Some(why) = self.audit.refusal() {
            return Ok(tool_result::failure(why));
        }
        let mut note = self.audit.begin(&call.client, name);
        let answer = match (name, &self.config.test_code) {
            (EXECUTE_CODE | RUN_COMMAND, _) if name == EXECUTE_CODE || self.has_sessions() => {
                // The program may go on when the call is answered, and its line is written at its end.
                let own = std::mem::replace(&mut note, Note::none());
                self.execute(name == RUN_COMMAND, arguments, call, own).await
            }
            (GET_RESULT, _) => self.get_result(arguments, call).await,
            (CHECK_SYNTAX, _) => self.check_syntax(arguments, call, &mut note).await,
            (TEST_CODE, Some(language)) => {
                self.test_code(arguments, call, language, &mut note).await
            }
            (OPEN_SESSION, _) if self.opens_sessions() => {
                self.open_session(arguments, call, &mut note).await
            }
            (REWIND_SESSION, _) if self.has_sessions() => {
                self.rewind_session(arguments, call).await
            }
            (INTERRUPT_SESSION, _) if self.has_sessions() => {
                self.interrupt_session(arguments, &call)
            }
            (CLOSE_SESSION, _) if self.has_sessions() => self.close_session(arguments, &call),
            _ => {
                let tools = tools::all(&self.config, &self.snippets);
                let names: Vec<_> = tools.iter().map(|tool| &*tool.name).collect();
                let name = quoted(name);
                let message =
                    format!("there is no tool {name}; the tools are: {}", names.join(", "));
                note.answered("no_such_tool");
                return Err(InvalidArgument::new("name", message));
            }
        };
        note.answered(status_of(&answer));
        Ok(answer.unwrap_or_else(|error| tool_result::invalid_arguments(name, &error)))
    }

    /// Reads a result that is kept for a client.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub(crate) fn read(&self, client: &Client, uri: &str) -> Result<Part, ReadError> {
        self.results.read(client, uri)
    }

    /// What is kept for clients.
    pub(crate) fn held(&self) -> Vec<Held> {
        let held = |kind, (count, bytes)| Held { kind, count, bytes };
        vec![held("results", self.results.held()), held("long_runs", self.detached.held())]
    }

    /// Runs a program. A long run is detached before its caller gives up, even if the caller follows its progress: many
    /// hosts ask for progress and wait no longer for it.
    async fn execute(
        &self,
        is_command: bool,
        arguments: Given,
        call: Call,
        mut note: Note,
    ) -> Answer {
        let Call { client, progress, steps, waits_for_the_end } = call;
        if waits_for_the_end {
            return self.run(is_command, arguments, &client, progress, steps, &mut note).await;
        }
        let so_far = Arc::new(SoFar::default());
        let watch = {
            let so_far = Arc::clone(&so_far);
            Watch::new(move |stream, bytes| {
                so_far.add(stream, bytes);
                if let Some(progress) = &progress {
                    progress.tell(stream, bytes);
                }
            })
        };
        let tell: Tell = {
            let so_far = Arc::clone(&so_far);
            Arc::new(move |step| {
                so_far.begin_step(step);
                if let Some(steps) = &steps {
                    steps(step);
                }
            })
        };
        let (calls, caller) = (self.clone(), client.clone());
        let run = async move {
            let (watch, tell) = (Some(watch), Some(tell));
            calls.run(is_command, arguments, &caller, watch, tell, &mut note).await
        };
        self.answer(self.detached.run_or_detach(&client, so_far, run).await)
    }

    async fn run(
        &self,
        is_command: bool,
        arguments: Given,
        client: &Client,
        watch: Option<Watch>,
        tell: Option<Tell>,
        note: &mut Note,
    ) -> Answer {
        let session = if is_command { None } else { understand::named_session(&arguments) };
        let answer = match session {
            _ if is_command => self.run_command(arguments, client, watch, note).await,
            Some(session) => self.run_cell(&session, arguments, client, watch, note).await,
            None => self.execute_code(arguments, client, watch, tell, note).await,
        };
        note.answered(status_of(&answer));
        answer
    }

    async fn get_result(&self, arguments: Given, Call { client, .. }: Call) -> Answer {
        let (GetResult { handle, cancel }, _) = understand::read(arguments, &self.config)?;
        let handle = required(handle, "handle", "the handle that execute_code returned")?;
        let state = match cancel {
            true => self.detached.end(&client, &handle),
            false => self.detached.wait(&client, &handle).await,
        };
        state.map_or_else(|| Ok(tool_result::unknown_handle()), |state| self.answer(state))
    }

    fn answer(&self, state: RunState<Answer>) -> Answer {
        match state {
            RunState::Ended(answer) => answer,
            RunState::Running { handle, so_far } => {
                Ok(tool_result::of_running(handle, self.config.results.keep_for, &so_far))
            }
            RunState::Gone { so_far } => {
                Ok(tool_result::ended_without_result(&so_far, self.config.limits.output()))
            }
        }
    }

    async fn execute_code(
        &self,
        arguments: Given,
        client: &Client,
        watch: Option<Watch>,
        tell: Option<Tell>,
        note: &mut Note,
    ) -> Answer {
        let (arguments, notes) = understand::read::<Arguments>(arguments, &self.config)?;
        // Its cell would be lost with a sandbox of its own.
        if arguments.session.is_some() {
            let message = "was not understood; give it as session, beside entrypoint_code";
            return Err(InvalidArgument::new("session", message));
        }
        if let Some(code) = &arguments.entrypoint_code {
            note.code(code);
        }
        if let Some(snippet) = &arguments.snippet_name {
            note.snippet(snippet);
        }
        let mut share = self.in_flight.share(client);
        if !share.grow(arguments.weight()) {
            return Ok(tool_result::too_much_at_once(self.config.requests.max_in_flight));
        }
        let mut request = resolve::resolve(arguments, &self.config, &self.snippets)
            .map_err(|error| notes.explain(error))?;
        note.place(&request.language.name, None);
        note.limits(request.run.timeout, request.run.resources);
        note.files(request.run.workspace.files());
        let mut notes = notes.into_texts();
        let usage = request.usage.take();
        notes.extend(usage.as_deref().map(snippets::not_used));
        let (policies, language) = (&self.config.policies, &request.language.name);
        let unchecked = std::mem::take(&mut request.unchecked);
        let found = match self.check_policies(policies, language, unchecked, client, note).await {
            Ok(found) => found,
            Err(busy) => return Ok(busy),
        };
        if !found.is_empty() {
            let report = Report { notes, ..Report::refused(found) };
            return Ok(tool_result::of_report(&report, Vec::new()));
        }
        let wanted = std::mem::take(&mut request.packages);
        let got = self.packages_for(&request.language, wanted, client, tell.as_ref(), None).await;
        let mut got = match got {
            Ok(got) => got,
            Err(answer) => return answer,
        };
        request.run.packages = got.told(&mut notes, note);
        request.run.watch = watch;
        let executed = self.pools.execute(&request.language.name, client, &request.run).await;
        let (outcome, receipt) = match executed {
            Ok(executed) => executed,
            Err(error) => {
                note.answered(Failure::of(&error).as_str());
                return Ok(tool_result::sandbox_fault(&error, self.pools.advice_when_busy()));
            }
        };
        note.took(receipt.start, receipt.found);
        note.ran(&outcome);
        let context = Context {
            config: &self.config,
            language: &request.language,
            timeout: request.run.timeout,
            resources: request.run.resources,
            advice: request.advice.as_ref(),
            caller: Caller::Call,
            sent: &request.run.workspace.names(),
            packages: Some(PackagesAdvice {
                packages: &self.packages,
                asked: got.bound.as_ref().map_or(&[], |bound| &bound.asked),
            }),
        };
        let keep = (&*self.results, client);
        let receipt = (&receipt, got.used());
        Ok(tool_result::of_run(outcome, receipt, &context, &request.wanted, notes, keep).await)
    }
}
