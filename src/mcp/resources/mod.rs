//! The resources that hosts can read. Nothing is cached: each answer is made when it is requested.
//!
//! A new kind of resource needs a variant of [`Address`], and a file in this folder if it is more than a line.

mod languages;
mod packages;
mod pool;
mod sessions;

use std::sync::Arc;

use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::Pools;
use isolator_pool::quote::quoted;
use rmcp::model::{
    CompletionInfo, ErrorData, JsonObject, MetaObject, ReadResourceResult, Resource,
    ResourceContents, ResourceTemplate,
};
use serde::Serialize;
use serde_json::json;

use crate::config::Config;
use crate::node::LostHandle;
use crate::packages::Packages;
use crate::request::snippets::{Snippet, SnippetError, SnippetSummary, Snippets};
use crate::result::kept::{self, Part, PartContent};
use crate::result::media_type;
use crate::sessions::Sessions;

const LANGUAGES: &str = "isolator://languages";
const POOL: &str = "isolator://pool";
const SNIPPET: &str = "snippet://";
const SNIPPET_TEMPLATE: &str = "snippet://{name}";

/// The template's variable.
const NAME: &str = "name";

const JSON: &str = "application/json";

const NO_SET: &str = "there is no such set of packages";

/// The resources of a server.
#[derive(Clone)]
pub(crate) struct Resources {
    config: Arc<Config>,
    snippets: Arc<Snippets>,
    pools: Arc<Pools>,
    sessions: Sessions,
    packages: Packages,
}

