//! Registries that send too much, too slowly, or redirect to another server.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isolator_pool::engine::store::{Limits, StoreError, Stored};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::store::support::{
    INDEX, Layout, MANIFEST, Tar, World, architecture, config, entries, gzip, sha256,
};

/// The limits of the pulls here: small ones, so that the tests are fast.
const PATIENCE: Duration = Duration::from_millis(1500);
const DESCRIPTION: u64 = 64 << 10;

/// An answer of a registry.
#[derive(Clone)]
enum Answer {
    /// A status, with more headers, and its content.
    Content(u16, Vec<String>, Vec<u8>),
    /// Content that never ends, announced as so long, if at all.
    Endless(u16, Option<u64>),
    /// A byte of its content now and then.
    Trickle,
    /// A byte of its headers now and then.
    TrickleOfHeaders,
    Silence,
    /// An answer only for a client with this authorization. Others get the address of its issuer.
    Private(&'static str, String, Box<Self>),
}

/// A request: its path, and what it has as `Authorization`.
type Request = (String, Option<String>);

/// A server that answers each path as the test says, on an address of this machine.
struct Server {
    address: String,
    answers: Arc<Mutex<BTreeMap<String, Answer>>>,
    requests: Arc<Mutex<Vec<Request>>>,
    sent: Arc<AtomicU64>,
    /// Ends with it.
    _task: JoinSet<()>,
}

impl Server {
    async fn start(host: &str) -> Self {
        let listener = TcpListener::bind((host, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answers = Arc::<Mutex<BTreeMap<String, Answer>>>::default();
        let (requests, sent) = (Arc::<Mutex<Vec<Request>>>::default(), Arc::default());
        let (known, seen, counter) =
            (Arc::clone(&answers), Arc::clone(&requests), Arc::clone(&sent));
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let (known, seen, counter) =
                    (Arc::clone(&known), Arc::clone(&seen), Arc::clone(&counter));
                connections.spawn(async move {
                    let request = read(&mut stream).await;
                    let mut answer = known.lock().unwrap().get(&request.0).cloned();
                    if let Some(Answer::Private(authorization, challenge, private)) = answer {
                        let is_allowed = request.1.as_deref() == Some(authorization);
                        answer = Some(if is_allowed { *private } else { refusal(&challenge) });
                    }
                    seen.lock().unwrap().push(request);
                    let missing = Answer::Content(404, Vec::new(), Vec::new());
                    // A client that has enough closes the connection.
                    let _ = write(stream, answer.unwrap_or(missing), &counter).await;
                });
            }
        });
        Self { address, answers, requests, sent, _task: task }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn answer(&self, path: &str, answer: Answer) {
        self.answers.lock().unwrap().insert(path.to_owned(), answer);
    }

    fn json(&self, path: &str, content: &Value) {
        let content = content.to_string().into_bytes();
        self.answer(path, Answer::Content(200, Vec::new(), content));
    }

    fn redirect(&self, path: &str, target: &str) {
        let header = format!("Location: {target}");
        self.answer(path, Answer::Content(307, vec![header], Vec::new()));
    }

    fn refuse(&self, path: &str, challenge: &str) {
        self.answer(path, refusal(challenge));
    }

    /// The answer of a path.
    fn answer_of(&self, path: &str) -> Answer {
        self.answers.lock().unwrap()[path].clone()
    }

    /// An image under a tag, whose blobs are all there.
    fn image(&self, tag: &str) -> Value {
        let layer = Tar::default().file("a", "1").end();
        let mut layout = Layout::default();
        let descriptor = layout.image(&config(std::slice::from_ref(&layer)), vec![gzip(&layer)]);
        let mut manifest = Value::Null;
        for (path, content) in layout.0 {
            let hex = path.rsplit('/').next().unwrap();
            if descriptor["digest"] == format!("sha256:{hex}") {
                manifest = serde_json::from_slice(&content).unwrap();
            }
            let answer = Answer::Content(200, Vec::new(), content);
            self.answer(&format!("/v2/x/blobs/sha256:{hex}"), answer);
        }
        self.json(&manifest_of(tag), &manifest);
        manifest
    }

    fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }

    fn paths(&self) -> Vec<String> {
        self.requests().into_iter().map(|(path, _)| path).collect()
    }

