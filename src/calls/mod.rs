//! Calls: from the arguments of a tool to a result. Nothing here knows MCP.
//!
//! ```text
//! arguments → Job → Served | CallError
//! ```
//!
//! [`Calls::call`] serves a call of a tool: it takes the call's bytes from the budget ([`budget`]), makes a [`Job`] of its
//! arguments ([`job`]), serves that, and says the status to the audit log. [`Calls::serve`] serves a job ([`serve`], and
//! [`sessions`] for those of sessions): policies, packages, the run, and what went wrong, once for all kinds of jobs.
//!
//! A client can also use a session like a machine, with processes and files ([`agent`]).
//!
//! [`Calls::serve_command`] serves a call of a command, in its own process or in a server: it makes a job with
//! [`crate::request::resolve`], changes what only commands can ask for, and serves that ([`command`]).

mod agent;
pub(crate) mod budget;
pub(crate) mod command;
mod contexts;
mod error;
pub(crate) mod idempotency;
mod installs;
mod job;
mod outcome;
mod packages;
mod queue_deadline;
mod replay;
mod serve;
pub(crate) mod served;
mod sessions;
mod tool;

use std::sync::Arc;
use std::time::Duration;

use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::Pools;
use isolator_pool::run::output::Watch;

use self::budget::{Budget, Share};
use self::idempotency::Idempotency;
use self::job::Understanding;
use crate::audit::{Audit, Note};
use crate::config::Config;
use crate::metrics::operations::Operations;
use crate::packages::Packages;
use crate::request::snippets::Snippets;
use crate::request::understand::given::Given;
use crate::sessions::Sessions;
use crate::sessions::journals::Journals;
use crate::traces::Traces;

pub(crate) use agent::SentFile;
pub(crate) use error::CallError;
pub(crate) use job::Job;
pub(crate) use outcome::{Again, CallOutcome};
pub(crate) use queue_deadline::QueueDeadline;
pub(crate) use served::Served;
pub(crate) use tool::ToolName;

/// Serves calls; cheap to clone.
#[derive(Clone)]
pub(crate) struct Calls {
    config: Arc<Config>,
    snippets: Arc<Snippets>,
    pools: Arc<Pools>,
    in_flight: Budget,
    sessions: Sessions,
    packages: Packages,
    idempotency: Idempotency,
    audit: Audit,
    clients: Clients,
}

/// The parts of a server that change with its configuration.
#[derive(Clone)]
pub(crate) struct Setup {
    pub config: Arc<Config>,
    pub pools: Arc<Pools>,
    pub packages: Packages,
    pub audit: Audit,
    /// The traces of the server, which are the same for all.
    pub traces: Traces,
    /// The journals of sessions on a server, which are the same for all.
    pub journals: Journals,
}

/// Everything that serves requests which begin now.
#[derive(Clone)]
pub(crate) struct Serving {
    pub calls: Calls,
    pub setup: Setup,
    /// Counts of the answers to clients.
    pub operations: Arc<Operations>,
}

/// How many clients a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clients {
    /// The host that started it.
    One,
    /// Any number, each limited so that it leaves something for the others.
    Several,
}

impl Clients {
    /// The part of something that one client can have.
    pub(crate) const fn share_of(self, all: usize) -> usize {
        match self {
            Self::One => all,
            Self::Several => all / 2,
        }
    }
}

/// Receives the step before a program can start, such as building its packages, in a line for people; an empty line when it can.
pub(crate) type Steps = Arc<dyn Fn(&str) + Send + Sync>;

/// A call, besides its arguments.
#[derive(Clone)]
pub(crate) struct Call {
    pub client: Client,
    /// Receives the program's output, if the caller follows it.
    pub watch: Option<Watch>,
    /// Receives the steps before that.
    pub steps: Option<Steps>,
    /// When it must have its turn, if it can't wait for as long as others.
    pub queue_deadline: Option<QueueDeadline>,
}

impl Call {
    /// The longest time for a wait of it that begins now, if its request has this limit or none.
    fn longest_wait(&self, own: Option<Duration>) -> Option<Duration> {
        queue_deadline::longest_wait(self.queue_deadline, own)
    }

    /// The client, and the longest time for a wait of it that begins now.
    fn waiter(&self) -> (&Client, Option<Duration>) {
        (&self.client, self.longest_wait(None))
    }
}

impl Calls {
    /// For one client or for several.
    pub(crate) fn new(setup: &Setup, snippets: Arc<Snippets>, clients: Clients) -> Self {
        let Setup { config, pools, packages, audit, journals, .. } = setup;
        let in_flight = config.requests.max_in_flight.as_usize();
        let (has_one, node) = (clients == Clients::One, config.node.node());
        let (sessions, pools_of) = (config.sessions.clone(), Arc::clone(pools));
        let sessions = Sessions::new(sessions, has_one, pools_of, node, journals.clone());
        Self {
            config: Arc::clone(config),
            snippets,
            pools: Arc::clone(pools),
            in_flight: Budget::new(in_flight, clients.share_of(in_flight)),
            sessions,
            packages: packages.clone(),
            idempotency: Idempotency::new(config, clients),
            audit: audit.clone(),
            clients,
        }
    }