/// An address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Address<'a> {
    Languages,
    Pool,
    Snippet(&'a str),
    Packages(&'a str),
    /// The sessions of a client, or something of one.
    Sessions,
}

impl<'a> Address<'a> {
    fn parse(uri: &'a str) -> Option<Self> {
        match uri {
            LANGUAGES => Some(Self::Languages),
            POOL => Some(Self::Pool),
            _ if sessions::is_one(uri) => Some(Self::Sessions),
            _ => {
                let set = || uri.strip_prefix(packages::PREFIX).map(Self::Packages);
                uri.strip_prefix(SNIPPET).map(Self::Snippet).or_else(set)
            }
        }
    }
}

pub(crate) use packages::address as of_package_set;

/// The address of what changes with the sets of packages.
pub(crate) const OF_LANGUAGES: &str = LANGUAGES;

/// The address of a snippet. Its name has no character that would have to be escaped there.
pub(crate) fn of_snippet(name: &str) -> String {
    format!("{SNIPPET}{name}")
}

impl Resources {
    /// The resources of a configuration and its pools.
    pub(crate) fn new(
        config: Arc<Config>,
        snippets: Arc<Snippets>,
        pools: Arc<Pools>,
        sessions: Sessions,
        packages: Packages,
    ) -> Self {
        Self { config, snippets, pools, sessions, packages }
    }

    /// The address that a text is. Sessions from before another configuration can still be read.
    fn address<'u>(&self, uri: &'u str) -> Result<Address<'u>, ErrorData> {
        let reads_sessions = || self.has_sessions() || self.sessions.is_any_open();
        Address::parse(uri)
            .filter(|address| *address != Address::Sessions || reads_sessions())
            .ok_or_else(|| not_found(uri, "there is no such resource"))
    }

    fn has_sessions(&self) -> bool {
        self.config.sessions.max > 0
    }

    /// All that have a fixed address, always in the same order.
    pub(crate) fn list(&self) -> Vec<Resource> {
        let languages = Resource::new(LANGUAGES, "languages")
            .with_title("Languages")
            .with_description(
                "Each language: what is installed, its sets of packages, its image, limits and policies.",
            )
            .with_mime_type(JSON);
        let pool = Resource::new(POOL, "pool")
            .with_title("Pools")
            .with_description(
                "State of the server: sandboxes that wait, programs that run and wait, kinds of start.",
            )
            .with_mime_type(JSON);
        let snippet = |snippet: SnippetSummary| {
            Resource::new(of_snippet(&snippet.name), snippet.name)
                .with_description(format!("{}: {}", snippet.language, snippet.description))
                .with_mime_type(media_type::of_text(&snippet.file_name))
        };
        let snippets = self.snippets.list().into_iter().map(snippet);
        let sessions = self.has_sessions().then(|| {
            Resource::new(sessions::SESSIONS, "sessions")
                .with_title("Sessions")
                .with_description(
                    "Your sessions: when each ends, whether something runs in it, and its files.",
                )
                .with_mime_type(JSON)
        });
        [languages, pool].into_iter().chain(sessions).chain(snippets).collect()
    }

    /// Those whose address has a variable.
    pub(crate) fn templates(&self) -> Vec<ResourceTemplate> {
        let snippets = ResourceTemplate::new(SNIPPET_TEMPLATE, "snippet")
            .with_title("Snippet")
            .with_description(
                "The source of a stored program, which execute_code runs as snippet_name.",
            );
        let results = ResourceTemplate::new(kept::TEMPLATE, "result")
            .with_title("Result of a run")
            .with_description(
                "What a program left: a file, or output too long for the answer. The answer has the \
                 addresses. They expire, and only its caller can use them.",
            );
        let files = self.has_sessions().then(|| {
            ResourceTemplate::new(sessions::TEMPLATE, "session_file")
                .with_title("File of a session")
                .with_description(
                    "A file in the working directory of a session, whole or in part; without a path, the list of them.",
                )
        });
        let packages = (!self.config.packages.sets.is_empty()).then(|| {
            ResourceTemplate::new(packages::TEMPLATE, "package_set")
                .with_title("Set of packages")
                .with_description("A set of packages: whether it is there, its packages with versions, its modules.")
                .with_mime_type(JSON)
        });
        [snippets, results].into_iter().chain(files).chain(packages).collect()
    }

    /// Reads the resource at an address.
    ///
    /// # Errors
    ///
    /// A message for the caller, if nothing is there or it can't be read.
    pub(crate) async fn read(
        &self,
        uri: &str,
        client: &Client,
    ) -> Result<ReadResourceResult, ErrorData> {
        let (text, mime_type) = match self.address(uri)? {
            Address::Languages => {
                (as_json(&languages::of(&self.config, &self.pools, &self.packages)), JSON)
            }
            Address::Pool => {
                (as_json(&pool::of(&self.pools, &self.sessions, &self.packages).await), JSON)
            }
            Address::Packages(name) => {
                let set = packages::one(&self.packages, name);
                (as_json(&set.ok_or_else(|| not_found(uri, NO_SET))?), JSON)
            }
            Address::Snippet(name) => {
                let snippet = self.snippet(uri, name)?;
                let mime_type = media_type::of_text(&snippet.file_name);
                (snippet.code, mime_type)
            }
            Address::Sessions => {
                let contents = sessions::read(&self.sessions, client, uri).await?;
                return Ok(ReadResourceResult::new(vec![contents]));
            }
        };
        let contents = ResourceContents::text(text, uri).with_mime_type(mime_type);
        Ok(ReadResourceResult::new(vec![contents]))
    }

    /// Checks that clients can subscribe to an address. The pools change with every call, so they can only be read.
    ///
    /// # Errors
    ///
    /// A message for the caller, if they can't.
    pub(crate) fn check_subscribable(&self, uri: &str) -> Result<(), ErrorData> {
        match self.address(uri)? {
            Address::Snippet(name) => match self.snippets.get(name) {
                // Fixing it is a change.
                Ok(_) | Err(SnippetError::Ambiguous { .. } | SnippetError::Unreadable { .. }) => {
                    Ok(())
                }
                Err(error) => Err(not_found(uri, &error)),
            },
            // Its sets of packages come and go.
            Address::Languages if !self.config.packages.sets.is_empty() => Ok(()),
            Address::Packages(name) if self.config.packages.sets.contains_key(name) => Ok(()),
            Address::Packages(_) => Err(not_found(uri, NO_SET)),
            Address::Languages | Address::Pool | Address::Sessions => {
                let message =
                    format!("changes of {uri} are not announced: read it when you need it");
                Err(ErrorData::invalid_params(message, Some(json!({ "uri": uri }))))
            }
        }
    }

    /// Completes a template's variable: the values that start with `begun`.
    pub(crate) fn complete(&self, template: &str, variable: &str, begun: &str) -> CompletionInfo {
        let mut names: Vec<String> = match (template, variable) {
            (SNIPPET_TEMPLATE, NAME) => {
                self.snippets.list().into_iter().map(|snippet| snippet.name).collect()
            }
            (packages::TEMPLATE, NAME) => self.config.packages.sets.keys().cloned().collect(),
            _ => return CompletionInfo::default(),
        };
        names.retain(|name| name.starts_with(begun));
        let all = names.len();
        names.truncate(CompletionInfo::MAX_VALUES);
        let mut completion = CompletionInfo::default();
        completion.has_more = Some(all > names.len());
        completion.total = u32::try_from(all).ok();
        completion.values = names;
        completion
    }

    fn snippet(&self, uri: &str, name: &str) -> Result<Snippet, ErrorData> {
        self.snippets.get(name).map_err(|error| match error {
            SnippetError::BadName(_) | SnippetError::Unknown { .. } => not_found(uri, &error),
            SnippetError::Ambiguous { .. } | SnippetError::Unreadable { .. } => {
                ErrorData::internal_error(error.to_string(), Some(json!({ "uri": uri })))
            }
        })
    }
}

