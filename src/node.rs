//! A node, which is one server among several with the same clients: its name, and the handles that have the name in them.
//!
//! A handle is `NAME-` and random digits, or the digits alone if the node has no name. So a load balancer finds the node of a
//! handle, and a node says which one it is if that is another. One form serves all: it fits into a header, an address and a
//! label of a host name.
//!
//! A handle comes from a client, so the name in it is only compared. It names no host and no file.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::hex::hex;

/// Longest name. With the port of a sandbox before it and the digits after it, it is a label of a host name, which has 63
/// characters at most.
const MAX_NAME: usize = 24;

/// Names as a pattern, for editors.
pub(crate) const NAME_PATTERN: &str = "^[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?$";

/// The arguments of tools that are handles, and the name in the header `Mcp-Param-…` in which clients of protocol revision 2026-07-28
/// repeat each, so that a balancer need not read bodies. A session is replayed where its journal is.
pub(crate) const HANDLE_ARGUMENTS: [(&str, &str); 3] =
    [("session", "Session"), ("replay", "Session"), ("handle", "Handle")];

/// Random bytes of a handle, so that it can't be guessed, and those of a secret.
const HANDLE_BYTES: usize = 16;
const SECRET_BYTES: usize = 32;

/// The separator between a name and the digits. Names have it, too, and digits don't.
const SEPARATOR: char = '-';

/// The name of a node; cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NodeName(Arc<str>);

/// The error of a text that is no name of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected at most {MAX_NAME} small letters, digits and hyphens, with no hyphen at the beginning or the end, such as \"n1\""
)]
pub(crate) struct BadName;

impl NodeName {
    /// Its text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for NodeName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let is_inside = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let is_name = (1..=MAX_NAME).contains(&text.len())
            && text.bytes().all(is_inside)
            && !text.starts_with(SEPARATOR)
            && !text.ends_with(SEPARATOR);
        if is_name { Ok(Self(text.into())) } else { Err(BadName) }
    }
}

/// The name of the node that has made a handle, if it has one. Anything else that a client may send has none.
pub(crate) fn node_of(handle: &str) -> Option<NodeName> {
    let (name, digits) = handle.rsplit_once(SEPARATOR)?;
    if is_random(digits) { name.parse().ok() } else { None }
}

/// Whether a node can have made this handle.
pub(crate) fn is_handle(text: &str) -> bool {
    is_random(text) || node_of(text).is_some()
}

fn is_random(digits: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    [2 * HANDLE_BYTES, 2 * SECRET_BYTES].contains(&digits.len()) && digits.bytes().all(is_digit)
}

/// This server among others; cheap to clone. Without a name it is the only one, or a balancer needs no names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Node(Option<NodeName>);

impl Node {
    /// A node with this name.
    pub(crate) const fn named(name: NodeName) -> Self {
        Self(Some(name))
    }

    /// Its name, if it has one.
    pub(crate) const fn name(&self) -> Option<&NodeName> {
        self.0.as_ref()
    }

    /// A new handle that can't be guessed.
    ///
    /// # Errors
    ///
    /// When the kernel returns no random bytes.
    pub(crate) fn new_handle(&self) -> Result<String, getrandom::Error> {
        self.random::<HANDLE_BYTES>()
    }

    /// A new secret, whose holder is let in without another one.
    ///
    /// # Errors
    ///
    /// When the kernel returns no random bytes.
    pub(crate) fn new_secret(&self) -> Result<String, getrandom::Error> {
        self.random::<SECRET_BYTES>()
    }

    fn random<const BYTES: usize>(&self) -> Result<String, getrandom::Error> {
        let mut random = [0; BYTES];
        getrandom::fill(&mut random)?;
        let digits = hex(&random);
        Ok(match &self.0 {
            Some(name) => format!("{name}{SEPARATOR}{digits}"),
            None => digits,
        })
    }

    /// Why a handle that is unknown here leads to nothing, if a node has made it. `None` for all other texts, of which nothing more is
    /// known.
    pub(crate) fn lost(&self, handle: &str, thing: Thing) -> Option<LostHandle> {
        let node = node_of(handle)?;
        Some(LostHandle { thing, handle: handle.to_owned(), node, here: self.0.clone() })
    }
}

/// A kind of thing that a handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thing {
    /// A session.
    Session,
    /// A program that runs for long, or its result.
    Run,
    /// Files and output that are kept.
    Result,
    /// A sandbox of E2B's API.
    Sandbox,
    /// A session of the protocol.
    ProtocolSession,
}

