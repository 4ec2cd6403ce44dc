//! Resolves a caller's arguments to a request that can run: the program, its language, files and limits.

use std::collections::BTreeMap;
use std::sync::Arc;

use isolator_pool::quote::quoted;
use isolator_pool::run::RunRequest;

use crate::config::{Config, Language};
use crate::policy::SourceFile;
use crate::request::arguments::{Arguments, InvalidArgument, TestCode, required};
use crate::request::limits::{cpu, cpu_seconds, memory, timeout};
use crate::request::pack::{Entrypoint, Packed, is_source_beside, pack, refuse_more_than_memory};
use crate::request::packages::WantedPackages;
use crate::request::snippets::{Snippets, usage};
use crate::request::understand;
use crate::request::wanted_files::Wanted;

/// Longest argument or variable, in bytes: Linux takes 128 KiB with the closing NUL.
const MAX_ARGUMENT: usize = 128 * 1024 - 1;

/// All arguments and variables together, in bytes. Linux takes a quarter of the stack's limit,
/// usually 2 MiB, for these and the pointers to them.
const MAX_ARGUMENTS: usize = 512 * 1024;

/// A request whose every part was checked.
#[derive(Debug)]
pub(crate) struct Request {
    /// The language, which names the pool.
    pub language: Arc<Language>,
    /// What to run.
    pub run: RunRequest,
    /// Which files should come back.
    pub wanted: Wanted,
    /// The caller's sources, if a policy applies to them. Snippets are the operator's and are not checked.
    pub unchecked: Vec<SourceFile>,
    /// What to say if the language's own tools can't read the source.
    pub advice: Option<understand::Advice>,
    /// The packages that it needs.
    pub packages: WantedPackages,
    /// How a snippet is called that got nothing.
    pub usage: Option<String>,
}

/// A request of the tool `test_code` whose every part was checked.
#[derive(Debug)]
pub(crate) struct TestRequest {
    /// What to run.
    pub run: RunRequest,
    /// The source, if a policy applies to it.
    pub unchecked: Vec<SourceFile>,
    /// The packages that it needs.
    pub packages: WantedPackages,
}

/// Checks the arguments against the configuration and packs the files.
///
/// # Errors
///
/// The first argument that can't be used.
pub(crate) fn resolve(
    mut arguments: Arguments,
    config: &Config,
    snippets: &Snippets,
) -> Result<Request, InvalidArgument> {
    // It may be long, so it is moved and not copied from here on.
    let code = arguments.entrypoint_code.take();
    let entrypoint = entrypoint(&arguments, code, config, snippets)?;
    let timeout = timeout(arguments.timeout.as_deref(), &config.limits)?;
    let mut resources = entrypoint.language.sandbox.resources;
    if let Some(mb) = arguments.memory_mb {
        resources.memory = memory("memory_mb", mb, &config.limits)?;
    }
    if let Some(cores) = arguments.cpus {
        resources.cpu = cpu(cores, &config.limits)?;
    }
    let env = arguments_and_variables(&arguments, &entrypoint.language)?;
    let workdir = &entrypoint.language.sandbox.workdir;
    let wanted = Wanted::new(arguments.output_files, workdir, config.results.files.as_bytes())?;
    let stdin = arguments.stdin.unwrap_or_default().into_bytes();
    if stdin.len() as u64 > config.limits.files().total {
        let message = format!("is longer than {} bytes", config.limits.files().total);
        return Err(InvalidArgument::new("stdin", message));
    }
    let language = Arc::clone(&entrypoint.language);
    let advice = understand::advice(&entrypoint.code, &language);
    let of_code = if entrypoint.is_snippet { "snippet_name" } else { "entrypoint_code" };
    let packages = WantedPackages::new(arguments.packages, &entrypoint.code, of_code, &language);
    let got_nothing = arguments.args.is_empty() && stdin.is_empty();
    let usage = (entrypoint.is_snippet && got_nothing).then(|| usage(&entrypoint.code)).flatten();
    let Packed { file_name, sources, workspace, unchecked } =
        pack(config, entrypoint, arguments.additional_files)?;
    refuse_more_than_memory(&workspace, &stdin, resources.memory)?;
    let mut argv = language.argv(&file_name, &sources, resources.memory);
    argv.extend(arguments.args);
    let output = config.output_with_kept();
    let files = Some(wanted.to_sandbox());
    let run = RunRequest {
        env,
        stdin,
        files,
        ..RunRequest::new(argv, workspace, timeout, resources, output)
    };
    Ok(Request { language, run, wanted, unchecked, advice, packages, usage })
}

