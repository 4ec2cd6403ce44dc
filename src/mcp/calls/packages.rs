//! The packages of a call: what it asks for becomes one set, which is built if it is not there.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isolator_pool::lock::lock;
use isolator_pool::packages::PackageSet;
use isolator_pool::pool::admission::Client;
use isolator_pool::quote::quoted;
use pep440_rs::{Version, VersionSpecifiers};

use super::{Answer, Calls, Tell};
use crate::audit::Note;
use crate::config::Language;
use crate::mcp::tool_result;
use crate::packages::{Asked, Refusal};
use crate::request::arguments::InvalidArgument;
use crate::request::packages::{Wanted, WantedPackages};
use crate::requirement::{self, MOST_SHOWN, Requirement, shown};
use crate::result::receipt::UsedPackages;
use crate::sessions::BoundSet;

/// What a call gets.
#[derive(Debug, Default)]
pub(super) struct Got {
    /// The set, if it gets one.
    pub bound: Option<BoundSet>,
    /// How long it took until the set was there.
    pub waited: Duration,
    /// What the caller should know of it.
    pub notes: Vec<String>,
}

impl Got {
    /// Tells the caller and the audit log of it. Returns the set for the program.
    pub(super) fn told(
        &mut self,
        notes: &mut Vec<String>,
        note: &mut Note,
    ) -> Option<Arc<PackageSet>> {
        notes.append(&mut self.notes);
        let bound = self.bound.as_ref()?;
        note.packages(&bound.asked, &bound.set.hash);
        Some(Arc::clone(&bound.set))
    }

    /// The same for the receipt.
    pub(super) fn used(&self) -> Option<UsedPackages> {
        self.bound.as_ref().map(|bound| UsedPackages {
            sets: bound.asked.clone(),
            hash: bound.set.hash.clone(),
            waited: self.waited,
        })
    }
}

impl Calls {
    /// The packages that a program needs. Waits for them as long as that takes, or as long as `patience` if there is one.
    /// Dropping the future leaves a build running, because whoever asks again needs it.
    ///
    /// # Errors
    ///
    /// The answer to the call, if it does not get what it names.
    pub(super) async fn packages_for(
        &self,
        language: &Arc<Language>,
        wanted: WantedPackages,
        client: &Client,
        tell: Option<&Tell>,
        patience: Option<Duration>,
    ) -> Result<Got, Answer> {
        let WantedPackages { wanted, requires_python, mut notes } = wanted;
        let (names, field) = match wanted {
            Wanted::Nothing => (Vec::new(), ""),
            Wanted::Named { names, field } => {
                let names = self.packages.needed_of(language, names, &mut notes).await;
                if !names.is_empty() && self.image_has(language, &names).await {
                    let names = names.join(", ");
                    notes.push(format!("the image has {names} already, so nothing was installed"));
                    (Vec::new(), "")
                } else {
                    (names, field)
                }
            }
            Wanted::Dependencies(texts) => {
                let texts = self.packages.needed_of(language, texts, &mut notes).await;
                match self.set_for(language, &texts, client, tell, patience).await {
                    Ok(names) => (names, "entrypoint_code"),
                    Err(note) => {
                        notes.push(note);
                        (Vec::new(), "")
                    }
                }
            }
        };
        let mut got = Got { notes, ..Got::default() };
        if !names.is_empty() {
            let began = Instant::now();
            let set = self.get(language, &names, field, client, tell, patience).await?;
            got.waited = began.elapsed();
            got.bound = Some(BoundSet { asked: names, set });
        }
        if let Some(tell) = tell {
            tell("");
        }
        if let Some(versions) = requires_python {
            got.notes.extend(self.version_note(language, &versions).await);
        }
        Ok(got)
    }

