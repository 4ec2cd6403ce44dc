//! Resolves the arguments of a program that runs in a new sandbox.

use std::sync::Arc;
use std::time::Duration;

use isolator_pool::quote::quoted;
use isolator_pool::run::RunRequest;

use super::{language, language_names, resources, stdin, variables};
use crate::config::{Config, Language};
use crate::policy::SourceFile;
use crate::request::arguments::{Arguments, InvalidArgument, TestCode, required};
use crate::request::limits::{cpu_seconds, memory, timeout};
use crate::request::pack::{Entrypoint, Packer, refuse_more_than_memory};
use crate::request::packages::WantedPackages;
use crate::request::snippets::{self, Snippets};
use crate::request::syntax::SyntaxJob;
use crate::request::understand;
use crate::request::wanted_files::OutputFiles;

/// A program for a new sandbox, whose every part was checked.
#[derive(Debug)]
pub(crate) struct ProgramJob {
    /// The language, which names the pool.
    pub language: Arc<Language>,
    /// The check of its syntax, if that comes first.
    pub syntax: Option<SyntaxJob>,
    /// The request to the pool.
    pub run: RunRequest,
    /// The files that should come back.
    pub wanted: OutputFiles,
    /// The caller's sources, if a policy applies to them. Snippets are the operator's and are not checked.
    pub unchecked: Vec<SourceFile>,
    /// An explanation if the language's own tools can't read the source.
    pub advice: Option<understand::Advice>,
    /// The packages that it needs.
    pub packages: WantedPackages,
    /// How long the call waits for its packages, if not until they are there.
    pub max_wait: Option<Duration>,
    pub notes: Vec<String>,
}

/// Resolves the arguments of `execute_code` without a session.
pub(crate) fn program(
    mut arguments: Arguments,
    config: &Config,
    snippets: &Snippets,
) -> Result<ProgramJob, InvalidArgument> {
    // It may be long, so it is moved and not copied from here on.
    let code = arguments.entrypoint_code.take();
    let entrypoint = entrypoint(&arguments, code, config, snippets)?;
    let language = Arc::clone(&entrypoint.language);
    let timeout = timeout(arguments.timeout.as_deref(), &config.limits)?;
    let resources = resources(&language, arguments.memory_mb, arguments.cpus, config)?;
    let env = variables(&arguments.args, &arguments.env, &language)?;
    let workdir = &language.sandbox.workdir;
    let wanted =
        OutputFiles::new(arguments.output_files, workdir, config.results.files.as_bytes())?;
    let stdin = stdin(arguments.stdin.unwrap_or_default(), config)?;
    let advice = understand::advice(&entrypoint.code, &language);
    let of_code = if entrypoint.is_snippet { "snippet_name" } else { "entrypoint_code" };
    let packages = WantedPackages::new(arguments.packages, &entrypoint.code, of_code, &language);
    let got_nothing = arguments.args.is_empty() && stdin.is_empty();
    let usage = (entrypoint.is_snippet && got_nothing).then(|| snippets::usage(&entrypoint.code));
    let notes = usage.flatten().as_deref().map(snippets::not_used).into_iter().collect();
    let mut packer = Packer::new(&language, &config.policies, config);
    packer.entrypoint(entrypoint)?;
    packer.files("additional_files", arguments.additional_files)?;
    let (workspace, unchecked) = (packer.builder.build(), packer.unchecked);
    refuse_more_than_memory(&workspace, &stdin, resources.memory)?;
    let mut argv = language.argv(&packer.sources[0], &packer.sources, resources.memory);
    argv.extend(arguments.args);
    let run = RunRequest {
        env,
        stdin,
        files: Some(wanted.to_sandbox()),
        ..RunRequest::new(argv, workspace, timeout, resources, config.output_with_kept())
    };
    Ok(ProgramJob {
        language,
        syntax: None,
        run,
        wanted,
        unchecked,
        advice,
        packages,
        max_wait: None,
        notes,
    })
}

/// Resolves the arguments of `test_code`: a program of one file in the language of the tool.
pub(crate) fn test(
    arguments: TestCode,
    language: &Arc<Language>,
    config: &Config,
) -> Result<ProgramJob, InvalidArgument> {
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
    let mut packer = Packer::new(language, &config.policies, config);
    packer.entrypoint(entrypoint).map_err(of_code)?;
    let (workspace, unchecked) = (packer.builder.build(), packer.unchecked);
    refuse_more_than_memory(&workspace, &[], resources.memory).map_err(of_code)?;
    let argv = language.argv(&packer.sources[0], &packer.sources, resources.memory);
    let run = RunRequest {
        env: language.env.clone(),
        cpu_time: cpu_time.transpose()?,
        ..RunRequest::new(argv, workspace, timeout, resources, config.limits.output())
    };
    Ok(ProgramJob {
        language: Arc::clone(language),
        advice: understand::advice(&code, language),
        syntax: Some(SyntaxJob::new(language, code, config)?),
        run,
        wanted: OutputFiles::none(config.results.files.as_bytes()),
        unchecked,
        packages,
        max_wait: Some(config.results.detach_after),
        notes: Vec::new(),
    })
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
            format!("is required with entrypoint_code: one of {}", language_names(config)),
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use isolator_pool::engine::limits::ByteSize;
    use serde_json::{Value, json};

    use super::*;
    use crate::request::arguments::parse;

    fn resolve_json(arguments: Value) -> Result<ProgramJob, InvalidArgument> {
        resolve_with("{}", arguments)
    }

    fn resolve_with(config: &str, arguments: Value) -> Result<ProgramJob, InvalidArgument> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("prompts")).unwrap();
        std::fs::write(folder.path().join("prompts/greet.py"), "print('hi')").unwrap();
        let config = Config::parse(config, None, folder.path()).unwrap();
        program(parse(arguments)?, &config, &Snippets::new(&config))
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
    fn files_that_would_fill_the_memory_are_refused() {
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
    fn arguments_and_variables_are_limited_like_those_of_the_system() {
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
