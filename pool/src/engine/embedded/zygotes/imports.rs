//! The cost of imports, as templates measured it, and the modules that interpreters have from the start.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// Maximum number of modules whose cost is remembered, of all images. Then all are forgotten and measured again.
const MOST_KNOWN: usize = 4096;

/// The cost of an import, in thousandths of the CPU time of a start without imports.
pub(super) type Cost = u32;

/// The minimum cost of imports for which a program gets a fork that was made for them and not the one that waits.
pub(super) const WORTH_A_FORK: Cost = 500;

/// The minimum cost of imports for which a template is kept: as much as a start, which takes about as long as a fork and
/// what follows it, on a slow or busy machine as on others.
const WORTH_A_TEMPLATE: Cost = 1000;

/// The cost of an import that was not measured.
const UNKNOWN: Cost = 1000;

/// The report of a template that is ready: see `sitecustomize.py`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ready<'a> {
    /// CPU time of its start, before the imports.
    start: Duration,
    /// The version of the interpreter.
    version: &'a str,
    /// Its imports, in their order.
    imports: Vec<Import<'a>>,
    /// The folders that it looks for modules in, as they are called there, and the ends of the files of modules.
    places: Vec<&'a str>,
    endings: Vec<&'a str>,
    /// All modules that it has now.
    loaded: Vec<&'a str>,
}

#[derive(Debug, PartialEq, Eq)]
struct Import<'a> {
    name: &'a str,
    /// CPU time; `None` if the image has no such module.
    time: Option<Duration>,
    /// Whether it is a part of the standard library. These import only each other, so each has its cost for itself.
    is_standard: bool,
}

impl<'a> Ready<'a> {
    /// Parses four lines: `ready`, the nanoseconds of the start, and the version; each import as its name, `=`, and nanoseconds, with `!` for
    /// the standard library, or nothing if it is missing; the folders in which modules are, and the ends of their files, which
    /// begin with a dot; the names of all modules.
    pub(super) fn parse(said: &'a str) -> Option<Self> {
        let mut lines = said.lines();
        let (start, version) = lines.next()?.strip_prefix("ready ")?.split_once(' ')?;
        let start = Duration::from_nanos(start.parse().ok()?);
        let import = |word: &'a str| {
            let (name, time) = word.split_once('=')?;
            let (time, is_standard) = match time.strip_suffix('!') {
                Some(time) => (time, true),
                None => (time, false),
            };
            let time = match time {
                "" => None,
                time => Some(Duration::from_nanos(time.parse().ok()?)),
            };
            Some(Import { name, time, is_standard })
        };
        let imports = lines.next()?.split_whitespace().map(import).collect::<Option<_>>()?;
        let mut words = || lines.next().unwrap_or_default().split_whitespace();
        let (endings, places) = words().partition(|word| word.starts_with('.'));
        let loaded = words().collect();
        Some(Self { start, version, imports, places, endings, loaded })
    }

    /// The modules that the image does not have.
    pub(super) fn missing(&self) -> Vec<&'a str> {
        let missing = self.imports.iter().filter(|import| import.time.is_none());
        missing.map(|import| import.name).collect()
    }

    /// Whether a fork of it saves something, compared with a new interpreter.
    pub(super) fn is_worth_it(&self) -> bool {
        self.cost(self.imports.iter().filter_map(|import| import.time).sum()) >= WORTH_A_TEMPLATE
    }

    /// The CPU time of its start and its imports.
    pub(super) fn cpu(&self) -> Duration {
        self.start + self.imports.iter().filter_map(|import| import.time).sum::<Duration>()
    }

    fn cost(&self, time: Duration) -> Cost {
        let start = self.start.as_nanos().max(1);
        Cost::try_from(time.as_nanos() * 1000 / start).unwrap_or(Cost::MAX)
    }

    /// The facts about it that later programs need.
    pub(super) fn known(&self) -> TemplateModules {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let (places, endings) = (owned(&self.places), owned(&self.endings));
        let loaded = owned(&self.loaded).into_iter().collect();
        TemplateModules { version: self.version.to_owned(), loaded, places, endings }
    }
}

