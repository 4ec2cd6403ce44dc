//! The options of the command line that stand for arguments of calls.

/// Arguments of calls, and the same on the command line.
const OPTIONS: [(&str, &str); 8] = [
    ("additional_files", "--file"),
    ("cpus", "--cpus"),
    ("language", "--language"),
    ("memory_mb", "--memory"),
    ("packages", "--packages"),
    ("snippet_name", "--snippet"),
    ("stdin", "standard input"),
    ("timeout", "--timeout"),
];

/// The option for an argument, if there is one.
pub(crate) fn option(argument: &str) -> Option<&'static str> {
    OPTIONS.iter().find(|(known, _)| *known == argument).map(|(_, option)| *option)
}

/// Advice with the names of options instead of arguments. Only names that are no plain words can stand for nothing else in a
/// sentence.
pub(crate) fn with_options(advice: &str) -> String {
    let names = OPTIONS.iter().filter(|(name, _)| name.contains('_') || *name == "stdin");
    names.fold(advice.to_owned(), |advice, (name, option)| advice.replace(name, option))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_options() {
        let advice = with_options("send it in additional_files or stdin, with memory_mb");
        assert_eq!(advice, "send it in --file or standard input, with --memory");
        assert_eq!(with_options("a language"), "a language");
        assert_eq!(option("memory_mb"), Some("--memory"));
    }
}
