//! The fields of each tool: their names, other names that callers use, and the kinds of their values.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::given::{Given, Object};
use super::notes::Notes;
use crate::request::arguments::{
    Arguments, CheckSyntax, GetResult, InvalidArgument, OneSession, OpenSession, RewindSession,
    RunCommand, TestCode, shortened,
};

/// Longest name that is compared with others, in bytes.
const MAX_NAME: usize = 40;

/// A field of a tool, or of an object in a tool's arguments.
#[derive(Debug)]
pub(crate) struct Field {
    pub(super) name: &'static str,
    /// The kind of its values.
    pub(super) kind: Kind,
    /// Other names that callers give it, without case and punctuation.
    others: &'static [&'static str],
    /// Advice for an error.
    pub(super) expected: &'static str,
}

/// The kind of a field's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A text that is left out if it is empty.
    Name,
    /// A path; an empty one is a mistake.
    Path,
    /// The source of the program.
    Code,
    /// Any text.
    Text,
    /// One of the configured languages.
    Language,
    /// The language of a tool that has only one.
    OwnLanguage,
    /// A time; plain numbers are seconds, and are noted.
    Duration,
    /// A time; plain numbers are seconds, as documented.
    Seconds,
    /// A whole number of MiB.
    Mebibytes,
    /// A whole number.
    Whole,
    Number,
    /// `true` or `false`.
    Switch,
    /// Command-line arguments.
    Args,
    /// Patterns of files.
    Patterns,
    /// Sets of packages, and requirements.
    Packages,
    /// Environment variables.
    Variables,
    /// A list of files.
    Files,
    /// How a file's content is written.
    Encoding,
}

/// The arguments of a tool.
pub(crate) trait ToolArguments: DeserializeOwned {
    /// Its fields.
    const FIELDS: &'static [Field];
}

const fn field(
    name: &'static str,
    kind: Kind,
    others: &'static [&'static str],
    expected: &'static str,
) -> Field {
    Field { name, kind, others, expected }
}

const LANGUAGE: &[&str] = &["lang", "programminglanguage"];
const SOURCE: &str = "give the complete source of the program as a string";
const DURATION: &str = "give a duration with its unit, such as \"500ms\", \"5s\" or \"2m\"";
const SECONDS: &str = "give a number of seconds, or a duration such as \"500ms\" or \"5s\"";
const MEBIBYTES: &str = "give a whole number of MiB, such as 256";
const NAME_OF_LANGUAGE: &str = "give the name of one language as a string";
const TIMEOUT: &[&str] =
    &["timelimit", "timeoutms", "timeouts", "timeoutsec", "timeoutsecs", "timeoutseconds"];

const SESSION: Field = field(
    "session",
    Kind::Name,
    &["handle", "sessionhandle", "sessionid"],
    "give the handle that open_session returned, as a string",
);
const STDIN: Field = field(
    "stdin",
    Kind::Text,
    &["input", "inputdata", "standardinput", "stdininput"],
    "give the program's standard input as a string",
);
const ENV: Field = field(
    "env",
    Kind::Variables,
    &["environ", "environment", "environmentvariables", "envvars", "variables"],
    "give a list of strings, such as [\"MODE=fast\"]",
);
const MEMORY: Field =
    field("memory_mb", Kind::Mebibytes, &["memorylimitmb", "memorymib", "memmb"], MEBIBYTES);
const CORES: Field = field(
    "cpus",
    Kind::Number,
    &["cores", "cpu", "cpucores", "cpucount"],
    "give a number of cores, such as 0.5",
);
const PACKAGES: Field = field(
    "packages",
    Kind::Packages,
    &[
        "dependencies",
        "deps",
        "libraries",
        "modules",
        "package",
        "packageset",
        "packagesets",
        "pip",
        "requirements",
        "sets",
    ],
    "give a list of strings, such as [\"text\"]",
);
const FILES: &str = "give a list of objects with filename and content";

