//! Requests for packages by programs that run: `pip install` in a sandbox.
//!
//! A request counts towards the memory of its client's calls, and has a line in the audit log. Everything in it is the program's.

use std::fmt;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use isolator_pool::engine::{EngineError, Progress};
use isolator_pool::run::installs::{Found, Installer};
use isolator_runner::wire;
use serde::Deserialize;
use serde_json::json;

use super::Calls;
use super::budget::Budget;
use crate::audit::{Audit, Note};
use crate::packages::installing::{InstalledPackage, NewSet, Resolved, SandboxPackages};

/// The name of such a request in the audit log.
const TOOL: &str = "install";

/// Serves the requests of one sandbox.
pub(super) struct CallInstaller {
    packages: SandboxPackages,
    budget: Budget,
    audit: Audit,
    /// The handle of the session, once it is open.
    session: OnceLock<String>,
}

/// A request, as the commands of a sandbox write it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    language: String,
    requirements: Vec<String>,
    #[serde(default)]
    upgrade: bool,
}

impl fmt::Debug for CallInstaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallInstaller")
    }
}

impl Calls {
    /// The installer of a sandbox with these packages.
    pub(super) fn installer(&self, packages: SandboxPackages) -> Arc<CallInstaller> {
        let (budget, audit) = (self.in_flight.clone(), self.audit.clone());
        Arc::new(CallInstaller { packages, budget, audit, session: OnceLock::new() })
    }
}

impl CallInstaller {
    /// A line of the audit log.
    fn note(&self) -> Note {
        let mut note = self.audit.begin(self.packages.client(), TOOL);
        note.place(&self.packages.language().name, self.session.get().map(String::as_str));
        note
    }

    /// Notes the handle of the session, for the audit log.
    pub(super) fn set_session(&self, session: &str) {
        // It has one session only.
        let _ = self.session.set(session.to_owned());
    }
}

#[async_trait]
impl Installer for CallInstaller {
    async fn find(&self, request: &[u8], image: &str, say: Progress<'_>) -> Found {
        let refused = |kind: &str, reason: &str| {
            self.packages.count_refused(1);
            Found::Answer(wire::refused(kind, reason))
        };
        if let Some(reason) = self.audit.refusal() {
            return refused("busy", reason);
        }
        let client = self.packages.client();
        let mut note = self.note();
        let mut share = self.budget.share(client);
        if !share.grow(request.len()) {
            note.answered("error");
            return refused("busy", "the requests being served take too much memory: try again");
        }
        let Ok(Request { language, requirements, upgrade }) = serde_json::from_slice(request)
        else {
            note.answered("invalid_arguments");
            return refused("failed", "the request can't be read: it is no JSON of this protocol");
        };
        note.asked_for(&requirements);
        match self.packages.resolve(&language, &requirements, (image, upgrade), say).await {
            Err(error) => {
                tracing::info!(%error, "a program got no packages");
                note.answered("refused");
                refused(error.kind(), &error.for_program())
            }
            Ok(Resolved::There(there)) => {
                note.answered("success");
                Found::Answer(bound_line(&there, &[]))
            }
            Ok(Resolved::Set(new)) => {
                let packages = self.packages.clone();
                let set = Arc::clone(&new.bound.set);
                let bound = move |bound: Result<(), EngineError>| match bound {
                    Ok(()) => {
                        note.packages(&requirements, &new.bound.set.hash);
                        note.answered("success");
                        let NewSet { packages: all, new: names, .. } = &*new;
                        let line = bound_line(all, names);
                        packages.note_bound(*new);
                        line
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a running sandbox was not given its packages");
                        note.answered("error");
                        packages.count_refused(1);
                        wire::refused(
                            "failed",
                            "the sandbox could not be given the packages; the log of the server says why",
                        )
                    }
                };
                Found::Set(set, Box::new(bound))
            }
        }
    }

    fn refused_unread(&self, requests: u64) {
        self.packages.count_refused(requests);
        let mut note = self.note();
        note.requests(requests);
        note.answered("refused");
    }

    fn not_placed(&self) {
        self.packages.note_misplaced();
    }
}

/// The answer of a request that has its packages.
fn bound_line(packages: &[InstalledPackage], new: &[String]) -> String {
    json!({ "bound": { "packages": packages, "new": new } }).to_string()
}
