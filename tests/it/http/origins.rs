//! Web pages: the headers for their browsers before a request and with each answer, and pages that are refused.

use serde_json::json;

use super::{HeaderMap, Method, Server, bearer, python, tokens};

const PAGE: &str = "https://agent.example";

fn allowed() -> serde_json::Value {
    json!({ "pool": { "size": 0 }, "http": { "allowedOrigins": ["https://agent.example:443"] } })
}

/// The headers that a browser looks for, by the end of their names.
fn told(headers: &HeaderMap) -> Vec<(&str, &str)> {
    let mut told: Vec<_> = headers
        .iter()
        .filter_map(|(name, value)| {
            let name = name.as_str().strip_prefix("access-control-")?;
            Some((name, value.to_str().expect("text")))
        })
        .collect();
    told.sort_unstable();
    told
}

/// A preflight, which a browser sends before a request.
fn preflight(server: &Server, origin: &str) -> reqwest::RequestBuilder {
    let asked = "authorization,content-type,mcp-protocol-version,mcp-session-id";
    server
        .client
        .request(Method::OPTIONS, &server.url)
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", asked)
        .header("access-control-request-private-network", "true")
}

#[tokio::test]
async fn an_allowed_page_can_send_preflights_and_read_every_answer() {
    let server = Server::start_with(allowed(), Some(&tokens(&[("page", &[])]))).await;
    for origin in [PAGE, "http://localhost:5173"] {
        // A preflight has no token.
        let asked = preflight(&server, origin).send().await.expect("an answer");
        assert_eq!(asked.status(), 200, "{origin}");
        assert_eq!(
            told(asked.headers()),
            [
                (
                    "allow-headers",
                    "authorization,content-type,accept,last-event-id,mcp-session-id,\
                     mcp-protocol-version,mcp-method,mcp-name,mcp-param-session,mcp-param-handle,\
                     idempotency-key"
                ),
                ("allow-methods", "POST,GET,DELETE"),
                ("allow-origin", origin),
                ("allow-private-network", "true"),
                ("max-age", "3600"),
            ]
        );
    }

    let exposed = "mcp-session-id,isolator-receipt,isolator-node,isolator-outcome,www-authenticate,retry-after";
    let read = [("allow-origin", PAGE), ("expose-headers", exposed)];
    let run = || server.modern(python("print(1)")).header("origin", PAGE);
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let stranger = server.client.post(&server.url).header("origin", PAGE);
    for (request, status) in [
        (run(), 200),
        (stranger, 401),
        (run().header("host", "evil.example"), 403),
        (server.legacy("none", &list).header("origin", PAGE), 404),
        (run().body("{"), 400),
    ] {
        let answered = request.send().await.expect("an answer");
        assert_eq!(answered.status(), status);
        assert_eq!(told(answered.headers()), read, "{status}");
        let vary = answered.headers()["vary"].to_str().expect("text").to_ascii_lowercase();
        assert!(vary.contains("origin"), "{vary}");
    }
    server.stop().await;
}

#[tokio::test]
async fn unlisted_pages_get_no_cors_headers() {
    let tokens = tokens(&[("page", &[])]);
    let server = Server::start_with(allowed(), Some(&tokens)).await;
    for origin in
        ["https://evil.example", "http://agent.example", "https://agent.example:8443", "null"]
    {
        let asked = preflight(&server, origin).send().await.expect("an answer");
        // It has even stolen the token.
        let run = server.modern(python("print(1)")).headers(bearer(&tokens.secrets[0]));
        let ran = run.header("origin", origin).send().await.expect("an answer");
        for answered in [asked, ran] {
            assert_eq!(answered.status(), 403, "{origin}");
            assert_eq!(told(answered.headers()), [], "{origin}");
            let text = answered.text().await.expect("a body");
            assert!(text.contains("http.allowedOrigins"), "{text}");
        }
    }
    server.stop().await;
}
