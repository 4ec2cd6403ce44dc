//! The reasons why a request gets no set of packages, in words for the caller.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use isolator_pool::engine::limits::ByteSize;
use isolator_pool::quote::{first_of, quoted};

use crate::packages::build::BuildError;

/// Names of sets or patterns that a refusal shows at most.
const MOST_SHOWN: usize = 30;

/// A request for a set that was refused or failed. All requests that wait for one build get clones of one refusal.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Refusal {
    /// No set has this name, and nothing is built on demand.
    #[error("there is no set of packages {}: {}", quoted(.asked), of_sets(.sets, .language))]
    NoSuchSet { asked: String, language: String, sets: Vec<String> },
    /// The set is for another language.
    #[error(
        "the set of packages {} is for {theirs}, and this program is {language}: {}",
        quoted(.asked),
        of_sets(.sets, .language)
    )]
    OtherLanguage { asked: String, theirs: String, language: String, sets: Vec<String> },
    /// The language has no packages.
    #[error("programs in {0} can't be given packages: send what they need as files")]
    NoPackages(String),
    /// A text is neither a set nor a requirement.
    #[error("{message}; {}", of_sets(.sets, .language))]
    Bad { message: String, language: String, sets: Vec<String> },
    /// The request has more packages than one set can have.
    #[error("{asked} packages are asked for, and {most} can be at most")]
    TooMany {
        /// Their number.
        asked: usize,
        most: usize,
    },
    /// The operator does not allow these packages.
    #[error(
        "the operator does not allow {}: what can be asked for are packages whose names match {}; {}",
        .names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", "),
        list(.allow),
        of_sets(.sets, .language)
    )]
    NotAllowed { names: Vec<String>, allow: Vec<String>, language: String, sets: Vec<String> },
    /// Too many builds wait already, or too many calls wait for builds.
    #[error("{waiting} {what} at this moment: try again in a minute")]
    Busy {
        /// Their number.
        waiting: usize,
        /// The builds or calls, and what they do.
        what: &'static str,
    },
    /// It was not built.
    #[error("{what} could not be built: {why}")]
    Failed {
        what: String,
        #[source]
        why: Arc<BuildError>,
    },
    /// Its build failed a moment ago, and was not tried again.
    #[error(
        "{first} (this was {} s ago, and it is tried again when it is asked for in {} s or later)",
        .ago.as_secs(),
        .again.as_secs().max(1)
    )]
    FailedBefore {
        /// The refusal of then.
        first: Box<Self>,
        /// The time since then.
        ago: Duration,
        /// The time until it is tried again.
        again: Duration,
    },
    /// It is larger than everything that the store may have.
    #[error(
        "{what} has {}, and all sets together can have {} (packages.maxStoreMB): ask for less, or for a set that is there",
        size(*.bytes),
        size(*.most)
    )]
    TooLarge {
        what: String,
        bytes: u64,
        /// The bytes that all can have.
        most: u64,
    },
    /// Sets that are in use or named by the configuration leave no room for it.
    #[error(
        "there is no room for {what}, which has {}: the other sets have {} of {} (packages.maxStoreMB), and are in use or \
         named by the configuration",
        size(*.bytes),
        size(*.others),
        size(*.most)
    )]
    NoRoom {
        what: String,
        bytes: u64,
        /// Bytes of the others.
        others: u64,
        /// The bytes that all can have.
        most: u64,
    },
    /// All the sets that there can be on demand are in use.
    #[error(
        "all {0} sets that can be there on demand (packages.onDemand.maxSets) are in use at this moment: try again in a \
         minute, or ask for a set that is there"
    )]
    AllInUse(usize),
    /// The set is there, and can't be used.
    #[error("{what} can't be used: {why}")]
    Unusable {
        what: String,
        #[source]
        why: Arc<dyn Error + Send + Sync>,
    },
    /// The set is removed again and again.
    #[error("{0} can't be used: something removes it as soon as it is built")]
    Vanishes(String),
    /// The server is stopping.
    #[error("the server is shutting down")]
    Stopping,
}

impl Refusal {
    /// Whether only other arguments can succeed.
    pub(crate) const fn is_of_arguments(&self) -> bool {
        matches!(
            self,
            Self::NoSuchSet { .. }
                | Self::OtherLanguage { .. }
                | Self::NoPackages(_)
                | Self::Bad { .. }
                | Self::TooMany { .. }
                | Self::NotAllowed { .. }
        )
    }

