//! Help for a program that lacks a module: the set of packages that has it, or how to ask for its package.

use std::sync::LazyLock;

use isolator_pool::engine::preload::Interpreter;
use isolator_pool::quote::is_name;
use regex::Regex;
use serde_json::json;

use crate::pattern::pattern;
use crate::result::context::{Caller, Context, PackagesAdvice};

/// Most sets that are named.
const MOST_SETS: usize = 3;

/// The rest of Python's output after the first error, if another one came of it.
pub(super) const TRACEBACK_END: &str =
    r"(?:\n\n(?:The above exception was|During handling of the above)(?s:.*))?\s*\z";

/// The end of the output of a Python program that lacks a module, or a package that another module would use.
static PYTHON: LazyLock<Regex> = pattern!({
    const MISSING: &str = r"(?m)^ .*\n(?:ModuleNotFoundError: No module named '([^'\n]+)'|ImportError: (?:Unable to find a usable engine; tried using: '|Missing optional dependency ')(\w+)'(?s:.*)).*";
    format!("{MISSING}{TRACEBACK_END}")
});

/// The same for Node.js.
static NODE: LazyLock<Regex> = pattern!(
    r"(?m)^Error(?: \[\w+\])?: Cannot find (?:module|package) '([^'\n]+)'.*\n(?:(?:Require stack:|- |Did you mean |    at ).*\n)+  code: '(?:ERR_)?MODULE_NOT_FOUND',?\n(?:  .*\n)*\}\n\nNode\.js v\S+\s*\z"
);

/// The same in a cell, after which the interpreter goes on.
static NODE_CELL: LazyLock<Regex> =
    pattern!(r"(?m)^(?:Uncaught )?Error(?: \[\w+\])?: Cannot find (?:module|package) '([^'\n]+)'");

/// Messages of programs that want to install something. The last of these are the words of a session's kernel.
static INSTALLER: LazyLock<Regex> = pattern!({
    const TOOLS: &str = r"(?:pip[\d.]*|uv|conda|mamba|npm|npx|pnpm|yarn|apt|apt-get)";
    format!(
        r"(?m)^\S*python\S*: No module named (?:pip|ensurepip|venv)\b|^ .*\nModuleNotFoundError: No module named '(?:pip|ensurepip)'|^\S*: (?:line )?\d+: {TOOLS}: (?:command )?not found$|in _execute_child\n(?: +.*\n)+FileNotFoundError: \[Errno 2\] No such file or directory: '{TOOLS}'|spawn {TOOLS} ENOENT|^UsageError: .* can't be installed: "
    )
});

/// Modules whose package has another name, where many programs use them.
const PACKAGES: [(&str, &str); 14] = [
    ("bs4", "beautifulsoup4"),
    ("Crypto", "pycryptodome"),
    ("cv2", "opencv-python-headless"),
    ("dateutil", "python-dateutil"),
    ("docx", "python-docx"),
    ("dotenv", "python-dotenv"),
    ("fitz", "pymupdf"),
    ("git", "gitpython"),
    ("jose", "python-jose"),
    ("jwt", "pyjwt"),
    ("pptx", "python-pptx"),
    ("serial", "pyserial"),
    ("skimage", "scikit-image"),
    ("yaml", "pyyaml"),
];

/// Modules that need a display, or parts of the image that it does not have.
const NO_PACKAGE: [&str; 6] = ["_tkinter", "tkinter", "turtle", "pygame", "pip", "ensurepip"];

/// The module that a program lacked, going by the end of its standard error.
fn module(interpreter: Interpreter, is_session: bool, printed: &str) -> Option<String> {
    let pattern = match (interpreter, is_session) {
        (Interpreter::Python, _) => &PYTHON,
        (Interpreter::Node, false) => &NODE,
        (Interpreter::Node, true) => &NODE_CELL,
    };
    let found = pattern.captures_iter(printed).last()?;
    let name = found.iter().skip(1).flatten().next()?.as_str();
    // A program can print anything in the form of a known message. Only what looks like a name is repeated.
    (is_name(name) && !name.starts_with(['.', '/'])).then(|| name.to_owned())
}

/// The name of the package that has a module, most likely.
fn package(interpreter: Interpreter, module: &str) -> &str {
    match interpreter {
        Interpreter::Python => {
            let topmost = module.split('.').next().unwrap_or_default();
            let known = PACKAGES.iter().find(|(module, _)| *module == topmost);
            known.map_or(topmost, |(_, package)| package)
        }
        Interpreter::Node => {
            let parts = if module.starts_with('@') { 2 } else { 1 };
            let end = module.match_indices('/').nth(parts - 1).map_or(module.len(), |(at, _)| at);
            &module[..end]
        }
    }
}

/// The command that installs packages for an interpreter.
const fn installer(interpreter: Interpreter) -> &'static str {
    match interpreter {
        Interpreter::Python => "pip install",
        Interpreter::Node => "npm install",
    }
}

