//! Error messages that include their causes.

/// The message of an error and of all its causes: the outermost often says only that something failed.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some errors include their cause's message.
        if !message.contains(&next) {
            message = format!("{message}: {next}");
        }
        cause = error.source();
    }
    message
}
