//! The secrets of a sandbox, and the signatures of URLs of its files, which are made of one.

use std::time::{Duration, SystemTime};

use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::error::E2bError;
use crate::node::Node;

/// Longest path of a file, in bytes, as the system allows.
const MAX_PATH: usize = 4096;

/// Longest name of a user, and longest number of seconds.
const MAX_USERNAME: usize = 256;
const MAX_EXPIRATION: usize = 20;

/// A random text that only the owner of a sandbox is given.
pub(super) struct Secret(String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// A new one, which says the node to a balancer.
    ///
    /// # Errors
    ///
    /// When the kernel returns no random bytes.
    pub(super) fn new(node: &Node) -> Result<Self, getrandom::Error> {
        node.new_secret().map(Self)
    }

    /// Its text, for the owner.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Whether it is this one. The time that takes says nothing about it.
    pub(super) fn is(&self, text: &str) -> bool {
        self.0.as_bytes().ct_eq(text.as_bytes()).into()
    }
}

/// The parameters in the query of `/files`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FileQuery {
    pub path: Option<String>,
    pub username: Option<String>,
    signature: Option<String>,
    signature_expiration: Option<String>,
}

impl FileQuery {
    /// Reads a query. Parameters that are not known are ignored, as clients add their own.
    ///
    /// # Errors
    ///
    /// When one is there twice: two readers could take different ones.
    pub(crate) fn read(query: &str) -> Result<Self, E2bError> {
        let mut read = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let place = match &*name {
                "path" => &mut read.path,
                "username" => &mut read.username,
                "signature" => &mut read.signature,
                "signature_expiration" => &mut read.signature_expiration,
                _ => continue,
            };
            if place.replace(value.into_owned()).is_some() {
                return Err(E2bError::invalid(&name, "is in the URL twice"));
            }
        }
        let of_user = (&read.username, "username", MAX_USERNAME);
        let of_expiration = (&read.signature_expiration, "signature_expiration", MAX_EXPIRATION);
        // They are a part of what is signed, for every sandbox that may have signed it.
        for (value, name, most) in [(&read.path, "path", MAX_PATH), of_user, of_expiration] {
            if value.as_ref().is_some_and(|value| value.len() > most) {
                return Err(E2bError::invalid(name, format!("is longer than {most} bytes")));
            }
        }
        Ok(read)
    }

    /// Whether it has a signature.
    pub(super) const fn is_signed(&self) -> bool {
        self.signature.is_some()
    }

    /// Whether its signature is one of the owner of this secret, for this path, user and method.
    ///
    /// # Errors
    ///
    /// When the signature has expired.
    pub(super) fn is_signed_with(
        &self,
        secret: &Secret,
        method: &Method,
    ) -> Result<bool, SignatureExpired> {
        let operation = match *method {
            Method::GET | Method::HEAD => "read",
            Method::POST | Method::PUT => "write",
            _ => return Ok(false),
        };
        let (path, user) = (self.path.as_deref(), self.username.as_deref());
        let (path, user) = (path.unwrap_or_default(), user.unwrap_or_default());
        let mut signed = format!("{path}:{operation}:{user}:{}", secret.text());
        if let Some(expiration) = &self.signature_expiration {
            signed = format!("{signed}:{expiration}");
        }
        let expected = format!("v1_{}", BASE64.encode(Sha256::digest(signed.as_bytes())));
        let given = self.signature.as_deref().unwrap_or_default();
        if !bool::from(expected.as_bytes().ct_eq(given.as_bytes())) {
            return Ok(false);
        }
        // It is a part of what was signed, so only the owner can have chosen it.
        let Some(expiration) = &self.signature_expiration else { return Ok(true) };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let expires = expiration.parse().map(Duration::from_secs).unwrap_or_default();
        if now >= expires { Err(SignatureExpired) } else { Ok(true) }
    }
}

/// The time of a signature is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SignatureExpired;

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(secret: &Secret, path: &str, operation: &str, expiration: Option<u64>) -> FileQuery {
        let mut text = format!("{path}:{operation}::{}", secret.text());
        let mut query = format!("path={path}");
        if let Some(expiration) = expiration {
            text = format!("{text}:{expiration}");
            query = format!("{query}&signature_expiration={expiration}");
        }
        let signature = BASE64.encode(Sha256::digest(text.as_bytes()));
        let signature: String = form_urlencoded::byte_serialize(signature.as_bytes()).collect();
        FileQuery::read(&format!("{query}&signature=v1_{signature}")).unwrap()
    }

    #[test]
    fn a_signature_is_for_one_path_user_operation_and_time() {
        let [secret, other] = [(); 2].map(|()| Secret::new(&Node::default()).unwrap());
        let check = |query: &FileQuery, method| query.is_signed_with(&secret, &method);
        let query = signed(&secret, "/home/user/a", "read", None);
        assert_eq!(check(&query, Method::GET), Ok(true));
        assert_eq!(check(&query, Method::POST), Ok(false));
        assert_eq!(check(&query, Method::DELETE), Ok(false));
        assert_eq!(query.is_signed_with(&other, &Method::GET), Ok(false));
        let path = Some("/home/user/b".to_owned());
        assert_eq!(check(&FileQuery { path, ..query.clone() }, Method::GET), Ok(false));
        let username = Some("root".to_owned());
        assert_eq!(check(&FileQuery { username, ..query.clone() }, Method::GET), Ok(false));
        let late = Some("99999999999".to_owned());
        let prolonged = FileQuery { signature_expiration: late, ..query };
        assert_eq!(check(&prolonged, Method::GET), Ok(false));
        assert_eq!(
            check(&signed(&secret, "a", "write", Some(99_999_999_999)), Method::POST),
            Ok(true)
        );
        assert_eq!(
            check(&signed(&secret, "a", "read", Some(1)), Method::GET),
            Err(SignatureExpired)
        );
    }

    #[test]
    fn a_parameter_that_is_there_twice_is_refused() {
        assert!(FileQuery::read("path=a&other=1&other=2").is_ok());
        let error = FileQuery::read("path=a&path=b").unwrap_err();
        assert_eq!(error.message(), "path: is in the URL twice");
        for (name, most) in [("path", MAX_PATH), ("username", MAX_USERNAME)] {
            assert!(FileQuery::read(&format!("{name}={}", "a".repeat(most))).is_ok());
            assert!(FileQuery::read(&format!("{name}={}", "a".repeat(most + 1))).is_err());
        }
    }

    #[test]
    fn secrets_are_compared_as_a_whole() {
        let secret = Secret::new(&Node::default()).unwrap();
        let text = secret.text().to_owned();
        assert!(secret.is(&text) && text.len() == 64);
        assert!(!secret.is(&text[1..]) && !secret.is(""));
        assert_eq!(format!("{secret:?}"), "Secret");
    }
}