/// The error for an address where nothing is. rmcp gives it the code of the caller's revision.
fn not_found(uri: &str, why: impl std::fmt::Display) -> ErrorData {
    let message = format!("{}: {why}", quoted(uri));
    ErrorData::resource_not_found(message, Some(json!({ "uri": uri })))
}

/// The error for something of a node that is lost, or that is another one.
pub(super) fn lost(uri: &str, lost: &LostHandle) -> ErrorData {
    let message = format!("{}: the {} is gone: {lost}", quoted(uri), lost.thing().word());
    let data = json!({ "uri": uri, "status": "session_gone", "node": lost.node() });
    ErrorData::resource_not_found(message, Some(data))
}

/// A range of what a run left, as it is read at `uri`.
pub(super) fn part_of_run(uri: &str, part: Part) -> ResourceContents {
    let contents = match part.content {
        PartContent::Text(text) => ResourceContents::text(text, uri),
        PartContent::Base64(bytes) => ResourceContents::blob(bytes, uri),
    };
    let mut meta = JsonObject::new();
    meta.insert("isolator/totalBytes".to_owned(), json!(part.total));
    meta.insert("isolator/offset".to_owned(), json!(part.offset));
    if let Some(next) = part.next {
        meta.insert("isolator/next".to_owned(), json!(next));
    }
    contents.with_mime_type(part.media_type).with_meta(MetaObject(meta))
}

fn as_json(data: &impl Serialize) -> String {
    serde_json::to_string_pretty(data).expect("plain data is JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_by_the_letter() {
        assert_eq!(Address::parse("isolator://pool"), Some(Address::Pool));
        assert_eq!(Address::parse("snippet://a_b-1"), Some(Address::Snippet("a_b-1")));
        for other in
            ["", "isolator://", "isolator://pool/", "isolator://pools", "file:///etc/passwd"]
        {
            assert_eq!(Address::parse(other), None, "{other}");
        }
    }

    #[test]
    fn the_template_makes_the_addresses() {
        assert_eq!(SNIPPET_TEMPLATE.replace("{name}", "a"), of_snippet("a"));
        assert_eq!(Address::parse(&of_snippet("a")), Some(Address::Snippet("a")));
    }
}
