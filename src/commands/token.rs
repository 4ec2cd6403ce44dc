//! `isolator token`: creates a bearer token for a client of `isolator serve --http`.

use crate::commands::options::duration;
use clap::Args;
use std::process::ExitCode;
use std::time::Duration;

use crate::commands::{print_to_stderr, say};
use crate::web::{Token, TokenForm};

/// Arguments of `isolator token`.
#[derive(Debug, Args)]
pub struct TokenArguments {
    /// Name of the client, used in the log and for fair sharing
    pub name: String,
    /// How long the token is accepted, such as 90d; forever if not given
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub expires: Option<Duration>,
    /// Print a token in the form that E2B's SDKs from 2.31 to 2.45 demand of a key. It is accepted like any other
    #[arg(long)]
    pub e2b: bool,
}

/// Prints the line for the token file to standard output, so that it can be appended there, and the token itself,
/// which is stored nowhere, to standard error.
pub fn token(arguments: &TokenArguments) -> anyhow::Result<ExitCode> {
    let form = if arguments.e2b { TokenForm::E2b } else { TokenForm::Isolator };
    let (token, secret) = Token::new(&arguments.name, arguments.expires, form)?;
    let text = format!(
        "The token for the client, which can't be shown again: {secret}\n\
         The line for the server's token file (http.tokens):\n"
    );
    // If the token is lost, its line must not be printed.
    print_to_stderr(text.as_bytes())?;
    say(&token.to_string())?;
    Ok(ExitCode::SUCCESS)
}
