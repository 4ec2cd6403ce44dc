//! Bearer tokens of HTTP clients, kept as digests in a file.
//!
//! A token is 32 random bytes, so its SHA-256 gives nothing away and needs neither salt nor slow hashing.
//! The file is [read again](crate::reread) whenever it has changed: a token that was removed from it is refused from then on.
//! While it can't be read, all requests are refused.

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use anyhow::bail;
use humantime::{format_rfc3339_seconds, parse_rfc3339};
use isolator_pool::lock::lock;
use isolator_pool::pool::admission::Client;
use isolator_pool::quote::quoted;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::Refused;
use crate::hex::{hex, unhex};
use crate::metrics::Reason;
use crate::reread::{Files, ReadError};

/// A form of tokens. Both are accepted everywhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum TokenForm {
    /// The form that secret scanners find.
    #[default]
    Isolator,
    /// The form that E2B's SDKs from 2.31 to 2.45 demand of a key.
    E2b,
}

impl TokenForm {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Isolator => "isolator_",
            Self::E2b => "e2b_",
        }
    }
}

/// Random bytes of a token.
const SECRET: usize = 32;

/// Longest name of a token.
const MAX_NAME: usize = 64;

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    name: String,
    digest: [u8; 32],
    expires: Option<SystemTime>,
}

/// Why the file can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokensError {
    /// It can't be read.
    #[error(transparent)]
    Unreadable(#[from] ReadError),
    /// A line is wrong.
    #[error("{path}, line {line}: {problem}; `isolator token NAME` prints valid lines")]
    Line {
        /// The file.
        path: String,
        /// The line's number, from 1.
        line: usize,
        /// The mistake.
        problem: String,
    },
    /// There is none in it.
    #[error("{0} has no tokens; `isolator token NAME` makes one")]
    Empty(String),
}

impl Token {
    /// Creates a token, and returns its secret, which is stored nowhere.
    ///
    /// # Errors
    ///
    /// When the name can't be one, or the kernel gives no random bytes.
    pub(crate) fn new(
        name: &str,
        lifetime: Option<Duration>,
        form: TokenForm,
    ) -> anyhow::Result<(Self, String)> {
        check_name(name).map_err(anyhow::Error::msg)?;
        let expires = lifetime.map(|lifetime| expiry(SystemTime::now(), lifetime)).transpose()?;
        let mut random = [0; SECRET];
        getrandom::fill(&mut random)?;
        let secret = format!("{}{}", form.prefix(), hex(&random));
        Ok((Self { name: name.to_owned(), digest: digest(&secret), expires }, secret))
    }

    fn has_expired(&self) -> bool {
        self.expires.is_some_and(|expires| expires <= SystemTime::now())
    }
}

/// The last moment that a line of the file can name.
const LAST_EXPIRY: Duration = Duration::from_secs(253_402_300_799);

/// When a token expires that is made now. The file has whole seconds: rounded up, so that it is not less than was asked
/// for.
fn expiry(now: SystemTime, lifetime: Duration) -> anyhow::Result<SystemTime> {
    if lifetime < Duration::from_secs(1) {
        bail!("--expires: the token would be expired at once; give at least 1s");
    }
    let expires = now.duration_since(SystemTime::UNIX_EPOCH)?.saturating_add(lifetime);
    let rounded = Duration::from_secs(expires.as_secs() + u64::from(expires.subsec_nanos() > 0));
    if rounded > LAST_EXPIRY {
        bail!(
            "--expires: the token would expire after the year 9999; give a shorter time, or leave --expires out \
             for a token that never expires"
        );
    }
    Ok(SystemTime::UNIX_EPOCH + rounded)
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} sha256:{}", self.name, hex(&self.digest))?;
        match self.expires {
            Some(expires) => write!(f, " expires={}", format_rfc3339_seconds(expires)),
            None => Ok(()),
        }
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        check_name(name)?;
        let digest = words.next().and_then(|word| word.strip_prefix("sha256:")).and_then(unhex);
        let digest = digest.and_then(|digest| digest.try_into().ok());
        let digest = digest.ok_or("sha256: and 64 hexadecimal digits must follow the name")?;
        let expires = match words.next() {
            None => None,
            Some(word) => {
                let time = word.strip_prefix("expires=").and_then(|time| parse_rfc3339(time).ok());
                let problem =
                    || format!("{} is not of the form expires=2027-01-31T00:00:00Z", quoted(word));
                Some(time.ok_or_else(problem)?)
            }
        };
        match words.next() {
            Some(word) => {
                Err(format!("nothing can follow the expiry, but there is {}", quoted(word)))
            }
            None => Ok(Self { name: name.to_owned(), digest, expires }),
        }
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_fine) {
        return Err(format!(
            "{} is not a valid name: use up to {MAX_NAME} letters, digits, -, _, . and @",
            quoted(name)
        ));
    }
    Ok(())
}

