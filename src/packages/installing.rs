//! Packages for a sandbox whose programs run: what a program asks for and what the sandbox has become one set.
//!
//! The rules are those of `packages` in a call: sets of the configuration, and requirements where the operator lets requests bring
//! their own. A sandbox keeps the versions that it has, unless the program asks for others or for the newest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use isolator_pool::engine::Progress;
use isolator_pool::engine::preload::Interpreter;
use isolator_pool::lock::lock;
use isolator_pool::packages::PackageSet;
use isolator_pool::pool::admission::Client;
use isolator_pool::quote::quoted;
use serde::Serialize;
use tokio::sync::OwnedMutexGuard;

use super::refusal::Refusal;
use super::store::StoredSet;
use super::target::usual_language;
use super::{Packages, satisfies};
use crate::config::Language;
use crate::requirement::{self, BadRequirement, MOST, Requirement, shown};

/// The packages of a sandbox, which its programs can add to. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SandboxPackages(Arc<Shared>);

struct Shared {
    packages: Packages,
    language: Arc<Language>,
    client: Client,
    now: Mutex<Now>,
    /// One request after the other, because each adds to what the one before has brought.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// A set of packages for a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct BoundSet {
    /// The names of sets and requirements that were asked for.
    pub asked: Vec<String>,
    pub set: Arc<PackageSet>,
}

/// The packages that a sandbox has. The sandbox itself keeps their set, so it goes with it, also if this stays for longer.
#[derive(Debug, Clone)]
pub(crate) struct SandboxSet {
    /// The names of sets and requirements that were asked for.
    pub asked: Vec<String>,
    /// The hash of the set.
    pub hash: String,
}

/// The state of a sandbox.
#[derive(Debug, Clone)]
struct Now {
    bound: Option<SandboxSet>,
    /// Whether the sandbox could not take the set, although the engine has given it.
    is_misplaced: bool,
    /// How often its programs have got packages.
    installs: u32,
}

/// A package with its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct InstalledPackage {
    pub name: String,
    pub version: String,
}

/// The packages for a request of a program.
pub(crate) enum Resolved {
    /// They are there already.
    There(Vec<InstalledPackage>),
    /// A set that has them.
    Set(Box<NewSet>),
}

/// Another set for a sandbox.
pub(crate) struct NewSet {
    pub bound: BoundSet,
    /// All packages of the set.
    pub packages: Vec<InstalledPackage>,
    /// The names of those that the sandbox did not have in this version.
    pub new: Vec<String>,
    _turn: OwnedMutexGuard<()>,
}

/// Why a program got no packages.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotInstalled {
    /// The sandbox is for another language.
    #[error(
        "this sandbox is for {own}, and can't be given packages for {}: run what needs them in a sandbox for that language",
        quoted(.asked)
    )]
    OtherLanguage { asked: String, own: &'static str },
    /// Nothing is built for requests, and no set has the packages.
    #[error("{}", off(.missing, .language, .sets))]
    Off { missing: String, language: String, sets: Vec<String> },
    /// The sandbox is of another image than those that are made now.
    #[error(
        "the image of this sandbox was replaced after the sandbox was made, and packages are installed for the new one: open a new session"
    )]
    ImageReplaced,
    /// The client has too many sets.
    #[error(
        "the sandboxes of this client have {0} sets of packages on demand, and can't have more at once: close sessions that are not \
         needed"
    )]
    ClientHasTooMany(usize),
    /// A requirement can't be used.
    #[error(transparent)]
    Bad(#[from] BadRequirement),
    /// There are too many.
    #[error("{0} packages are asked for, and {MOST} can be at most")]
    TooMany(usize),
    /// There is no such set.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The same, and the versions that the sandbox has may be the reason.
    #[error(
        "{0}\nThe versions of the packages that this sandbox was given before are kept: {1}. With --upgrade they can change"
    )]
    Kept(#[source] Refusal, String),
}

