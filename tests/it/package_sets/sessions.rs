//! Sets in sessions: cells, checkpoints and programs beside them.

use isolator_pool::pool::admission::Client;
use isolator_pool::pool::session::{CellRequest, CellRun, Session, SessionRequest};
use isolator_pool::run::workspace::WorkspaceBuilder;

use super::World;

async fn open(world: &World, set: &std::sync::Arc<isolator_pool::packages::PackageSet>) -> Session {
    let resources = world.language.sandbox.resources;
    let request = SessionRequest {
        kernel: world.language.kernel_command(resources.memory),
        resources,
        packages: Some(set.clone()),
        installer: None,
        checkpoints: 2,
        max_queue: None,
    };
    let opened = world.pools.open_session(&world.language.name, &Client::Host, &request).await;
    opened.expect("a session").0
}

pub(super) async fn run(
    world: &World,
    session: &Session,
    run: CellRun,
    files: &[(&str, &str)],
    code: &str,
) -> String {
    let limits = &world.config.limits;
    let mut workspace = WorkspaceBuilder::new(limits.files());
    for (path, content) in files {
        workspace.add(path, content.as_bytes().to_vec()).expect("a valid path");
    }
    let request = CellRequest {
        run,
        workspace: workspace.build(),
        appended: Vec::new(),
        input: code.as_bytes().to_vec(),
        timeout: limits.default_timeout,
        output: limits.output(),
        shown: 10_000,
        files: None,
        watch: None,
        shown_watch: None,
        interrupt: None,
        context: 0,
        keeps_session: false,
    };
    let outcome = session.run(request, |_| {}).await.expect("an outcome");
    super::printed(&outcome.outcome)
}

pub(super) const CODE: CellRun = CellRun::code();

#[tokio::test]
async fn cells_and_programs_of_python_have_the_set() {
    let world = World::python().await;
    let set = world.module("parcel", "weight = 3");
    let session = open(&world, &set).await;
    assert!(session.opened().preloaded, "it becomes the kernel while it waits");
    let cell = async |code: &str| run(&world, &session, CODE, &[], code).await;
    assert_eq!(cell("import parcel; print(parcel.weight)").await, "3\n");
    assert_eq!(cell("parcel.weight = 4; import os; os._exit(1)").await, "");
    assert_eq!(cell("print(parcel.weight)").await, "3\n");
    let child = "import subprocess, sys\n\
        print(subprocess.run([sys.executable, '-c', 'import parcel; print(parcel.weight)'], capture_output=True, text=True).stdout)";
    assert_eq!(cell(child).await, "3\n\n");
    let argv = ["python3", "-c", "import parcel; print(parcel.weight)"].map(str::to_owned).to_vec();
    let program = CellRun::Program { argv, env: Default::default(), cwd: ".".to_owned() };
    assert_eq!(run(&world, &session, program, &[], "").await, "3\n");
    drop(session);
    world.stop().await;
}

#[tokio::test]
async fn cells_of_node_have_the_set_and_may_bring_their_own() {
    let world = World::node().await;
    let files = [
        ("node_modules/parcel/index.js", "module.exports = 'of the set';"),
        ("node_modules/stamp/index.js", "module.exports = 'of the set';"),
    ];
    let set = world.set(&files, &["parcel", "stamp"]);
    let session = open(&world, &set).await;
    let cell = async |code: &str| run(&world, &session, CODE, &[], code).await;
    assert_eq!(cell("console.log(require('parcel'))").await, "of the set\n");
    assert_eq!(cell("import stamp from 'stamp'; console.log(stamp)").await, "of the set\n");
    let own = [("node_modules/card/index.js", "module.exports = 'own';")];
    let code = "console.log(require('card'), require('parcel'))";
    assert_eq!(run(&world, &session, CODE, &own, code).await, "own of the set\n");
    drop(session);
    world.stop().await;
}
