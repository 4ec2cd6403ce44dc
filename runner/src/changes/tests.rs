//! Tests of the search for changed files.

use std::fs;
use std::io::Write;

use isolator_runner::wire::{self, FrameDecoder};

use super::*;
use crate::unpack::unpack;

/// Lets a program change a workspace with a file "given". Returns the files that are sent.
fn left(wanted: &WantedFiles, program: impl Fn(&Path)) -> (Vec<(ChangedFile, Vec<u8>)>, bool) {
    let workdir = tempfile::tempdir().unwrap();
    let mut tar = tar::Builder::new(Vec::new());
    for name in ["given", "folder/given"] {
        let mut header = tar::Header::new_gnu();
        header.set_size(3);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, &b"abc"[..]).unwrap();
    }
    let tar = tar.into_inner().unwrap();
    let mut given = match unpack(&mut &tar[..], workdir.path().to_str().unwrap()) {
        Ok(given) => given,
        Err(failed) => panic!("{failed:?}"),
    };
    program(workdir.path());
    let mut sent = tempfile::tempfile().unwrap();
    let mut frame_writer = FrameWriter::new(sent.try_clone().unwrap());
    let is_complete = send(workdir.path(), &mut given, wanted, &mut frame_writer).unwrap();
    frame_writer.send(Kind::Exit, &0).unwrap();

    let mut bytes = Vec::new();
    sent.rewind().unwrap();
    sent.read_to_end(&mut bytes).unwrap();
    let mut decoder = FrameDecoder::default();
    decoder.feed(&bytes);
    let mut files = Vec::<(ChangedFile, Vec<u8>)>::new();
    loop {
        match decoder.next_frame().unwrap().unwrap() {
            (kind @ Kind::File, payload) => {
                files.push((wire::parse_message(kind, &payload).unwrap(), Vec::new()));
            }
            (Kind::Content, payload) => files.last_mut().unwrap().1.extend(payload),
            (Kind::Exit, _) => return (files, is_complete),
            (kind, _) => panic!("{kind:?}"),
        }
    }
}

fn wanted(globs: &[&str]) -> WantedFiles {
    let globs = globs.iter().map(|&glob| glob.to_owned()).collect();
    WantedFiles { globs, pictures: false, most: 1000 }
}

fn paths(files: &[(ChangedFile, Vec<u8>)]) -> Vec<(&str, u64, bool)> {
    files.iter().map(|(file, _)| (file.path.as_str(), file.size, file.sent)).collect()
}

#[test]
fn only_created_and_changed_files_are_listed() {
    let (files, is_complete) = left(&wanted(&[]), |workdir| {
        fs::write(workdir.join("new"), "12345").unwrap();
        // As long as before, and at once.
        fs::write(workdir.join("given"), "xyz").unwrap();
        fs::rename(workdir.join("folder/given"), workdir.join("folder/moved")).unwrap();
        fs::create_dir(workdir.join("empty")).unwrap();
    });
    assert!(is_complete);
    assert_eq!(paths(&files), [("folder/moved", 3, false), ("given", 3, false), ("new", 5, false)]);
    assert_eq!(left(&wanted(&["**"]), |_| {}), (Vec::new(), true));
}

#[test]
fn a_change_that_keeps_the_modification_time_is_found() {
    let keeping_the_time = |file: &mut File, new: &[u8]| {
        let time = file.metadata().unwrap().modified().unwrap();
        file.write_all(new).unwrap();
        file.set_modified(time).unwrap();
    };
    let (files, _) = left(&wanted(&["*"]), |workdir| {
        let mut given = File::options().write(true).open(workdir.join("given")).unwrap();
        keeping_the_time(&mut given, b"xyz");
        let mut same = File::options().write(true).open(workdir.join("folder/given")).unwrap();
        keeping_the_time(&mut same, b"abc");
    });
    assert_eq!(paths(&files), [("given", 3, true)]);
    assert_eq!(files[0].1, b"xyz");
    let (files, _) = left(&wanted(&[]), |workdir| {
        fs::rename(workdir.join("folder/given"), workdir.join("given")).unwrap();
    });
    assert!(files.is_empty(), "the same bytes in the same place are the same file: {files:?}");
}

#[test]
fn wanted_files_are_sent_with_the_list() {
    let globs = WantedFiles { pictures: true, ..wanted(&["*.csv", "out/**"]) };
    let (files, _) = left(&globs, |workdir| {
        fs::create_dir_all(workdir.join("out/deep")).unwrap();
        for name in ["a.csv", "out/b.csv", "out/deep/c", "folder/d.csv", "folder/e.PNG"] {
            fs::write(workdir.join(name), name).unwrap();
        }
    });
    let sent: Vec<_> = files.iter().filter(|(file, _)| file.sent).collect();
    let names: Vec<_> = sent.iter().map(|(file, _)| file.path.as_str()).collect();
    assert_eq!(names, ["a.csv", "folder/e.PNG", "out/b.csv", "out/deep/c"]);
    assert!(sent.iter().all(|(file, content)| *content == file.path.as_bytes()));
    assert!(files.iter().any(|(file, _)| file.path == "folder/d.csv" && !file.sent));
}

#[test]
fn files_above_the_limit_are_only_listed() {
    let (files, is_complete) = left(&wanted(&["*"]), |workdir| {
        fs::write(workdir.join("a"), vec![1; 600]).unwrap();
        fs::write(workdir.join("b"), vec![2; 600]).unwrap();
        fs::write(workdir.join("c"), vec![3; 400]).unwrap();
        File::create(workdir.join("huge")).unwrap().set_len(1 << 40).unwrap();
    });
    let expected =
        [("a", 600, true), ("b", 600, false), ("c", 400, true), ("huge", 1 << 40, false)];
    assert_eq!(paths(&files), expected);
    assert!(is_complete);
}

#[test]
fn links_are_not_followed_and_pipes_do_not_block() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    secret.as_file().write_all(b"secret").unwrap();
    let (files, is_complete) = left(&wanted(&["**"]), |workdir| {
        std::os::unix::fs::symlink(secret.path(), workdir.join("link")).unwrap();
        std::os::unix::fs::symlink("/etc", workdir.join("etc")).unwrap();
        let pipe = workdir.join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    });
    assert_eq!((files, is_complete), (Vec::new(), true));
}

#[test]
fn too_many_too_deep_or_non_utf8_names_are_handled() {
    let (files, is_complete) = left(&wanted(&["**"]), |workdir| {
        for number in 0..MAX_FILES + 10 {
            File::create(workdir.join(format!("{number:05}"))).unwrap();
        }
    });
    assert_eq!((files.len(), is_complete), (MAX_FILES, false));
    let (files, is_complete) = left(&wanted(&["**"]), |workdir| {
        let mut deep = workdir.to_owned();
        deep.extend(std::iter::repeat_n("d", MAX_DEPTH + 2));
        fs::create_dir_all(&deep).unwrap();
        File::create(deep.join("unseen")).unwrap();
        // A byte, and the letters that stand for it.
        for name in [&b"\xff\n\x1b[31m"[..], b"\\xff\n\x1b[31m"] {
            File::create(workdir.join(std::ffi::OsStr::from_bytes(name))).unwrap();
        }
    });
    let mut paths = paths(&files);
    paths.sort_unstable();
    let letters = ("\\x5cxff\n\u{1b}[31m", 0, true);
    assert_eq!(paths, [letters, ("\\xff\n\u{1b}[31m", 0, true)]);
    assert!(!is_complete);
}