impl ToolArguments for Arguments {
    const FIELDS: &'static [Field] = &[
        SESSION,
        field("language", Kind::Language, LANGUAGE, NAME_OF_LANGUAGE),
        field(
            "entrypoint_code",
            Kind::Code,
            &["code", "codestring", "content", "program", "script", "source", "sourcecode"],
            SOURCE,
        ),
        field(
            "entrypoint_filename",
            Kind::Name,
            &["entrypointfile", "filename", "mainfile"],
            "give a file name as a string",
        ),
        field("additional_files", Kind::Files, &["extrafiles", "files", "inputfiles"], FILES),
        field("snippet_name", Kind::Name, &["snippetid"], "give the name of a snippet as a string"),
        field(
            "output_files",
            Kind::Patterns,
            &["filestoreturn", "outputfile", "outputs", "returnfiles"],
            "give a list of strings, such as [\"*.csv\", \"out/**\"]",
        ),
        field(
            "args",
            Kind::Args,
            &["argument", "arguments", "argv", "cliargs", "commandlineargs"],
            "give a list of strings, such as [\"-n\", \"5\"]",
        ),
        STDIN,
        ENV,
        field("timeout", Kind::Duration, TIMEOUT, DURATION),
        MEMORY,
        CORES,
        PACKAGES,
    ];
}

/// The fields of a file.
pub(super) const FILE: &[Field] = &[
    field(
        "filename",
        Kind::Path,
        &["file", "filepath", "name", "path"],
        "give the file's path as a string",
    ),
    field(
        "content",
        Kind::Text,
        &["body", "code", "contents", "data", "source", "text"],
        "give the file's content as a string",
    ),
    field(
        "encoding",
        Kind::Encoding,
        &["contentencoding"],
        "use utf-8 for text, or base64 for binary files",
    ),
    field("append", Kind::Switch, &["appends", "isappended"], "give true or false"),
];

const CODE: &[&str] = &[
    "codestring",
    "content",
    "entrypointcode",
    "program",
    "script",
    "snippet",
    "source",
    "sourcecode",
];

impl ToolArguments for CheckSyntax {
    const FIELDS: &'static [Field] = &[
        field("language", Kind::Language, LANGUAGE, NAME_OF_LANGUAGE),
        field("code", Kind::Code, CODE, SOURCE),
        PACKAGES,
    ];
}

impl ToolArguments for TestCode {
    const FIELDS: &'static [Field] = &[
        field("code", Kind::Code, CODE, SOURCE),
        field("language", Kind::OwnLanguage, LANGUAGE, NAME_OF_LANGUAGE),
        field("timeout", Kind::Seconds, TIMEOUT, SECONDS),
        field(
            "cpu_limit_sec",
            Kind::Whole,
            &["cpulimitseconds", "cpuseconds", "cputime", "cputimelimit"],
            "give a whole number of seconds, such as 5",
        ),
        field(
            "memory_limit_mb",
            Kind::Mebibytes,
            &["memlimitmb", "memorymb", "memorymib"],
            MEBIBYTES,
        ),
        PACKAGES,
    ];
}

impl ToolArguments for GetResult {
    const FIELDS: &'static [Field] = &[
        field(
            "handle",
            Kind::Name,
            &["handleid", "id", "resulthandle", "resultid", "runid"],
            "give the handle that execute_code returned, as a string",
        ),
        field("cancel", Kind::Switch, &["abort", "kill", "stop"], "give true or false"),
    ];
}

impl ToolArguments for OpenSession {
    const FIELDS: &'static [Field] = &[
        field("language", Kind::Language, LANGUAGE, NAME_OF_LANGUAGE),
        field("files", Kind::Files, &["additionalfiles", "inputfiles"], FILES),
        MEMORY,
        CORES,
        PACKAGES,
        field("idle_timeout", Kind::Duration, &["timeout", "ttl"], DURATION),
        field(
            "replay",
            Kind::Name,
            &["replayof", "replaysession"],
            "give the handle of an earlier session, as a string",
        ),
    ];
}

impl ToolArguments for RunCommand {
    const FIELDS: &'static [Field] = &[
        SESSION,
        field(
            "command",
            Kind::Text,
            &["cmd", "commandline", "script", "shell"],
            "give the shell command as a string",
        ),
        field(
            "cwd",
            Kind::Name,
            &["directory", "folder", "workdir", "workingdirectory"],
            "give a folder as a string",
        ),
        STDIN,
        ENV,
        field("timeout", Kind::Duration, TIMEOUT, DURATION),
    ];
}

