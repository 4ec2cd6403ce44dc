//! The packages of a call: what it asks for becomes one set, which is built if it is not there.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isolator_pool::lock::lock;
use isolator_pool::packages::PackageSet;
use isolator_pool::quote::quoted;
use pep440_rs::{Version, VersionSpecifiers};

use super::{Call, CallError, Calls};
use crate::audit::Note;
use crate::config::Language;
use crate::packages::installing::{BoundSet, SandboxPackages, SandboxSet};
use crate::packages::{Packages, Refusal};
use crate::request::arguments::InvalidArgument;
use crate::request::packages::{PackageRequest, WantedPackages};
use crate::requirement::{self, MOST_SHOWN, shown};
use crate::result::receipt::UsedPackages;

/// The packages that a call gets.
#[derive(Debug, Default)]
pub(crate) struct GrantedPackages {
    /// The set, if it gets one.
    pub bound: Option<BoundSet>,
    /// How long it took until the set was there.
    pub waited: Duration,
    pub notes: Vec<String>,
}

impl GrantedPackages {
    /// The set for the program.
    pub(crate) fn set(&self) -> Option<Arc<PackageSet>> {
        self.bound.as_ref().map(|bound| Arc::clone(&bound.set))
    }

    /// The packages of a sandbox that begins with these.
    pub(super) fn in_sandbox(
        &self,
        packages: &Packages,
        language: &Arc<Language>,
        call: &Call,
    ) -> SandboxPackages {
        SandboxPackages::new(packages, language, &call.client, self.bound.clone())
    }

    /// The names and requirements that were asked for.
    pub(super) fn asked(&self) -> &[String] {
        self.bound.as_ref().map_or(&[], |bound| &bound.asked)
    }

    /// Notes them for the audit log.
    pub(super) fn note(&self, note: &mut Note) {
        if let Some(bound) = &self.bound {
            note.packages(&bound.asked, &bound.set.hash);
        }
    }

    /// Describes them for the receipt.
    pub(super) fn used(&self) -> Option<UsedPackages> {
        self.bound.as_ref().map(|bound| UsedPackages {
            sets: bound.asked.clone(),
            hash: bound.set.hash.clone(),
            waited: self.waited,
        })
    }
}

impl Calls {
    /// The packages that a program needs. Waits until they are there, or up to `max_wait` if it is given. Dropping the future
    /// leaves a build running, because the next call for the same packages needs it.
    ///
    /// # Errors
    ///
    /// When the packages that the call names are refused or not there in time.
    pub(crate) async fn packages_for(
        &self,
        language: &Arc<Language>,
        wanted: WantedPackages,
        call: &Call,
        max_wait: Option<Duration>,
    ) -> Result<GrantedPackages, CallError> {
        let WantedPackages { wanted, requires_python, mut notes, awaits_dependencies } = wanted;
        let (names, field) = match wanted {
            PackageRequest::Nothing => (Vec::new(), ""),
            PackageRequest::Named { names, field } => {
                let names = self.packages.needed_of(language, names, &mut notes).await;
                if !names.is_empty() && self.image_has(language, &names).await {
                    let names = names.join(", ");
                    notes.push(format!("the image has {names} already, so nothing was installed"));
                    (Vec::new(), "")
                } else {
                    (names, field)
                }
            }
            PackageRequest::Dependencies(texts) => {
                let texts = self.packages.needed_of(language, texts, &mut notes).await;
                let found =
                    self.set_for(language, &texts, call, max_wait, awaits_dependencies).await;
                let names = match found {
                    Ok(names) => names,
                    Err(Unmet::Call(coming @ CallError::PackagesComing { .. }))
                        if awaits_dependencies =>
                    {
                        return Err(coming);
                    }
                    Err(unmet) => {
                        notes.push(format!(
                            "the program's dependencies ({}) were not installed, so it ran with what the image has: {unmet}",
                            shown(&texts)
                        ));
                        Vec::new()
                    }
                };
                (names, "entrypoint_code")
            }
        };
        let mut granted = GrantedPackages { notes, ..GrantedPackages::default() };
        if !names.is_empty() {
            let began = Instant::now();
            let set = self.get(language, &names, call, max_wait).await;
            let set = set.map_err(|error| error.in_field(field))?;
            granted.waited = began.elapsed();
            granted.bound = Some(BoundSet { asked: names, set });
        }
        if let Some(steps) = &call.steps {
            steps("");
        }
        if let Some(versions) = requires_python {
            granted.notes.extend(self.version_note(language, &versions).await);
        }
        Ok(granted)
    }

