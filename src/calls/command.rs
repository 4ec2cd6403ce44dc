//! Runs programs for `isolator run`, in its own process or in a server.

use std::time::Duration;

use isolator_pool::WantedFiles;
use isolator_pool::run::outcome::Status;
use serde_json::Value;

use super::finished::{Finished, Wanted};
use super::served::Served;
use super::{Call, CallError, Calls, Job};
use crate::audit::Note;
use crate::request::arguments::{Arguments, InvalidArgument};
use crate::request::pack::refuse_more_than_memory;
use crate::request::resolve;
use crate::request::understand::given::Given;

impl Calls {
    /// Runs a program for a command that has sent its wishes to this server.
    pub(crate) async fn run_for_command(
        &self,
        arguments: Given,
        wanted: Value,
        call: &Call,
        note: &mut Note,
    ) -> Result<Finished, CallError> {
        let ran = self.run_given(arguments, wanted, call, note).await;
        if let Err(error) = &ran {
            note.answered(error.status());
            error.log();
        }
        ran
    }

    async fn run_given(
        &self,
        arguments: Given,
        wanted: Value,
        call: &Call,
        note: &mut Note,
    ) -> Result<Finished, CallError> {
        let unreadable =
            |error: serde_json::Error| InvalidArgument::new("arguments", error.to_string());
        // Nothing in them is corrected: they are what the user wrote.
        let arguments = arguments.to_string();
        let stdin = wanted["stdin"].as_str().map_or(0, str::len);
        let mut share = self.in_flight.share(&call.client);
        self.admit(&mut share, arguments.len() + stdin)?;
        let arguments: Arguments = serde_json::from_str(&arguments).map_err(unreadable)?;
        let mut wanted: Wanted = serde_json::from_value(wanted).map_err(unreadable)?;
        resolve::check_stdin(wanted.stdin.len(), &self.config)?;
        let detach_after = self.config.results.detach_after.as_millis();
        wanted.max_wait_ms.get_or_insert(u64::try_from(detach_after).unwrap_or(u64::MAX));
        self.run_wanted(arguments, wanted, call, note).await
    }

    /// Runs a program in a new sandbox. The arguments are exact, so nothing in them is corrected. Dropping the future ends the
    /// program and removes its sandbox.
    pub(crate) async fn run_command_line(
        &self,
        arguments: Arguments,
        wanted: Wanted,
        call: &Call,
        note: &mut Note,
    ) -> Result<Finished, CallError> {
        let mut share = self.in_flight.share(&call.client);
        self.admit(&mut share, arguments.weight() + wanted.stdin.len())?;
        self.run_wanted(arguments, wanted, call, note).await
    }

    async fn run_wanted(
        &self,
        arguments: Arguments,
        wanted: Wanted,
        call: &Call,
        note: &mut Note,
    ) -> Result<Finished, CallError> {
        let Wanted { files, stdin, max_wait_ms } = wanted;
        note.code(arguments.entrypoint_code.as_deref());
        note.snippet(arguments.snippet_name.as_deref());
        let mut job = resolve::program(arguments, &self.config, &self.snippets)?;
        refuse_more_than_memory(&job.run.workspace, &stdin, job.run.resources.memory)?;
        if !stdin.is_empty() {
            // The only one is that a snippet gets no input.
            job.notes.clear();
        }
        job.run.stdin = stdin;
        job.run.files = Some(self.wanted_files(files));
        job.packages.awaits_dependencies = true;
        job.max_wait = max_wait_ms.map(Duration::from_millis);
        let Served::Ran(ran) = self.serve(Job::Program(Box::new(job)), call, note).await? else {
            unreachable!("a program is run")
        };
        if ran.outcome().status == Status::Error && ran.language.kernel.is_some() {
            // Advice names the sets that are there.
            self.packages.look(&ran.language.name).await;
        }
        note.answered(ran.outcome().status.as_str());
        Ok(Finished::new(*ran, &self.config, &self.packages))
    }

    /// The files that a sandbox sends: all or none. It lists them in either case.
    fn wanted_files(&self, is_wanted: bool) -> WantedFiles {
        match is_wanted {
            true => WantedFiles {
                globs: vec!["**".to_owned()],
                pictures: true,
                most: self.config.results.files.as_bytes(),
            },
            false => WantedFiles::default(),
        }
    }
}
