//! Hostile images, which must be refused.

use std::collections::BTreeMap;
use std::fs;

use isolator_pool::engine::store::{Limits, StoreError};
use serde_json::json;
use tar::EntryType;

use crate::store::support::{Layout, NAME, Tar, World, config, gzip, named, saved, sha256, zstd};

fn tar() -> Tar {
    Tar::default()
}

/// A file whose path is just these bytes.
fn raw(path: &[u8]) -> Tar {
    tar().add(Tar::header(path, EntryType::Regular, 1), b"x")
}

fn small() -> Limits {
    let (bytes, entries, path, description) = (1 << 20, 100, 200, 1 << 16);
    Limits { bytes, entries, path, description, layers: 8, ..Limits::default() }
}

/// Layers with what is said of each.
fn layers() -> Vec<(&'static str, Vec<Tar>, &'static str)> {
    let huge = tar().add(Tar::header(b"huge", EntryType::Regular, 1 << 40), b"x");
    let sparse = tar().add(Tar::header(b"sparse", EntryType::GNUSparse, 0), b"");
    let pax_sparse = tar().pax("GNU.sparse.realsize", b"1099511627776").file("sparse", "");
    let many = (0..101).fold(tar(), |tar, index| tar.file(&format!("{index}"), ""));
    let own = (0..30).fold(tar(), |tar, index| tar.file(&format!("{index}"), ""));
    let costly = vec![(0..3).fold(own, |tar, _| tar.file(".wh..wh..opq", ""))];
    let deep = "d/".repeat(45) + "f";
    let roads = "d/".repeat(40) + "f";
    let roads = (0..3).fold(tar(), |tar, index| tar.file(&format!("{index}/{roads}"), ""));
    let zeros = vec![0; 2 << 20];
    vec![
        ("absolute", vec![raw(b"/x")], "absolute"),
        ("absolute with dots", vec![raw(b"//x")], "absolute"),
        ("up", vec![raw(b"../x")], ".."),
        ("up and up", vec![raw(b"../../../../victim")], ".."),
        ("down and up", vec![raw(b"a/../../x")], ".."),
        ("up at the end", vec![tar().directory("a/..", 0o755)], ".."),
        ("up through PAX", vec![tar().pax("path", b"../x").file("fine", "x")], ".."),
        (
            "up through a long name",
            vec![tar().long(EntryType::GNULongName, b"../x\0").file("fine", "x")],
            "..",
        ),
        ("NUL", vec![tar().pax("path", b"a\0b").file("fine", "x")], "NUL"),
        (
            "climbing link",
            vec![tar().symlink("link", "../../etc").file("link/x", "x")],
            "out of the image",
        ),
        (
            "link that climbs later",
            vec![tar().symlink("a/link", "x/../../../etc")],
            "out of the image",
        ),
        (
            // At `lib/x/link` it would be fine, but the link is at `x/link`.
            "link below a link",
            vec![
                tar()
                    .directory("x", 0o755)
                    .symlink("lib/x", "/x")
                    .symlink("lib/x/link", "../../victim"),
            ],
            "out of the image",
        ),
        (
            "endless link",
            vec![tar().symlink("a", "b").symlink("b", "a").file("a/x", "x")],
            "symbolic link",
        ),
        ("empty link", vec![tar().symlink("a", "")], "no target"),
        ("hard link to the host", vec![tar().hard_link("a", "/etc/passwd")], "absolute"),
        ("hard link up", vec![tar().hard_link("a", "../../../victim")], ".."),
        ("hard link to nothing", vec![tar().hard_link("a", "etc/passwd")], "no file"),
        (
            "hard link to a directory",
            vec![tar().directory("d", 0o755).hard_link("a", "d")],
            "no file",
        ),
        (
            "hard link to a link",
            vec![tar().symlink("l", "/etc/passwd").hard_link("a", "l")],
            "no file",
        ),
        (
            "hard link through a link",
            vec![tar().symlink("l", "/etc").hard_link("a", "l/passwd")],
            "no file",
        ),
        ("hard link to itself", vec![tar().hard_link("a", "a")], "no file"),
        ("hard link to the root", vec![tar().hard_link("a", "./")], "no file"),
        ("character device", vec![tar().special("null", EntryType::Char)], "device"),
        ("block device", vec![tar().special("sda", EntryType::Block)], "device"),
        ("FIFO", vec![tar().special("fifo", EntryType::Fifo)], "FIFO"),
        ("unknown", vec![tar().special("x", EntryType::new(b'Z'))], "not known"),
        ("whiteout of ..", vec![tar().file("d/.wh...", "")], "whiteout"),
        ("whiteout of .", vec![tar().file("d/.wh..", "")], "whiteout"),
        ("whiteout of nothing", vec![tar().file("d/.wh.", "")], "whiteout"),
        ("reserved whiteout", vec![tar().file(".wh..wh.", "")], "reserved"),
        ("directory like a whiteout", vec![tar().file(".wh.a/b", "")], "whiteout"),
        ("opaque outside", vec![raw(b"../.wh..wh..opq")], ".."),
        ("whiteout outside", vec![raw(b"../../.wh.store")], ".."),
        ("file in a file", vec![tar().file("a", "x").file("a/b", "x")], "directory"),
        ("root that is a file", vec![tar().symlink("./", "/etc")], "root"),
        ("announced to be huge", vec![huge], "bytes"),
        ("sparse", vec![sparse], "sparse"),
        ("sparse in PAX", vec![pax_sparse], "sparse"),
        ("two sizes", vec![tar().pax("size", b"1000").file("a", "x")], "two sizes"),
        ("many entries", vec![many], "entries"),
        ("costly whiteouts", costly, "entries"),
        ("directories that no entry tells of", vec![roads], "entries"),
        ("long path", vec![tar().file(&"a/".repeat(150), "")], "long"),
        (
            "long name",
            vec![
                tar()
                    .long(EntryType::GNULongName, &[b'n'; 199])
                    .file("n", "")
                    .long(EntryType::GNULongName, &[b'n'; 256])
                    .file("n", ""),
            ],
            "long",
        ),
        (
            "deep below links",
            vec![
                tar()
                    .file(&deep, "")
                    .symlink("l", deep.trim_end_matches("/f"))
                    .file(&format!("l/{deep}"), "")
                    .symlink("m", &format!("l/{}", deep.trim_end_matches("/f")))
                    .file(&format!("m/{deep}"), ""),
            ],
            "too many directories",
        ),
        (
            "many bytes",
            vec![
                tar().file_with("a", 0o644, &zeros[..700_000]),
                tar().file_with("a", 0o644, &zeros[..700_000]),
            ],
            "bytes",
        ),
        ("endless extension", vec![tar().long(EntryType::XHeader, &zeros)], "too long"),
        ("no user", vec![tar().pax("uid", b"4294967295").file("a", "")], "owner"),
        ("damaged header", vec![Tar(vec![7; 512])], ""),
    ]
}

