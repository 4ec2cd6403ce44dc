//! The seeds that the fuzzer starts with: valid messages, layers and archives, and known attacks.

use std::collections::BTreeMap;
use std::time::Duration;

use isolator_runner::wire::{
    self, Alone, Bounds, CellEnd, CellEnded, ChangedFile, End, Exit, Failed, FailedCause,
    Interpreter, Job, Kind, Listed, NoCheckpoint, Occasion, Opened, OutputLimits, Packages,
    Preload, Preloaded, ReadEnded, Ready, Rewound, Shown, StreamCount, VERSION, Wanted,
    WantedFiles,
};
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use tar::EntryType;

use crate::frames::{self, Frame};
use crate::mutate::gzip;
use crate::tape::{self, Member};

mod agent;

/// How many bytes of an input come before the stream of frames. They choose the request and the engine that get it.
pub fn knobs(target: &str) -> usize {
    if ["runner_says", "session_says", "kernel_says"].contains(&target) { KNOBS } else { 0 }
}

/// The number of these bytes, for targets that have some.
pub const KNOBS: usize = 3;

/// All seeds: the target, the file's name, its content.
pub fn all() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (target, of_target) in [
        ("agent_says", agent::says()),
        ("runner_says", runner_says()),
        ("session_says", session_says()),
        ("kernel_says", kernel_says()),
        ("server_says", server_says()),
        ("layers", layers()),
        ("archive", archives()),
    ] {
        seeds.extend(of_target.into_iter().map(|(name, seed)| (target, name, seed)));
    }
    seeds
}