impl Thing {
    /// Its name, for people.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Run => "run",
            Self::Result => "result",
            Self::Sandbox => "sandbox",
            Self::ProtocolSession => "protocol session",
        }
    }
}

/// A handle of a node that leads to nothing here. Its text says why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LostHandle {
    thing: Thing,
    handle: String,
    node: NodeName,
    here: Option<NodeName>,
}

impl LostHandle {
    /// The kind of thing that it stands for.
    pub(crate) const fn thing(&self) -> Thing {
        self.thing
    }

    /// The handle, which is one line of at most 89 letters, digits and hyphens.
    pub(crate) fn handle(&self) -> &str {
        &self.handle
    }

    /// The node in it.
    pub(crate) fn node(&self) -> &str {
        self.node.as_str()
    }

    /// The same for another kind of thing, as a client calls it.
    pub(crate) fn of(self, thing: Thing) -> Self {
        Self { thing, ..self }
    }
}

impl fmt::Display for LostHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, here, .. } = self;
        let thing = self.thing.word();
        match here {
            Some(here) if here == node => write!(
                f,
                "its node is this one, {node}, which has no such {thing}: {node} was started again since, or the {thing} ended \
                 long ago or was never yours"
            ),
            Some(here) => write!(
                f,
                "it is on the node {node}, and this is {here}: either {node} is lost, and with it the {thing}, or the load balancer \
                 does not send its calls there"
            ),
            None => write!(
                f,
                "it is on the node {node}, and this server has no name: either {node} is lost, and with it the {thing}, or the load \
                 balancer does not send its calls there"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> Node {
        Node::named(name.parse().unwrap())
    }

    #[test]
    fn a_name_is_a_part_of_a_label_of_a_host_name() {
        for name in ["n", "n1", "0", "isolator-0", "a--b", &"n".repeat(MAX_NAME)] {
            assert_eq!(name.parse::<NodeName>().map(|it| it.to_string()), Ok(name.to_owned()));
        }
        let long = "n".repeat(MAX_NAME + 1);
        for text in ["", "-n", "n-", "N1", "n.1", "n_1", "n 1", "n/1", "ñ", "n\n", &long] {
            assert_eq!(text.parse::<NodeName>(), Err(BadName), "{text:?}");
        }
        let longest = node(&"n".repeat(MAX_NAME)).new_handle().unwrap();
        assert_eq!(format!("49999-{longest}").len(), 63);
    }

    #[test]
    fn handles_have_the_name_of_their_node_and_none_without_one() {
        for name in ["n1", "isolator-0", "0", "a-0123456789abcdef"] {
            let node = node(name);
            for handle in [node.new_handle().unwrap(), node.new_secret().unwrap()] {
                assert_eq!(node_of(&handle).as_ref(), node.name(), "{handle}");
            }
        }
        let handle = Node::default().new_handle().unwrap();
        assert!(handle.len() == 2 * HANDLE_BYTES && node_of(&handle).is_none());
        let digits = "0".repeat(2 * HANDLE_BYTES);
        let [long, capital] =
            [format!("{}-{digits}", "n".repeat(1 << 20)), "A".repeat(digits.len())];
        for text in [
            "",
            "-",
            "n1-",
            "n1-0",
            // As rmcp makes them.
            "d3b07384-d113-4ec6-a1b2-0123456789ab",
            &format!("-{digits}"),
            &format!("n1.{digits}"),
            &format!("N1-{digits}"),
            &format!("../n1-{digits}"),
            &format!("n1.example:80/-{digits}"),
            &format!("n1-{capital}"),
            &format!("ｎ1-{digits}"),
            &long,
            &format!("n1-{digits}\n"),
        ] {
            assert_eq!(node_of(text), None, "{}", text.chars().take(99).collect::<String>());
        }
    }

    #[test]
    fn a_lost_handle_says_which_node_it_was_and_which_one_this_is() {
        let of_three = node("n3").new_handle().unwrap();
        let why = |here: &Node| here.lost(&of_three, Thing::Session).unwrap().to_string();
        assert!(why(&node("n1")).starts_with("it is on the node n3, and this is n1: "));
        assert!(why(&node("n3")).contains("n3 was started again since"));
        assert!(why(&Node::default()).contains("this server has no name"));
        assert_eq!(node("n1").lost("n3-0", Thing::Session), None);
    }
}