/// The tokens of a file.
#[derive(Debug)]
pub(crate) struct Tokens {
    path: PathBuf,
    known: Mutex<ReadTokens>,
}

#[derive(Debug)]
struct ReadTokens {
    file: Files,
    /// Those of the file, or why it can't be used.
    tokens: Result<Vec<Token>, String>,
}

impl Tokens {
    pub(crate) fn read(path: PathBuf) -> Result<Self, TokensError> {
        let (file, contents) = Files::read(vec![path.clone()])?;
        let tokens = parse(&path, contents)?;
        Ok(Self { path, known: Mutex::new(ReadTokens { file, tokens: Ok(tokens) }) })
    }

    /// The client with this token.
    pub(crate) fn client(&self, token: &str) -> Result<Client, Refused> {
        let digest = digest(token);
        let mut known = lock(&self.known);
        self.read_again(&mut known);
        // All tokens are compared, so that the time gives nothing away.
        let mut found = None;
        for token in known.tokens.as_ref().map_err(|_| Refused::UnreadableTokens)? {
            if bool::from(token.digest.ct_eq(&digest)) {
                found = Some(token);
            }
        }
        let token = found.ok_or(Refused::UnknownToken)?;
        match token.has_expired() {
            true => Err(Refused::ExpiredToken),
            false => Ok(Client::named(&token.name)),
        }
    }

    /// Whether the client has a token that is valid now.
    pub(crate) fn knows(&self, client: &Client) -> bool {
        let mut known = lock(&self.known);
        self.read_again(&mut known);
        let is_of_client =
            |token: &Token| Client::named(&token.name) == *client && !token.has_expired();
        known.tokens.as_ref().is_ok_and(|tokens| tokens.iter().any(is_of_client))
    }

    /// Why every request is refused, if that is so.
    pub(crate) fn refuses_all(&self) -> Option<Reason> {
        let mut known = lock(&self.known);
        self.read_again(&mut known);
        let path = self.path.display();
        match &known.tokens {
            Err(error) => {
                let what =
                    "the file of tokens can't be used, so every request is refused".to_owned();
                Some(Reason { what, detail: Some(error.clone()) })
            }
            Ok(tokens) => tokens.iter().all(Token::has_expired).then(|| Reason {
                what: "all tokens have expired, so every request is refused".to_owned(),
                detail: Some(format!("{path}; `isolator token NAME` makes one")),
            }),
        }
    }

    fn read_again(&self, known: &mut ReadTokens) {
        let Some(read) = known.file.changed() else { return };
        let read = read.map_err(TokensError::from);
        known.tokens = match read.and_then(|contents| parse(&self.path, contents)) {
            Ok(tokens) => {
                tracing::info!(tokens = tokens.len(), "the token file has changed");
                Ok(tokens)
            }
            Err(error) => {
                tracing::error!(%error, "all requests are refused until the token file is fixed");
                Err(error.to_string())
            }
        };
    }
}