#[tokio::test]
async fn layers_that_lead_out_are_refused_and_leave_nothing() {
    for (what, layers, reason) in layers() {
        let layers: Vec<_> = layers.into_iter().map(Tar::end).collect();
        let world = World::with(small());
        let refused = world.layers(&layers).await.expect_err(what);
        assert!(matches!(refused, StoreError::Entry { .. }), "{what}: {refused:?}");
        let message = refused.to_string();
        assert!(message.contains("layer ") && message.contains(reason), "{what}: {message}");
        world.check(0);
    }
}

#[tokio::test]
async fn root_file_systems_are_refused_for_the_same() {
    for (what, layers, reason) in layers() {
        // An error in its headers is reported before the archive is read.
        if layers.len() > 1
            || ["damaged header", "endless extension", "two sizes", "announced to be huge"]
                .contains(&what)
        {
            continue;
        }
        let world = World::with(small());
        let refused = world.import(&layers[0].clone().end()).await.expect_err(what);
        assert!(refused.to_string().contains(reason), "{what}: {refused}");
        world.check(0);
    }
}

#[tokio::test]
async fn absolute_links_stay_inside_the_root() {
    let world = World::new();
    let outside = world.directory.path().display().to_string();
    let layer = tar()
        .symlink("link", &outside)
        .file("link/victim", "hostile")
        .symlink("out", "/../../etc")
        .file("out/passwd", "hostile")
        .file("other", "x")
        .hard_link("link/linked", "other");
    let root =
        world.layers(&[layer.end(), tar().file("link/.wh.nothing", "").end()]).await.unwrap();
    let inside = root.join(outside.trim_start_matches('/'));
    assert_eq!(fs::read(inside.join("victim")).unwrap(), b"hostile");
    assert_eq!(fs::read(inside.join("linked")).unwrap(), b"x");
    assert!(!root.join("link").metadata().unwrap().is_file());
    world.check(1);
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    assert!(!passwd.contains("hostile"));
}

