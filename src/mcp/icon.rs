//! The icon that hosts show next to the server and its tools.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rmcp::model::Icon;

static SVG: &[u8] = include_bytes!("../../docs/icon.svg");

/// The picture itself, because a host has no way to fetch a file of the server's.
static ADDRESS: LazyLock<String> =
    LazyLock::new(|| format!("data:image/svg+xml;base64,{}", BASE64_STANDARD.encode(SVG)));

/// The icon, in all its sizes.
pub(crate) fn icons() -> Vec<Icon> {
    let icon = Icon::new(ADDRESS.as_str()).with_mime_type("image/svg+xml");
    vec![icon.with_sizes(vec!["any".to_owned()])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_icon_is_small_enough_to_come_with_each_tool() {
        assert!(icons()[0].src.len() < 1024);
    }
}