/// The modules that a template has, and where it looks for them.
#[derive(Debug, Default)]
pub(super) struct TemplateModules {
    /// The version of the interpreter.
    pub(super) version: String,
    /// All modules that it has.
    pub(super) loaded: HashSet<String>,
    /// The folders in which modules are, and the ends of their files.
    pub(super) places: Vec<String>,
    pub(super) endings: Vec<String>,
}

impl TemplateModules {
    /// Whether it has a module, or a name of one that is a module itself.
    pub(super) fn has(&self, module: &str) -> bool {
        self.loaded.contains(module) || self.loaded.contains(&module.replace(':', "."))
    }
}

/// The costs of the modules of the standard library, by the digest of their image. Those of others depend on earlier imports.
#[derive(Debug, Default)]
pub(super) struct Costs(HashMap<(String, String), Cost>);

impl Costs {
    /// Adds the measurements of a template of an image.
    pub(super) fn learn(&mut self, digest: &str, ready: &Ready<'_>) {
        if self.0.len() + ready.imports.len() > MOST_KNOWN {
            self.0.clear();
        }
        for import in ready.imports.iter().filter(|import| import.is_standard) {
            let Some(time) = import.time else { continue };
            self.0.insert((digest.to_owned(), import.name.to_owned()), ready.cost(time));
        }
    }

    /// The cost of importing a module of an image.
    pub(super) fn of(&self, digest: &str, module: &str) -> Cost {
        self.0.get(&(digest.to_owned(), module.to_owned())).copied().unwrap_or(UNKNOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "ready 10000000 3.13.5\njson=3000000! asyncio=20000000! nowhere= yaml=4000000\n\
        /usr/lib/python3 .py .abi3.so\nsys json yaml collections.abc\n";

    #[test]
    fn the_report_of_a_template_is_parsed() {
        let ready = Ready::parse(SAID).unwrap();
        assert_eq!(ready.missing(), ["nowhere"]);
        let known = ready.known();
        assert_eq!((known.places, known.endings.len()), (vec!["/usr/lib/python3".to_owned()], 2));
        let known = ready.known();
        let has = ["json", "csv", "collections:abc", "collections:deque"].map(|it| known.has(it));
        assert_eq!(has, [true, false, true, false]);
        assert_eq!(Ready::parse("ready 1 3\n\n").unwrap().imports, []);
        for wrong in [
            "",
            "ready",
            "ready x 3\n\n",
            "ready 1 3",
            "ready 1\n\n",
            "ready 1 3\nmodule\n",
            "ready 1 3\na=b\n",
        ] {
            assert_eq!(Ready::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn imports_are_worth_a_template_if_they_take_longer_than_starts() {
        assert!(Ready::parse(SAID).unwrap().is_worth_it());
        assert!(!Ready::parse("ready 10000000 3.13.5\njson=3000000!\n").unwrap().is_worth_it());
    }

    #[test]
    fn only_modules_of_the_standard_library_have_a_cost_of_their_own() {
        let mut costs = Costs::default();
        costs.learn("image", &Ready::parse(SAID).unwrap());
        let of = ["json", "asyncio", "nowhere", "yaml", "os"].map(|name| costs.of("image", name));
        assert_eq!(of, [300, 2000, UNKNOWN, UNKNOWN, UNKNOWN]);
        assert_eq!(costs.of("another", "json"), UNKNOWN);
    }

    #[test]
    fn the_number_of_known_modules_is_bounded() {
        let mut costs = Costs::default();
        for number in 0..MOST_KNOWN * 2 {
            costs.learn("image", &Ready::parse(&format!("ready 9 3\nm{number}=1!\n")).unwrap());
            assert!(costs.0.len() <= MOST_KNOWN);
        }
    }
}
