//! Which kinds of answers a client accepts. rmcp wants both kinds to be named, and many clients say `*/*` or nothing.

use axum::http::Method;
use axum::http::header::{ACCEPT, HeaderMap, HeaderValue};

const JSON: [&str; 2] = ["application", "json"];
const EVENTS: [&str; 2] = ["text", "event-stream"];

/// Names the kinds that a client accepts without naming them. A client that does not accept what its request can be answered
/// with is left to rmcp, which says so.
pub(super) fn complete(method: &Method, headers: &mut HeaderMap) {
    let (named, needed): (_, &[_]) = match *method {
        Method::POST => ("application/json, text/event-stream", &[JSON, EVENTS]),
        Method::GET => ("text/event-stream", &[EVENTS]),
        _ => return,
    };
    if needed.iter().all(|kind| accepts(headers, *kind)) {
        headers.insert(ACCEPT, HeaderValue::from_static(named));
    }
}

/// Whether a kind is accepted: the most specific range decides, and without the header everything is.
fn accepts(headers: &HeaderMap, [kind, subkind]: [&str; 2]) -> bool {
    if !headers.contains_key(ACCEPT) {
        return true;
    }
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges = values.flat_map(|value| value.split(',')).filter_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let (of, sub) = parts.next()?.split_once('/')?;
        let specificity = match (of, sub) {
            ("*", "*") => 0,
            (of, "*") if of.eq_ignore_ascii_case(kind) => 1,
            (of, sub) if of.eq_ignore_ascii_case(kind) && sub.eq_ignore_ascii_case(subkind) => 2,
            _ => return None,
        };
        let weight =
            parts.filter_map(|parameter| parameter.split_once('=')).find_map(|(name, value)| {
                name.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse::<f32>())
            });
        // A weight that is no number is ignored.
        Some((specificity, !matches!(weight, Some(Ok(0.0)))))
    });
    ranges.max().is_some_and(|(_, is_accepted)| is_accepted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header as rmcp gets it.
    fn completed(method: &Method, accept: &[&'static str]) -> String {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(ACCEPT, HeaderValue::from_static(value));
        }
        complete(method, &mut headers);
        let values: Vec<_> =
            headers.get_all(ACCEPT).iter().map(|it| it.to_str().unwrap()).collect();
        values.join("; ")
    }

    #[test]
    fn ranges_stand_for_the_kinds_in_them() {
        let both = "application/json, text/event-stream";
        for accept in [
            &[][..],
            &["*/*"],
            &["text/html, */*;q=0.8"],
            &["application/*, text/*"],
            &["application/*", "text/event-stream"],
            &["Application/JSON;q=0.5, text/event-stream;charset=utf-8"],
            &["*/*;q=0, application/json, text/*;q=1"],
        ] {
            assert_eq!(completed(&Method::POST, accept), both, "{accept:?}");
        }
        for accept in [
            &["application/json"][..],
            &["application/*"],
            &["text/event-stream"],
            &["text/html"],
            &["*/*, text/event-stream;q=0"],
            &["*/*;q=0.000"],
            &[""],
        ] {
            assert_eq!(completed(&Method::POST, accept), accept[0], "{accept:?}");
        }
        assert_eq!(completed(&Method::GET, &[]), "text/event-stream");
        assert_eq!(completed(&Method::GET, &["*/*"]), "text/event-stream");
        assert_eq!(completed(&Method::GET, &["application/json"]), "application/json");
        assert_eq!(completed(&Method::DELETE, &["*/*"]), "*/*");
    }
}