    /// Remarks on the packages that a cell lists in its code. It gets no others than its session has.
    ///
    /// # Errors
    ///
    /// When it names sets that its session does not have: without them it is not run.
    pub(super) async fn packages_of_cell(
        &self,
        language: &Arc<Language>,
        bound: Option<&SandboxSet>,
        code: &str,
    ) -> Result<Vec<String>, InvalidArgument> {
        let found = WantedPackages::new(Vec::new(), code, "entrypoint_code", language);
        let WantedPackages { wanted, requires_python, mut notes, .. } = found;
        match wanted {
            PackageRequest::Nothing => {}
            PackageRequest::Named { names, field } => {
                let names = self.packages.needed_of(language, names, &mut notes).await;
                let has = |name: &String| bound.is_some_and(|bound| bound.asked.contains(name));
                if !names.iter().all(has) {
                    let message = format!(
                        "in its block \"# /// script\", the cell asks for packages that its session does not have: {}",
                        open_with(&names)
                    );
                    return Err(InvalidArgument::new(field, message));
                }
            }
            PackageRequest::Dependencies(texts) => {
                let texts = self.packages.needed_of(language, texts, &mut notes).await;
                notes.extend(self.note_of_cell(language, bound, &texts).await);
            }
        }
        if let Some(versions) = requires_python {
            notes.extend(self.version_note(language, &versions).await);
        }
        Ok(notes)
    }

    /// A remark on a cell's dependencies, unless they are there.
    async fn note_of_cell(
        &self,
        language: &Arc<Language>,
        bound: Option<&SandboxSet>,
        texts: &[String],
    ) -> Option<String> {
        let note = |advice: &str| {
            Some(format!(
                "the cell's dependencies ({}) were not installed, so it ran with what its session has: {advice}",
                shown(texts)
            ))
        };
        let interpreter = language.kernel.filter(|_| !texts.is_empty())?;
        let wanted = match requirement::parse_all(interpreter, texts) {
            Ok(wanted) => wanted,
            Err(error) => return note(&error.to_string()),
        };
        let is_bound = match bound {
            Some(bound) => self.packages.has_all(&bound.hash, &wanted).await,
            None => false,
        };
        if is_bound || self.packages.in_image(language, &wanted).await {
            return None;
        }
        let fitting = self.packages.satisfying(&language.name, &wanted);
        match fitting.or_else(|| self.packages.promising(language, &wanted)) {
            Some(name) => note(&open_with(&[name])),
            None if self.packages.check(language, texts).is_ok() => note(&open_with(texts)),
            None => note(&self.no_set_has_them(language).to_string()),
        }
    }

    /// Whether a call asks only for packages that the image has, by requirements and not by names of sets.
    async fn image_has(&self, language: &Arc<Language>, names: &[String]) -> bool {
        let sets = self.packages.names(&language.name);
        let is_requirement = |name: &String| !sets.iter().any(|set| set == name.trim());
        let Some(interpreter) = language.kernel else { return false };
        // A requirement that can't be asked for is refused even if the image has it.
        if !names.iter().all(is_requirement) || self.packages.check(language, names).is_err() {
            return false;
        }
        match requirement::parse_all(interpreter, names) {
            Ok(wanted) => self.packages.in_image(language, &wanted).await,
            Err(_) => false,
        }
    }

