//! The calls about a program's syntax: `check_syntax`, and `test_code`, which also runs it.

use std::sync::Arc;

use isolator_pool::pool::admission::Client;
use isolator_pool::pool::counts::Failure;
use rmcp::model::CallToolResult;

use super::{Answer, Call, Calls};
use crate::audit::Note;
use crate::config::Language;
use crate::mcp::tool_result;
use crate::mcp::tools::Tested;
use crate::request::arguments::{CheckSyntax, InvalidArgument, TestCode, required};
use crate::request::resolve;
use crate::request::syntax::{self, Syntax};
use crate::request::understand::{self, given::Given};
use crate::result::receipt::ReceiptReport;

impl Calls {
    pub(super) async fn check_syntax(
        &self,
        arguments: Given,
        Call { client, .. }: Call,
        note: &mut Note,
    ) -> Answer {
        let (arguments, notes) = understand::read(arguments, &self.config)?;
        let CheckSyntax { language, code, packages } = arguments;
        let language = required(language, "language", "the language of the code")?;
        let code = required(code, "code", "the source of the program")?;
        note.code(&code);
        let mut share = self.in_flight.share(&client);
        if !share.grow(code.len()) {
            return Ok(tool_result::too_much_at_once(self.config.requests.max_in_flight));
        }
        let language = resolve::language(&language, &self.config)?;
        note.place(&language.name, None);
        // They change nothing about the syntax.
        self.check_packages(&language, packages).await?;
        let checked = self.syntax_of(&language, &code, &client, note).await?;
        Ok(match checked {
            Ok(syntax) => {
                let mut notes = notes.into_texts();
                let advice = understand::advice(&code, &language).filter(|_| !syntax.valid);
                notes.extend(advice.map(|advice| advice.text));
                tool_result::of_data(&Syntax { notes, ..syntax })
            }
            Err(no_verdict) => no_verdict,
        })
    }

    pub(super) async fn test_code(
        &self,
        arguments: Given,
        Call { client, progress, steps, .. }: Call,
        language: &Arc<Language>,
        note: &mut Note,
    ) -> Answer {
        note.place(&language.name, None);
        let (arguments, notes) = understand::read::<TestCode>(arguments, &self.config)?;
        let mut share = self.in_flight.share(&client);
        if !share.grow(arguments.code.as_ref().map_or(0, String::len)) {
            return Ok(tool_result::too_much_at_once(self.config.requests.max_in_flight));
        }
        let (code, mut request) = resolve::resolve_test(arguments, language, &self.config)
            .map_err(|error| notes.explain(error))?;
        note.code(&code);
        note.limits(request.run.timeout, request.run.resources);
        let mut notes = notes.into_texts();
        match self.syntax_of(language, &code, &client, note).await? {
            Ok(Syntax { valid: true, .. }) => {}
            Ok(invalid) => {
                notes.extend(understand::advice(&code, language).map(|advice| advice.text));
                return Ok(tool_result::of_data(&Tested::invalid(invalid, notes)));
            }
            Err(no_verdict) => return Ok(no_verdict),
        }
        let (policies, unchecked) = (&self.config.policies, request.unchecked);
        let checked = self.check_policies(policies, &language.name, unchecked, &client, note).await;
        let found = match checked {
            Ok(found) => found,
            Err(busy) => return Ok(busy),
        };
        if !found.is_empty() {
            return Ok(tool_result::of_data(&Tested::forbidden(found, notes)));
        }
        let patience = Some(self.config.results.detach_after);
        let got =
            self.packages_for(language, request.packages, &client, steps.as_ref(), patience).await;
        let mut got = match got {
            Ok(got) => got,
            Err(answer) => return answer,
        };
        request.run.packages = got.told(&mut notes, note);
        request.run.watch = progress;
        Ok(match self.pools.execute(&language.name, &client, &request.run).await {
            Ok((outcome, receipt)) => {
                note.took(receipt.start, receipt.found);
                note.ran(&outcome);
                let answer = tool_result::of_data(&Tested::executed(&outcome, &receipt, notes));
                let receipt = ReceiptReport::new(&outcome, &receipt, got.used());
                tool_result::with_receipt(answer, &receipt)
            }
            Err(error) => {
                note.answered(Failure::of(&error).as_str());
                tool_result::sandbox_fault(&error, self.pools.advice_when_busy())
            }
        })
    }

    /// Checks a program's syntax in a sandbox. The inner error is the answer if there is no verdict.
    async fn syntax_of(
        &self,
        language: &Language,
        code: &str,
        client: &Client,
        note: &mut Note,
    ) -> Result<Result<Syntax, CallToolResult>, InvalidArgument> {
        let (check, request) = syntax::request(language, code, &self.config)?;
        let outcome = match self.pools.execute(&language.name, client, &request).await {
            Ok((outcome, receipt)) => {
                note.took(receipt.start, receipt.found);
                outcome
            }
            Err(error) => {
                note.answered(Failure::of(&error).as_str());
                return Ok(Err(tool_result::sandbox_fault(&error, self.pools.advice_when_busy())));
            }
        };
        Ok(syntax::verdict(check, &outcome, code)
            .map_err(|error| tool_result::no_verdict(&error, &outcome)))
    }
}
