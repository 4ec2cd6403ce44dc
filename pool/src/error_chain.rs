//! Errors in words, with what caused them.

/// An error with all of its causes: the outermost often says no more than that something failed.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some errors repeat their cause in their own words.
        if !message.contains(&next) {
            message = format!("{message}: {next}");
        }
        cause = error.source();
    }
    message
}
