//! The checker's side.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use super::messages::{LanguagePolicies, Request, Setup, receive, receive_bytes, send};
use super::{SUBCOMMAND, confine};
use crate::policy::check::CHECK_TIMEOUT;
use crate::policy::findings::SourceFile;
use crate::policy::language::Policy;
use crate::policy::rules::{self, PolicyError};

/// Runs the checker if the process was started as one, and returns its exit code. `arguments` are those of the
/// process without its name. Must be called while the process has a single thread.
pub fn run(arguments: &[String]) -> Option<ExitCode> {
    let [subcommand] = arguments else { return None };
    (subcommand == SUBCOMMAND).then(|| match serve() {
        Ok(()) => ExitCode::SUCCESS,
        // The server decides what this means for a program.
        Err(_) => ExitCode::FAILURE,
    })
}

fn serve() -> io::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let Some(Setup { languages }) = receive(&mut input)? else { return Ok(()) };
    let policies = languages
        .into_iter()
        .map(|(language, policies)| Ok((language, compile(&policies).map_err(io::Error::other)?)))
        .collect::<io::Result<Vec<_>>>()?;
    confine::give_up_rights()?;
    send(&mut output, &())?;
    while let Some(Request { language, files }) = receive(&mut input)? {
        let mut sources = Vec::new();
        for file in files {
            let content = receive_bytes(&mut input, file.length)?;
            let (name, is_entrypoint) = (file.name, file.is_entrypoint);
            sources.push(SourceFile { name, content, is_entrypoint });
        }
        let policy = policies.iter().find(|(name, _)| *name == language);
        let (_, policy) = policy.ok_or(io::ErrorKind::NotFound)?;
        send(&mut output, &policy.check(&sources, Instant::now() + CHECK_TIMEOUT))?;
    }
    Ok(())
}

fn compile(policies: &LanguagePolicies) -> Result<Policy, PolicyError> {
    let rules = policies.texts.iter().map(|text| rules::read("", text).map(Arc::new));
    let rules = rules.collect::<Result<Vec<_>, _>>()?;
    Policy::of_rules(Vec::new(), rules, &policies.extensions)
}
