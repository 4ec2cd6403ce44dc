//! Packages for sandboxes whose programs run.

use super::*;
use crate::packages::installing::{BoundSet, NotInstalled, Resolved, SandboxPackages};

/// A sandbox, which keeps its sets until it is removed.
struct Sandbox {
    packages: SandboxPackages,
    kept: Mutex<Vec<Arc<PackageSet>>>,
}

impl std::ops::Deref for Sandbox {
    type Target = SandboxPackages;

    fn deref(&self) -> &SandboxPackages {
        &self.packages
    }
}

impl Server {
    fn sandbox(&self, first: Option<(&str, Arc<PackageSet>)>) -> Sandbox {
        self.sandbox_of("one", "python", first)
    }

    fn sandbox_of(
        &self,
        client: &str,
        language: &str,
        first: Option<(&str, Arc<PackageSet>)>,
    ) -> Sandbox {
        let kept = Mutex::new(first.iter().map(|(_, set)| Arc::clone(set)).collect());
        let first = first.map(|(asked, set)| BoundSet { asked: vec![asked.to_owned()], set });
        let language = &self.packages.config.languages[language];
        let client = Client::named(client);
        Sandbox { packages: SandboxPackages::new(&self.packages, language, &client, first), kept }
    }

    /// Whether something has the set.
    fn is_held(&self, hash: &str) -> bool {
        lock(&self.script.held).get(hash).is_some_and(|set| set.strong_count() > 0)
    }
}