impl PackagesAdvice<'_> {
    /// Help, if the end of standard error names a module that packages can bring.
    pub(super) fn help(&self, printed: &str, context: &Context<'_>) -> Option<String> {
        let Context { language, config, caller, .. } = context;
        let interpreter = language.kernel?;
        let on_demand = config.packages.on_demand();
        if INSTALLER.is_match(printed) {
            return self.instead_of_installing(context);
        }
        let module = module(interpreter, *caller == Caller::Cell, printed)?;
        let mut sets = self.packages.sets_with(&language.name, &module);
        if sets.iter().any(|set| self.asked.contains(set)) {
            return None;
        }
        sets.truncate(MOST_SETS);
        if let [first, others @ ..] = &*sets {
            let others = others.iter().map(|set| format!(" and in {set:?}")).collect::<String>();
            let how = self.how(first, *caller);
            return Some(format!(
                "the module '{module}' is in the set of packages {first:?}{others}: {how}"
            ));
        }
        let package = package(interpreter, &module);
        let name = package.to_lowercase().replace('_', "-");
        let name = if interpreter == Interpreter::Python { &name } else { package };
        let can_be_asked = on_demand.is_some_and(|on_demand| on_demand.allows(interpreter, name));
        let is_there = self.asked.iter().any(|asked| asked.starts_with(package));
        if !can_be_asked || is_there || NO_PACKAGE.contains(&package) {
            return None;
        }
        let how = self.how(package, *caller);
        let tool = installer(interpreter);
        Some(format!(
            "the module '{module}' is not in the image, but packages can be asked for: {tool} {package}, or {how}, or with another \
             name if its package has one"
        ))
    }

    fn how(&self, set: &str, caller: Caller) -> String {
        let mut all = self.asked.to_vec();
        all.push(set.to_owned());
        match caller {
            Caller::Call => format!("call again with packages {}", json!(all)),
            Caller::Api(_) => {
                format!(
                    "list them in the program's block \"# /// script\": packages = {}",
                    json!(all)
                )
            }
            Caller::Cell | Caller::ShellCommand => {
                format!("open a session with packages {}", json!(all))
            }
            Caller::CommandLine | Caller::Prompt => {
                let flags = all.iter().map(|set| format!(" --packages {set}")).collect::<String>();
                format!("run it with{flags}")
            }
        }
    }

    /// Advice for a program that wants to install something, if it could have packages.
    pub(super) fn instead_of_installing(&self, context: &Context<'_>) -> Option<String> {
        let on_demand = context.config.packages.on_demand().is_some();
        let sets = self.packages.names(&context.language.name);
        let argument = match context.caller {
            Caller::Call | Caller::Cell | Caller::ShellCommand => "the argument packages",
            Caller::Api(_) => "the program's block \"# /// script\"",
            Caller::CommandLine | Caller::Prompt => "--packages",
        };
        let what = match (on_demand, sets.is_empty()) {
            (true, _) => format!("name the packages in {argument}"),
            (false, false) => format!("{argument} takes the sets {}", sets.join(", ")),
            (false, true) => return None,
        };
        let call = match context.caller {
            Caller::Call | Caller::Api(_) => "the call",
            Caller::Cell | Caller::ShellCommand => "open_session",
            Caller::CommandLine | Caller::Prompt => "the command",
        };
        let tools = context.language.kernel.map_or("nothing", installer);
        Some(match on_demand {
            true => {
                format!(
                    "{tools} installs packages, as a command, and {call} can bring them: {what}"
                )
            }
            false => format!(
                "{tools} gets only what the sets of packages have, and {call} can bring those: {what}"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_module_is_found_where_the_language_tells_it() {
        let frame = "Traceback (most recent call last):\n  File \"main.py\", line 1, in <module>\n    import x\n";
        for (printed, expected) in [
            (format!("{frame}ModuleNotFoundError: No module named 'humanize'\n"), Some("humanize")),
            (
                format!(
                    "{frame}ModuleNotFoundError: No module named 'google.protobuf'; 'google' is not a package\n"
                ),
                Some("google.protobuf"),
            ),
            (
                format!("{frame}ImportError: Missing optional dependency 'pyarrow'. Use pip.\n"),
                Some("pyarrow"),
            ),
            (format!("{frame}ModuleNotFoundError: No module named 'x'\nand so I end\n"), None),
            ("ModuleNotFoundError: No module named 'x'\n".to_owned(), None),
            (format!("{frame}ModuleNotFoundError: No module named '\u{1b}[2J'\n"), None),
        ] {
            let found = module(Interpreter::Python, false, &printed);
            assert_eq!(found.as_deref(), expected, "{printed}");
        }
        let node = |name: &str| {
            format!(
                "node:internal/modules/cjs/loader:1404\n  throw err;\n  ^\n\nError: Cannot find module '{name}'\nRequire stack:\n\
                 - /workspace/main.js\n    at Module._load (node:internal/modules/cjs/loader:1) {{\n  \
                 code: 'MODULE_NOT_FOUND',\n  requireStack: [ '/workspace/main.js' ]\n}}\n\nNode.js v24.19.0\n"
            )
        };
        let of = |name: &str| module(Interpreter::Node, false, &node(name));
        assert_eq!(of("@scope/name/file.js").as_deref(), Some("@scope/name/file.js"));
        assert_eq!(of("./util.js"), None);
        let cell = "Uncaught Error: Cannot find module 'lodash'\nRequire stack:\n";
        assert_eq!(module(Interpreter::Node, true, cell).as_deref(), Some("lodash"));
    }

    #[test]
    fn a_module_s_package_is_named() {
        assert_eq!(package(Interpreter::Python, "yaml.scanner"), "pyyaml");
        assert_eq!(package(Interpreter::Python, "humanize"), "humanize");
        assert_eq!(package(Interpreter::Node, "lodash/fp"), "lodash");
        assert_eq!(package(Interpreter::Node, "@scope/name/file.js"), "@scope/name");
    }
}
