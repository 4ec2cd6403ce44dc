//! The order of builds.

use super::*;

impl Server {
    /// One that has room for many sets, and builds slowly.
    fn with_many() -> Self {
        let on_demand = json!({ "enabled": true, "allow": ["*"], "maxSets": 50 });
        let server = Self::new(json!({ "onDemand": on_demand, "maxStoreMB": 100 }));
        server.slow(true);
        server
    }

    /// The sets that were resolved, in their order.
    fn resolved(&self) -> Vec<String> {
        let log = lock(&self.script.log);
        log.iter().filter_map(|line| line.strip_prefix("lock ").map(str::to_owned)).collect()
    }

    /// Lets the builds that run end, one after the other, until none runs anymore.
    async fn end_each(&self) {
        while self.packages.counts().building > 0 {
            self.script.go.notify_one();
            tokio::time::sleep(SECOND).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn builds_of_a_client_with_many_wait_behind_those_of_others_and_of_the_configuration() {
    let server = Server::with_many();
    let asked = [
        ("one", "a1"),
        ("one", "a2"),
        ("one", "a3"),
        ("one", "a4"),
        ("one", "a5"),
        ("two", "b1"),
        ("three", "c1"),
        // The last set of another client.
        ("four", "a5"),
        ("one", "web"),
    ];
    let asking = asked.map(|(client, package)| {
        let server = &server;
        async move { server.get_for(client, &[package]).await.map(drop) }
    });
    let mut asking = asking.map(Box::pin);
    for one in &mut asking {
        assert!(futures_util::poll!(one).is_pending());
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(server.resolved(), ["a1", "b1"], "no client has all turns");
    let (ended, ()) = tokio::join!(futures_util::future::join_all(asking), server.end_each());
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    assert_eq!(server.resolved(), ["a1", "b1", "httpx", "c1", "a5", "a2", "a3", "a4"]);
}

#[tokio::test(start_paused = true)]
async fn a_client_with_many_builds_makes_room_for_others() {
    let server = Server::with_many();
    let ask = |client: &'static str, package: String| {
        let server = &server;
        Box::pin(async move { server.get_for(client, &[&package]).await.map(drop) })
    };
    let mut asking = Vec::new();
    for (client, builds) in [("one", 16), ("two", 16), ("three", 1)] {
        for number in 0..builds {
            let mut next = ask(client, format!("{client}-{number}"));
            assert!(futures_util::poll!(&mut next).is_pending());
            asking.push(next);
        }
        tokio::time::sleep(SECOND).await;
    }
    let refused = ask("one", "more".to_owned()).await.unwrap_err();
    assert!(refused.to_string().contains("try again in a minute"), "{refused}");
    let (ended, ()) = tokio::join!(futures_util::future::join_all(asking), server.end_each());
    let lost: Vec<_> = ended.into_iter().filter_map(Result::err).collect();
    assert!(matches!(&lost[..], [Refusal::Busy { .. }]), "{lost:?}");
    let resolved = server.resolved();
    assert_eq!((resolved.len(), &*resolved[2]), (32, "three-0"));
    // A request that has lost its place can be repeated at once.
    server.slow(false);
    for client in ["one", "two"] {
        server.get_for(client, &[&format!("{client}-15")]).await.unwrap();
    }
}
