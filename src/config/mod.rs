//! The configuration: found, read strictly, overridden by the environment, and checked once.
//!
//! `root.rs` has the top-level keys, and each section has a file with its keys; `section.rs` says how a key is written. The
//! shape of the whole (`shape.rs`) follows from the schema, and `load.rs` reads files with it.

mod apis;
mod check;
mod document;
mod effective;
mod engine;
mod environment;
mod http;
mod index;
mod journals;
mod language;
mod load;
mod node;
mod operators;
mod packages;
mod pool;
mod requests;
mod root;
mod schema;
mod section;
mod sessions;
mod shape;
mod similar;
mod tools;

pub use apis::{ApisConfig, E2bConfig, ProgramsApiConfig, TemplateConfig};
pub use check::Problem;
pub use effective::{Effective, Origin};
pub use engine::{EngineConfig, EngineKind, ImagesConfig};
pub use http::{HttpConfig, TlsConfig};
pub use index::Index;
pub use journals::{JournalServer, JournalsConfig};
pub(crate) use language::language_like;
pub use language::{Checker, CommandPart, Hint, Language, SyntaxCheck, Verdicts, command_line};
pub use load::{ConfigError, FILE_NAME, NamedBy, user_directory};
pub use node::NodeConfig;
pub use operators::{AdminConfig, AuditConfig, LogConfig, LogLevel, OnFullDisk};
pub use packages::{OnDemandConfig, PackagesConfig, SetConfig, StoreConfig, ToolsConfig};
pub use pool::PoolsConfig;
pub use requests::{RequestLimits, RequestsConfig, ResultsConfig};
pub use root::{Config, Settings, schema};
pub(crate) use sessions::LONGEST_SESSION;
pub use sessions::{SessionsConfig, WhenFull};

#[cfg(test)]
mod tests;