    /// What to say of the packages that a cell lists in its code. A session has those with which it was opened, so a cell gets no
    /// others.
    ///
    /// # Errors
    ///
    /// When it names sets that its session does not have: without them it is not run.
    pub(super) async fn packages_of_cell(
        &self,
        language: &Arc<Language>,
        bound: Option<&BoundSet>,
        code: &str,
    ) -> Result<Vec<String>, InvalidArgument> {
        let found = WantedPackages::new(Vec::new(), code, "entrypoint_code", language);
        let WantedPackages { wanted, requires_python, mut notes } = found;
        match wanted {
            Wanted::Nothing => {}
            Wanted::Named { names, field } => {
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
            Wanted::Dependencies(texts) => {
                let texts = self.packages.needed_of(language, texts, &mut notes).await;
                notes.extend(self.note_of_cell(language, bound, &texts).await);
            }
        }
        if let Some(versions) = requires_python {
            notes.extend(self.version_note(language, &versions).await);
        }
        Ok(notes)
    }

    /// What to say of a cell's dependencies, unless they are there.
    async fn note_of_cell(
        &self,
        language: &Arc<Language>,
        bound: Option<&BoundSet>,
        texts: &[String],
    ) -> Option<String> {
        let told = |advice: &str| {
            Some(format!(
                "the cell's dependencies ({}) were not installed, so it ran with what its session has: {advice}",
                shown(texts)
            ))
        };
        let interpreter = language.kernel.filter(|_| !texts.is_empty())?;
        let parse = |text: &String| requirement::parse(interpreter, text);
        let wanted = match texts.iter().map(parse).collect::<Result<Vec<_>, _>>() {
            Ok(wanted) => wanted,
            Err(error) => return told(&error.to_string()),
        };
        let is_bound = match bound {
            Some(bound) => self.packages.has_all(&bound.set.hash, &wanted).await,
            None => false,
        };
        if is_bound || self.packages.in_image(language, &wanted).await {
            return None;
        }
        let fitting = self.packages.satisfying(&language.name, &wanted);
        let asked = Asked { names_or_requirements: texts.to_vec() };
        match fitting.or_else(|| self.packages.promising(language, &wanted)) {
            Some(name) => told(&open_with(&[name])),
            None if self.packages.check(language, &asked).is_ok() => told(&open_with(texts)),
            None => told(&self.no_set_has_them(language)),
        }
    }

    /// Whether a call asks only for packages that the image has, by requirements and not by names of sets.
    async fn image_has(&self, language: &Arc<Language>, names: &[String]) -> bool {
        let sets = self.packages.names(&language.name);
        let is_requirement = |name: &String| !sets.iter().any(|set| set == name.trim());
        let asked = Asked { names_or_requirements: names.to_vec() };
        let Some(interpreter) = language.kernel else { return false };
        // What can't be asked for is refused, wherever it is.
        if !names.iter().all(is_requirement) || self.packages.check(language, &asked).is_err() {
            return false;
        }
        let parse = |text: &String| requirement::parse(interpreter, text).ok();
        let wanted: Option<Vec<_>> = names.iter().map(parse).collect();
        match wanted {
            Some(wanted) => self.packages.in_image(language, &wanted).await,
            None => false,
        }
    }

    fn no_set_has_them(&self, language: &Language) -> String {
        let sets = self.packages.names(&language.name);
        match sets.is_empty() {
            true => "this server has no packages besides".to_owned(),
            false => format!(
                "no set of packages has all of them; the sets for {} are {}",
                language.name,
                sets.join(", ")
            ),
        }
    }

    /// Checks what a call names, without building anything.
    ///
    /// # Errors
    ///
    /// When it can't be used.
    pub(super) async fn check_packages(
        &self,
        language: &Language,
        names: Vec<String>,
    ) -> Result<(), InvalidArgument> {
        let names = self.packages.needed(language, names).await;
        if names.is_empty() {
            return Ok(());
        }
        let asked = Asked { names_or_requirements: names };
        self.packages
            .check(language, &asked)
            .map_err(|refusal| InvalidArgument::new("packages", refusal.to_string()))
    }

    async fn get(
        &self,
        language: &Arc<Language>,
        names: &[String],
        field: &str,
        client: &Client,
        tell: Option<&Tell>,
        patience: Option<Duration>,
    ) -> Result<Arc<isolator_pool::packages::PackageSet>, Answer> {
        let asked = Asked { names_or_requirements: names.to_vec() };
        let last = Mutex::new(None);
        let say = |line: &str| {
            *lock(&last) = Some(line.to_owned());
            if let Some(tell) = tell {
                tell(line);
            }
        };
        let getting = self.packages.get(language, &asked, client, Some(&say));
        let got = match patience {
            None => getting.await,
            Some(patience) => match tokio::time::timeout(patience, getting).await {
                Ok(got) => got,
                Err(_) => {
                    let step = lock(&last).clone();
                    return Err(Ok(tool_result::packages_coming(patience, step.as_deref())));
                }
            },
        };
        got.map_err(|refusal| {
            if !refusal.is_of_arguments() {
                return Ok(tool_result::no_packages(&refusal));
            }
            let message = match field {
                "packages" => refusal.to_string(),
                _ => format!("in its block \"# /// script\", {refusal}"),
            };
            Err(InvalidArgument::new(field, message))
        })
    }

    /// What to ask for so that a program's dependencies are there: a set that has them, or they themselves if they can be
    /// asked for. The error is a note for the caller; the program runs all the same.
    async fn set_for(
        &self,
        language: &Arc<Language>,
        texts: &[String],
        client: &Client,
        tell: Option<&Tell>,
        patience: Option<Duration>,
    ) -> Result<Vec<String>, String> {
        let told = |why: &str| {
            format!(
                "the program's dependencies ({}) were not installed, so it ran with what the image has: {why}",
                shown(texts)
            )
        };
        let Some(interpreter) = language.kernel else {
            return Err(told("its language has no packages"));
        };
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let parse = |text: &String| requirement::parse(interpreter, text);
        let wanted: Result<Vec<Requirement>, _> = texts.iter().map(parse).collect();
        let wanted = wanted.map_err(|error| told(&error.to_string()))?;
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
            let _ = self.get(language, &names, "packages", client, tell, patience).await;
            if let Some(name) = self.packages.satisfying(&language.name, &wanted) {
                return Ok(vec![name]);
            }
        }
        if self.config.packages.on_demand.is_some() {
            let asked = Asked { names_or_requirements: texts.to_vec() };
            let refused = |refusal: Refusal| told(&refusal.to_string());
            self.packages.check(language, &asked).map_err(refused)?;
            // If that fails, the program may still do with what the image has.
            let getting = self.get(language, texts, "packages", client, tell, patience).await;
            return match getting {
                Ok(_) => Ok(texts.to_vec()),
                Err(Err(error)) => Err(told(&error.message)),
                Err(Ok(answer)) => Err(told(&first_text(&answer))),
            };
        }
        Err(told(&self.no_set_has_them(language)))
    }

    /// What to say of a program that is for other versions of Python than the image has.
    async fn version_note(&self, language: &Arc<Language>, wanted: &str) -> Option<String> {
        let Ok(versions) = wanted.parse::<VersionSpecifiers>() else {
            return Some(
                "the program's requires-python can't be read, so it was ignored".to_owned(),
            );
        };
        let version = self.packages.version(language).await?;
        let is_other = !versions.contains(&version.parse::<Version>().ok()?);
        is_other.then(|| {
            format!("the program is for Python {versions}, and this is Python {version}; it was run all the same")
        })
    }
}

/// How to get a session that has these.
fn open_with(names: &[String]) -> String {
    let names: Vec<_> = names.iter().take(MOST_SHOWN).map(|name| quoted(name)).collect();
    format!("open a session with them (open_session with packages [{}])", names.join(", "))
}

/// The first line of an answer's text.
fn first_text(answer: &rmcp::model::CallToolResult) -> String {
    let text = answer.content.iter().find_map(|block| block.as_text());
    let text = text.map(|text| text.text.as_str()).unwrap_or_default();
    let line = text.split("\n\n").next().unwrap_or_default();
    line.trim_start_matches("Packages error: ").to_owned()
}
