//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::address::ListenAddress;
use crate::commands::doctor::names_of_checks;
use crate::commands::hosts::Host;
use crate::commands::hosts::entry::server_name;
use crate::commands::operators::OperatorAddress;
use crate::commands::options::mebibytes;
use crate::commands::tune::target;
use crate::config::EngineKind;
use crate::duration;
use crate::log::LogFormat;

/// The heading of the options that all commands have.
const GLOBAL: &str = "Options of all commands";

/// Runs code in a fresh, pre-warmed sandbox per request or session.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Cli {
    /// Configuration file [default: $ISOLATOR_CONFIG, ./isolator_config.json, or the one in the
    /// user's configuration directory]
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL)]
    pub config: Option<PathBuf>,
    /// Engine to use instead of the configured one
    #[arg(long, global = true, value_enum, value_name = "KIND", help_heading = GLOBAL)]
    pub engine: Option<EngineKind>,
    /// How lines of the log are written, to standard error
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t, help_heading = GLOBAL)]
    pub log_format: LogFormat,
    /// The command
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve MCP on standard input and output, or over HTTP
    Serve(ServeArguments),
    /// Run a program in a new sandbox; the exit code is the program's, 124 after a timeout, 125 if
    /// the sandbox failed
    Run(RunArguments),
    /// Run cells of code one after the other in one sandbox: at a prompt, or from standard input, where lines
    /// such as "# %%" ("// %%" in JavaScript) separate them. The exit code is 0, or that of the first cell that
    /// failed in piped input
    Session(SessionArguments),
    /// Check what is there and what is missing, and say how to fix it. The exit code is 0 if nothing
    /// is missing, and 1 otherwise
    Doctor(DoctorArguments),
    /// List, build or pull the images of the languages
    #[command(subcommand)]
    Image(ImageCommand),
    /// Build, list, lock or remove sets of packages
    #[command(subcommand)]
    Packages(PackagesCommand),
    /// Measure starts and throughput on this machine: on each available engine, and with the plain
    /// Docker API to compare
    Bench(BenchArguments),
    /// Show what a server does that was started with --admin: pools, calls, clients, failures
    Status(StatusArguments),
    /// Let a server that was started with --admin load its configuration again, as SIGHUP does. The exit code is 1 if
    /// the configuration is wrong: then nothing has changed
    Reload(OperatorArguments),
    /// Say what sizes pools should have for the calls that came, and why: those that a server with --admin has seen, or those in
    /// an audit log
    Tune(TuneArguments),
    /// Remove what servers that died left behind
    Gc,
    /// Create a token for a client of `serve --http`: prints the token for the client, and the line
    /// for the server's token file
    Token(TokenArguments),
    /// Add this server to a host's configuration
    Install(InstallArguments),
    /// Check, describe or create a configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Write the manual pages of all commands
    Man {
        /// The directory to write to
        directory: PathBuf,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Arguments of `isolator serve`.
#[derive(Debug, Args)]
pub struct ServeArguments {
    /// Serve over streamable HTTP at this address, path /mcp; without ADDRESS only for this machine.
    /// Clients on other machines need a token
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    pub http: Option<ListenAddress>,
    /// Also listen at this address for operators: metrics at /metrics, health at /healthz and /readyz; without ADDRESS only
    /// for this machine
    #[arg(long, value_name = "[ADDRESS:]PORT")]
    pub admin: Option<ListenAddress>,
}

/// How a server is asked as an operator.
#[derive(Debug, Args)]
pub struct OperatorArguments {
    /// Where the server listens for operators; a URL such as https://server.example:9464 if it uses TLS [default: admin.address of
    /// the configuration]
    #[arg(value_name = "[ADDRESS:]PORT|URL")]
    pub address: Option<OperatorAddress>,
    /// File with the token of an operator, if the server wants one
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// File with the certificates, in PEM, that must have signed that of the server [default: those that this machine trusts]
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

/// Arguments of `isolator status`.
#[derive(Debug, Args)]
pub struct StatusArguments {
    /// The server
    #[command(flatten)]
    pub server: OperatorArguments,
    /// Show it again every two seconds, until Ctrl-C
    #[arg(long)]
    pub live: bool,
    /// Print all of it as JSON, on one line
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `isolator tune`.
#[derive(Debug, Args)]
pub struct TuneArguments {
    /// The server
    #[command(flatten)]
    pub server: OperatorArguments,
    /// An audit log with the calls; can be given several times. A server is then only asked for the memory, if the log does not
    /// tell it
    #[arg(long, value_name = "FILE")]
    pub audit: Vec<PathBuf>,
    /// The share of calls that should find a sandbox ready, from 0.5 to 0.9999
    #[arg(long, value_name = "SHARE", default_value = "0.99", value_parser = target)]
    pub target: f64,
    /// Memory that waiting sandboxes of all languages may take together, such as 800MB or 4G; a number without a unit is MiB
    /// [default: pool.memoryMB]
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    pub memory: Option<u64>,
    /// Write the sizes into the configuration, of which a backup is made
    #[arg(long)]
    pub write: bool,
    /// Draw the share of warm calls against memory into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Print all of it as JSON, on one line
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `isolator doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// Also check whether this host is set up to run hostile programs. The exit code is 1 as well if
    /// something is found that is not accepted
    #[arg(long)]
    pub production: bool,
    /// Accept what a check of --production finds; can be given several times
    #[arg(long, value_name = "NAME", requires = "production", value_parser = PossibleValuesParser::new(names_of_checks()))]
    pub accept: Vec<String>,
}

/// Arguments of `isolator token`.
#[derive(Debug, Args)]
pub struct TokenArguments {
    /// Name of the client, used in the log and for fair sharing
    pub name: String,
    /// How long the token is accepted, such as 90d; forever if not given
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub expires: Option<Duration>,
}

/// Arguments of `isolator run`.
#[derive(Debug, Args)]
#[command(override_usage = "isolator run [OPTIONS] <FILE|-> [--] [ARGS]...\n       \
                            isolator run [OPTIONS] --snippet <NAME> [--] [ARGS]...")]
pub struct RunArguments {
    /// The program's file, or - to read it from standard input. Otherwise the program gets our standard input, unless
    /// that is a terminal
    pub file: Option<PathBuf>,
    /// Run a stored program instead of a file
    #[arg(long, value_name = "NAME", conflicts_with = "language")]
    pub snippet: Option<String>,
    /// Language of the program, if the file's extension doesn't tell
    #[arg(long)]
    pub language: Option<String>,
    /// Another file or folder for the working directory, as PATH or NAME=PATH; can be given several times
    #[arg(long = "file", value_name = "[NAME=]PATH")]
    pub files: Vec<String>,
    /// Environment variable for the program; can be given several times
    #[arg(long = "env", value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Longest run time, such as 500ms, 5s or 2m; a number without a unit is seconds
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<String>,
    /// Print the result as JSON: status, exit code, output, files and how the request was served
    #[arg(long)]
    pub json: bool,
    /// Write the files that the program leaves to this folder, which must be new or empty
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Say nothing but errors on standard error
    #[arg(long, short)]
    pub quiet: bool,
    /// A set of packages, or a requirement such as "humanize==4.*" if the configuration allows it; can be given
    /// several times
    #[arg(long, value_name = "SET|REQUIREMENT")]
    pub packages: Vec<String>,
    /// Memory limit, such as 64MB or 1.5G; a number without a unit is MiB
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    pub memory: Option<u64>,
    /// CPU limit in cores
    #[arg(long, value_name = "CORES")]
    pub cpus: Option<f64>,
    /// Arguments of the program: the first word after its file, and everything that follows. Write -- before a first one
    /// that begins with a hyphen
    #[arg(trailing_var_arg = true)]
    pub args: Vec<String>,
}

/// Arguments of `isolator session`.
#[derive(Debug, Args)]
pub struct SessionArguments {
    /// Language of the cells
    #[arg(default_value = "python")]
    pub language: String,
    /// A file or folder for the working directory, as PATH or NAME=PATH; can be given several times
    #[arg(long = "file", value_name = "[NAME=]PATH")]
    pub files: Vec<String>,
    /// Longest run time of each cell, such as 500ms, 5s or 2m; a number without a unit is seconds
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<String>,
    /// Read cells from standard input without a prompt, even from a terminal, and print one line of JSON for each
    #[arg(long)]
    pub json: bool,
    /// Go on after a cell of piped input that failed
    #[arg(long)]
    pub keep_going: bool,
    /// Say nothing but errors on standard error
    #[arg(long, short)]
    pub quiet: bool,
    /// A set of packages, or a requirement such as "humanize==4.*" if the configuration allows it; can be given
    /// several times
    #[arg(long, value_name = "SET|REQUIREMENT")]
    pub packages: Vec<String>,
    /// Memory limit, such as 64MB or 1.5G; a number without a unit is MiB
    #[arg(long, alias = "memory-mb", value_name = "SIZE", value_parser = mebibytes)]
    pub memory: Option<u64>,
    /// CPU limit in cores
    #[arg(long, value_name = "CORES")]
    pub cpus: Option<f64>,
}

/// Arguments of `isolator bench`.
#[derive(Debug, Args)]
pub struct BenchArguments {
    /// The languages to measure; if none is given, all that have a benchmark program
    #[arg(value_name = "LANGUAGE")]
    pub languages: Vec<String>,
    /// How long to measure, including startup; longer if one start of each way takes longer. A third of it
    /// is for throughput. More time gives more samples
    #[arg(long, value_name = "TIME", default_value = "45s", value_parser = duration)]
    pub duration: Duration,
    /// Draw a chart of the results into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write the results and all samples to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `isolator install`. The host starts the server with the `--engine` that is given here, and with the
/// configuration that is used here.
#[derive(Debug, Args)]
pub struct InstallArguments {
    /// The host
    #[arg(value_enum)]
    pub host: Host,
    /// Show what would be written and where, but change nothing. Only the entry goes to standard output
    #[arg(long, conflicts_with_all = ["uninstall", "force"])]
    pub print: bool,
    /// Remove the server from the host's configuration
    #[arg(long)]
    pub uninstall: bool,
    /// Name of the server in the host's configuration
    #[arg(long, default_value = "isolator", value_parser = server_name)]
    pub name: String,
    /// The host's configuration file, if it is not in its usual place
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Replace or remove a different server with that name
    #[arg(long)]
    pub force: bool,
}

/// The commands for images.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// List the images of the languages, whether they are there, and Isolator's other images
    Ls,
    /// Build the images that come with Isolator, unless they are there and nothing has changed
    Build {
        /// The languages; if none is given, all with such an image
        languages: Vec<String>,
        /// Build what is unchanged, too, from a new base image: for updates of Debian's packages
        #[arg(long)]
        force: bool,
        /// Print all lines of the builds
        #[arg(long, short)]
        verbose: bool,
    },
    /// Pull images from a registry
    Pull {
        /// The languages, or names of images; if none is given, all languages whose image is pulled
        #[arg(value_name = "LANGUAGE|IMAGE")]
        names: Vec<String>,
        /// Print all lines of the pulls
        #[arg(long, short)]
        verbose: bool,
    },
    /// Import images from a file: the output of docker save, an OCI layout, or a root file system
    Import {
        /// The file, the directory of an OCI layout, or - for standard input
        file: PathBuf,
        /// Name for the image; required for a root file system
        #[arg(long)]
        name: Option<String>,
    },
    /// Remove images
    Rm {
        /// Names or digests
        #[arg(required = true, value_name = "IMAGE")]
        names: Vec<String>,
    },
    /// Remove Isolator's images that newer ones have replaced, and what interrupted work left behind
    Prune,
}

/// The commands for sets of packages.
#[derive(Debug, Subcommand)]
pub enum PackagesCommand {
    /// Build the sets of the configuration that are not there. A set without a lock gets one. The exit code is 1 if some
    /// could not be built
    Build {
        /// The sets; if none is given, all of the configuration
        #[arg(value_name = "SET")]
        sets: Vec<String>,
        /// Print the sets as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the sets of the configuration and all others that are there, with who uses them
    Ls {
        /// Print the sets as JSON, with their packages and modules
        #[arg(long)]
        json: bool,
    },
    /// Remove sets that nobody uses
    Rm {
        /// Names of sets, or hashes or their beginnings
        #[arg(required = true, value_name = "SET|HASH")]
        sets: Vec<String>,
    },
    /// Remove the sets that the configuration does not name and nobody uses, and the caches of the tools
    Prune,
    /// Resolve sets, and write the versions and hashes into the folder isolator.lock beside the configuration, from
    /// which they are built from then on. A lock that still fits is left as it is
    Lock {
        /// The sets; if none is given, all of the configuration
        #[arg(value_name = "SET")]
        sets: Vec<String>,
        /// Take the newest versions, even where a lock still fits
        #[arg(long)]
        upgrade: bool,
        /// Print what is locked as JSON
        #[arg(long)]
        json: bool,
    },
    /// Say why a package is in a set
    Why {
        /// The set
        set: String,
        /// The package
        package: String,
        /// Print the reasons as JSON
        #[arg(long)]
        json: bool,
    },
}

/// The commands for the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check the configuration, the files that it names, and whether the engine can do what it says. The exit
    /// code is 1 if there are errors
    Check {
        /// Only print every key with its value, and where that comes from
        #[arg(long)]
        show: bool,
    },
    /// Print the JSON schema of the configuration
    Schema,
    /// Write a configuration to start from, and the snippets that come with Isolator
    Init {
        /// The directory to write to
        #[arg(default_value = ".")]
        directory: PathBuf,
    },
}

/// A duration as the configuration has it, too.
fn duration(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|error| format!("this is not a duration: {error}"))
}
