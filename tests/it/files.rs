//! Results of a program: files, pictures, and output that does not fit into the answer.

use crate::common::answer::Answer;
use crate::common::client::RequestError;
use crate::common::server::Server;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rmcp::model::{ContentBlock, ErrorCode, ResourceContents};
use serde_json::{Value, json};

/// The contents of a resource in ranges of `length` bytes, and the number of ranges.
async fn read_all(server: &Server, uri: &str, length: usize) -> (Vec<u8>, usize) {
    let (mut all, mut ranges) = (Vec::new(), 0);
    let mut next = Some(uri.to_owned());
    while let Some(uri) = next {
        let mark = if uri.contains('?') { '&' } else { '?' };
        let read = server.read(&format!("{uri}{mark}length={length}")).await;
        let (part, meta) = match read.expect("it is there") {
            ResourceContents::TextResourceContents { text, meta, .. } => (text.into_bytes(), meta),
            ResourceContents::BlobResourceContents { blob, meta, .. } => {
                (BASE64.decode(blob).expect("base64"), meta)
            }
            other => panic!("{other:?}"),
        };
        all.extend(part);
        ranges += 1;
        let meta = meta.expect("it says where it goes on").0;
        next = meta.get("isolator/next").map(|next| next.as_str().expect("an address").to_owned());
    }
    (all, ranges)
}

fn paths(answer: &Answer) -> Vec<&str> {
    let files = answer.data["files"].as_array().into_iter().flatten();
    files.map(|file| file["path"].as_str().expect("a path")).collect()
}

#[tokio::test]
async fn created_and_changed_files_are_listed_and_returned_on_request() {
    let server = Server::python().await;
    let code = "import os, given\n\
                open('given.txt', 'r+').write('c')\n\
                os.makedirs('out/deep')\n\
                open('out/table.csv', 'w').write('a,b\\n1,2\\n')\n\
                open('out/deep/data.bin', 'wb').write(bytes(range(256)) * 400)\n\
                open('unwanted', 'w').write('x')\n\
                os.symlink('/etc/passwd', 'link')\n\
                print('done')";
    let more = json!({
        "output_files": ["out/**", "*.txt", "*.pdf"],
        "additional_files": [
            { "filename": "given.txt", "content": "given" },
            { "filename": "given.py", "content": "" },
            { "filename": "untouched", "content": "same" },
        ],
    });
    let answer = server.run_python_with(code, more).await;
    assert_eq!(answer.output(), "done\n");
    assert_eq!(paths(&answer), ["given.txt", "out/deep/data.bin", "out/table.csv", "unwanted"]);
    let table = answer.file("out/table.csv");
    assert_eq!((&table["size"], &table["returned"]), (&json!(8), &json!("text")));
    assert_eq!(table["media_type"], "text/csv");
    assert_eq!(answer.file("given.txt")["returned"], "text");
    assert_eq!(answer.file("unwanted").get("returned"), None);
    let binary = answer.file("out/deep/data.bin");
    assert_eq!((&binary["size"], &binary["returned"]), (&json!(102_400), &json!("link")));

    let texts: Vec<_> = answer
        .more
        .iter()
        .filter_map(|block| match block {
            ContentBlock::Resource(embedded) => Some(&embedded.resource),
            _ => None,
        })
        .collect();
    let ResourceContents::TextResourceContents { text, uri, .. } = texts.last().expect("two")
    else {
        panic!("{texts:?}")
    };
    assert_eq!((texts.len(), text.as_str()), (2, "a,b\n1,2\n"));
    assert_eq!(*uri, table["uri"].as_str().expect("an address"));
    let linked = |block: &&ContentBlock| matches!(block, ContentBlock::ResourceLink(_));
    assert_eq!(answer.more.iter().filter(linked).count(), 1);

    let expected: Vec<u8> = (0..=255).cycle().take(102_400).collect();
    let uri = binary["uri"].as_str().expect("an address");
    assert_eq!(read_all(&server, uri, 50_000).await, (expected, 3));
    assert!(answer.more_text.contains("\nunwanted (1 bytes)\n"), "{}", answer.more_text);
    assert!(answer.more_text.contains("\"*.pdf\" matches no file"), "{}", answer.more_text);
    server.stop().await;
}

