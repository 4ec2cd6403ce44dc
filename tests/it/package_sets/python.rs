//! Sets in programs of Python.

use isolator_runner::paths::{PACKAGES, SET_LINK};

use super::{MODULES, World};
use crate::common::engine::Kind;

#[tokio::test]
async fn a_program_imports_from_its_set() {
    let world = World::python().await;
    let set = world.module("parcel", "weight = 3");
    let request = [("main.py", "import parcel; print(parcel.weight, parcel.__file__)")];
    let (outcome, receipt) = world.try_run(&request, Some(&set)).await.expect("an outcome");
    let printed = super::printed(&outcome);
    let place = if Kind::chosen() == Kind::Docker { SET_LINK } else { PACKAGES };
    assert!(printed.starts_with(&format!("3 {place}/")), "{printed}");
    assert!(printed.trim_end().ends_with("site-packages/parcel.py"), "{printed}");
    assert!(receipt.run.preloaded, "an interpreter that waited has it, too");
    assert!(!receipt.run.bind.is_zero());
    // Without the set there is no such module, and nothing of it.
    let (outcome, receipt) = world.try_run(&request, None).await.expect("an outcome");
    assert!(super::printed(&outcome).contains("No module named 'parcel'"));
    assert!(receipt.run.bind.is_zero());
    world.stop().await;
}

#[tokio::test]
async fn metadata_and_resources_of_packages_work() {
    let world = World::python().await;
    let at = |path: &str| format!("{MODULES}/{path}");
    let set = world.set(
        &[
            (&at("tool/__init__.py"), "def main(): print('from the tool')"),
            (&at("tool/data/table.txt"), "a table"),
            (
                &at("tool-1.2.dist-info/METADATA"),
                "Metadata-Version: 2.1\nName: tool\nVersion: 1.2\n",
            ),
            (&at("tool-1.2.dist-info/entry_points.txt"), "[console_scripts]\ntool = tool:main\n"),
            (&at("tool-1.2.dist-info/RECORD"), "tool/__init__.py,,\n"),
            (&at("more.pth"), "more_modules\nimport sys; sys.from_pth = 'yes'\n"),
            (&at("more_modules/beyond.py"), "distance = 9"),
            ("bin/tool", "#!/usr/bin/env python3\nimport tool\ntool.main()\n"),
        ],
        &["tool", "beyond"],
    );
    let code = "import importlib.metadata, importlib.resources, subprocess, sys, beyond\n\
        print(importlib.metadata.version('tool'))\n\
        [point] = importlib.metadata.entry_points(group='console_scripts', name='tool')\n\
        point.load()()\n\
        print(importlib.resources.files('tool').joinpath('data/table.txt').read_text())\n\
        print(beyond.distance, sys.from_pth)\n\
        sys.stdout.flush()\n\
        subprocess.run([sys.executable, '-c', 'import tool; tool.main()'], check=True)\n\
        subprocess.run('tool', check=True)\n";
    let expected = "1.2\nfrom the tool\na table\n9 yes\nfrom the tool\nfrom the tool\n";
    assert_eq!(world.run_code(code, Some(&set)).await, expected);
    world.stop().await;
}

#[tokio::test]
async fn modules_are_found_in_the_usual_order() {
    let world = World::python().await;
    let at = |path: &str| format!("{MODULES}/{path}");
    let set = world.set(
        &[
            (&at("own.py"), "whose = 'the set'"),
            (&at("json.py"), "whose = 'the set'"),
            (&at("numpy/__init__.py"), "__version__ = 'the set'"),
        ],
        &["own", "json", "numpy"],
    );
    let code = "import own, json, numpy\n\
        print(own.whose, hasattr(json, 'whose'), numpy.__version__)";
    let files = [("main.py", code), ("own.py", "whose = 'the program'")];
    assert_eq!(world.run(&files, Some(&set)).await, "the program False the set\n");
    world.stop().await;
}

/// Prints everything by which a program can see how it was started, except for its number and its time.
const LOOKS: &str = "import sys, os, site\n\
    print(sys.path, list(os.environ.items()), site.USER_BASE, site.USER_SITE, site.ENABLE_USER_SITE)\n\
    print(sys.argv, sys.orig_argv, sys.flags, sorted(vars(sys.modules['__main__'])))\n";

#[tokio::test]
async fn a_preloaded_interpreter_behaves_like_a_new_one() {
    let world = World::python().await;
    let at = |path: &str| format!("{MODULES}/{path}");
    let set = world.set(
        &[
            (&at("thing.py"), ""),
            (&at("paths.pth"), "below\n/usr/lib/python3.13\n/nowhere\nimport thing\n"),
            (&at("below/inner.py"), ""),
        ],
        &["thing"],
    );
    // A program that reads `/proc` gets a new interpreter.
    let plain = format!("{LOOKS}# /proc\n");
    for (set, waited) in [(Some(&set), LOOKS), (None, LOOKS)] {
        let mut found = Vec::new();
        for (code, is_waiting) in [(waited, true), (plain.as_str(), false)] {
            world.until_full().await;
            let (outcome, receipt) =
                world.try_run(&[("main.py", code)], set).await.expect("an outcome");
            assert_eq!(receipt.run.preloaded, is_waiting);
            found.push(super::printed(&outcome));
        }
        assert_eq!(found[0], found[1]);
    }
    world.stop().await;
}

#[tokio::test]
async fn startup_files_of_python_run_from_the_set() {
    let world = World::python().await;
    let set = world.module("usercustomize", "import sys; sys.of_the_set = __name__");
    let printed = world.run_code("import sys; print(sys.of_the_set)", Some(&set)).await;
    assert_eq!(printed, "usercustomize\n");
    world.stop().await;
}

#[tokio::test]
async fn an_isolated_interpreter_finds_a_set() {
    let world = World::python().await;
    let set = world.module("parcel", "");
    // Neither looks at the variable that names the set. Our image knows its place.
    let code = "import subprocess, sys\n\
        for option in ['-s', '-I']:\n    \
            ran = subprocess.run([sys.executable, option, '-c', 'import parcel'], capture_output=True)\n    \
            print(ran.returncode)\n";
    assert_eq!(world.run_code(code, Some(&set)).await, "0\n0\n");
    world.stop().await;
}