impl ToolArguments for RewindSession {
    const FIELDS: &'static [Field] = &[
        SESSION,
        field(
            "cells",
            Kind::Whole,
            &["count", "n", "number", "steps"],
            "give a whole number of cells, such as 1",
        ),
    ];
}

impl ToolArguments for OneSession {
    const FIELDS: &'static [Field] = &[SESSION];
}

/// The value of a field in its form, or nothing if the caller leaves it out.
pub(super) type Meant = Result<Option<Value>, InvalidArgument>;

/// Reads the value of a field at a path.
pub(super) type ReadValue = fn(&Field, Given, &str, &mut Notes) -> Meant;

/// Brings the fields of an object into their form. `at` is the path of the object, with a dot at its end.
pub(super) fn read(
    given: Object,
    table: &[Field],
    at: &str,
    notes: &mut Notes,
    read_value: ReadValue,
) -> Result<Map<String, Value>, InvalidArgument> {
    let mut read = Map::new();
    for (key, value) in given {
        let Some(field) = find(table, &key) else { return Err(unknown(table, at, key)) };
        let place = format!("{at}{}", field.name);
        let Some(value) = read_value(field, in_its_unit(field, &key, value), &place, notes)? else {
            continue;
        };
        if key != field.name {
            notes.add(&place, format!("{at}{} was taken as {}", shortened(key), field.name));
        }
        if read.insert(field.name.to_owned(), value).is_some() {
            let name = field.name;
            let message = format!("is given under two names; give it once, as {name}");
            return Err(InvalidArgument::new(place, message));
        }
    }
    Ok(read)
}

/// The field that a caller means.
pub(super) fn find<'t>(table: &'t [Field], key: &str) -> Option<&'t Field> {
    let exact = table.iter().find(|field| field.name == key);
    exact.or_else(|| {
        let key = folded(key)?;
        let is_meant = |field: &&Field| {
            folded(field.name).as_ref() == Some(&key) || field.others.contains(&key.as_str())
        };
        table.iter().find(is_meant)
    })
}

/// A name without case and punctuation, unless it is too long for a name.
fn folded(name: &str) -> Option<String> {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    (name.len() <= MAX_NAME).then(|| letters.collect::<String>().to_ascii_lowercase())
}

/// A time whose unit is in its name, with that unit.
fn in_its_unit(field: &Field, key: &str, value: Given) -> Given {
    let is_time = matches!(field.kind, Kind::Duration | Kind::Seconds);
    if !is_time || folded(key).is_none_or(|key| !key.ends_with("ms")) {
        return value;
    }
    match value {
        Given::Number(digits) => match digits.parse::<f64>() {
            Ok(number) => Given::String(format!("{number}ms")),
            Err(_) => Given::Number(digits),
        },
        Given::String(text) if text.trim().parse::<f64>().is_ok() => {
            Given::String(format!("{}ms", text.trim()))
        }
        other => other,
    }
}

fn unknown(table: &[Field], at: &str, key: String) -> InvalidArgument {
    let near = near(table, &key);
    let advice = if near.is_empty() {
        let names: Vec<_> = table.iter().map(|field| field.name).collect();
        format!("there are: {}", names.join(", "))
    } else {
        format!("did you mean `{}`?", near.join("` or `"))
    };
    let message = format!("there is no such argument; {advice}");
    InvalidArgument::new(format!("{at}{}", shortened(key)), message)
}

/// The names that look like this one: those that contain it or are contained in it, or else those with few letters
/// changed.
fn near(table: &[Field], key: &str) -> Vec<&'static str> {
    const SHORTEST_PART: usize = 4;
    let Some(key) = folded(key) else { return Vec::new() };
    let names = table.iter().filter_map(|field| Some((field.name, folded(field.name)?)));
    let is_part = |a: &str, b: &str| a.len() >= SHORTEST_PART && b.contains(a);
    let parts = names.clone().filter(|(_, name)| is_part(&key, name) || is_part(name, &key));
    let parts: Vec<_> = parts.map(|(name, _)| name).collect();
    if !parts.is_empty() {
        return parts;
    }
    let distance = |name: &str| strsim::damerau_levenshtein(&key, name);
    names.filter(|(_, name)| distance(name) <= name.len() / 3).map(|(name, _)| name).collect()
}
