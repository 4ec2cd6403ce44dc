//! Templates with a set: what programs with it import often is imported ahead.

use std::fs;

use isolator_pool::packages::PackageSet;

use super::{MODULES, World};
use crate::common::engine::Kind;
use crate::common::eventually;
use crate::common::process::Process;

/// A package that takes long to import, without being any of the standard library.
fn slow() -> String {
    let lines = (0..4000).map(|n| format!("def f{n}(a, b=[{n}]): return a + {n}\n"));
    lines.collect::<String>()
        + "import time\nbegan = time.process_time()\n\
        while time.process_time() < began + 0.15: pass\n"
}

/// The templates that have a set.
fn templates() -> Vec<Process> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("it is mounted").flatten() {
        let Ok(number) = entry.file_name().to_string_lossy().parse() else { continue };
        let Some(process) = Process::find(number) else { continue };
        let environ = process.read("environ");
        if environ.contains("ISOLATOR_PRELOAD=0:slow") && environ.contains("PYTHONUSERBASE=") {
            found.push(process);
        }
    }
    found
}

/// Imports the slow module. Returns its description, and whether it was imported ahead: its import takes CPU time.
async fn import(world: &World, set: &std::sync::Arc<PackageSet>) -> (String, bool) {
    world.until_full().await;
    let code = "import time\nbegan = time.process_time()\nimport slowly\n\
                print(time.process_time() - began < 0.1)\n\
                print(slowly.whose, slowly.__file__, len(vars(slowly)) > 4000)";
    let (outcome, _) = world.try_run(&[("main.py", code)], Some(set)).await.expect("an outcome");
    let printed = super::printed(&outcome);
    let (is_ahead, description) = printed.split_once('\n').expect("two lines");
    (description.to_owned(), is_ahead == "True")
}

#[tokio::test]
async fn frequent_imports_from_a_set_get_a_template() {
    let world = World::start(Kind::Embedded, "python").await;
    let at = |path: &str| format!("{MODULES}/{path}");
    let files = |whose: &str| {
        [
            (at("slowly/__init__.py"), format!("{}whose = {whose:?}\n", slow())),
            (at("quick.py"), String::new()),
        ]
    };
    let borrowed =
        |files: &[(String, String); 2]| files.clone().map(|(path, content)| (path, content));
    let make = |whose: &str| {
        let files = borrowed(&files(whose));
        let files: Vec<_> = files.iter().map(|(p, c)| (p.as_str(), c.as_str())).collect();
        world.set(&files, &["slowly", "quick"])
    };
    let (one, two) = (make("one"), make("two"));
    let (first, is_ahead) = import(&world, &one).await;
    assert!(first.starts_with("one /.isolator/packages/") && !is_ahead, "{first}");
    eventually("a template with the set", async || {
        let (printed, is_ahead) = import(&world, &one).await;
        assert_eq!(printed, first);
        is_ahead && !templates().is_empty()
    })
    .await;
    // Programs with another set, and those without, have nothing of it.
    let (other, _) = import(&world, &two).await;
    assert!(other.starts_with("two "), "{other}");
    let without = world.run_code("import slowly", None).await;
    assert!(without.contains("No module named 'slowly'"), "{without}");
    // It is there when the set is used again after a while without users.
    let was = templates()[0];
    let PackageSet { hash, folder, modules, .. } = &*one;
    let again = || {
        std::sync::Arc::new(PackageSet {
            hash: hash.clone(),
            folder: folder.clone(),
            interpreter: one.interpreter,
            modules: modules.clone(),
            held: fs::File::open(folder).expect("it is there"),
        })
    };
    let (mut set, mut was_ahead) = (again(), false);
    for _ in 0..5 {
        let (printed, is_ahead) = import(&world, &set).await;
        assert_eq!(printed, first);
        was_ahead |= is_ahead;
        eventually("an end of the sandbox", async || std::sync::Arc::strong_count(&set) == 1).await;
        set = again();
    }
    assert!(was_ahead, "the template serves the set again");
    assert!(templates().contains(&was), "another was made");
    // It ends when its set is withdrawn.
    drop(import(&world, &one).await);
    eventually("an end of the sandboxes", async || std::sync::Arc::strong_count(&one) == 1).await;
    world.pools.withdraw_packages(&one.hash).await.expect("it can be removed");
    eventually("an end of the template", async || templates().is_empty()).await;
    world.stop().await;
}
