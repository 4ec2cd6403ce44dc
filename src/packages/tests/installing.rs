//! Packages for sandboxes whose programs run.

use super::*;
use crate::packages::installing::{BoundSet, NotInstalled, Resolved, SandboxPackages};

impl Server {
    fn sandbox(&self, first: Option<(&str, Arc<PackageSet>)>) -> SandboxPackages {
        let first = first.map(|(asked, set)| BoundSet { asked: vec![asked.to_owned()], set });
        SandboxPackages::new(&self.packages, &self.python, &Client::named("one"), first)
    }
}

/// Asks for packages, and takes them. Returns the hash of the set, or of what is there, and what is new.
async fn install(
    sandbox: &SandboxPackages,
    asked: &[&str],
    upgrades: bool,
) -> Result<(Option<String>, Vec<String>), NotInstalled> {
    let asked: Vec<_> = asked.iter().map(|text| (*text).to_owned()).collect();
    match sandbox.resolve("python", &asked, ("image of py", upgrades), &|_| {}).await? {
        Resolved::There(there) => Ok((None, there.into_iter().map(|it| it.name).collect())),
        Resolved::Set(new) => {
            let done = (Some(new.bound.set.hash.clone()), new.new.clone());
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
        let (sandbox, asked) = (sandbox.clone(), asked.to_owned());
        async move { install(&sandbox, &[&asked], false).await.unwrap_err().to_string() }
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
    let other = Client::named("two");
    let other = SandboxPackages::new(&server.packages, &server.python, &other, None);
    install(&other, &["c"], false).await.unwrap();
    // A sandbox that is gone has left its set.
    let [first, _second, third] = sandboxes;
    drop(first);
    install(&third, &["d"], false).await.unwrap();
}
