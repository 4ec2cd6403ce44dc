//! The limits of sets and builds.

use super::*;

#[tokio::test]
async fn the_least_recently_used_set_is_removed_but_none_in_use_or_of_the_configuration() {
    let server = Server::on_demand(json!({}));
    drop(server.get(&["web"]).await.unwrap());
    let a = server.get(&["a"]).await.unwrap();
    drop(server.get(&["b"]).await.unwrap());
    drop(server.get(&["c"]).await.unwrap());
    assert!(server.script.has("py:a") && server.script.has("py:c"), "a is in use");
    assert!(!server.script.has("py:b"), "b was used least");
    assert_eq!(server.script.count("withdraw py:b"), 1);
    let c = server.get(&["c"]).await.unwrap();
    assert!(matches!(server.get(&["d"]).await, Err(Refusal::AllInUse(2))));
    drop(a);
    lock(&server.script.elsewhere).insert("py:a".to_owned());
    let refused = server.get(&["d"]).await;
    assert!(matches!(refused, Err(Refusal::AllInUse(2))), "another process has it");
    lock(&server.script.elsewhere).clear();
    server.get(&["d"]).await.unwrap();
    assert!(server.script.has("py:httpx") && !server.script.has("py:a"));
    drop(c);
    // A removed set is built when it is asked for again.
    server.get(&["a"]).await.unwrap();
}

#[tokio::test]
async fn all_sets_together_fit_their_limit() {
    let server = Server::on_demand(json!({ "maxSets": 50 }));
    let sizes = [("big", 7 * SIZE), ("half", 3 * SIZE), ("most", 5 * SIZE)];
    *lock(&server.script.sizes) = sizes.map(|(name, size)| (name.to_owned(), size)).into();
    let refusal = server.get(&["big"]).await.unwrap_err();
    assert!(
        refusal.to_string().contains("7 MiB") && refusal.to_string().contains("6 MiB"),
        "{refusal}"
    );
    assert!(!server.script.has("py:big"));
    drop(server.get(&["web"]).await.unwrap());
    drop(server.get(&["half"]).await.unwrap());
    drop(server.get(&["most"]).await.unwrap());
    assert!(!server.script.has("py:half") && server.script.has("py:httpx"));
    let most = server.get(&["most"]).await.unwrap();
    let refusal = server.get(&["half"]).await.unwrap_err();
    assert!(matches!(refusal, Refusal::NoRoom { .. }), "{refusal}");
    assert!(!server.script.has("py:half"), "a set without room is removed");
    drop(most);
    server.get(&["half"]).await.unwrap();
}

#[tokio::test]
async fn one_client_leaves_builds_for_others() {
    let server = Server::on_demand(json!({ "maxSets": 1000 }));
    server.slow(true);
    let names: Vec<String> = (0..40).map(|number| format!("p{number}")).collect();
    let asking = names.iter().map(|name| async {
        let refused = timeout(SECOND, server.get_for("greedy", &[name])).await;
        usize::from(matches!(refused, Ok(Err(Refusal::Busy { .. }))))
    });
    let refused: usize = futures_util::future::join_all(asking).await.into_iter().sum();
    assert_eq!(refused, 40 - 16);
    assert!(timeout(SECOND, server.get_for("modest", &["other"])).await.is_err(), "it waits");
}
