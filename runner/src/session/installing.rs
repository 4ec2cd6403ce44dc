//! Packages that the programs of a session get while they run.

use std::io;

use isolator_runner::wire::{self, Installed, Kind, numbered, refused};

use super::Session;
use crate::install;
use crate::packages::{self, Links};

impl Session<'_> {
    /// Takes a message of the server about a request for packages.
    pub(super) fn installed(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        if kind == Kind::InstallProgress {
            let (number, text) = numbered(kind, payload)?;
            self.installs.progress(number, text);
            return Ok(());
        }
        let Installed { install: number, packages, mut answer } =
            wire::parse_message(kind, payload)?;
        if let Some(mut packages) = packages {
            // The programs that start from now on find it. The client may be gone.
            match packages::make_ready(&mut packages, &self.workdir, Links::InPlaceOfOthers) {
                Ok(()) => self.packages = Some(packages),
                Err(failed) => {
                    let reason = format!("the packages can't be placed: {}", failed.message);
                    answer = refused("failed", &reason);
                    // The server takes it for placed otherwise.
                    install::send(self.to_server, Kind::InstallEnded, number, b"!")?;
                }
            }
        }
        self.installs.answer(number, &answer);
        Ok(())
    }
}