    fn no_set_has_them(&self, language: &Language) -> Unmet {
        let sets = self.packages.names(&language.name);
        Unmet::NoSet { language: language.name.clone(), sets }
    }

    async fn get(
        &self,
        language: &Arc<Language>,
        names: &[String],
        call: &Call,
        max_wait: Option<Duration>,
    ) -> Result<Arc<PackageSet>, CallError> {
        let last = Mutex::new(None);
        let say = |line: &str| {
            *lock(&last) = Some(line.to_owned());
            if let Some(steps) = &call.steps {
                steps(line);
            }
        };
        let getting = self.packages.get(language, names, &call.client, Some(&say));
        let Some(max_wait) = max_wait else { return Ok(getting.await?) };
        match tokio::time::timeout(max_wait, getting).await {
            Ok(got) => Ok(got?),
            Err(_) => {
                let step = lock(&last).clone();
                Err(CallError::PackagesComing { waited: max_wait, step })
            }
        }
    }

    /// The names to ask for so that a program's dependencies are there: a set that has them, or they themselves if they can be
    /// asked for. The program runs without them, too.
    async fn set_for(
        &self,
        language: &Arc<Language>,
        texts: &[String],
        call: &Call,
        max_wait: Option<Duration>,
        awaits_dependencies: bool,
    ) -> Result<Vec<String>, Unmet> {
        let interpreter = language.kernel.ok_or(Unmet::NoPackages)?;
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = requirement::parse_all(interpreter, texts)?;
        // Then it also gets an interpreter that has imported what the image has.
        if self.packages.in_image(language, &wanted).await {
            return Ok(Vec::new());
        }
        if let Some(name) = self.packages.satisfying(&language.name, &wanted) {
            return Ok(vec![name]);
        }
        // One that is not there yet may have them.
        if let Some(name) = self.packages.promising(language, &wanted) {
            let names = [name];
            let got = self.get(language, &names, call, max_wait).await;
            if let (Err(coming @ CallError::PackagesComing { .. }), true) =
                (got, awaits_dependencies)
            {
                return Err(coming.into());
            }
            if let Some(name) = self.packages.satisfying(&language.name, &wanted) {
                return Ok(vec![name]);
            }
        }
        if self.config.packages.on_demand().is_none() {
            return Err(self.no_set_has_them(language));
        }
        self.packages.check(language, texts)?;
        // If that fails, the program may still do with what the image has.
        self.get(language, texts, call, max_wait).await?;
        Ok(texts.to_vec())
    }

    /// A remark on a program that is for other versions of Python than the image has.
    async fn version_note(&self, language: &Arc<Language>, wanted: &str) -> Option<String> {
        let Ok(versions) = wanted.parse::<VersionSpecifiers>() else {
            return Some(
                "the program's requires-python can't be read, so it was ignored".to_owned(),
            );
        };
        let version = self.packages.version(language).await?;
        let is_other = !versions.contains(&version.parse::<Version>().ok()?);
        is_other.then(|| {
            format!("the program is for Python {versions}, and this is Python {version}; it was run anyway")
        })
    }
}

/// How to get a session that has these.
fn open_with(names: &[String]) -> String {
    let names: Vec<_> = names.iter().take(MOST_SHOWN).map(|name| quoted(name)).collect();
    format!("open a session with them (open_session with packages [{}])", names.join(", "))
}

/// Why a program runs without its dependencies.
#[derive(Debug, thiserror::Error)]
enum Unmet {
    #[error("its language has no packages")]
    NoPackages,
    #[error("{}", no_set(.language, .sets))]
    NoSet { language: String, sets: Vec<String> },
    #[error(transparent)]
    Unreadable(#[from] requirement::BadRequirement),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Call(#[from] CallError),
}

fn no_set(language: &str, sets: &[String]) -> String {
    match sets.is_empty() {
        true => "this server has no packages besides".to_owned(),
        false => format!(
            "no set of packages has all of them; the sets for {language} are {}",
            sets.join(", ")
        ),
    }
}