    /// For calls that begin under another configuration. All sessions stay.
    pub(crate) fn reconfigured(&self, setup: &Setup, snippets: Arc<Snippets>) -> Self {
        let Setup { config, pools, packages, audit, .. } = setup;
        let (has_one, in_flight) =
            (self.clients == Clients::One, config.requests.max_in_flight.as_usize());
        self.in_flight.set_limits(in_flight, self.clients.share_of(in_flight));
        self.idempotency.set_bounds(config, self.clients);
        Self {
            config: Arc::clone(config),
            snippets,
            pools: Arc::clone(pools),
            in_flight: self.in_flight.clone(),
            sessions: self.sessions.reconfigured(
                config.sessions.clone(),
                has_one,
                Arc::clone(pools),
            ),
            packages: packages.clone(),
            idempotency: self.idempotency.clone(),
            audit: audit.clone(),
            clients: self.clients,
        }
    }

    /// The configuration of these calls.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The stored programs.
    pub(crate) fn snippets(&self) -> &Snippets {
        &self.snippets
    }

    /// The pools in which they run.
    pub(crate) fn pools(&self) -> &Pools {
        &self.pools
    }

    /// The packages that they can have.
    pub(crate) fn packages(&self) -> &Packages {
        &self.packages
    }

    /// The sessions of all clients.
    pub(crate) fn sessions(&self) -> Sessions {
        self.sessions.clone()
    }

    /// The keys of calls that may be sent again.
    pub(crate) const fn idempotency(&self) -> &Idempotency {
        &self.idempotency
    }

    /// Whether a tool can be called.
    pub(crate) fn offers(&self, tool: ToolName) -> bool {
        match tool {
            ToolName::OpenSession => self.opens_sessions(),
            // Those from before another configuration can still be used.
            tool if tool.is_of_sessions() => self.has_sessions(),
            // A run may have been detached before another configuration.
            ToolName::GetResult => true,
            tool => tool.is_listed(&self.config),
        }
    }

    fn has_sessions(&self) -> bool {
        self.opens_sessions() || self.sessions.is_any_open()
    }

    fn opens_sessions(&self) -> bool {
        self.config.sessions.max > 0
    }

    /// A share of the memory for calls, for what is held for a client.
    pub(crate) fn share(&self, client: &Client) -> Share {
        self.in_flight.share(client)
    }

    /// Takes the bytes of a call from the budget.
    ///
    /// # Errors
    ///
    /// When the calls that are being served hold too many.
    fn admit(&self, share: &mut Share, bytes: usize) -> Result<(), CallError> {
        let most = self.config.requests.max_in_flight.as_usize();
        match share.grow(bytes) {
            true => Ok(()),
            false => {
                let is_own_share = share.is_own_limit(bytes);
                Err(CallError::TooMuchAtOnce { most, is_own_share })
            }
        }
    }

    /// Serves a call of a tool. Dropping the future ends the program and removes its sandbox.
    ///
    /// # Errors
    ///
    /// When nothing has run, or the sandbox failed. The failure of a program is an outcome.
    pub(crate) async fn call(
        &self,
        tool: ToolName,
        arguments: Given,
        call: &Call,
        note: &mut Note,
    ) -> Result<Served, CallError> {
        let client = &call.client;
        let mut share = self.in_flight.share(client);
        let understanding =
            Understanding { calls: self, client, share: &mut share, note: &mut *note };
        let job = understanding.job(tool, arguments);
        self.serve_and_note(job, call, note).await
    }

    /// Serves the job that `make` makes of a request of `bytes`, which are taken from the budget for as long as it is served.
    /// Dropping the future ends the program and removes its sandbox.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub(crate) async fn serve_made(
        &self,
        bytes: usize,
        make: impl FnOnce(&Self, &mut Note) -> Result<Job, CallError>,
        call: &Call,
        note: &mut Note,
    ) -> Result<Served, CallError> {
        let mut share = self.in_flight.share(&call.client);
        let job = self.admit(&mut share, bytes).and_then(|()| make(self, note));
        self.serve_and_note(job, call, note).await
    }

    /// Serves a job, and says its status to the audit log, and errors that an operator should know of to the server's log.
    async fn serve_and_note(
        &self,
        job: Result<Job, CallError>,
        call: &Call,
        note: &mut Note,
    ) -> Result<Served, CallError> {
        let served = match job {
            Ok(job) => self.serve(job, call, note).await,
            Err(error) => Err(error),
        };
        match &served {
            Ok(served) => note.answered(served.status()),
            Err(error) => {
                note.answered(error.status());
                error.log();
            }
        }
        served
    }
}
