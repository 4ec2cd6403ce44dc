//! The commands that a user types at the prompt. They begin with a colon or an exclamation mark.

use isolator_pool::quote::quoted;

/// An input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// Nothing.
    Nothing,
    /// Code of a cell.
    Code(String),
    /// A command for the shell of the sandbox.
    Shell(String),
    /// List the workspace.
    Files,
    /// Write a file of the workspace to the disk.
    Get {
        /// Its path in the workspace.
        path: String,
        /// The new file, or a folder for it.
        to: Option<String>,
    },
    /// Send a file or folder, as with `--file`.
    Put(String),
    /// Undo this number of cells.
    Rewind(u32),
    /// Run a file of the disk as a cell.
    Run(String),
    /// Keep what was shown.
    Save {
        /// Its number.
        number: usize,
        /// The new file.
        to: Option<String>,
    },
    /// Tell the limits.
    Limits,
    /// Explain all of this.
    Help,
    /// End the session.
    Quit,
}

/// The commands: name, arguments, what they do.
pub(super) const COMMANDS: [(&str, &str, &str); 9] = [
    ("files", "", "list the files of the session"),
    ("get", "PATH [TO]", "write a file of the session to this machine"),
    ("put", "[NAME=]PATH", "send a file or folder to the session"),
    ("run", "FILE", "run a file of this machine as a cell"),
    ("rewind", "[N]", "undo the last cell, or the last N"),
    ("save", "N [TO]", "keep the picture or page that was shown with this number"),
    ("limits", "", "show what a cell may use"),
    ("help", "", "show this list"),
    ("quit", "", "end the session; Ctrl-D, exit() and quit() do the same"),
];

/// How many letters of a wrong command may differ from the one that is suggested.
const MAX_DISTANCE: usize = 2;

/// Words with which people leave other prompts. As code they would not end the session.
const LEAVING: [&str; 4] = ["exit", "exit()", "quit", "quit()"];

/// Whether an input ends the session, as `:quit` does.
pub(super) fn is_leaving(input: &str) -> bool {
    LEAVING.contains(&input.trim())
}

/// Reads an input.
///
/// # Errors
///
/// The mistake in a command, and how to write it.
pub(super) fn read(input: &str) -> Result<Typed, String> {
    if input.trim().is_empty() {
        return Ok(Typed::Nothing);
    }
    if is_leaving(input) {
        return Ok(Typed::Quit);
    }
    if let Some(command) = input.strip_prefix('!').filter(|_| !input.trim_end().contains('\n')) {
        return match command.trim() {
            "" => Err("write a command after the exclamation mark, such as !ls".to_owned()),
            command => Ok(Typed::Shell(command.to_owned())),
        };
    }
    let Some(command) = input.strip_prefix(':') else { return Ok(Typed::Code(input.to_owned())) };
    let mut words = words(command)?.into_iter();
    let name = words.next().unwrap_or_default();
    let usage = usage(&name)?;
    let (first, second) = (words.next(), words.next());
    let wrong = || Err(format!("write it as {usage}"));
    if words.next().is_some() {
        return wrong();
    }
    Ok(match (name.as_str(), first, second) {
        ("files", None, None) => Typed::Files,
        ("get", Some(path), to) => Typed::Get { path, to },
        ("put", Some(path), None) => Typed::Put(path),
        ("run", Some(path), None) => Typed::Run(path),
        ("rewind", None, None) => Typed::Rewind(1),
        ("rewind", Some(cells), None) => match cells.parse() {
            Ok(cells @ 1..) => Typed::Rewind(cells),
            _ => return Err(format!("{} is not a number of cells: {usage}", quoted(&cells))),
        },
        ("save", Some(number), to) => match number.parse() {
            Ok(number) => Typed::Save { number, to },
            Err(_) => return Err(format!("{} is not a number: {usage}", quoted(&number))),
        },
        ("limits", None, None) => Typed::Limits,
        ("help", None, None) => Typed::Help,
        ("quit", None, None) => Typed::Quit,
        _ => return wrong(),
    })
}