/// The same for a program of one file in the language of the tool `test_code`.
///
/// # Errors
///
/// The first argument that can't be used.
pub(crate) fn resolve_test(
    arguments: TestCode,
    language: &Arc<Language>,
    config: &Config,
) -> Result<(String, TestRequest), InvalidArgument> {
    let code = required(arguments.code, "code", "the source of the program")?;
    if let Some(other) = arguments.language.filter(|other| *other != language.name) {
        let message = format!(
            "this tool tests programs in {}, not in {}; use execute_code for those",
            language.name,
            quoted(&other)
        );
        return Err(InvalidArgument::new("language", message));
    }
    let timeout = timeout(arguments.timeout.as_deref(), &config.limits)?;
    let cpu_time = arguments.cpu_limit_sec.map(|seconds| cpu_seconds(seconds, &config.limits));
    let mut resources = language.sandbox.resources;
    if let Some(mb) = arguments.memory_limit_mb {
        resources.memory = memory("memory_limit_mb", mb, &config.limits)?;
    }
    let packages = WantedPackages::new(arguments.packages, &code, "code", language);
    let entrypoint = Entrypoint {
        language: Arc::clone(language),
        file_name: language.default_file.clone(),
        code: code.clone(),
        field: "code",
        is_snippet: false,
    };
    let of_code = |error: InvalidArgument| InvalidArgument::new("code", error.message);
    let Packed { file_name, sources, workspace, unchecked } =
        pack(config, entrypoint, Vec::new()).map_err(of_code)?;
    refuse_more_than_memory(&workspace, &[], resources.memory).map_err(of_code)?;
    let argv = language.argv(&file_name, &sources, resources.memory);
    let run = RunRequest {
        env: language.env.clone(),
        cpu_time: cpu_time.transpose()?,
        ..RunRequest::new(argv, workspace, timeout, resources, config.limits.output())
    };
    Ok((code, TestRequest { run, unchecked, packages }))
}

fn entrypoint(
    arguments: &Arguments,
    code: Option<String>,
    config: &Config,
    snippets: &Snippets,
) -> Result<Entrypoint, InvalidArgument> {
    const BOTH: &str = "give either snippet_name, or language and entrypoint_code, not both";
    let named = arguments.entrypoint_filename.clone();
    if let Some(name) = &arguments.snippet_name {
        if code.is_some() {
            return Err(InvalidArgument::new("snippet_name", BOTH));
        }
        let snippet = snippets
            .get(name)
            .map_err(|error| InvalidArgument::new("snippet_name", error.to_string()))?;
        if arguments.language.as_ref().is_some_and(|language| *language != snippet.language) {
            let message = format!("snippet {name:?} is written in {}: {BOTH}", snippet.language);
            return Err(InvalidArgument::new("language", message));
        }
        return Ok(Entrypoint {
            language: language(&snippet.language, config)?,
            field: if named.is_some() { "entrypoint_filename" } else { "snippet_name" },
            file_name: named.unwrap_or(snippet.file_name),
            code: snippet.code,
            is_snippet: true,
        });
    }
    match (&arguments.language, code) {
        (Some(name), Some(code)) => {
            let language = language(name, config)?;
            Ok(Entrypoint {
                field: "entrypoint_filename",
                file_name: named.unwrap_or_else(|| language.default_file.clone()),
                code,
                language,
                is_snippet: false,
            })
        }
        (None, Some(_)) => Err(InvalidArgument::new(
            "language",
            format!("is required with entrypoint_code: one of {}", names(config)),
        )),
        (Some(_), None) => Err(InvalidArgument::new(
            "entrypoint_code",
            "is required with language: the source of the program",
        )),
        (None, None) => Err(InvalidArgument::new(
            "entrypoint_code",
            "there is nothing to run: give either snippet_name, or language and entrypoint_code",
        )),
    }
}

/// The language of that name.
///
/// # Errors
///
/// When there is none.
pub(crate) fn language(name: &str, config: &Config) -> Result<Arc<Language>, InvalidArgument> {
    config.languages.get(name).cloned().ok_or_else(|| {
        let message =
            format!("{} is not a configured language: use one of {}", quoted(name), names(config));
        InvalidArgument::new("language", message)
    })
}

