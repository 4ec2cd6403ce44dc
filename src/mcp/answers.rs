//! Answers calls of tools: serves them, renders their results, and keeps what callers fetch later.

use std::sync::Arc;
use std::time::Duration;

use isolator_pool::pool::admission::Client;
use isolator_pool::run::output::Watch;
use serde_json::Value;

use crate::audit::{Audit, Note};
use crate::calls::command::{COMPLETE_CODE, CommandCall, CommandError};
use crate::calls::{Call, CallError, Calls, Clients, Setup, Steps, ToolName};
use crate::config::{Config, ResultsConfig};
use crate::mcp::render::{Answer, Renderer};
use crate::metrics::Held;
use crate::request::arguments::{GetResult, InvalidArgument, required};
use crate::request::snippets::Snippets;
use crate::request::understand::{self, given::Given};
use crate::result::detached::{Detached, RunState};
use crate::result::handles::Capacity;
use crate::result::kept::{self, Part, ReadError, Results};
use crate::result::so_far::SoFar;

/// Bytes of results that are kept, unless the operator lets a single run keep more.
const MAX_KEPT: usize = 64 << 20;

/// Answers calls; cheap to clone.
#[derive(Clone)]
pub(crate) struct Answers {
    calls: Calls,
    audit: Audit,
    clients: Clients,
    results: Arc<Results>,
    detached: Arc<Detached<Arc<Answer>>>,
}

/// A call of a tool.
pub(crate) struct ToolCall {
    /// The name of the tool.
    pub name: String,
    pub arguments: Given,
    pub call: Call,
    /// Whether the caller waits until the end, however long that is.
    pub waits: bool,
    /// The options of a [command](crate::calls::command), if it is the caller.
    pub options: Option<Value>,
}

/// The tool that a call names does not exist, or is not offered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoSuchTool;

/// How much of results is kept, and for how long.
struct Bounds {
    /// Files and long output.
    kept: (Capacity, Duration),
    /// Answers of detached runs.
    answers: (Capacity, Duration),
}

impl Bounds {
    fn of(config: &Config, clients: Clients) -> Self {
        let ResultsConfig { files, output, keep_for, .. } = config.results.clone();
        // The results of any run fit, for every client.
        let of_run = files.as_usize();
        let of_run = of_run.saturating_add(2 * output.as_usize() + kept::MAX_NAMES);
        let all = MAX_KEPT.max(of_run.saturating_mul(2));
        let kept = Capacity { all, of_one: clients.share_of(all) };
        // An answer has its output twice, as text and as data, and its pictures in base64.
        let answers = Capacity { all: 2 * kept.all, of_one: 2 * kept.of_one };
        let keep_handles_for = keep_for.saturating_add(config.longest_call());
        Self { kept: (kept, keep_for), answers: (answers, keep_handles_for) }
    }
}

impl Answers {
    /// For one client or for several.
    pub(crate) fn new(setup: &Setup, snippets: Arc<Snippets>, clients: Clients) -> Self {
        let Bounds { kept, answers } = Bounds::of(&setup.config, clients);
        let (after, node) = (setup.config.results.detach_after, setup.config.node.node());
        Self {
            calls: Calls::new(setup, snippets, clients),
            audit: setup.audit.clone(),
            clients,
            results: Arc::new(Results::new(node, kept.0, kept.1)),
            detached: Arc::new(Detached::new(node, after, answers.1, answers.0, weight_of)),
        }
    }

    /// For calls that begin under another configuration. Kept results and all sessions stay.
    pub(crate) fn reconfigured(&self, setup: &Setup, snippets: Arc<Snippets>) -> Self {
        let Bounds { kept, answers } = Bounds::of(&setup.config, self.clients);
        self.results.set_bounds(kept.0, kept.1);
        self.detached.set_bounds(setup.config.results.detach_after, answers.1, answers.0);
        let calls = self.calls.reconfigured(setup, snippets);
        Self { calls, audit: setup.audit.clone(), ..self.clone() }
    }

