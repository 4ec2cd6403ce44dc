//! The packages of `isolator run` and `isolator session`: they are there, or built, before a sandbox is asked for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isolator_pool::packages::PackageSet;
use isolator_pool::pool::admission::Client;
use isolator_pool::pool::pools::Pools;

use crate::app;
use crate::commands::steps::Steps;
use crate::commands::{complain, told};
use crate::config::{Config, Language};
use crate::packages::{Asked, Packages};
use crate::request::packages::{Wanted, WantedPackages};
use crate::requirement::{self, shown};

/// The packages that a program was given.
pub(super) struct Given {
    /// What was asked for.
    pub asked: Vec<String>,
    /// The set with all of it.
    pub set: Arc<PackageSet>,
    /// How long it took until it was there.
    pub waited: Duration,
}

/// Gives programs their packages.
pub(super) struct WantedSets {
    packages: Packages,
    is_quiet: bool,
}

impl WantedSets {
    /// For sandboxes of these pools.
    ///
    /// # Errors
    ///
    /// When the store of sets can't be opened.
    pub(super) fn new(
        config: &Arc<Config>,
        pools: &Arc<Pools>,
        is_quiet: bool,
    ) -> anyhow::Result<Self> {
        let packages = match config.packages.is_used() {
            true => {
                let store = app::package_store()?;
                Packages::new(Arc::clone(config), Arc::clone(pools), store, true)
            }
            false => Packages::unused(Arc::clone(config), true),
        };
        Ok(Self { packages, is_quiet })
    }

    /// What a program asks for, as one set. Dropping the future and then this ends a build.
    ///
    /// # Errors
    ///
    /// When it can't have what was named on the command line or by the program. If only its dependencies are not there, it can
    /// still do with what the image has.
    pub(super) async fn of(
        &self,
        language: &Arc<Language>,
        wanted: WantedPackages,
    ) -> anyhow::Result<Option<Given>> {
        let WantedPackages { wanted, mut notes, .. } = wanted;
        let (asked, is_named) = match wanted {
            Wanted::Nothing => (Vec::new(), false),
            Wanted::Named { names, .. } => (names, true),
            Wanted::Dependencies(texts) => (texts, false),
        };
        let needed = match asked.is_empty() {
            true => asked,
            false => self.packages.needed_of(language, asked, &mut notes).await,
        };
        self.tell(&notes);
        if needed.is_empty() {
            return Ok(None);
        }
        if is_named {
            return Ok(Some(self.get(language, needed).await?));
        }
        let error = match self.with_dependencies(language, &needed).await {
            Ok(given) => return Ok(given),
            Err(error) => error,
        };
        let texts = shown(&needed);
        let note = format!(
            "the program's dependencies ({texts}) are not there, so it runs with what the image has: {}",
            told(&error)
        );
        self.tell(&[note]);
        Ok(None)
    }

    /// The sets that can be named in advice to a program that failed: those that are there.
    pub(super) async fn known(&self, config: &Config, language: &Language) -> &Packages {
        if config.packages.is_used() && language.kernel.is_some() {
            self.packages.look(&language.name).await;
        }
        &self.packages
    }

    /// Ends what is being built.
    pub(super) async fn close(&self) {
        self.packages.close().await;
    }

    /// A set that has what a program depends on, or else just that, if the configuration allows it. None if the image has all of it.
    async fn with_dependencies(
        &self,
        language: &Arc<Language>,
        texts: &[String],
    ) -> anyhow::Result<Option<Given>> {
        let interpreter = language.kernel;
        let interpreter = interpreter.ok_or_else(|| anyhow::anyhow!("its language has none"))?;
        let parse = |text: &String| requirement::parse(interpreter, text);
        let wanted = texts.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        if self.packages.in_image(language, &wanted).await {
            return Ok(None);
        }
        self.packages.look(&language.name).await;
        if let Some(name) = self.packages.satisfying(&language.name, &wanted) {
            return self.get(language, vec![name]).await.map(Some);
        }
        if let Some(name) = self.packages.promising(language, &wanted) {
            let given = self.get(language, vec![name.clone()]).await?;
            if self.packages.satisfying(&language.name, &wanted) == Some(name) {
                return Ok(Some(given));
            }
        }
        self.get(language, texts.to_vec()).await.map(Some)
    }

    async fn get(&self, language: &Arc<Language>, names: Vec<String>) -> anyhow::Result<Given> {
        let what = format!("the set of packages for {}", names.join(", "));
        let steps = Steps::new(what, "is built, which is done once");
        let say = |line: &str| {
            if !self.is_quiet {
                steps.show(line);
            }
        };
        let asked = Asked { names_or_requirements: names.clone() };
        let began = Instant::now();
        let client = Client::Host;
        let set = steps.follow(self.packages.get(language, &asked, &client, Some(&say))).await?;
        Ok(Given { asked: names, set, waited: began.elapsed() })
    }

    fn tell(&self, notes: &[String]) {
        for note in notes.iter().filter(|_| !self.is_quiet) {
            complain(&format!("isolator: {note}"));
        }
    }
}