#[tokio::test]
async fn figures_are_returned_without_any_code_for_it() {
    let server = Server::python().await;
    let code = "import os\n\
                import matplotlib.pyplot as plt\n\
                os.chdir('/tmp')\n\
                plt.plot([1, 2, 3])\n\
                plt.show()\n\
                plt.bar(['a', 'b'], [1, 2])\n\
                plt.figure()\n\
                plt.pie([1, 2])\n\
                plt.show()\n\
                print(plt.get_fignums())";
    let answer = server.run_python(code).await;
    assert_eq!(answer.output(), "[]\n");
    assert_eq!(answer.stderr(), "");
    assert_eq!(paths(&answer), ["figure_1.png", "figure_2.png", "figure_3.png"]);
    let pictures: Vec<_> = answer.more.iter().filter_map(ContentBlock::as_image).collect();
    assert_eq!(pictures.len(), 3);
    for picture in pictures {
        assert_eq!(picture.mime_type, "image/png");
        let png = BASE64.decode(&picture.data).expect("base64");
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n") && png.len() > 1000, "{} bytes", png.len());
    }
    server.stop().await;
}

#[tokio::test]
async fn a_program_that_fails_or_is_killed_leaves_its_files_too() {
    let server = Server::python().await;
    let wanted = json!({ "output_files": ["*"], "timeout": "1s" });
    let failed = "open('a', 'w').write('kept')\nraise SystemExit(3)";
    let killed = "import time\nopen('a', 'w').write('kept')\ntime.sleep(60)";
    for (code, status) in [(failed, "error"), (killed, "timeout")] {
        let answer = server.run_python_with(code, wanted.clone()).await;
        assert_eq!((answer.status(), paths(&answer)), (status, vec!["a"]));
        assert_eq!(answer.file("a")["returned"], "text");
    }
    server.stop().await;
}

#[tokio::test]
async fn hostile_file_names_and_counts_are_tolerated() {
    let server = Server::python().await;
    let code = "import os\n\
                for name in ['a\\n--- stderr ---\\n', '\\x1b[2J', 'x' * 255, '-rf', ' ']:\n\
                \x20   open(name, 'w').write('1')\n\
                open(b'\\xff\\xfe', 'w').write('1')\n\
                os.mkfifo('pipe.png')\n\
                os.mkdir('closed')\n\
                open('closed/in', 'w').write('1')\n\
                os.chmod('closed', 0)\n\
                open('huge', 'w').truncate(1 << 40)";
    let answer = server.run_python_with(code, json!({ "output_files": ["**"] })).await;
    assert_eq!(answer.output(), "");
    assert_eq!(paths(&answer).len(), 7, "{:?}", paths(&answer));
    assert_eq!(answer.file("huge")["size"], 1_u64 << 40);
    assert_eq!(answer.file("huge").get("returned"), None);
    let text = answer.more_text;
    assert!(text.contains("\"huge\" among them, are too large"), "{text}");
    assert!(text.contains("not all files that the program left could be listed"), "{text}");
    assert!(!text.contains("\n--- stderr") && !text.contains('\u{1b}'), "{text}");

    let many = "for number in range(3000): open(str(number), 'w')";
    let answer = server.run_python(many).await;
    assert_eq!(paths(&answer).len(), 1000);
    assert!(answer.more_text.contains("and 950 others"), "{}", answer.more_text);
    assert_eq!(server.run_python("print('lives')").await.output(), "lives\n");
    server.stop().await;
}

