//! `GET /api/v2/runtimes`: the languages of a configuration as Piston names them, and their versions, which programs of the server
//! find out once for each image.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use isolator_pool::quote::quoted;
use serde::Serialize;
use tokio::sync::OnceCell;

use super::API;
use super::version::Version;
use crate::apis::operation::Operation;
use crate::apis::programs::{Program, run_for_server};
use crate::apis::unserved::Unserved;
use crate::apis::{Apis, answer};
use crate::calls::Serving;
use crate::config::{Config, Language};
use crate::request::arguments::InvalidArgument;

pub(super) const RUNTIMES: &Operation =
    &Operation { method: "GET", route: "/api/v2/runtimes", name: "piston.runtimes" };

/// For the program that finds out a version: compilers take a second or two.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Runtimes that have other names here: Piston's name and aliases, ours, the file of a program if the usual one would be another
/// language, and the interpreter if Piston names it.
const NAMES: [Name; 5] = [
    Name {
        theirs: "python",
        aliases: &["py", "py3", "python3"],
        ours: "python",
        file: None,
        runtime: None,
    },
    Name {
        theirs: "javascript",
        aliases: &["js", "node-javascript", "node-js", "nodejs", "node"],
        ours: "javascript",
        file: None,
        runtime: Some("node"),
    },
    Name {
        theirs: "typescript",
        aliases: &["ts", "node-ts"],
        ours: "javascript",
        file: Some("main.ts"),
        runtime: Some("node"),
    },
    Name { theirs: "go", aliases: &["golang"], ours: "go", file: None, runtime: None },
    Name { theirs: "bash", aliases: &["sh"], ours: "bash", file: None, runtime: None },
];

/// Packages that evaluators install into a Piston of their own, and why they are not here.
const PACKAGES: [(&str, &str); 2] = [
    (
        "cms_ioi",
        "; cms_ioi is a package with graders that a Piston of your own installs, and takes requests of hundreds of MiB",
    ),
    ("codeforces", "; codeforces is a package with checkers that a Piston of your own installs"),
];

/// The version of a language that does not tell its own.
const NO_VERSION: &str = "0.0.0";

struct Name {
    theirs: &'static str,
    aliases: &'static [&'static str],
    ours: &'static str,
    file: Option<&'static str>,
    runtime: Option<&'static str>,
}

/// The versions that are known or being found out, by the names of images.
#[derive(Debug, Default)]
pub(crate) struct Versions(Mutex<BTreeMap<String, Arc<OnceCell<String>>>>);

/// A runtime that was found.
pub(super) struct Runtime {
    /// Its name.
    pub(super) name: String,
    pub(super) language: Arc<Language>,
    pub(super) version: String,
    /// The name of a program's file if it is not the usual one.
    pub(super) file: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct ListedRuntime {
    language: String,
    version: String,
    aliases: &'static [&'static str],
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<&'static str>,
}

pub(super) async fn runtimes(State(apis): State<Apis>, request: Request) -> Response {
    let (head, _) = request.into_parts();
    let (sender, serving) = match API.let_in(&apis, &head) {
        Ok(let_in) => let_in,
        Err(refused) => return API.unread(refused.into()),
    };
    let listed = list(&apis, &serving).await;
    sender.answer(
        listed.map_or_else(|error| API.failed(error), |listed| answer(StatusCode::OK, &listed)),
    )
}

async fn list(apis: &Apis, serving: &Serving) -> Result<Vec<ListedRuntime>, Unserved> {
    let mut listed = Vec::new();
    for (name, language, known) in offered(&serving.setup.config) {
        let version = version(apis, serving, &language).await?;
        let (aliases, runtime) = known.map_or((&[][..], None), |it| (it.aliases, it.runtime));
        listed.push(ListedRuntime { language: name, version, aliases, runtime });
    }
    Ok(listed)
}

/// The runtimes of a configuration.
fn offered(config: &Config) -> Vec<(String, Arc<Language>, Option<&'static Name>)> {
    let known = NAMES.iter().filter_map(|name| {
        Some((name.theirs.to_owned(), Arc::clone(config.languages.get(name.ours)?), Some(name)))
    });
    let is_known = |name: &str| NAMES.iter().any(|known| known.theirs == name);
    let others = config.languages.iter().filter(|(name, _)| !is_known(name));
    known.chain(others.map(|(name, language)| (name.clone(), Arc::clone(language), None))).collect()
}

/// The runtime with this name or alias, and a version in this range.
pub(super) async fn find(
    apis: &Apis,
    serving: &Serving,
    name: &str,
    range: &str,
) -> Result<Runtime, Unserved> {
    let offered = offered(&serving.setup.config);
    let is_meant = |(theirs, _, known): &&(String, _, Option<&Name>)| {
        theirs == name || known.is_some_and(|known| known.aliases.contains(&name))
    };
    let Some((theirs, language, known)) = offered.iter().find(is_meant) else {
        let all: Vec<_> = offered.iter().map(|(name, ..)| name.as_str()).collect();
        let why = PACKAGES.iter().find(|(package, _)| *package == name).map(|(_, why)| *why);
        let message = format!(
            "{} is unknown to this server: use one of {}{}",
            quoted(name),
            all.join(", "),
            why.unwrap_or_default()
        );
        return Err(InvalidArgument::new("language", message).into());
    };
    let version = version(apis, serving, language).await?;
    let is_in = Version::parse(&version).is_in(range);
    if !is_in.map_err(|message| InvalidArgument::new("version", message))? {
        let message = format!("there is no {theirs} {}: this server has {version}", quoted(range));
        return Err(InvalidArgument::new("version", message).into());
    }
    let file = known.and_then(|known| known.file);
    Ok(Runtime { name: theirs.clone(), language: Arc::clone(language), version, file })
}

/// The version of a language. All requests for it that come while it is being found out wait for that.
async fn version(
    apis: &Apis,
    serving: &Serving,
    language: &Arc<Language>,
) -> Result<String, Unserved> {
    let Some(code) = probe(language) else { return Ok(NO_VERSION.to_owned()) };
    let image = &language.sandbox.image.name;
    let known = Arc::clone(lock(&apis.versions().0).entry(image.clone()).or_default());
    let version = known.get_or_try_init(|| async {
        let program = Program::new(Arc::clone(language), code.to_owned(), PROBE_TIMEOUT);
        let printed = run_for_server(RUNTIMES, serving, &Client::Server, program).await?;
        let printed = printed.trim();
        let is_version = !printed.is_empty()
            && printed.len() < 40
            && printed.chars().all(|c| c.is_ascii_alphanumeric() || ".+-".contains(c));
        Ok::<_, Unserved>(if is_version { printed } else { NO_VERSION }.to_owned())
    });
    version.await.cloned()
}

/// A program that prints the version of its language.
fn probe(language: &Language) -> Option<&'static str> {
    const GO: &str = "package main\n\nimport (\n\t\"fmt\"\n\t\"runtime\"\n\t\"strings\"\n)\n\n\
                      func main() {\n\tfmt.Println(strings.TrimPrefix(runtime.Version(), \"go\"))\n}\n";
    match language.kernel {
        Some(Interpreter::Python) => Some("import platform\nprint(platform.python_version())\n"),
        Some(Interpreter::Node) => Some("console.log(process.versions.node)\n"),
        None => (language.name == "go").then_some(GO),
    }
}