/// The sources among the files of a program, of which the first is its entrypoint.
pub(crate) fn sources(names: &[String], language: &Language) -> Vec<String> {
    let is_source =
        |name: &&String| **name == names[0] || is_source_beside(name, &names[0], language);
    names.iter().filter(is_source).cloned().collect()
}

fn names(config: &Config) -> String {
    config.languages.keys().cloned().collect::<Vec<_>>().join(", ")
}

/// Checks the program's arguments, and returns its variables: the language's and the request's.
pub(super) fn arguments_and_variables(
    arguments: &Arguments,
    language: &Language,
) -> Result<BTreeMap<String, String>, InvalidArgument> {
    let mut total = 0;
    for (index, arg) in arguments.args.iter().enumerate() {
        let field = format!("args[{index}]");
        refuse_unusable(&field, arg)?;
        total += arg.len();
    }
    let mut env = language.env.clone();
    for (name, value) in &arguments.env {
        let field = format!("env.{}", name.chars().take(60).collect::<String>());
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(InvalidArgument::new(field, "this is not the name of a variable"));
        }
        refuse_unusable(&field, value)?;
        total += name.len() + value.len();
        env.insert(name.clone(), value.clone());
    }
    if total > MAX_ARGUMENTS {
        let field = if arguments.args.is_empty() { "env" } else { "args" };
        let message = format!(
            "arguments and variables hold {total} bytes together, more than {MAX_ARGUMENTS}: send \
             large data in additional_files or stdin"
        );
        return Err(InvalidArgument::new(field, message));
    }
    Ok(env)
}