/// Asks for packages, and takes them. Returns the hash of the set, or of what is there, and what is new.
async fn install(
    sandbox: &Sandbox,
    asked: &[&str],
    upgrades: bool,
) -> Result<(Option<String>, Vec<String>), NotInstalled> {
    let asked: Vec<_> = asked.iter().map(|text| (*text).to_owned()).collect();
    let language = &sandbox.language().name;
    match sandbox.resolve(language, &asked, ("image of py", upgrades), &|_| {}).await? {
        Resolved::There(there) => Ok((None, there.into_iter().map(|it| it.name).collect())),
        Resolved::Set(new) => {
            let done = (Some(new.bound.set.hash.clone()), new.new.clone());
            lock(&sandbox.kept).push(Arc::clone(&new.bound.set));
            sandbox.note_bound(*new);
            Ok(done)
        }
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn each_request_adds_to_the_set_of_the_sandbox() {
    let server = Server::on_demand(json!({ "maxSets": 9 }));
    let sandbox = server.sandbox(None);
    let first = install(&sandbox, &["b", "numpy"], false).await.unwrap();
    // What the image has is not asked for.
    assert_eq!(first, (Some("py:b".to_owned()), names(&["b"])));
    assert_eq!(
        install(&sandbox, &["B>=1", "pandas"], false).await.unwrap(),
        (None, names(&["b", "pandas"]))
    );
    let second = install(&sandbox, &["a"], false).await.unwrap();
    assert_eq!(second, (Some("py:a,b".to_owned()), names(&["a"])));
    // A requirement takes the place of the one before.
    let third = install(&sandbox, &["b==2"], false).await.unwrap();
    assert_eq!(third.0.as_deref(), Some("py:a,b==2"));
    assert_eq!(sandbox.installs(), 3);
    assert_eq!(sandbox.bound().unwrap().asked, names(&["a", "b==2"]));
    // A set that the sandbox could not take is given to it again.
    sandbox.note_misplaced();
    assert_eq!(install(&sandbox, &["a"], false).await.unwrap().0, third.0);
    let counts = server.packages.counts();
    assert_eq!((counts.installs, counts.refused_installs), (4, 0));
}

#[tokio::test]
async fn versions_are_kept_unless_the_program_wants_others() {
    let server = Server::on_demand(json!({ "maxSets": 9 }));
    let sandbox = server.sandbox(None);
    install(&sandbox, &["b"], false).await.unwrap();
    install(&sandbox, &["a"], false).await.unwrap();
    let kept = |text: &str| lock(&server.script.log).iter().any(|line| line.ends_with(text));
    assert!(kept("lock a,b keeping b 1"), "{:?}", lock(&server.script.log));
    server.fail(Some("a and c do not fit"));
    let error = install(&sandbox, &["c"], false).await.unwrap_err();
    let words = error.to_string();
    assert!(error.kind() == "no_match" && words.contains("do not fit"), "{words}");
    assert!(words.contains("are kept: a 1, b 1") && words.contains("--upgrade"), "{words}");
    let error = install(&sandbox, &["d"], true).await.unwrap_err();
    assert!(matches!(error, NotInstalled::Refused(_)), "{error}");
    assert_eq!(sandbox.bound().unwrap().asked, names(&["b", "a"]), "the sandbox keeps what it has");
}

#[tokio::test]
async fn a_program_gets_only_what_its_operator_allows_now() {
    let server = Server::on_demand(json!({ "allow": ["a", "humanize"] }));
    let sandbox = server.sandbox(None);
    let error = install(&sandbox, &["a", "b"], false).await.unwrap_err();
    assert_eq!(error.kind(), "not_allowed", "{error}");
    let refused = |asked: &str| {
        let (sandbox, asked) = (&sandbox, asked.to_owned());
        async move { install(sandbox, &[&asked], false).await.unwrap_err().to_string() }
    };
    assert!(refused("a @ https://evil.example/a.whl").await.contains("has an address"));
    assert!(refused("-r /etc/passwd").await.contains("is an option"));
    let error =
        sandbox.resolve("javascript", &names(&["a"]), ("", false), &|_| {}).await.err().unwrap();
    assert!(error.to_string().contains("this sandbox is for python"), "{error}");
    assert_eq!(server.script.count("lock"), 0, "the index was not asked");
    install(&sandbox, &["a"], false).await.unwrap();
    // The operator changes that while the sandbox is there.
    let stricter = Server::new(json!({}));
    server.packages.replaced(&stricter.packages);
    let error = install(&sandbox, &["humanize"], false).await.unwrap_err();
    assert_eq!(error.kind(), "off", "{error}");
}

#[tokio::test]
async fn without_packages_on_demand_a_program_gets_the_sets_that_have_what_it_asks_for() {
    let server = Server::new(json!({}));
    let text = server.get(&["text"]).await.unwrap();
    let sandbox = server.sandbox(None);
    let got = install(&sandbox, &["humanize"], false).await.unwrap();
    assert_eq!(got, (Some(text.hash.clone()), names(&["humanize", "rapidfuzz"])));
    assert_eq!(sandbox.bound().unwrap().asked, names(&["text"]));
    // Another one is added, which was not there yet.
    let got = install(&sandbox, &["httpx"], false).await.unwrap();
    assert_eq!(got.1, names(&["httpx"]));
    assert_eq!(sandbox.bound().unwrap().asked, names(&["text", "web"]));
    let error = install(&sandbox, &["flask"], false).await.unwrap_err();
    let words = error.to_string();
    assert_eq!(error.kind(), "off");
    for part in ["none of its sets has flask", "text, web", "packages [\"text\"]"] {
        assert!(words.contains(part), "{words}");
    }
    let sandbox = server.sandbox(Some(("text", text)));
    assert_eq!(install(&sandbox, &["rapidfuzz>=1"], false).await.unwrap().0, None);
}

#[tokio::test]
async fn a_program_that_goes_away_leaves_the_build_and_its_place() {
    let server = Server::on_demand(json!({}));
    let sandbox = server.sandbox(None);
    server.slow(true);
    let asking = install(&sandbox, &["a"], false);
    tokio::select! {
        _ = asking => panic!("it is not built yet"),
        () = server.until("build") => {}
    }
    server.slow(false);
    server.until("built").await;
    let got = timeout(SECOND, install(&sandbox, &["a"], false)).await.expect("nothing waits");
    assert_eq!(got.unwrap().1, names(&["a"]));
    assert_eq!(server.script.count("build "), 1);
}

#[tokio::test]
async fn a_sandbox_whose_image_was_replaced_gets_no_packages_of_the_new_one() {
    let server = Server::on_demand(json!({}));
    let sandbox = server.sandbox(None);
    install(&sandbox, &["a"], false).await.unwrap();
    *lock(&server.script.target) = "other".to_owned();
    let error = install(&sandbox, &["b"], false).await.unwrap_err();
    assert!(matches!(error, NotInstalled::ImageReplaced), "{error}");
    assert_eq!(server.script.count("lock"), 1);
}

#[tokio::test]
async fn the_sandboxes_of_one_client_have_half_of_the_sets_on_demand_at_most() {
    let server = Server::on_demand(json!({ "maxSets": 4 }));
    let sandboxes = [server.sandbox(None), server.sandbox(None), server.sandbox(None)];
    install(&sandboxes[0], &["a"], false).await.unwrap();
    install(&sandboxes[1], &["b"], false).await.unwrap();
    let error = install(&sandboxes[2], &["c"], false).await.unwrap_err();
    assert!(matches!(error, NotInstalled::ClientHasTooMany(2)), "{error}");
    assert_eq!((error.kind(), server.script.count("lock")), ("busy", 2));
    let other = server.sandbox_of("two", "python", None);
    install(&other, &["c"], false).await.unwrap();
    // A sandbox that is gone has left its set.
    let [first, _second, third] = sandboxes;
    drop(first);
    install(&third, &["d"], false).await.unwrap();
}

#[tokio::test]
async fn a_client_with_all_the_sets_that_it_can_have_is_given_those_again() {
    let server = Server::on_demand(json!({ "maxSets": 4 }));
    server.get(&["web"]).await.unwrap();
    let [first, second, third] = [(); 3].map(|()| server.sandbox(None));
    install(&first, &["a"], false).await.unwrap();
    let both = install(&first, &["b"], false).await.unwrap().0;
    // The set of another sandbox, also if its versions were found in another way.
    assert_eq!(install(&second, &["a"], false).await.unwrap().0.as_deref(), Some("py:a"));
    assert_eq!(install(&third, &["b", "a"], false).await.unwrap().0, both);
    // Its own one.
    assert_eq!(install(&first, &["b"], true).await.unwrap().1, names(&["a", "b"]));
    first.note_misplaced();
    assert_eq!(install(&first, &["b"], false).await.unwrap().0, both);
    // One of the configuration.
    let fourth = server.sandbox(None);
    assert_eq!(install(&fourth, &["httpx"], false).await.unwrap().0.as_deref(), Some("py:httpx"));
    let before = server.script.count("lock");
    let error = install(&fourth, &["c"], false).await.unwrap_err();
    assert!(matches!(error, NotInstalled::ClientHasTooMany(2)), "{error}");
    assert_eq!((before, server.script.count("lock")), (3, 3), "nothing was looked for");
}

#[tokio::test]
async fn requests_at_once_get_no_more_sets_than_their_client_can_have() {
    let server = Server::on_demand(json!({ "maxSets": 4 }));
    server.slow(true);
    let asked = ["a", "b", "c"];
    let sandboxes = asked.map(|_| server.sandbox(None));
    let asking = sandboxes.iter().zip(asked).map(async |(sandbox, asked)| {
        let got = install(sandbox, &[asked], false).await;
        got.map_err(|error| (asked, error))
    });
    let all_wait = async {
        while server.packages.counts().building < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.slow(false);
    };
    let (got, ()) = tokio::join!(futures_util::future::join_all(asking), all_wait);
    let refused: Vec<_> = got.into_iter().filter_map(Result::err).collect();
    let [(asked, NotInstalled::ClientHasTooMany(2))] = &refused[..] else { panic!("{refused:?}") };
    // It is there, but nothing has it, so it makes room for those of others.
    let built = format!("py:{asked}");
    assert!(server.script.has(&built) && !server.is_held(&built));
    let other = server.sandbox_of("two", "python", None);
    install(&other, &["x"], false).await.unwrap();
    install(&other, &["y"], false).await.unwrap();
    assert!(!server.script.has(&built));
}

#[tokio::test]
async fn a_sandbox_that_is_gone_has_no_set_although_its_record_is_kept() {
    let server = Server::on_demand(json!({ "maxSets": 2 }));
    let set = server.get(&["a"]).await.unwrap();
    let Sandbox { packages, kept } = server.sandbox(Some(("a", set)));
    assert!(server.is_held("py:a"));
    drop(kept);
    assert!(!server.is_held("py:a"));
    assert_eq!(packages.bound().unwrap().asked, names(&["a"]), "what it had is known");
    // It takes none of its client's sets, and none from others.
    install(&server.sandbox(None), &["b"], false).await.unwrap();
    let others = [server.get_for("two", &["c"]).await, server.get_for("two", &["d"]).await];
    assert!(others.iter().all(Result::is_ok), "{others:?}");
    assert!(!server.script.has("py:a"));
}

#[tokio::test]
async fn a_set_with_the_name_of_a_package_stays_when_that_is_asked_for() {
    let server = Server::new(json!({
        "sets": { "torch": { "language": "python", "requirements": ["torch", "torchvision"] } },
        "onDemand": { "enabled": true, "allow": ["*"], "maxSets": 9 }
    }));
    let set = server.get(&["torch"]).await.unwrap();
    let sandbox = server.sandbox(Some(("torch", Arc::clone(&set))));
    let got = install(&sandbox, &["torch==2"], false).await.unwrap();
    assert_eq!(got.0.as_deref(), Some("py:torch,torch==2,torchvision"));
    install(&sandbox, &["torch==3"], false).await.unwrap();
    assert_eq!(sandbox.bound().unwrap().asked, names(&["torch", "torch==3"]));
    server.fail(Some("the set wants another torch"));
    let error = install(&sandbox, &["torch==4"], false).await.unwrap_err();
    assert!(error.to_string().contains("wants another torch"), "{error}");
    // Its name alone asks for the set, which is there.
    let sandbox = server.sandbox(Some(("torch", set)));
    assert_eq!(install(&sandbox, &["torch"], true).await.unwrap().0, None);
    assert_eq!(sandbox.bound().unwrap().asked, names(&["torch"]));
}

#[tokio::test]
async fn without_packages_on_demand_programs_of_node_get_sets_too() {
    let server = Server::new(json!({}));
    let sandbox = server.sandbox_of("one", "javascript", None);
    let got = install(&sandbox, &["lodash"], false).await.unwrap();
    assert_eq!(got, (Some("py:lodash@4".to_owned()), names(&["lodash"])));
    assert_eq!(sandbox.bound().unwrap().asked, names(&["js"]));
    assert_eq!(install(&sandbox, &["lodash@4"], false).await.unwrap().0, None);
    let error = install(&sandbox, &["plain"], false).await.unwrap_err();
    assert!(error.to_string().contains("none of its sets has plain"), "{error}");
    // One that is there already.
    let another = server.sandbox_of("one", "javascript", None);
    assert_eq!(install(&another, &["lodash@4"], false).await.unwrap().0, got.0);
}