#[tokio::test]
async fn returned_files_respect_the_limits() {
    let server = Server::with("python", json!({ "results": { "maxFilesKB": 100 } })).await;
    let code = "for name in 'abc': open(name, 'wb').write(bytes(60_000))";
    let answer = server.run_python_with(code, json!({ "output_files": ["*"] })).await;
    let returned = ["a", "b", "c"].map(|name| answer.file(name).get("returned").is_some());
    assert_eq!(returned, [true, false, false]);
    let text = answer.more_text;
    assert!(text.contains("2 of the files") && text.contains("100 KiB"), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn output_past_the_cap_can_be_read_afterwards() {
    let limits = json!({ "limits": { "maxOutputKB": 64 }, "results": { "keptOutputKB": 1024 } });
    let server = Server::with("python", limits).await;
    let code = "import sys\n\
                for number in range(60_000): print(f'line {number:06}')\n\
                sys.stderr.write('e' * 3_000_000)";
    let answer = server.run_python(code).await;
    assert_eq!(answer.status(), "success");
    assert!(answer.stdout().contains("bytes are missing here"));
    let stdout = answer.data["stdout_uri"].as_str().expect("an address");
    assert!(answer.more_text.contains(stdout), "{}", answer.more_text);
    let expected: String = (0..60_000).map(|number| format!("line {number:06}\n")).collect();
    let (all, ranges) = read_all(&server, stdout, 300_000).await;
    assert!(all == expected.as_bytes() && ranges == 3, "{} bytes in {ranges}", all.len());

    let stderr = answer.data["stderr_uri"].as_str().expect("an address");
    let (all, _) = read_all(&server, stderr, 1 << 20).await;
    let missing = 3_000_000 - (1 << 20) - 32 * 1024;
    let gap = format!("\n[... {missing} bytes are missing here ...]\n");
    assert!(String::from_utf8_lossy(&all).contains(&gap), "{} bytes", all.len());

    let short = server.run_python("print('short')").await;
    assert!(short.more.is_empty() && short.data.get("stdout_uri").is_none(), "{:?}", short.data);
    server.stop().await;
}

#[tokio::test]
async fn unreadable_results_are_errors_with_their_cause() {
    let server = Server::with("python", json!({ "results": { "keepFor": "1s" } })).await;
    let wanted = json!({ "output_files": ["*.bin"] });
    let answer = server.run_python_with("open('a.bin', 'wb').write(bytes(9))", wanted).await;
    let uri = answer.file("a.bin")["uri"].as_str().expect("an address");
    let error = async |uri: &str| match server.read(uri).await {
        Err(RequestError::Protocol(error)) => error,
        other => panic!("{uri}: {other:?}"),
    };
    for (query, what) in [("offset=10", "past the end"), ("length=x", "number"), ("x=1", "only")] {
        let error = error(&format!("{uri}?{query}")).await;
        assert_eq!(error.code, ErrorCode::INVALID_PARAMS, "{error:?}");
        assert!(error.message.contains(what), "{error:?}");
    }
    for uri in ["isolator://runs/00/stdout", "isolator://runs/", &format!("{uri}/x")] {
        assert!(error(uri).await.message.contains("there is no such"), "{uri}");
    }
    assert!(server.read(uri).await.is_ok());
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert!(error(uri).await.message.contains("expired"));
    server.stop().await;
}

#[tokio::test]
async fn invalid_patterns_are_refused() {
    let server = Server::python().await;
    let wrong: [(Value, &str); 3] = [
        (json!(["a", "/etc/*"]), "output_files[1]"),
        (json!(["../*"]), "output_files[0]"),
        (json!("*.csv *.png"), "output_files"),
    ];
    for (globs, field) in wrong {
        let call =
            json!({ "language": "python", "entrypoint_code": "", "output_files": globs.clone() });
        assert_eq!(server.refusal("execute_code", call).await["field"], field, "{globs}");
    }
    server.stop().await;
}