fn off(missing: &str, language: &str, sets: &[String]) -> String {
    let begin = format!(
        "this server gives programs no packages on demand (packages.onDemand), and none of its sets has {missing}"
    );
    match sets {
        [] => format!(
            "{begin}: use what the image has, or ask the operator of the server for a set of packages for {language}"
        ),
        [first, ..] => format!(
            "{begin}. The sets for {language} are: {}. A program gets one if its call names it, such as packages [{first:?}]",
            sets.join(", ")
        ),
    }
}

impl NotInstalled {
    /// The kind of the refusal, for the command.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Off { .. } => "off",
            Self::TooMany(_) => "too_large",
            Self::ClientHasTooMany(_) => "busy",
            Self::OtherLanguage { .. } | Self::ImageReplaced | Self::Bad(_) => "failed",
            Self::Refused(refusal) | Self::Kept(refusal, _) => refusal.kind(),
        }
    }

    /// The reason in words for the program, which must not learn of the server's files and tools.
    pub(crate) fn for_program(&self) -> String {
        match self {
            Self::Refused(refusal) => refusal.for_program(),
            other => other.to_string(),
        }
    }
}

impl From<BoundSet> for SandboxSet {
    fn from(BoundSet { asked, set }: BoundSet) -> Self {
        Self { asked, hash: set.hash.clone() }
    }
}

impl SandboxPackages {
    /// The packages of a sandbox that begins with this set, if it has one.
    pub(crate) fn new(
        packages: &Packages,
        language: &Arc<Language>,
        client: &Client,
        bound: Option<BoundSet>,
    ) -> Self {
        if let Some(bound) = &bound {
            packages.common.sets_of_clients.note(client, &bound.set);
        }
        Self(Arc::new(Shared {
            packages: packages.clone(),
            language: Arc::clone(language),
            client: client.clone(),
            now: Mutex::new(Now {
                bound: bound.map(SandboxSet::from),
                is_misplaced: false,
                installs: 0,
            }),
            turn: Arc::default(),
        }))
    }

    /// The set that the sandbox has, if it has one.
    pub(crate) fn bound(&self) -> Option<SandboxSet> {
        lock(&self.0.now).bound.clone()
    }

    /// How often programs have got packages.
    pub(crate) fn installs(&self) -> u32 {
        lock(&self.0.now).installs
    }

    /// The client of the sandbox.
    pub(crate) fn client(&self) -> &Client {
        &self.0.client
    }

    /// The language of the sandbox.
    pub(crate) fn language(&self) -> &Arc<Language> {
        &self.0.language
    }

    /// Notes that the sandbox has the set.
    pub(crate) fn note_bound(&self, new: NewSet) {
        let mut now = lock(&self.0.now);
        let installs = now.installs.saturating_add(1);
        *now = Now { bound: Some(new.bound.into()), is_misplaced: false, installs };
        self.0.packages.common.installs.add(1);
    }

    /// Notes that the sandbox could not take the last set.
    pub(crate) fn note_misplaced(&self) {
        lock(&self.0.now).is_misplaced = true;
    }

    /// Counts requests that got nothing.
    pub(crate) fn count_refused(&self, requests: u64) {
        self.0.packages.common.refused_installs.add(requests);
    }

