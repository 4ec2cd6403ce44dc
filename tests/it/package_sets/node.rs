//! Sets in programs of Node.js.

use super::World;

/// A package that tells its name, for `require` and for `import`.
fn package(files: &mut Vec<(String, String)>, folder: &str, name: &str) {
    let at = |file: &str| format!("node_modules/{folder}/{file}");
    let about = format!(
        r#"{{"name":"{name}","version":"1.0.0","exports":{{"import":"./index.mjs","require":"./index.cjs"}}}}"#
    );
    files.push((at("package.json"), about));
    files.push((at("index.cjs"), format!("module.exports = 'required {name}';")));
    files.push((at("index.mjs"), format!("export default 'imported {name}';")));
}

fn borrowed(files: &[(String, String)]) -> Vec<(&str, &str)> {
    files.iter().map(|(path, content)| (path.as_str(), content.as_str())).collect()
}

#[tokio::test]
async fn both_kinds_of_modules_find_the_set() {
    let world = World::node().await;
    let mut files = Vec::new();
    package(&mut files, "parcel", "parcel");
    package(&mut files, "@post/stamp", "@post/stamp");
    // One that needs another.
    files.push((
        "node_modules/needs/index.js".into(),
        "module.exports = require('parcel') + '!';".into(),
    ));
    let set = world.set(&borrowed(&files), &["parcel", "@post/stamp", "needs"]);
    let require = "console.log(require('parcel'), require('@post/stamp'), require('needs'))";
    let import = "import parcel from 'parcel'; import stamp from '@post/stamp';\n\
        import needs from 'needs'; console.log(parcel, stamp, needs, (await import('parcel')).default)";
    let required = "required parcel required @post/stamp required parcel!\n";
    let imported = "imported parcel imported @post/stamp required parcel! imported parcel\n";
    for (name, code, expected) in [
        ("main.cjs", require, required),
        ("main.js", require, required),
        ("main.mjs", import, imported),
        ("main.ts", &format!("{import}; const x: number = 1"), imported),
        ("below/main.mjs", import, imported),
    ] {
        assert_eq!(world.run(&[(name, code)], Some(&set)).await, expected, "{name}");
    }
    // One that nothing was made ahead for may begin before its interpreter waits.
    world.until_full().await;
    let (outcome, receipt) =
        world.try_run(&[("main.js", require)], Some(&set)).await.expect("an outcome");
    assert_eq!((super::printed(&outcome).as_str(), receipt.run.preloaded), (required, true));
    let without = world.run(&[("main.js", require)], None).await;
    assert!(without.contains("Cannot find module 'parcel'"), "{without}");
    world.stop().await;
}

#[tokio::test]
async fn modules_of_the_program_come_first_and_those_of_the_image_last() {
    let world = World::node().await;
    let mut files = Vec::new();
    for name in ["parcel", "lodash", "@post/stamp", "@post/card"] {
        package(&mut files, name, name);
    }
    let set = world.set(&borrowed(&files), &["parcel", "lodash"]);
    let own = [
        (
            "main.js",
            "console.log(require('parcel'), require('lodash'), typeof require('dayjs'), require('@post/stamp'), require('@post/card'))",
        ),
        ("node_modules/parcel/index.js", "module.exports = 'own';"),
        ("node_modules/@post/card/index.js", "module.exports = 'own card';"),
    ];
    let expected = "own required lodash function required @post/stamp own card\n";
    assert_eq!(world.run(&own, Some(&set)).await, expected);
    world.stop().await;
}

#[tokio::test]
async fn commands_of_a_set_are_found() {
    let world = World::node().await;
    let tool = "#!/usr/bin/env node\nconsole.log('from the tool');";
    let set = world.set(&[("node_modules/.bin/tool", tool)], &[]);
    // A program that looks at `/proc` gets a new interpreter.
    for more in ["", "// /proc"] {
        let code = "require('child_process').execFileSync('tool', { stdio: 'inherit' });"
            .to_owned()
            + more;
        assert_eq!(world.run(&[("main.js", &code)], Some(&set)).await, "from the tool\n");
    }
    world.stop().await;
}

#[tokio::test]
async fn links_to_a_set_are_not_returned_as_files() {
    let world = World::node().await;
    let mut files = Vec::new();
    package(&mut files, "parcel", "parcel");
    let set = world.set(&borrowed(&files), &["parcel"]);
    let mut request = world.request(
        &[("main.js", "require('fs').writeFileSync('out.txt', require('parcel'))")],
        Some(&set),
    );
    let wanted =
        isolator_pool::WantedFiles { globs: vec!["**".to_owned()], pictures: false, most: 1000 };
    request.files = Some(wanted);
    let client = isolator_pool::pool::admission::Client::Host;
    let (outcome, _) = world.pools.execute("javascript", &client, &request).await.expect("one");
    let names: Vec<_> = outcome.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!((names, outcome.more_files), (vec!["out.txt"], false));
    world.stop().await;
}
