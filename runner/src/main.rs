//! The runner: the program that waits in every sandbox.
//!
//! `isolator-runner hold` is process 1 of a sandbox. It starts `isolator-runner park`, and ends only after
//! it. Signals from inside the sandbox can't end it.
//! `isolator-runner park` says *ready* on its standard output, waits for one job on its standard
//! input, runs it, reports, and ends. A sandbox is used once, so its runner is, too: for one job, or for one
//! session with many cells. With an engine that can kill all processes of a sandbox at once, the runner is
//! process 1 itself, and the sandbox ends with it.
//!
//! `isolator-runner agent` is the agent of a session. The runner starts it, with the other end of its channel as standard input.
//!
//! `isolator-runner remove` deletes a set of packages from the volume of an engine that has one.

mod agent;
mod cgroup;
mod changes;
mod forks;
mod frame_writer;
mod init;
mod install;
mod measure;
mod output;
mod packages;
mod park;
mod poll;
mod preload;
mod process;
mod processes;
mod request;
mod session;
mod unpack;
mod usage;

use std::io::Write as _;
use std::process::ExitCode;

use isolator_runner::inherited;
use isolator_runner::wire::RUNNER_ENDED;

/// Name of the binary inside the sandbox, and so of process 1. The kernel keeps 15 characters.
const NAME: &str = "isolator-runner";

fn main() -> ExitCode {
    // An engine passes on the signals that it was started with. The runner itself must ignore this one: a closed pipe is an
    // error of the write.
    inherited::reset_signals(&[libc::SIGPIPE]);
    match std::env::args().nth(1).as_deref() {
        Some("hold") => match init::hold() {
            Ok(()) => ExitCode::from(RUNNER_ENDED),
            Err(error) => {
                complain(&format!("{NAME}: {error}"));
                ExitCode::FAILURE
            }
        },
        Some("park") => match park::park(std::env::args().nth(2).as_deref() == Some("forks")) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&format!("{NAME}: {error}"));
                ExitCode::FAILURE
            }
        },
        Some("agent") => match agent::serve(std::env::args_os().nth(2).unwrap_or_default()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&format!("{NAME}: {error}"));
                ExitCode::FAILURE
            }
        },
        Some("remove") => {
            let set = std::env::args().nth(2).unwrap_or_default();
            match packages::remove(&set) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    complain(&format!("{NAME}: {set}: {error}"));
                    ExitCode::FAILURE
                }
            }
        }
        _ => {
            complain(&format!(
                "usage: {NAME} hold | park [forks] | agent FOLDER | remove SET (it works only inside a sandbox)"
            ));
            ExitCode::from(2)
        }
    }
}

/// Standard error is the runner's log; the engine passes it on to the server's.
fn complain(message: &str) {
    // An error means that the server is gone.
    let _ = writeln!(std::io::stderr(), "{message}");
}