#[tokio::test]
async fn links_that_lead_up_and_down_are_given_up() {
    let layer = tar()
        .directory("a", 0o755)
        .long(EntryType::GNULongLink, "a/../".repeat(800).as_bytes())
        .symlink("l", "short")
        .file("l/x", "x");
    let world = World::new();
    let refused = world.layers(&[layer.end()]).await.unwrap_err().to_string();
    assert!(refused.contains("symbolic link"), "{refused}");
    world.check(0);
}

#[tokio::test]
async fn bombs_are_refused() {
    let zeros = vec![0; 16 << 20];
    let file = tar().file_with("a", 0o644, &zeros).end();
    let trailing = [tar().file("a", "x").end(), zeros].concat();
    for bomb in [gzip(&file), zstd(&file), gzip(&trailing), zstd(&trailing)] {
        let world = World::with(small());
        let mut layout = Layout::default();
        let plain = zstd::decode_all(&bomb[..]).unwrap_or_else(|_| file.clone());
        let image = layout.image(&config(&[plain]), vec![bomb.clone()]);
        let archive = layout.index(vec![named(image, "a/b")]).tar();
        let refused = world.import(&archive).await.unwrap_err().to_string();
        assert!(refused.contains("bytes") || refused.contains("larger than"), "{refused}");
        world.check(0);
        // The same as an archive that is compressed as a whole.
        let refused = world.import(&bomb).await.unwrap_err().to_string();
        assert!(refused.contains("larger than"), "{refused}");
        world.check(0);
    }
}

#[tokio::test]
async fn content_that_differs_from_its_announcement_is_refused() {
    let layer = tar().file("a", "x").end();
    let other = tar().file("b", "x").end();
    let layers = std::slice::from_ref(&layer);
    let world = World::new();

    let mut layout = Layout::default();
    let image = layout.image(&config(layers), vec![gzip(&layer)]);
    let path = format!("blobs/sha256/{}", sha256(&gzip(&layer)));
    let index = layout.index(vec![named(image, "a/b")]);
    let replaced = |wanted: &str, content: Option<&[u8]>| {
        let files = index.0.iter().filter_map(|(path, old)| match content {
            content if path == wanted => Some((path.clone(), content?.to_vec())),
            _ => Some((path.clone(), old.clone())),
        });
        Layout(files.collect()).tar()
    };
    let damaged = world.import(&replaced(&path, Some(&gzip(&other)))).await.unwrap_err();
    assert!(matches!(damaged, StoreError::Digest { .. }), "{damaged}");
    // The same content, differently compressed.
    let damaged = world.import(&replaced(&path, Some(&layer))).await.unwrap_err();
    assert!(matches!(damaged, StoreError::Digest { .. }), "{damaged}");
    let missing = world.import(&replaced(&path, None)).await.unwrap_err();
    assert!(missing.to_string().contains("missing"), "{missing}");
    for (path, _) in index.0.iter().filter(|(path, _)| path.starts_with("blobs")) {
        assert!(world.import(&replaced(path, Some(b"{}"))).await.is_err(), "{path}");
    }

    let wrong = saved(&config(std::slice::from_ref(&other)), layers, &[]);
    let wrong = world.import(&wrong).await.unwrap_err();
    assert!(matches!(wrong, StoreError::Digest { .. }), "{wrong}");
    let none = world.import(&saved(&config(&[]), layers, &[])).await.unwrap_err();
    assert!(none.to_string().contains("1 layers"), "{none}");
    world.check(0);
}

#[tokio::test]
async fn truncated_archives_are_refused_wherever_they_end() {
    let layer = tar().file_with("a", 0o644, &[7; 3000]).file("b", "x").end();
    let saved = saved(&config(std::slice::from_ref(&layer)), std::slice::from_ref(&layer), &[]);
    let world = World::new();
    for whole in [layer.clone(), gzip(&layer), zstd(&layer), saved] {
        let content = whole.len() - if whole.len() > 4096 { 1024 } else { 0 };
        for cut in (0..16).map(|part| content * part / 16).chain([content - 1]) {
            let refused = world.import(&whole[..cut]).await;
            assert!(refused.is_err(), "{cut} of {}", whole.len());
        }
    }
    for garbage in [b"".as_slice(), b"x", &[7; 5000], b"\x1f\x8b", &[0x28, 0xb5, 0x2f, 0xfd, 1]] {
        assert!(world.import(garbage).await.is_err());
    }
    world.check(0);
}