pub(super) fn refuse_unusable(field: &str, text: &str) -> Result<(), InvalidArgument> {
    if text.contains('\0') {
        return Err(InvalidArgument::new(field, "contains a NUL character"));
    }
    if text.len() > MAX_ARGUMENT {
        let message = format!(
            "is longer than {MAX_ARGUMENT} bytes: send large data in additional_files or stdin"
        );
        return Err(InvalidArgument::new(field, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use isolator_pool::engine::limits::ByteSize;
    use serde_json::{Value, json};

    use super::*;
    use crate::request::arguments::parse;

    fn resolve_json(arguments: Value) -> Result<Request, InvalidArgument> {
        resolve_with("{}", arguments)
    }

    fn resolve_with(config: &str, arguments: Value) -> Result<Request, InvalidArgument> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("prompts")).unwrap();
        std::fs::write(folder.path().join("prompts/greet.py"), "print('hi')").unwrap();
        let config = Config::parse(config, None, folder.path()).unwrap();
        resolve(parse(arguments)?, &config, &Snippets::new(&config))
    }

    fn field(arguments: Value) -> String {
        resolve_json(arguments).unwrap_err().field
    }

    fn with(extra: Value) -> Value {
        let mut arguments = json!({"language": "python", "entrypoint_code": "pass"});
        arguments.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        arguments
    }

    #[test]
    fn code_gets_the_language_s_file_name_and_command() {
        let request = resolve_json(with(json!({"args": ["-x", "1"]}))).unwrap();
        assert_eq!(request.run.argv, ["python3", "main.py", "-x", "1"]);
        assert_eq!(request.run.timeout, Duration::from_secs(60));
        assert_eq!(request.run.env["PYTHONUNBUFFERED"], "1");
    }

    #[test]
    fn a_snippet_brings_its_language_and_file_name() {
        let request = resolve_json(json!({"snippet_name": "greet"})).unwrap();
        assert_eq!(request.run.argv, ["python3", "greet.py"]);
        assert!(resolve_json(json!({"snippet_name": "greet", "language": "python"})).is_ok());
    }

    #[test]
    fn one_source_is_needed_and_only_one() {
        assert_eq!(field(json!({})), "entrypoint_code");
        assert_eq!(field(json!({"language": "python"})), "entrypoint_code");
        assert_eq!(field(json!({"entrypoint_code": "1"})), "language");
        assert_eq!(field(with(json!({"snippet_name": "greet"}))), "snippet_name");
        assert_eq!(field(json!({"snippet_name": "greet", "language": "go"})), "language");
        assert_eq!(field(json!({"snippet_name": "../greet"})), "snippet_name");
        assert_eq!(field(json!({"snippet_name": "unknown"})), "snippet_name");
        let error = resolve_json(json!({"language": "cobol", "entrypoint_code": ""})).unwrap_err();
        assert!(error.message.contains("go, javascript, python"), "{error}");
    }

    #[test]
    fn a_bad_file_is_named_by_its_place() {
        let files = |files: Value| with(json!({"additional_files": files}));
        let file = |name: &str| json!({"filename": name, "content": ""});
        for name in ["", "/etc/passwd", "../x", "a\0b", "main.py", "./main.py", "main.py/x", "d/"] {
            assert_eq!(
                field(files(json!([file("ok"), file(name)]))),
                "additional_files[1].filename",
                "{name:?}"
            );
        }
        let many: Vec<_> = (0..201).map(|n| file(&format!("f{n}"))).collect();
        assert_eq!(field(files(json!(many))), "additional_files");
        let large = json!([{"filename": "a", "content": "x".repeat(11 << 20)}]);
        assert_eq!(field(files(large)), "additional_files[0].content");
        let base64 = json!([{"filename": "a", "content": "%%", "encoding": "base64"}]);
        assert_eq!(field(files(base64)), "additional_files[0].content");
        assert_eq!(
            field(with(json!({"entrypoint_filename": "../main.py"}))),
            "entrypoint_filename"
        );
    }

    #[test]
    fn durations_and_resources_have_bounds() {
        for timeout in ["", "5", "5 parsecs", "0s", "6m", "-1s"] {
            assert_eq!(field(with(json!({"timeout": timeout}))), "timeout", "{timeout:?}");
        }
        assert_eq!(field(with(json!({"memory_mb": 1}))), "memory_mb");
        assert_eq!(field(with(json!({"memory_mb": u64::MAX}))), "memory_mb");
        assert_eq!(field(with(json!({"cpus": 0}))), "cpus");
        assert_eq!(field(with(json!({"cpus": 64}))), "cpus");
        let request = resolve_json(with(json!({"timeout": "1500ms", "memory_mb": 300}))).unwrap();
        assert_eq!(request.run.timeout, Duration::from_millis(1500));
        assert_eq!(request.run.resources.memory, ByteSize::mib(300));
    }

    #[test]
    fn what_would_fill_the_memory_is_refused() {
        let half = json!({"memory_mb": 16, "stdin": "x".repeat(9 << 20)});
        assert_eq!(field(with(half)), "stdin");
        let enough = json!({"memory_mb": 64, "stdin": "x".repeat(9 << 20)});
        assert!(resolve_json(with(enough)).is_ok());
    }

    #[test]
    fn a_file_is_never_taken_for_an_option() {
        let request = resolve_json(with(json!({"entrypoint_filename": "-c"}))).unwrap();
        assert_eq!(request.run.argv, ["python3", "./-c"]);
    }

    #[test]
    fn arguments_and_variables_are_what_the_system_takes() {
        assert_eq!(field(with(json!({"args": ["a\0b"]}))), "args[0]");
        assert_eq!(field(with(json!({"env": {"A=B": "x"}}))), "env.A=B");
        assert_eq!(field(with(json!({"env": {"A": "\u{0}"}}))), "env.A");
        assert_eq!(field(with(json!({"args": ["x".repeat(200_000)]}))), "args[0]");
        assert_eq!(field(with(json!({"args": vec!["x".repeat(100_000); 6]}))), "args");
        assert_eq!(field(with(json!({"stdin": "x".repeat(11 << 20)}))), "stdin");
    }

    #[test]
    fn compilers_get_all_sources_of_the_program_and_no_tests() {
        let config = r#"{"languageSettings": {"c": {
            "image": "gcc", "extensions": [".c"], "command": ["cc", "{sources}"]
        }}}"#;
        let arguments = json!({
            "language": "c", "entrypoint_code": "",
            "additional_files": [
                {"filename": "helper.c", "content": ""},
                {"filename": "helper_test.c", "content": ""},
                {"filename": "sub/other.c", "content": ""},
                {"filename": "data.txt", "content": ""},
            ],
        });
        let request = resolve_with(config, arguments).unwrap();
        assert_eq!(request.run.argv, ["cc", "main.c", "helper.c"]);
    }

    #[test]
    fn the_heap_follows_the_memory_of_the_request() {
        for (mb, heap) in [(256, 224), (16, 8), (64, 32), (128, 96), (512, 480), (1024, 960)] {
            let arguments =
                json!({"language": "javascript", "entrypoint_code": "", "memory_mb": mb});
            let request = resolve_json(arguments).unwrap();
            assert_eq!(request.run.argv[1], format!("--max-old-space-size={heap}"), "{mb}");
        }
    }
}
