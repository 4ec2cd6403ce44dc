//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use humantime::parse_duration;

use crate::commands::hosts::Host;
use crate::commands::hosts::entry::server_name;
use crate::config::EngineKind;

/// Runs code in a fresh, pre-warmed sandbox per request.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Cli {
    /// Configuration file [default: $ISOLATOR_CONFIG, ./isolator_config.json, or the one in the
    /// user's configuration directory]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Engine that makes the sandboxes, instead of the configured one
    #[arg(long, global = true, value_enum, value_name = "KIND")]
    pub engine: Option<EngineKind>,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve MCP on standard input and output, or over HTTP
    Serve(ServeArguments),
    /// Run a program in a new sandbox; the exit code is the program's, 124 after a timeout, 125 if
    /// the sandbox failed
    Run(RunArguments),
    /// Check what is there, what is missing, and say what mends it
    Doctor,
    /// List, build or pull the images of the languages
    #[command(subcommand)]
    Image(ImageCommand),
    /// Measure starts and throughput on this machine, on every engine that is there and beside the
    /// plain Docker API
    Bench(BenchArguments),
    /// Remove what servers that died left behind
    Gc,
    /// Make a bearer token for the clients of `serve --http`: the token for the client, and the line
    /// for the server's file of tokens
    Token(TokenArguments),
    /// Have a host start this server: put it into the host's configuration, and nothing else
    Install(InstallArguments),
    /// Check, describe or create the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a shell's completions
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Arguments of `isolator serve`.
#[derive(Debug, Args)]
pub struct ServeArguments {
    /// Serve streamable HTTP there instead, at the path /mcp; others than this machine need a token
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub http: Option<SocketAddr>,
}

/// Arguments of `isolator token`.
#[derive(Debug, Args)]
pub struct TokenArguments {
    /// LabelFilter it is: what the log calls the client, and whom it shares sandboxes fairly with
    pub name: String,
    /// How long it is accepted, such as 90d; for ever if not given
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub expires: Option<Duration>,
}

/// Arguments of `isolator run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// The program, or - to read it from standard input
    pub file: PathBuf,
    /// Its language, where the file's extension does not tell
    #[arg(long)]
    pub language: Option<String>,
    /// A further file for the workspace, as PATH or NAME=PATH
    #[arg(long = "file", value_name = "[NAME=]PATH")]
    pub files: Vec<String>,
    /// A variable for the program
    #[arg(long = "env", value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Longest run time, such as 5s
    #[arg(long)]
    pub timeout: Option<String>,
    /// Memory limit in MiB
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u64>,
    /// CPU limit in cores
    #[arg(long, value_name = "CORES")]
    pub cpus: Option<f64>,
    /// Arguments of the program
    #[arg(last = true)]
    pub args: Vec<String>,
}

/// Arguments of `isolator bench`.
#[derive(Debug, Args)]
pub struct BenchArguments {
    /// The languages; all that have a program to measure if none is named
    #[arg(value_name = "LANGUAGE")]
    pub languages: Vec<String>,
    /// How long to measure, starting up included, a third of it throughput; more time makes more
    /// samples
    #[arg(long, value_name = "TIME", default_value = "45s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Draw a chart of the results
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write all samples and the results
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `isolator install`. What the server is started with besides `serve` is what comes with
/// the command itself: `--config` and `--engine`.
#[derive(Debug, Args)]
pub struct InstallArguments {
    /// The host
    #[arg(value_enum)]
    pub host: Host,
    /// Show what would be written and where, and touch nothing; the JSON alone is standard output
    #[arg(long, conflicts_with_all = ["uninstall", "force"])]
    pub print: bool,
    /// Take the server out of the host's configuration
    #[arg(long)]
    pub uninstall: bool,
    /// Name of the server in the host
    #[arg(long, default_value = "isolator", value_parser = server_name)]
    pub name: String,
    /// The host's configuration, where it is not at its usual place
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Replace, or take out, another server of that name
    #[arg(long)]
    pub force: bool,
}

/// What to do with images.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// List the images of the languages and whether they are there, and others of Isolator's
    Ls,
    /// Build the images that Isolator describes itself
    Build {
        /// The languages; all that have such an image if none is named
        languages: Vec<String>,
    },
    /// Pull images from a registry
    Pull {
        /// The languages, or images by their names; all languages with such an image if none is named
        #[arg(value_name = "LANGUAGE|IMAGE")]
        names: Vec<String>,
    },
    /// Take images from a file: what docker save writes, an OCI layout, or a root file system
    Import {
        /// The file, or the directory of an OCI layout
        file: PathBuf,
        /// Name of the image, which a root file system needs
        #[arg(long)]
        name: Option<String>,
    },
    /// Remove images
    Rm {
        /// Names or digests
        #[arg(required = true, value_name = "IMAGE")]
        names: Vec<String>,
    },
    /// Remove images of Isolator's that later ones have replaced, and what interrupted work left
    Prune,
}

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say whether it is valid, and what is wrong where
    Check,
    /// Print its JSON schema
    Schema,
    /// Write a configuration with the defaults, and the snippets that come with Isolator
    Init {
        /// The directory to write to
        #[arg(default_value = ".")]
        directory: PathBuf,
    },
}