    /// Why nothing is served, if the audit log can't be written.
    pub(super) fn audit_refusal(&self) -> Option<&'static str> {
        self.audit.refusal()
    }

    /// Begins the line of a call in the audit log.
    pub(super) fn begin_note(&self, client: &Client, tool: &str) -> Note {
        self.audit.begin(client, tool)
    }

    /// The calls, without their answers.
    pub(crate) const fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Reads a result that is kept for a client.
    pub(crate) fn read(&self, client: &Client, uri: &str) -> Result<Part, ReadError> {
        self.results.read(client, uri)
    }

    /// Counts of what is kept for clients.
    pub(crate) fn held(&self) -> Vec<Held> {
        let held = |kind, (count, bytes)| Held { kind, count, bytes };
        vec![
            held("results", self.results.held()),
            held("long_runs", self.detached.held()),
            held("keyed_answers", self.calls.idempotency().held()),
        ]
    }

    /// Answers a call. Dropping the future ends the program and removes its sandbox, unless it was detached. A long run is
    /// detached before its caller gives up, unless the caller says that it waits, even if it follows the progress: many hosts
    /// ask for progress and wait no longer for it.
    ///
    /// # Errors
    ///
    /// When there is no such tool. Any other failure is an answer, because hosts show those to their model.
    pub(crate) async fn answer(&self, asked: ToolCall) -> Result<Arc<Answer>, NoSuchTool> {
        let ToolCall { name, arguments, call, waits, options } = asked;
        if let Some(why) = self.audit.refusal() {
            let outcome = CallError::NoAudit(why).outcome();
            return Ok(Arc::new(match options {
                Some(_) => {
                    let message = why.to_string();
                    let failed = CommandError::Failed { message, has_not_run: true };
                    Answer::command_failed(failed, outcome)
                }
                None => Answer::failure(why, "error").with_outcome(outcome),
            }));
        }
        let mut note = self.audit.begin(&call.client, &name);
        let tool = ToolName::named(&name).filter(|tool| self.calls.offers(*tool));
        if let Some(options) = options
            && (tool.is_some() || name == COMPLETE_CODE)
        {
            return Ok(self.serve_command(&name, arguments, options, &call, note).await);
        }
        Ok(match tool {
            None => {
                note.answered("no_such_tool");
                return Err(NoSuchTool);
            }
            Some(ToolName::GetResult) => {
                let answer = self.get_result(arguments, &call.client).await;
                note.answered(answer.status);
                answer
            }
            Some(tool @ (ToolName::ExecuteCode | ToolName::RunCommand)) if !waits => {
                self.run_or_detach(tool, arguments, call, note).await
            }
            Some(tool) => self.serve(tool, arguments, &call, note).await,
        })
    }

    /// Serves a call, and renders its result.
    async fn serve(
        &self,
        tool: ToolName,
        arguments: Given,
        call: &Call,
        mut note: Note,
    ) -> Arc<Answer> {
        let served = self.calls.call(tool, arguments, call, &mut note).await;
        let answer = self.renderer(&call.client).answer(tool, served).await;
        // Its line is written now.
        drop(note);
        Arc::new(answer)
    }

    /// Serves a call of a command, which gets its result in its own form.
    async fn serve_command(
        &self,
        name: &str,
        arguments: Given,
        options: Value,
        call: &Call,
        mut note: Note,
    ) -> Arc<Answer> {
        let longest = self.calls.config().results.detach_after;
        let served = match CommandCall::read(name, arguments, options) {
            Ok(command) => {
                self.calls.serve_command(command.with_max_wait(longest), call, &mut note).await
            }
            Err(error) => Err(error.into()),
        };
        Arc::new(match served {
            Ok(served) => {
                note.answered(served.status);
                Answer::command(served)
            }
            Err(error) => {
                note.answered(error.status());
                error.log();
                let outcome = error.outcome();
                Answer::command_failed(error.into(), outcome)
            }
        })
    }

    /// Serves a call in a task of its own if that takes long. The program then goes on when the call is answered, and the line of
    /// the audit log is written at its end.
    async fn run_or_detach(
        &self,
        tool: ToolName,
        arguments: Given,
        call: Call,
        note: Note,
    ) -> Arc<Answer> {
        let so_far = Arc::new(SoFar::default());
        let client = call.client.clone();
        let call = Call {
            watch: Some(followed(&so_far, call.watch)),
            steps: Some(steps_followed(&so_far, call.steps)),
            client: call.client,
            queue_deadline: call.queue_deadline,
        };
        let answers = self.clone();
        let run = async move { answers.serve(tool, arguments, &call, note).await };
        self.state(self.detached.run_or_detach(&client, so_far, run).await)
    }

    async fn get_result(&self, arguments: Given, client: &Client) -> Arc<Answer> {
        match self.fetch(arguments, client).await {
            Ok(answer) => answer,
            Err(error) => {
                Arc::new(self.renderer(client).answer(ToolName::GetResult, Err(error)).await)
            }
        }
    }

    async fn fetch(&self, arguments: Given, client: &Client) -> Result<Arc<Answer>, CallError> {
        let (GetResult { handle, cancel }, _) = understand::read(arguments, self.calls.config())?;
        let handle = required(handle, "handle", "the handle that execute_code returned")?;
        let state = match cancel {
            true => self.detached.end(client, &handle),
            false => self.detached.wait(client, &handle).await,
        };
        let no_run = || match self.detached.lost(&handle) {
            Some(lost) => CallError::Lost(lost),
            None => InvalidArgument::no_such_run().into(),
        };
        Ok(self.state(state.ok_or_else(no_run)?))
    }

    fn state(&self, state: RunState<Arc<Answer>>) -> Arc<Answer> {
        let config = self.calls.config();
        match state {
            RunState::Ended(answer) => answer,
            RunState::Running { handle, so_far } => {
                Arc::new(Answer::running(handle, config.results.keep_for, &so_far))
            }
            RunState::Gone { so_far } => {
                Arc::new(Answer::without_result(&so_far, config.limits.output()))
            }
        }
    }

    fn renderer<'a>(&'a self, client: &'a Client) -> Renderer<'a> {
        Renderer { calls: &self.calls, results: &self.results, client }
    }
}

fn weight_of(answer: &Arc<Answer>) -> usize {
    answer.weight
}

/// Receives the output of a run for its caller and for `so_far`.
fn followed(so_far: &Arc<SoFar>, caller: Option<Watch>) -> Watch {
    let so_far = Arc::clone(so_far);
    Watch::new(move |stream, bytes| {
        so_far.add(stream, bytes);
        if let Some(caller) = &caller {
            caller.tell(stream, bytes);
        }
    })
}

/// Receives the steps before a run for its caller and for `so_far`.
fn steps_followed(so_far: &Arc<SoFar>, caller: Option<Steps>) -> Steps {
    let so_far = Arc::clone(so_far);
    Arc::new(move |step| {
        so_far.begin_step(step);
        if let Some(caller) = &caller {
            caller(step);
        }
    })
}