    async fn pull(&self, world: &World, tag: &str) -> Result<Stored, StoreError> {
        world.store.pull(&format!("{}/x:{tag}", self.address), &|_| {}).await
    }

    /// Pulls what must be refused, and returns the error after checking that nothing is left.
    async fn refused(&self, world: &World, tag: &str) -> String {
        let images = entries(&world.store.images()).len();
        let pulled = tokio::time::timeout(Duration::from_secs(60), self.pull(world, tag)).await;
        let error = pulled.expect("it ends").unwrap_err().to_string();
        assert!(error.contains("/x:") || error.contains("sha256:"), "of what? {error}");
        world.check(images);
        error
    }
}

fn refusal(challenge: &str) -> Answer {
    Answer::Content(401, vec![format!("WWW-Authenticate: {challenge}")], Vec::new())
}

async fn read(stream: &mut TcpStream) -> Request {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let header = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("authorization").then(|| value.to_owned())
    });
    (path, header)
}

async fn write(mut stream: TcpStream, answer: Answer, sent: &AtomicU64) -> std::io::Result<()> {
    let now_and_then = Duration::from_millis(50);
    match answer {
        Answer::Private(..) => unreachable!("it was chosen before"),
        Answer::Content(status, headers, content) => {
            let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
            let head = format!(
                "HTTP/1.1 {status} X\r\n{headers}Connection: close\r\nContent-Length: {}\r\n\r\n",
                content.len()
            );
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(&content).await?;
            stream.shutdown().await
        }
        Answer::Endless(status, length) => {
            let length = length.map(|length| format!("Content-Length: {length}\r\n"));
            let length = length.unwrap_or_default();
            let head = format!("HTTP/1.1 {status} X\r\n{length}Connection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            loop {
                stream.write_all(&[b' '; 4096]).await?;
                sent.fetch_add(4096, Ordering::Relaxed);
            }
        }
        Answer::Trickle => {
            stream.write_all(b"HTTP/1.1 200 X\r\nConnection: close\r\n\r\n").await?;
            loop {
                stream.write_all(b" ").await?;
                tokio::time::sleep(now_and_then).await;
            }
        }
        Answer::TrickleOfHeaders => {
            stream.write_all(b"HTTP/1.1 200 X\r\nX: ").await?;
            loop {
                stream.write_all(b"x").await?;
                tokio::time::sleep(now_and_then).await;
            }
        }
        Answer::Silence => std::future::pending().await,
    }
}

fn manifest_of(tag: &str) -> String {
    format!("/v2/x/manifests/{tag}")
}

fn blob_of(descriptor: &Value) -> String {
    format!("/v2/x/blobs/{}", descriptor["digest"].as_str().unwrap())
}

fn world() -> World {
    World::with(Limits {
        bytes: 1 << 20,
        description: DESCRIPTION,
        layers: 8,
        patience: PATIENCE,
        ..Limits::default()
    })
}