/// How a command is written.
fn usage(name: &str) -> Result<String, String> {
    if let Some((name, arguments, _)) = COMMANDS.iter().find(|(known, ..)| *known == name) {
        return Ok(format!(":{name} {arguments}").trim_end().to_owned());
    }
    let near = COMMANDS.iter().map(|(known, ..)| (strsim::damerau_levenshtein(known, name), known));
    let advice = match near.min() {
        Some((distance, known)) if distance <= MAX_DISTANCE => format!("do you mean :{known}?"),
        _ => ":help lists all".to_owned(),
    };
    Err(format!("there is no command {}; {advice}", quoted(&format!(":{name}"))))
}

/// The words of a command, quoted as for a shell.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(character) = chars.next() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (Some('\''), other) => word.get_or_insert_default().push(other),
            (_, '\\') => word.get_or_insert_default().extend(chars.next()),
            (None, mark @ ('\'' | '"')) => {
                quote = Some(mark);
                word.get_or_insert_default();
            }
            (None, space) if space.is_whitespace() => words.extend(word.take()),
            (_, other) => word.get_or_insert_default().push(other),
        }
    }
    if let Some(quote) = quote {
        return Err(format!("the quotation mark {quote} is not closed"));
    }
    words.extend(word);
    Ok(words)
}

/// The text of `:help`.
pub(super) fn help(is_python: bool) -> String {
    let lines = COMMANDS.iter().map(|(name, arguments, what)| {
        format!("  {:<20} {what}\n", format!(":{name} {arguments}"))
    });
    let blocks = if is_python { ", and an indented block until an empty line" } else { "" };
    format!(
        "{}  {:<20} run a command in the sandbox\n\
         Everything else is code. An input goes on in the next line while a bracket is open{blocks}.\n\
         Ctrl-C interrupts a cell, and kills it if pressed again within a second. At the prompt it clears the input.",
        lines.collect::<String>(),
        "!COMMAND"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_code_are_told_apart() {
        let code = |text: &str| Typed::Code(text.to_owned());
        for (input, expected) in [
            (" \n", Typed::Nothing),
            ("x = 1", code("x = 1")),
            ("x = !ls", code("x = !ls")),
            (" :files", code(" :files")),
            ("!ls -l\nx = 1", code("!ls -l\nx = 1")),
            ("!ls -l | wc", Typed::Shell("ls -l | wc".to_owned())),
            (":files", Typed::Files),
            (": files ", Typed::Files),
            (":get a/b.csv", Typed::Get { path: "a/b.csv".to_owned(), to: None }),
            (
                ":get 'a b' \"c \\\" d\"",
                Typed::Get { path: "a b".to_owned(), to: Some("c \" d".to_owned()) },
            ),
            (":put a\\ b", Typed::Put("a b".to_owned())),
            (":put x=''", Typed::Put("x=".to_owned())),
            (":rewind", Typed::Rewind(1)),
            (":rewind 3", Typed::Rewind(3)),
            (":save 2", Typed::Save { number: 2, to: None }),
            (":run a.py", Typed::Run("a.py".to_owned())),
            (":limits", Typed::Limits),
            (":help", Typed::Help),
            (":quit", Typed::Quit),
            ("exit()", Typed::Quit),
            ("quit()\n", Typed::Quit),
            ("quit", Typed::Quit),
            ("exit", Typed::Quit),
            ("exit(3)", code("exit(3)")),
        ] {
            assert_eq!(read(input).as_ref(), Ok(&expected), "{input:?}");
        }
    }

    #[test]
    fn a_wrong_command_says_how_to_write_it() {
        for (input, expected) in [
            (":fils", "do you mean :files?"),
            (":explode", ":help lists all"),
            (":", ":help lists all"),
            (":get", "write it as :get PATH [TO]"),
            (":get a b c", "write it as :get PATH [TO]"),
            (":files a", "write it as :files"),
            (":rewind 0", "\"0\" is not a number of cells: :rewind [N]"),
            (":rewind -1", "not a number of cells"),
            (":rewind x", "not a number of cells"),
            (":save x", "\"x\" is not a number: :save N [TO]"),
            (":put 'a", "the quotation mark ' is not closed"),
            ("!", "such as !ls"),
        ] {
            let error = read(input).unwrap_err();
            assert!(error.contains(expected), "{input:?}: {error}");
        }
    }

    #[test]
    fn the_help_has_each_command() {
        for (name, ..) in COMMANDS {
            assert!(help(true).contains(&format!("\n  :{name}")) || name == COMMANDS[0].0);
        }
        assert!(help(true).contains("empty line") && !help(false).contains("empty line"));
    }
}