    /// Finds the set for what a program asks for, in a sandbox that was made from the image with this digest. Dropping the future leaves a
    /// build running.
    ///
    /// # Errors
    ///
    /// When there is none. The sandbox keeps what it has.
    pub(crate) async fn resolve(
        &self,
        language: &str,
        asked: &[String],
        (image, upgrades): (&str, bool),
        say: Progress<'_>,
    ) -> Result<Resolved, NotInstalled> {
        let Shared { language: own, client, turn, .. } = &*self.0;
        let interpreter = own.kernel.filter(|it| usual_language(*it) == language);
        let Some(interpreter) = interpreter else {
            let own = own.kernel.map_or("programs without packages", usual_language);
            return Err(NotInstalled::OtherLanguage { asked: language.to_owned(), own });
        };
        if asked.len() > MOST {
            return Err(NotInstalled::TooMany(asked.len()));
        }
        requirement::parse_all(interpreter, asked)?;
        // A configuration that has changed since the sandbox was made holds for it, too.
        let packages = self.0.packages.newest();
        // Packages are for the interpreter that the language has now.
        if packages.image(&own.name).is_some_and(|newest| newest != image) {
            return Err(NotInstalled::ImageReplaced);
        }
        let texts = packages.needed(own, asked.to_vec()).await;
        if texts.is_empty() {
            return Ok(Resolved::There(Vec::new()));
        }
        let wanted = requirement::parse_all(interpreter, &texts)?;
        let turn = Arc::clone(turn).lock_owned().await;
        let now = lock(&self.0.now).clone();
        let there = There::find(&packages, own, now.bound.as_ref()).await;
        let asked = now.bound.as_ref().map_or(&[][..], |bound| &bound.asked);
        let is_new = |wanted: &&Requirement| !there.satisfies(wanted, asked);
        let missing: Vec<_> = wanted.iter().filter(is_new).collect();
        if missing.is_empty() && !upgrades && !now.is_misplaced {
            return Ok(Resolved::There(there.packages_of(&wanted)));
        }
        let keeps = if upgrades { BTreeMap::new() } else { there.keeps(&missing) };
        // What is there, in the image or in the set, need not be asked for.
        let wanted: Vec<Requirement> = match upgrades {
            true => wanted,
            false => missing.into_iter().cloned().collect(),
        };
        let sets = packages.names(&own.name);
        let before = asked.iter().filter(|text| {
            // A new requirement takes the place of the one of before. A set of the configuration stays, also if a package has its name.
            let read = requirement::parse(interpreter, text);
            sets.iter().any(|set| set == text.trim())
                || !read.is_ok_and(|read| wanted.iter().any(|wanted| wanted.name == read.name))
        });
        let before: Vec<String> = before.cloned().collect();
        let plan = Wish { before, wanted, keeps };
        let found = plan.find(&packages, own, client, say).await;
        let bound = match found {
            Ok(bound) => bound,
            Err(NotInstalled::Refused(refusal))
                if refusal.kind() == "no_match" && !plan.keeps.is_empty() =>
            {
                let kept = plan.keeps.iter().map(|(name, version)| format!("{name} {version}"));
                return Err(NotInstalled::Kept(refusal, shown(&kept.collect::<Vec<_>>())));
            }
            Err(error) => return Err(error),
        };
        let stored = packages.stored_set(&bound.set.hash).await;
        let locked = stored.map_or_else(Vec::new, |stored| stored.packages);
        let list: Vec<_> = locked
            .into_iter()
            .map(|it| InstalledPackage { name: it.name, version: it.version })
            .collect();
        let is_same = now.bound.as_ref().is_some_and(|it| it.hash == bound.set.hash);
        if is_same && !now.is_misplaced {
            return Ok(Resolved::There(list));
        }
        let is_new = |it: &&InstalledPackage| there.versions.get(&it.name) != Some(&it.version);
        let new = list.iter().filter(is_new).map(|it| it.name.clone()).collect();
        Ok(Resolved::Set(Box::new(NewSet { bound, packages: list, new, _turn: turn })))
    }
}

/// The packages that a sandbox has.
struct There {
    set: Option<StoredSet>,
    /// Those of the image.
    image: BTreeMap<String, String>,
    /// The version of each: that of the set, or of the image.
    versions: BTreeMap<String, String>,
}

impl There {
    async fn find(packages: &Packages, language: &Language, bound: Option<&SandboxSet>) -> Self {
        let set = match bound {
            Some(bound) => packages.stored_set(&bound.hash).await,
            None => None,
        };
        let image = match language.kernel {
            Some(Interpreter::Python) => packages.image_packages(language).await,
            _ => BTreeMap::new(),
        };
        let mut versions = image.clone();
        let locked = set.iter().flat_map(|set| &set.packages);
        versions.extend(locked.map(|it| (it.name.clone(), it.version.clone())));
        Self { set, image, versions }
    }

