//! How advice calls this program: with the options that this call has, so that the next one is about the same.

use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;

use crate::config::{Config, EngineKind};

/// The options for all commands that this process was started with, each with a space before it.
static GIVEN: OnceLock<String> = OnceLock::new();

/// Remembers the options for all commands.
pub(super) fn remember_options(config: Option<&Path>, engine: Option<EngineKind>) {
    let engine = engine.map(|engine| format!(" --engine {}", engine.as_str()));
    let _ = GIVEN.set(config.map(with_file).unwrap_or_default() + &engine.unwrap_or_default());
}

/// A text whose advice may name commands of this program, as `isolator doctor` in backticks, with the options.
pub(super) fn with_options(text: &str) -> Cow<'_, str> {
    with(text, GIVEN.get().map_or("", String::as_str))
}

fn with<'a>(text: &'a str, options: &str) -> Cow<'a, str> {
    const CALL: &str = "`isolator ";
    if options.is_empty() || !text.contains(CALL) {
        return text.into();
    }
    let mut parts = text.split(CALL);
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // Advice that knows more than the command line has them already.
        let options = if part.starts_with("--") { "" } else { options };
        whole.push_str(&format!("{}{options} {part}", CALL.trim_end()));
    }
    whole.into()
}

/// How advice calls this program: with the engine that is used, unless the configuration names it, and with the
/// configuration that was given on the command line. `used` is never [`EngineKind::Auto`].
pub fn isolator(config: &Config, used: EngineKind) -> String {
    let file = config.file.as_deref().filter(|_| config.is_file_chosen_on_command_line);
    let is_named = config.engine.kind == used && !config.engine.is_chosen_on_command_line;
    let engine = if is_named { String::new() } else { format!(" --engine {}", used.as_str()) };
    format!("isolator{}{engine}", file.map(with_file).unwrap_or_default())
}

fn with_file(file: &Path) -> String {
    let file = file.display().to_string();
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+=:@%,~".contains(letter);
    match file.chars().all(is_plain) {
        true => format!(" --config {file}"),
        false => format!(" --config '{}'", file.replace('\'', r"'\''")),
    }
}

/// The folder of the snippets, next to the configuration.
pub(super) const SNIPPETS: &str = "prompts";

/// Advice on how the folder of snippets gets some.
pub(super) fn how_to_get_snippets(config: &Config) -> String {
    let parent = config.prompts.parent().unwrap_or(Path::new(""));
    let folder = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    match config.prompts.ends_with(SNIPPETS) {
        true => format!("`isolator config init {}` writes some", folder.display()),
        false => "`isolator config init FOLDER` writes some into the folder prompts there, for you to copy".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_the_engine_that_is_used_and_the_file() {
        use EngineKind::{Docker, Embedded};
        let mut config = Config::parse("{}", Some("my.json".into()), Path::new("")).unwrap();
        assert_eq!(isolator(&config, Docker), "isolator --engine docker");
        config.engine.kind = Embedded;
        assert_eq!(isolator(&config, Embedded), "isolator");
        config.engine.is_chosen_on_command_line = true;
        config.is_file_chosen_on_command_line = true;
        assert_eq!(isolator(&config, Embedded), "isolator --config my.json --engine embedded");
        config.file = Some("it's mine.json".into());
        assert!(isolator(&config, Embedded).contains(r"--config 'it'\''s mine.json'"));
    }

    #[test]
    fn every_command_in_a_text_gets_the_options_unless_it_has_its_own() {
        let text = "run `isolator gc`, or `isolator --engine docker gc`; `isolator` is a name";
        let expected =
            "run `isolator --config a gc`, or `isolator --engine docker gc`; `isolator` is a name";
        assert_eq!(with(text, " --config a"), expected);
        assert_eq!(with(text, ""), text);
    }
}
