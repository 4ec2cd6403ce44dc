//! The promises of the engine `embedded`, read from outside through the files of the kernel, and its behaviour when
//! its processes are killed.

mod builds;
mod choice;
mod crashes;
mod devices;
mod hostile_images;
mod kernels;
mod promises;
mod rootless;
mod templates;
mod wear;

use crate::common::config;
use crate::common::engine::{Kind, embedded};
use crate::common::process::Process;
use crate::common::server::Server;
use serde_json::{Value, json};

/// A configuration for Python with this engine, whichever the other tests run on.
fn on_embedded(more: Value) -> Value {
    let mut config = config(&["python"], more);
    config["engine"]["kind"] = json!(Kind::Embedded.name());
    config
}

async fn start(more: Value) -> Server {
    Server::start(&on_embedded(more)).await
}

fn look(server: &Server) -> embedded::Bystander {
    embedded::Bystander::new(&crate::common::state(server.directory()))
}

fn this_process() -> Process {
    Process::find(std::process::id()).expect("this process")
}

/// The processes of a launcher.
#[derive(Debug, Clone, Copy)]
struct Launcher {
    /// The child of the server.
    outer: Process,
    /// Its child, and the parent of what is in sandboxes.
    inner: Process,
}

/// The launchers of a server that are ready to make sandboxes, or soon will be.
fn launchers(server: Process) -> Vec<Launcher> {
    let children = server.children().into_iter();
    let outer = children.filter(|child| child.command().ends_with(" launcher"));
    outer
        .filter_map(|outer| {
            let inner = outer.children().into_iter().next()?;
            inner.command().ends_with(" launcher inner").then_some(Launcher { outer, inner })
        })
        .collect()
}