type Seeds = Vec<(&'static str, Vec<u8>)>;

#[derive(Default)]
struct Stream(Vec<u8>);

impl Stream {
    fn say<T: Serialize>(mut self, kind: Kind, message: &T) -> Self {
        wire::push_message(&mut self.0, kind, message).expect("a seed is small");
        self
    }

    fn bytes(mut self, kind: Kind, bytes: &[u8]) -> Self {
        wire::push_bytes(&mut self.0, kind, bytes);
        self
    }

    fn sign(mut self, kind: Kind) -> Self {
        self.0.extend_from_slice(&wire::header(kind, 0));
        self
    }
}

fn file(path: &str, size: u64, sent: bool) -> ChangedFile {
    ChangedFile { path: path.to_owned(), size, sent }
}

fn exit() -> Exit {
    Exit {
        end: End::Code(0),
        killed: None,
        wall: Duration::from_millis(3),
        cpu: Duration::from_millis(2),
        peak_memory: Some(9 << 20),
        oom_kills: 0,
        refused_forks: 0,
        full_disks: vec!["/tmp".to_owned()],
        stdout: StreamCount { total: 6, dropped: 0 },
        stderr: StreamCount { total: 200, dropped: 10 },
        more_files: false,
        in_tmp: vec!["chart.png".to_owned()],
        unpack: Duration::from_micros(100),
        spawn: Duration::from_micros(200),
        preloaded: true,
    }
}

fn runner_says() -> Seeds {
    let with =
        |knobs: [u8; KNOBS]| Stream(knobs.to_vec()).say(Kind::Ready, &Ready { version: VERSION });
    let preloaded = Preloaded {
        memory: 1 << 20,
        complaints: vec!["numpy is missing".to_owned()],
        not_ready: None,
    };
    let exit = exit();
    let failed = Failed { cause: FailedCause::WorkspaceFull, message: "no space".to_owned() };
    vec![
        (
            "success",
            with([0xbf, 0, 0x18])
                .say(Kind::Preloaded, &preloaded)
                .say(Kind::Preloaded, &preloaded)
                .sign(Kind::Started)
                .bytes(Kind::Stdout, b"hello\n")
                .bytes(Kind::Stderr, "ä\n".repeat(30).as_bytes())
                .say(Kind::Alone, &Alone { memory: 9 << 20 })
                .say(Kind::File, &file("out/a.csv", 4, true))
                .bytes(Kind::Content, b"1,2\n")
                .say(Kind::File, &file("b", 5, false))
                .say(Kind::Exit, &exit)
                .0,
        ),
        (
            "install",
            with([0x05, 3, 0])
                .sign(Kind::Started)
                .bytes(
                    Kind::Install,
                    b"\0\0\0\x01{\"language\": \"python\", \"requirements\": [\"a\"]}",
                )
                .bytes(Kind::Install, b"\0\0\0\x02{}")
                .bytes(Kind::InstallEnded, b"\0\0\0\x02")
                .say(Kind::Exit, &exit)
                .0,
        ),
        ("failed", with([0x05, 3, 0]).say(Kind::Failed, &failed).0),
        (
            "flood",
            with([0x0a, 100, 0x20])
                .sign(Kind::Started)
                .bytes(Kind::Stdout, "äöü".repeat(40).as_bytes())
                .bytes(Kind::Stderr, &[0xff; 200])
                .say(
                    Kind::Exit,
                    &Exit {
                        end: End::Signal(9),
                        oom_kills: 1,
                        full_disks: vec!["/of another".to_owned()],
                        ..exit.clone()
                    },
                )
                .0,
        ),
        ("silence", with([0x3f, 7, 0x43]).sign(Kind::Started).bytes(Kind::Stdout, b"x").0),
        ("too_much", {
            let stream = with([0xa0, 0, 1]).sign(Kind::Started);
            let stream = stream.say(Kind::File, &file("a", 20, true));
            stream.bytes(Kind::Content, &[7; 20]).say(Kind::Exit, &exit).0
        }),
    ]
}

fn session_says() -> Seeds {
    let opened = Opened {
        version: Some("3.13.5".to_owned()),
        preloaded: true,
        memory: Some(20 << 20),
        not_ready: None,
    };
    let with = |knobs: [u8; KNOBS]| {
        Stream(knobs.to_vec())
            .say(Kind::Ready, &Ready { version: VERSION })
            .say(Kind::Opened, &opened)
            .sign(Kind::Resting)
    };
    let ended = CellEnded {
        exit: exit(),
        end: Some(CellEnd::Raised),
        undone: 0,
        undone_files: None,
        no_checkpoint: Some(NoCheckpoint::Threads),
        checkpoints: 2,
        is_alive: true,
        memory: Some(30 << 20),
        background_dropped: 1,
        shown_dropped: 1,
        is_kernel_gone: false,
    };
    let shown = |thing, media_type: &str, size| Shown {
        thing,
        occasion: if thing == 1 { Occasion::Result } else { Occasion::Cell },
        media_type: media_type.to_owned(),
        size,
        is_last: true,
    };
    let failed = Failed { cause: FailedCause::Command, message: "no such command".to_owned() };
    let cells = |stream: Stream| {
        stream
            .sign(Kind::Started)
            .bytes(Kind::Stdout, b"hello\n")
            .say(Kind::Shown, &shown(0, "text/plain", 2))
            .bytes(Kind::ShownContent, b"hi")
            .say(Kind::Shown, &shown(1, "text/html", 8))
            .bytes(Kind::ShownContent, b"<b>h")
            .bytes(Kind::ShownContent, b"</b>")
            .bytes(Kind::Background, b"from before\n")
            .say(Kind::File, &file("out/a.csv", 4, true))
            .bytes(Kind::Content, b"1,2\n")
            .say(Kind::CellEnded, &ended)
            .sign(Kind::Resting)
            .say(Kind::Failed, &failed)
            .sign(Kind::Resting)
    };
    let rewound = Rewound { cells: 1, files: None, checkpoints: 1, is_alive: true };
    vec![
        (
            "success",
            cells(with([0xff, 0, 0]))
                .say(Kind::Rewound, &rewound)
                .sign(Kind::Resting)
                .say(Kind::File, &file("a", 5, false))
                .say(Kind::Listed, &Listed { more: false })
                .sign(Kind::Resting)
                .bytes(Kind::Content, b"content")
                .say(Kind::ReadEnded, &ReadEnded { size: Some(7), error: None })
                .sign(Kind::Resting)
                .0,
        ),
        ("small_pieces", cells(with([0xbf, 3, 0x20])).0),
        ("silence", with([0xff, 0, 0x21]).sign(Kind::Started).bytes(Kind::Stdout, b"x").0),
        (
            "ended",
            with([0xff, 50, 0])
                .sign(Kind::Started)
                .say(Kind::CellEnded, &CellEnded { is_alive: false, undone: 1, ..ended.clone() })
                .0,
        ),
        ("long_message", {
            let message = "long ".repeat(1000);
            let failed = Failed { cause: FailedCause::Command, message };
            with([0xff, 0, 0]).say(Kind::Failed, &failed).sign(Kind::Resting).0
        }),
        ("long_reason", {
            let wrong = json!({ "end": "long ".repeat(1000) });
            with([0xff, 0, 0]).sign(Kind::Started).say(Kind::CellEnded, &wrong).0
        }),
        (
            "long_path",
            cells(with([0xff, 0, 0]))
                .say(Kind::Rewound, &rewound)
                .sign(Kind::Resting)
                .say(Kind::File, &file(&"long/".repeat(1000), 5, false))
                .say(Kind::Listed, &Listed { more: false })
                .0,
        ),
        (
            "no_kernel",
            Stream(vec![0xff, 0, 0])
                .say(Kind::Ready, &Ready { version: VERSION })
                .say(Kind::Failed, &failed)
                .0,
        ),
    ]
}

fn kernel_says() -> Seeds {
    let form = |media_type: &str, content: &[u8]| {
        let length = |length: usize| u32::try_from(length).expect("a seed is small").to_be_bytes();
        let head = &length(media_type.len())[2..];
        [head, media_type.as_bytes(), &length(content.len()), content].concat()
    };
    let says = |knobs: [u8; KNOBS], said: &[(u8, &[u8])]| {
        let frames: Vec<_> =
            said.iter().map(|&(kind, payload)| Frame { kind, payload: payload.to_vec() }).collect();
        [&knobs[..], &frames::join(&frames, &[])].concat()
    };
    let table = [&[1][..], &form("text/plain", b"a b"), &form("text/html", b"<table>")].concat();
    let picture = [&[0][..], &form("image/png", &[0x89; 300])].concat();
    let long = [&[0][..], &form(&"ü".repeat(150), b"x")].concat();
    let ended = [&[1][..], &1_i32.to_be_bytes()].concat();
    vec![
        (
            "cell",
            says(
                [3, 0, 0],
                &[
                    (b'r', b"3.13.5"),
                    (b'p', b"\0"),
                    (b's', b"\x01"),
                    (b'd', &picture),
                    (b'd', &table),
                    (b'e', &ended),
                ],
            ),
        ),
        ("long_names", says([3, 0, 0], &[(b's', b"\0"), (b'd', &long), (b'r', &[b'x'; 500])])),
        ("little_room", says([1, 7, 0], &[(b's', b"\0"), (b'd', &table), (b'd', &table)])),
        ("no_room", says([0, 0, 0], &[(b'd', &picture), (b'e', &[3, 0xff, 0xff, 0xff, 0xff])])),
    ]
}

fn server_says() -> Seeds {
    let job = Job {
        argv: vec!["python3".to_owned(), "main.py".to_owned()],
        env: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
        workdir: "/workspace".to_owned(),
        bounds: Bounds {
            deadline: Duration::from_secs(10),
            output: OutputLimits { head: 100, tail: 100, kill: 1000 },
            disks: vec!["/tmp".to_owned()],
            files: Some(WantedFiles {
                globs: vec!["out/**".to_owned()],
                pictures: true,
                most: 100,
            }),
        },
        cpu_time: Some(Duration::from_secs(1)),
        interpreter: Wanted::Loaded,
        packages: Some(Packages {
            interpreter: Interpreter::Python,
            folder: "/nowhere".to_owned(),
        }),
    };
    let preload = Preload {
        interpreter: Interpreter::Python,
        argv: job.argv.clone(),
        env: job.env.clone(),
        workdir: job.workdir.clone(),
        modules: vec!["numpy".to_owned()],
        memory: 1 << 20,
        forked: false,
    };
    let file = |name: &[u8]| Member::new(EntryType::Regular, name, b"", b"print('hi')\n");
    let tar = tape::join(&[file(b"main.py"), file(b"folder/data.csv")], true);
    let odd = [
        file(b"a"),
        Member::new(EntryType::GNULongName, b"long", b"", "folder/".repeat(30).as_bytes()),
        file(b"b"),
        Member::pax(b"path", b"c/d"),
        file(b"c"),
        file(b"../canary/file"),
        Member::new(EntryType::Symlink, b"l", b"../canary", b""),
    ];
    let begun = || Stream::default().say(Kind::Job, &job);
    vec![
        ("hello", begun().bytes(Kind::Tar, &tar).bytes(Kind::Stdin, b"in").sign(Kind::Go).0),
        (
            "preload",
            Stream::default()
                .say(Kind::Preload, &preload)
                .say(Kind::Job, &job)
                .bytes(Kind::Tar, &tar[..700])
                .bytes(Kind::Tar, &tar[700..])
                .bytes(Kind::Stdin, b"in")
                .bytes(Kind::Stdin, b"more")
                .sign(Kind::Go)
                .0,
        ),
        ("odd", begun().bytes(Kind::Tar, &tape::join(&odd, true)).sign(Kind::Go).0),
        ("empty", begun().sign(Kind::Go).0),
    ]
}

fn tree() -> Vec<Member> {
    let new = Member::new;
    vec![
        new(EntryType::Directory, b"a/", b"", b""),
        new(EntryType::Regular, b"a/b", b"", b"some content"),
        new(EntryType::Symlink, b"link", b"a", b""),
        new(EntryType::Regular, b"link/c", b"", b"behind a link"),
        new(EntryType::Link, b"a/hard", b"a/b", b""),
        new(EntryType::Symlink, b"a/up", b"../a/b", b""),
        new(EntryType::Regular, b"deep/er/and/deeper", b"", b"x"),
    ]
}

fn over() -> Vec<Member> {
    let new = Member::new;
    vec![
        new(EntryType::Regular, b"a/.wh.b", b"", b""),
        new(EntryType::Regular, b"deep/.wh..wh..opq", b"", b""),
        new(EntryType::Regular, b"deep/new", b"", b"y"),
        new(EntryType::Regular, b"link", b"", b"no link any more"),
        new(EntryType::Directory, b"a/hard", b"", b""),
    ]
}

fn odd() -> Vec<Member> {
    let new = Member::new;
    let mut setuid = new(EntryType::Regular, b"su", b"", b"x");
    setuid.header.set_mode(0o4755);
    setuid.header.set_uid(1000);
    vec![
        Member::pax(b"path", b"from/pax"),
        Member::pax(b"mtime", b"1234567890.25"),
        new(EntryType::Regular, b"short", b"", b"pax"),
        new(EntryType::GNULongName, b"././@LongLink", b"", "long/".repeat(25).as_bytes()),
        new(EntryType::Directory, b"long", b"", b""),
        setuid,
        new(EntryType::Symlink, b"top", b"/", b""),
        new(EntryType::Regular, b"top/top/through", b"", b"x"),
        new(EntryType::XGlobalHeader, b"global", b"", b"11 comment\n"),
        new(EntryType::Fifo, b"fifo", b"", b""),
    ]
}

fn hostile() -> Vec<Member> {
    let new = Member::new;
    vec![
        new(EntryType::Symlink, b"out", b"/../../canary", b""),
        new(EntryType::Regular, b"out/file", b"", b"x"),
        new(EntryType::Symlink, b"loop", b"loop", b""),
        new(EntryType::Link, b"hard", b"out/file", b""),
        new(EntryType::Regular, b"../canary/file", b"", b"x"),
    ]
}

/// More directories than the limit of entries allows.
fn roads() -> Vec<Member> {
    let road = |number: usize| {
        let name = format!("{number}/{}f", "d/".repeat(45));
        Member::new(EntryType::Regular, name.as_bytes(), b"", b"")
    };
    (0..6).map(road).collect()
}

fn layers() -> Seeds {
    let stream = |layers: &[Vec<u8>]| {
        let frames = layers.iter().fold(Stream::default(), |all, it| all.bytes(Kind::Tar, it));
        frames.0
    };
    let tar = |members: Vec<Member>| tape::join(&members, true);
    let zstd = |plain: Vec<u8>| zstd::encode_all(plain.as_slice(), 1).expect("a vector is read");
    vec![
        ("tree", stream(&[tar(tree())])),
        ("over", stream(&[tar(tree()), tar(over())])),
        ("odd", stream(&[tar(odd()), tar(over()), tar(tree())])),
        ("roads", stream(&[tar(roads())])),
        ("hostile", stream(&[tar(hostile())])),
        ("packed", stream(&[gzip(&tar(tree())), zstd(tar(over()))])),
    ]
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn archives() -> Seeds {
    let layer = tape::join(&tree(), true);
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "created": "2024-01-01T00:00:00Z",
        "config": { "Env": ["PATH=/usr/bin"], "Volumes": { "/data": {} } },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer))] },
    });
    let config = config.to_string().into_bytes();
    let file =
        |name: &str, content: &[u8]| Member::new(EntryType::Regular, name.as_bytes(), b"", content);
    let saved =
        json!([{ "Config": "config.json", "RepoTags": ["test/image:1"], "Layers": ["layer.tar"] }]);
    let docker = [
        file("manifest.json", saved.to_string().as_bytes()),
        file("config.json", &config),
        Member::new(EntryType::Symlink, b"layer.tar", b"x/layer.tar", b""),
        file("x/layer.tar", &layer),
    ];

    let packed = gzip(&layer);
    let describe = |kind: &str, content: &[u8]| {
        json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{}", digest(content)),
            "size": content.len(),
        })
    };
    let manifest = json!({
        "schemaVersion": 2,
        "config": describe("config.v1+json", &config),
        "layers": [describe("layer.v1.tar+gzip", &packed)],
    });
    let manifest = manifest.to_string().into_bytes();
    let mut described = describe("manifest.v1+json", &manifest);
    described["annotations"] = json!({ "org.opencontainers.image.ref.name": "test/image:2" });
    described["platform"] = json!({ "architecture": architecture, "os": "linux" });
    let index = json!({ "schemaVersion": 2, "manifests": [described] });
    let blob = |content: &[u8]| file(&format!("blobs/sha256/{}", digest(content)), content);
    let oci = [
        file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#),
        file("index.json", index.to_string().as_bytes()),
        blob(&manifest),
        blob(&config),
        blob(&packed),
    ];
    vec![
        ("root", tape::join(&tree(), true)),
        ("docker", tape::join(&docker, true)),
        ("oci", tape::join(&oci, true)),
        ("packed_docker", gzip(&tape::join(&docker, true))),
    ]
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_seeds_in_the_tree_are_these() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
        for (target, name, seed) in super::all() {
            let path = corpus.join(target).join(name);
            assert!(
                fs::read(&path).is_ok_and(|there| there == seed),
                "{} is another: `cargo run --bin seeds` writes it",
                path.display()
            );
        }
    }
}