    /// Its kind, for a program that has asked for the packages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::NoSuchSet { .. } | Self::OtherLanguage { .. } | Self::NoPackages(_) => "off",
            Self::NotAllowed { .. } => "not_allowed",
            Self::TooMany { .. } | Self::TooLarge { .. } | Self::NoRoom { .. } => "too_large",
            Self::Busy { .. } | Self::AllInUse(_) | Self::Stopping => "busy",
            Self::Failed { why, .. } if why.is_no_match() => "no_match",
            Self::FailedBefore { first, .. } => first.kind(),
            Self::Bad { .. } | Self::Failed { .. } | Self::Unusable { .. } | Self::Vanishes(_) => {
                "failed"
            }
        }
    }

    /// The reason in words for a program that has asked for the packages. Errors of the server itself are left out: they name its
    /// files and tools.
    pub(crate) fn for_program(&self) -> String {
        const LOG: &str = "the log of the server says why";
        match self {
            Self::Failed { why, .. } if why.is_of_packages() => self.to_string(),
            Self::Failed { what, why } => match &**why {
                BuildError::Unreachable { .. } | BuildError::Forbidden { .. } => {
                    format!(
                        "{what} could not be built: the server gets nothing from its index; {LOG}"
                    )
                }
                BuildError::Timeout { after, .. } => {
                    format!("{what} could not be built in {} s; {LOG}", after.as_secs())
                }
                _ => format!("{what} could not be built; {LOG}"),
            },
            Self::FailedBefore { first, again, .. } => format!(
                "{} (it is tried again when it is asked for in {} s or later)",
                first.for_program(),
                again.as_secs().max(1)
            ),
            Self::Unusable { what, .. } => format!("{what} can't be used; {LOG}"),
            _ => self.to_string(),
        }
    }

    /// Whether another try a moment later should fail at once, without asking the index again.
    pub(super) const fn is_remembered(&self) -> bool {
        !matches!(
            self,
            Self::Stopping | Self::AllInUse(_) | Self::NoRoom { .. } | Self::Busy { .. }
        )
    }
}

fn of_sets(sets: &[String], language: &str) -> String {
    match sets {
        [] => format!("there are no sets for {language}"),
        sets => format!("the sets for {language} are {}", list(sets)),
    }
}

/// Texts of the operator.
fn list(names: &[String]) -> String {
    match names {
        [] => "nothing".to_owned(),
        names => first_of(names.iter().cloned(), MOST_SHOWN),
    }
}

/// A size in MiB, rounded up.
fn size(bytes: u64) -> ByteSize {
    ByteSize::mib(bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::packages::lock::LockError;

    fn failed(why: BuildError) -> Refusal {
        Refusal::Failed { what: "a set of x".to_owned(), why: Arc::new(why) }
    }

    #[test]
    fn a_program_learns_nothing_of_the_files_and_tools_of_the_server() {
        let (place, said) = ("/srv/private", "at /srv/private".to_owned());
        let io = || io::Error::other("the disk says /srv/private");
        let index = || "https://index.example/srv/private".to_owned();
        let (after, tool) = (Duration::from_secs(9), "uv");
        let lock = || {
            let error = Box::new(LockError::new("it is for other requirements"));
            LockError::Folder { folder: place.into(), error }
        };
        let unusable = Refusal::Unusable { what: "a set of x".to_owned(), why: Arc::new(io()) };
        let refusals = [
            failed(BuildError::NoTool { tool, program: place.into(), error: io() }),
            failed(BuildError::NoPython(said.clone())),
            failed(BuildError::Unreachable { index: index(), said: said.clone() }),
            failed(BuildError::Forbidden { index: index(), said: said.clone() }),
            failed(BuildError::Timeout { after, last: said.clone() }),
            failed(BuildError::Full(place.into())),
            failed(BuildError::Tool { tool, how: "exit status: 2".to_owned(), said }),
            failed(BuildError::Lock(lock())),
            failed(BuildError::RefusedLock(lock())),
            unusable,
        ];
        for refusal in refusals {
            let before = Refusal::FailedBefore {
                first: Box::new(refusal.clone()),
                ago: after,
                again: after,
            };
            for refusal in [refusal, before] {
                let (own, told) = (refusal.to_string(), refusal.for_program());
                assert!(own.contains(place), "the log has all of it: {own}");
                assert!(!told.contains("srv") && !told.contains("uv"), "{told}");
                assert!(
                    told.contains("a set of x") && told.contains("the log of the server"),
                    "{told}"
                );
            }
        }
    }

    #[test]
    fn a_program_learns_what_is_wrong_with_the_packages() {
        let said = "there is no version of x".to_owned();
        let unsolvable = BuildError::Unsolvable { target: "cp313".to_owned(), said };
        let lock = BuildError::Lock(LockError::new("two locks have other versions of y"));
        let cases = [
            (unsolvable, "there is no version of x", "no_match"),
            (BuildError::Refused("it has a device".to_owned()), "it has a device", "failed"),
            (BuildError::Memory { tool: "npm", most: 512 }, "512 MiB", "failed"),
            (lock, "other versions of y", "failed"),
        ];
        for (why, part, kind) in cases {
            let refusal = failed(why);
            assert!(refusal.for_program().contains(part), "{}", refusal.for_program());
            assert_eq!(refusal.kind(), kind, "{refusal}");
        }
    }
}
