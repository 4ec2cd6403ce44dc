//! The list of commands. Each command has its arguments next to its code.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use super::config::ConfigCommand;
use super::doctor::DoctorArguments;
use super::drain::DrainArguments;
use super::global::GlobalOptions;
use super::image::ImageCommand;
use super::install::InstallArguments;
use super::operators::OperatorArguments;
use super::packages::PackagesCommand;
use super::run::RunArguments;
use super::serve::ServeArguments;
use super::session::SessionArguments;
use super::status::StatusArguments;
use super::token::TokenArguments;
use super::tune::TuneArguments;

/// Runs code in a fresh, pre-warmed sandbox per request or session.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Cli {
    /// The options of all commands
    #[command(flatten)]
    pub global: GlobalOptions,
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
    /// Show what a server does that was started with --admin: pools, calls, clients, failures
    Status(StatusArguments),
    /// Let a server that was started with --admin load its configuration again, as SIGHUP does. The exit code is 1 if
    /// the configuration is wrong: then nothing has changed
    Reload(OperatorArguments),
    /// Take a server out of use that was started with --admin: load balancers see that it is not ready, and calls are still
    /// served until it is stopped. It can't be put back without a restart
    Drain(DrainArguments),
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