/// The tokens in the contents of the one file.
fn parse(path: &Path, contents: Vec<Vec<u8>>) -> Result<Vec<Token>, TokensError> {
    let shown = path.display().to_string();
    let text = String::from_utf8(contents.concat())
        .map_err(|error| ReadError::new(path, io::Error::other(error)))?;
    let mut tokens: Vec<Token> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let problem =
            |problem| TokensError::Line { path: shown.clone(), line: number + 1, problem };
        let token: Token = line.parse().map_err(problem)?;
        if tokens.iter().any(|other| other.digest == token.digest) {
            return Err(problem("this token is in the file already".to_owned()));
        }
        tokens.push(token);
    }
    if tokens.is_empty() {
        return Err(TokensError::Empty(shown));
    }
    Ok(tokens)
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(lines: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        fs::write(&path, lines.join("\n")).unwrap();
        (directory, path)
    }

    #[test]
    fn a_token_is_known_by_its_line() {
        let (token, secret) = Token::new("ci@build", None, TokenForm::Isolator).unwrap();
        let line = token.to_string();
        assert_eq!(line.parse::<Token>().unwrap(), token);
        assert!(!line.contains(&secret) && secret.len() > SECRET * 2);
        let (_, other) = Token::new("other", None, TokenForm::Isolator).unwrap();
        let (_directory, path) = file(&["# those who may", "", &line]);
        let tokens = Tokens::read(path).unwrap();
        assert_eq!(tokens.client(&secret), Ok(Client::named("ci@build")));
        for wrong in [&other, "", &secret.to_uppercase(), &format!("{secret} ")] {
            assert_eq!(tokens.client(wrong), Err(Refused::UnknownToken), "{wrong:?}");
        }
    }

    #[test]
    fn a_token_in_e2b_s_form_has_only_hexadecimal_digits_after_its_prefix() {
        let (token, secret) = Token::new("sdk", None, TokenForm::E2b).unwrap();
        let digits = secret.strip_prefix("e2b_").unwrap();
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        assert!(digits.len() == 2 * SECRET && digits.bytes().all(is_digit), "{secret}");
        let (_directory, path) = file(&[&token.to_string()]);
        let tokens = Tokens::read(path).unwrap();
        assert_eq!(tokens.client(&secret), Ok(Client::named("sdk")));
    }

    #[test]
    fn a_client_is_known_while_it_has_a_token_that_is_valid() {
        let (mut past, _) = Token::new("old", None, TokenForm::Isolator).unwrap();
        past.expires = Some(SystemTime::now() - Duration::from_secs(1));
        let (now, _) = Token::new("now", None, TokenForm::Isolator).unwrap();
        let (_directory, path) = file(&[&past.to_string(), &now.to_string()]);
        let tokens = Tokens::read(path.clone()).unwrap();
        let knows = |name| tokens.knows(&Client::named(name));
        assert!(knows("now") && !knows("old") && !knows("other"));
        fs::write(&path, "nonsense").unwrap();
        assert!(!knows("now"));
    }

    #[test]
    fn an_expired_token_is_refused_as_such() {
        let (mut past, old) = Token::new("old", None, TokenForm::Isolator).unwrap();
        past.expires = Some(SystemTime::now() - Duration::from_secs(1));
        let (future, new) =
            Token::new("new", Some(Duration::from_secs(3600)), TokenForm::Isolator).unwrap();
        let (_directory, path) = file(&[&past.to_string(), &future.to_string()]);
        let tokens = Tokens::read(path).unwrap();
        assert_eq!(tokens.client(&old), Err(Refused::ExpiredToken));
        assert_eq!(tokens.client(&new), Ok(Client::named("new")));
    }

    #[test]
    fn a_changed_token_file_takes_effect_at_once_and_a_broken_one_rejects_all_requests() {
        let (first, one) = Token::new("one", None, TokenForm::Isolator).unwrap();
        let (second, two) = Token::new("twotwo", None, TokenForm::Isolator).unwrap();
        let (_directory, path) = file(&[&first.to_string()]);
        let tokens = Tokens::read(path.clone()).unwrap();
        fs::write(&path, second.to_string()).unwrap();
        assert_eq!(tokens.client(&one), Err(Refused::UnknownToken));
        assert_eq!(tokens.client(&two), Ok(Client::named("twotwo")));
        fs::write(&path, "nonsense").unwrap();
        assert_eq!(tokens.client(&two), Err(Refused::UnreadableTokens));
        fs::write(&path, second.to_string()).unwrap();
        assert_eq!(tokens.client(&two), Ok(Client::named("twotwo")));
        fs::remove_file(&path).unwrap();
        assert_eq!(tokens.client(&two), Err(Refused::UnreadableTokens));
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        let digest = "a".repeat(64);
        for (lines, problem) in [
            (vec![], "has no tokens"),
            (vec!["# only words"], "has no tokens"),
            (vec!["", "a"], "line 2: sha256:"),
            (vec!["a sha256:abc"], "line 1: sha256:"),
            (vec!["a/b sha256:"], "is not a valid name"),
        ] {
            let (_directory, path) = file(&lines);
            let error = Tokens::read(path).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        for (more, problem) in [
            ("expires=tomorrow", "is not of the form expires="),
            ("expires=2027-01-31T00:00:00Z x", "follow"),
        ] {
            let error = format!("a sha256:{digest} {more}").parse::<Token>().unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
        let twice = format!("a sha256:{digest}");
        let (_directory, path) = file(&[&twice, &twice]);
        assert!(Tokens::read(path).unwrap_err().to_string().contains("already"));
        let missing = Tokens::read("/nonexistent/tokens".into()).unwrap_err().to_string();
        assert!(missing.contains("/nonexistent/tokens"), "{missing}");
    }
}