#[tokio::test]
async fn configurations_that_would_do_harm_are_refused() {
    let layer = tar().file("a", "x").end();
    let volumes = |paths: &mut dyn Iterator<Item = String>| {
        json!(paths.map(|path| (path, json!({}))).collect::<BTreeMap<_, _>>())
    };
    let volume = |path: String| volumes(&mut std::iter::once(path));
    for (key, value, reason) in [
        ("/config/Volumes", volume("../x".into()), "volume"),
        ("/config/Volumes", volume("/".into()), "volume"),
        ("/config/Volumes", volume("/a/../..".into()), "volume"),
        ("/config/Volumes", volume("/a/x".into()), "Not a directory"),
        ("/config/Volumes", volume("/etc/hosts".into()), "must be a file"),
        ("/config/Volumes", volume(format!("/{}", "n".repeat(256))), "a name is too long"),
        ("/config/Volumes", volume("/n".repeat(129)), "too many directories"),
        ("/config/Volumes", volume("/n".repeat(513)), "the path is too long"),
        ("/config/Volumes", volumes(&mut (0..33).map(|n| format!("/{n}"))), "33 volumes"),
        (
            "/config/Volumes",
            volumes(&mut (0..9).map(|n| format!("/{n}{}", "/nnn".repeat(250)))),
            "volumes take",
        ),
        ("/config/Env", json!(["novalue"]), "variable"),
        ("/config/Env", json!(["=x"]), "variable"),
        ("/config/Env", json!(["a=\u{0}"]), "variable"),
        ("/config/Env", json!([format!("A={}", "x".repeat(70 << 10))]), "variables take"),
        // Each of these is six bytes in the request for a sandbox.
        ("/config/Env", json!([format!("A={}", "\u{1}".repeat(6 << 10))]), "variables take"),
        ("/config/Env", json!(vec!["A=b"; 8000]), "variables take"),
        ("/created", json!("2024".repeat(20)), "time of creation"),
        ("/architecture", json!("no such machine"), "platform"),
    ] {
        let world = World::new();
        let mut config = config(std::slice::from_ref(&layer));
        *config.pointer_mut(key).unwrap() = value;
        let archive = saved(&config, std::slice::from_ref(&layer), &[]);
        let refused = world.import(&archive).await.expect_err(reason).to_string();
        assert!(refused.contains(reason), "{reason}: {refused}");
        world.check(0);
    }
    let world = World::with(small());
    let mut large = config(std::slice::from_ref(&layer));
    large["comment"] = json!("x".repeat(1 << 17));
    assert!(world.import(&saved(&large, std::slice::from_ref(&layer), &[])).await.is_err());
    let path = world.write(&saved(&config(std::slice::from_ref(&layer)), &[layer], &["../x"]));
    assert!(world.store.import(&path, None, &|_| {}).await.is_err());
    assert!(world.store.import(&path, Some("../x"), &|_| {}).await.is_err());
    assert!(world.store.find(NAME).unwrap().is_none());
    world.check(0);
}

#[tokio::test]
async fn unneeded_parts_of_a_configuration_are_not_kept() {
    let layer = tar().file("a", "x").end();
    let layers = std::slice::from_ref(&layer);
    let world = World::new();
    let mut config = config(layers);
    let long = "x".repeat(100_000);
    config["config"]["Labels"] = json!({ "a": long, "b": 1 });
    config["config"]["Cmd"] = json!(vec!["x"; 100_000]);
    for key in ["Entrypoint", "User", "WorkingDir"] {
        config["config"][key] = json!(long);
    }
    config["history"] = json!(vec![json!({}); 100_000]);
    let image = world.import(&saved(&config, layers, &[])).await.unwrap();
    let description = world.root(&image).with_file_name("image.json");
    assert!(fs::metadata(description).unwrap().len() < 1000);
    world.check(1);
}