/// A registry, and another server on this machine that it tries to reach.
async fn both() -> (Server, Server) {
    (Server::start("127.0.0.1").await, Server::start("127.0.0.2").await)
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_without_an_end_are_cut_off() {
    let (registry, world) = (Server::start("127.0.0.1").await, world());
    let manifest = registry.image("fine");
    let (configuration, layer) = (&manifest["config"], &manifest["layers"][0]);
    let token = format!("Bearer realm=\"{}\"", registry.url("/token"));
    registry.refuse(&manifest_of("private"), &token);
    for (tag, path) in [
        ("manifest", manifest_of("manifest")),
        ("fine", blob_of(configuration)),
        ("fine", blob_of(layer)),
        ("private", "/token?scope=repository%3Ax%3Apull".to_owned()),
    ] {
        for length in [None, Some(1 << 40)] {
            let fine = registry.answers.lock().unwrap().get(&path).cloned();
            registry.answer(&path, Answer::Endless(200, length));
            let error = registry.refused(&world, tag).await;
            assert!(error.contains("sends an answer of more than"), "{path}: {error}");
            if let Some(fine) = fine {
                registry.answer(&path, fine);
            }
        }
    }
    registry.answer(&manifest_of("error"), Answer::Endless(500, None));
    let error = registry.refused(&world, "error").await;
    assert!(error.contains("answers 500"), "{error}");
    // The buffers of the sockets were sent, too: a few MiB each. Nothing went on in the background.
    let sent = registry.sent.load(Ordering::Relaxed);
    assert!(sent < 9 * (8 << 20), "{sent} bytes");
    registry.pull(&world, "fine").await.unwrap();
    world.check(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_dawdles_is_given_up() {
    let (registry, world) = (Server::start("127.0.0.1").await, world());
    let manifest = registry.image("fine");
    let layer = blob_of(&manifest["layers"][0]);
    for (answer, why) in [
        (Answer::Silence, "no answer within"),
        (Answer::TrickleOfHeaders, "no answer within"),
        (Answer::Trickle, "is too slow"),
    ] {
        for (tag, path) in [("slow", &manifest_of("slow")), ("fine", &layer)] {
            registry.answer(path, answer.clone());
            let started = Instant::now();
            let error = registry.refused(&world, tag).await;
            // A layer has few bytes, which can be too many of a trickle before it is too slow.
            assert!(error.contains(why) || error.contains("more than"), "{path}: {error}");
            assert!(started.elapsed() < PATIENCE * 10, "{path}: {:?}", started.elapsed());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_in_a_manifest_are_not_asked() {
    let ((registry, victim), world) = (both().await, world());
    let mut manifest = registry.image("fine");
    let layer = blob_of(&manifest["layers"][0]);
    manifest["layers"][0]["urls"] = json!([victim.url("/admin")]);
    registry.json(&manifest_of("foreign"), &manifest);
    registry.answer(&layer, Answer::Content(404, Vec::new(), Vec::new()));
    let error = registry.refused(&world, "foreign").await;
    assert!(error.contains("answers 404"), "{error}");
    assert_eq!(victim.paths(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_never_lead_to_private_addresses() {
    let ((registry, victim), world) = (both().await, world());
    let manifest = registry.image("fine");
    let layer = blob_of(&manifest["layers"][0]);
    for target in
        [victim.url("/admin"), "https://169.254.169.254/latest".into(), "file:///etc".into()]
    {
        for (tag, path) in [("lost", &manifest_of("lost")), ("fine", &layer)] {
            registry.redirect(path, &target);
            let error = registry.refused(&world, tag).await;
            assert!(error.contains("was not asked"), "{target}: {error}");
        }
    }
    registry.redirect(&manifest_of("circle"), &manifest_of("circle"));
    let error = registry.refused(&world, "circle").await;
    assert!(error.contains("redirects more than"), "{error}");
    assert_eq!(victim.paths(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_takes_no_authorization_along() {
    let (registry, world) = (Server::start("127.0.0.1").await, world());
    // Another port of the registry's host, where it keeps its blobs.
    let storage = Server::start("127.0.0.1").await;
    let manifest = registry.image("fine");
    let token = "/token?scope=repository%3Ax%3Apull&service=s";
    registry.json(token, &json!({ "token": "secret" }));
    let realm = format!("Bearer realm=\"{}\",service=\"s\"", registry.url("/token"));
    let description = manifest_of("fine");
    let layer = blob_of(&manifest["layers"][0]);
    let paths = [description.clone(), blob_of(&manifest["config"]), layer.clone()];
    storage.answer("/stored", registry.answer_of(&layer));
    registry.redirect(&layer, &storage.url("/stored"));
    for path in &paths {
        let answer = Box::new(registry.answer_of(path));
        registry.answer(path, Answer::Private("Bearer secret", realm.clone(), answer));
    }
    registry.pull(&world, "fine").await.unwrap();
    world.check(1);
    assert_eq!(storage.requests(), [("/stored".to_owned(), None)]);
    let bearer = Some("Bearer secret".to_owned());
    let mut asked = registry.requests();
    assert_eq!(
        asked.drain(..2).collect::<Vec<_>>(),
        [(paths[0].clone(), None), (token.to_owned(), None)]
    );
    assert_eq!(asked, paths.map(|path| (path, bearer.clone())));

    // One that refuses whatever it is sent is not asked again and again.
    let nothing = Box::new(Answer::Silence);
    registry.answer(&description, Answer::Private("Bearer other", realm, nothing));
    let error = registry.refused(&world, "fine").await;
    assert!(error.contains("answers 401") && error.contains("docker login"), "{error}");
    assert_eq!(registry.paths(), [description.clone(), token.to_owned(), description]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_registry_s_token_server_is_asked_for_a_token() {
    let ((registry, victim), world) = (both().await, world());
    registry.refuse(&manifest_of("realm"), &format!("Bearer realm=\"{}\"", victim.url("/token")));
    let error = registry.refused(&world, "realm").await;
    assert!(error.contains("was not asked"), "{error}");
    assert_eq!(victim.paths(), Vec::<String>::new());
    // One to whom it leads can't ask for anything.
    let storage = Server::start("127.0.0.1").await;
    storage.refuse("/stored", &format!("Bearer realm=\"{}\"", storage.url("/token")));
    registry.redirect(&manifest_of("led"), &storage.url("/stored"));
    let error = registry.refused(&world, "led").await;
    assert!(error.contains("answers 401"), "{error}");
    assert_eq!(storage.paths(), ["/stored"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptions_that_would_make_work_are_refused() {
    let (registry, world) = (Server::start("127.0.0.1").await, world());
    let manifest = registry.image("fine");
    let with = |change: &dyn Fn(&mut Value)| {
        let mut manifest = manifest.clone();
        change(&mut manifest);
        manifest
    };
    let layers = vec![manifest["layers"][0].clone(); 9];
    let many = with(&|it| it["layers"] = json!(layers));
    let large = with(&|it| it["layers"][0]["size"] = json!((1 << 20) + 1));
    let larger = with(&|it| it["config"]["size"] = json!(DESCRIPTION + 1));
    let short = with(&|it| it["layers"][0]["size"] = json!(10));
    let negative = with(&|it| it["layers"][0]["size"] = json!(-1));
    let path = with(&|it| it["layers"][0]["digest"] = json!("sha256:../../../x"));
    let two = with(&|it| it["manifests"] = json!([]));
    let foreign = json!({ "mediaType": MANIFEST, "digest": manifest["config"]["digest"],
        "size": 1, "platform": { "architecture": "s390x", "os": "linux" } });
    let none = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [foreign] });
    for (tag, content, why) in [
        ("many", many, "9 layers"),
        ("large", large, "more than 1048576 bytes together"),
        ("larger", larger, "larger than 65536 bytes"),
        ("short", short, "more than 10 bytes"),
        ("negative", negative, "-1"),
        ("path", path, "../../../x"),
        ("two", two, "a manifest and an index"),
        ("none", none, "no image for the platform"),
        ("nothing", json!([]), "not a usable image"),
    ] {
        registry.json(&manifest_of(tag), &content);
        let error = registry.refused(&world, tag).await;
        assert!(error.contains(why), "{tag}: {error}");
    }

    // Indexes within indexes, and one that is not what its digest says.
    let mut inner = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [] });
    for _ in 0..6 {
        let digest = format!("sha256:{}", sha256(inner.to_string().as_bytes()));
        registry.json(&manifest_of(&digest), &inner);
        inner = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [{
            "mediaType": INDEX, "digest": digest, "size": 1,
            "platform": { "architecture": architecture(), "os": "linux" } }] });
    }
    registry.json(&manifest_of("deep"), &inner);
    let error = registry.refused(&world, "deep").await;
    assert!(error.contains("nested too deeply"), "{error}");
    let digest = inner["manifests"][0]["digest"].as_str().unwrap();
    registry.json(&manifest_of(digest), &manifest);
    let error = registry.refused(&world, "deep").await;
    assert!(error.contains("its digest is"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_registries_are_cut_and_escaped() {
    let (registry, world) = (Server::start("127.0.0.1").await, world());
    let message = format!("\x1b[2J{}", "x".repeat(10_000));
    let content = json!({ "errors": [{ "code": "DENIED", "message": message }] }).to_string();
    registry.answer(&manifest_of("1"), Answer::Content(403, Vec::new(), content.into_bytes()));
    let error = registry.refused(&world, "1").await;
    assert!(error.contains("403") && error.contains(r"\u{1b}[2J"), "{error}");
    assert!(error.len() < 500, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_is_not_on_this_machine_is_asked_over_tls_only() {
    let world = world();
    // The tests have no other machine. This address is not one that is trusted without TLS.
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let name = format!("{}/x:1", listener.local_addr().unwrap());
    let first = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_u8().await.unwrap()
    };
    let (pulled, first) = tokio::join!(world.store.pull(&name, &|_| {}), first);
    assert_eq!(first, 22, "a handshake of TLS");
    assert!(matches!(pulled, Err(StoreError::Registry { .. })), "{pulled:?}");
    world.check(0);
}
