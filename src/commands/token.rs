//! `isolator token`: creates a bearer token for a client of `isolator serve --http`.

use std::process::ExitCode;

use crate::commands::cli::TokenArguments;
use crate::commands::{print_to_stderr, say};
use crate::transport::http::Token;

/// Prints the line for the token file to standard output, so that it can be appended there, and the token itself,
/// which is stored nowhere, to standard error.
pub fn token(arguments: &TokenArguments) -> anyhow::Result<ExitCode> {
    let (token, secret) = Token::new(&arguments.name, arguments.expires)?;
    let told = format!(
        "The token for the client, which can't be shown again: {secret}\n\
         The line for the server's token file (http.tokens):\n"
    );
    // A line in the file whose token nobody has would be of no use.
    print_to_stderr(told.as_bytes())?;
    say(&token.to_string())?;
    Ok(ExitCode::SUCCESS)
}
