//! The section `node`.

use super::check::Check;
use super::operators::address;
use super::section::section;
use crate::address::ListenAddress;
use crate::node::{NAME_PATTERN, Node};

section! {
    /// This server among several that have the same clients behind a load balancer.
    #[derive(Clone, PartialEq, Eq)]
    pub struct NodeConfig {
        /// Its name, such as "n1", which no other one has. It is a part of all handles, so that a balancer finds the node of each.
        /// Default: none, for a server that is alone.
        #[schemars(extend("format" = "node-name", "pattern" = NAME_PATTERN))]
        pub name: Option<String> = None,
        /// Where a server answers the agent checks of HAProxy, such as "127.0.0.1:9465": how much of it is free, or that it is
        /// being drained. Any client that reaches it can ask. Default: nowhere.
        #[serde(deserialize_with = "address", skip_serializing)]
        #[schemars(with = "Option<String>", extend("format" = "listen-address"))]
        pub agent_check: Option<ListenAddress> = None,
        /// The node that the name stands for.
        #[serde(skip)]
        node: Node = Node::default(),
    }
}

impl NodeConfig {
    /// The node.
    pub(crate) const fn node(&self) -> &Node {
        &self.node
    }

    pub(super) fn check(&mut self, check: &mut Check<'_>) {
        match self.name.as_deref().map(str::parse) {
            None => self.node = Node::default(),
            Some(Ok(name)) => self.node = Node::named(name),
            Some(Err(error)) => check.problem("node.name", error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    #[test]
    fn a_server_has_no_name_unless_it_is_given_one_that_can_be_in_a_handle() {
        let parse = |text: &str| Config::parse(text, None, Path::new(""));
        assert_eq!(parse("{}").unwrap().node.node().name(), None);
        let named = parse(r#"{"node": {"name": "isolator-0"}}"#).unwrap();
        assert_eq!(named.node.node().name().map(|name| name.as_str()), Some("isolator-0"));
        for wrong in ["", "N1", "n.1", "a/b", "-"] {
            let problems = parse(&format!(r#"{{"node": {{"name": "{wrong}"}}}}"#)).unwrap_err();
            assert_eq!(problems[0].path, "node.name", "{wrong}");
        }
    }
}