    fn satisfies(&self, wanted: &Requirement, asked: &[String]) -> bool {
        match &self.set {
            Some(set)
                if set.interpreter == Interpreter::Node
                    || set.packages.iter().any(|it| it.name == wanted.name) =>
            {
                satisfies::satisfies(set, wanted)
            }
            // The name of a set of the configuration is no package.
            _ => asked.contains(&wanted.text) || satisfies::has_version(&self.image, wanted),
        }
    }

    /// The packages of these names.
    fn packages_of(&self, wanted: &[Requirement]) -> Vec<InstalledPackage> {
        let found = wanted.iter().filter_map(|wanted| self.versions.get_key_value(&wanted.name));
        found
            .map(|(name, version)| InstalledPackage {
                name: name.clone(),
                version: version.clone(),
            })
            .collect()
    }

    /// The versions that stay, of all packages of the set but these. A package of npm that is there in several versions is left out.
    fn keeps(&self, changed: &[&Requirement]) -> BTreeMap<String, String> {
        let all = self.set.as_ref().map_or(&[][..], |set| &set.packages);
        let is_kept = |name: &str| {
            !changed.iter().any(|it| it.name == name)
                && all.iter().filter(|it| it.name == name).count() == 1
        };
        let kept = all.iter().filter(|it| is_kept(&it.name));
        kept.map(|it| (it.name.clone(), it.version.clone())).collect()
    }
}

/// The packages that a set should have.
struct Wish {
    /// The names of sets and requirements that the sandbox has, without those in whose place new ones come.
    before: Vec<String>,
    wanted: Vec<Requirement>,
    /// Versions that stay.
    keeps: BTreeMap<String, String>,
}

impl Wish {
    async fn find(
        &self,
        packages: &Packages,
        language: &Arc<Language>,
        client: &Client,
        say: Progress<'_>,
    ) -> Result<BoundSet, NotInstalled> {
        let with = |more: Vec<String>| {
            let mut asked = self.before.clone();
            asked.extend(more.into_iter().filter(|text| !self.before.contains(text)));
            asked
        };
        let get = async |asked: Vec<String>| {
            let keeps = self.keeps.clone();
            packages.check_share(language, &asked, &keeps, client).await?;
            let set = packages.get_keeping(language, &asked, keeps, client, Some(say)).await?;
            packages.note_share(client, &set).map_err(NotInstalled::ClientHasTooMany)?;
            Ok::<_, NotInstalled>(BoundSet { asked, set })
        };
        // One that is there, with the versions that its operator has chosen.
        let named = |packages: &Packages| packages.satisfying(&language.name, &self.wanted);
        if self.before.is_empty()
            && self.keeps.is_empty()
            && let Some(name) = named(packages)
        {
            return get(vec![name]).await;
        }
        let wanted: Vec<_> = self.wanted.iter().map(|it| it.text.clone()).collect();
        let own = with(wanted.clone());
        let refusal = match packages.check(language, &own) {
            Ok(()) => return get(own).await,
            Err(refusal) => refusal,
        };
        let mut name = named(packages);
        if name.is_none()
            && let Some(coming) = packages.promising(language, &self.wanted)
        {
            get(vec![coming]).await?;
            name = named(packages);
        }
        if let Some(name) = name {
            return get(with(vec![name])).await;
        }
        match refusal {
            Refusal::NoSuchSet { .. } | Refusal::OtherLanguage { .. } | Refusal::NoPackages(_) => {
                Err(NotInstalled::Off {
                    missing: shown(&wanted),
                    language: language.name.clone(),
                    sets: packages.names(&language.name),
                })
            }
            refusal => Err(refusal.into()),
        }
    }
}
