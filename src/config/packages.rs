//! The section `packages`: sets of packages, where they come from, and packages that calls can ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use globset::{Glob, GlobBuilder, GlobSet};
use isolator_pool::engine::limits::ByteSize;
use isolator_pool::engine::preload::Interpreter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::check::Check;
use super::index::{self, Index};
use super::language::Language;
use super::section::{Mib, Text, Unit as _, duration, lossy, section};
use crate::hex::hex;
use crate::requirement;

/// Folder of the locks, in the folder of the configuration file.
const LOCK_FOLDER: &str = "isolator.lock";

/// Longest name of a set. It is the name of a folder, and appears in the schemas of tools.
const LONGEST_NAME: usize = 64;

/// Maximum number of named sets. Each is built, and appears in the schemas of tools.
const MAX_SETS: usize = 256;

/// The caches of the tools may have this part of the store's size.
const CACHE_SHARE: u64 = 4;

/// Most bytes that are read of a file of a lock. No lock is as large.
const MAX_LOCK: u64 = 32 << 20;

section! {
    /// Sets of packages, which programs can import from in addition to the packages of their image.
    #[derive(Clone)]
    pub struct PackagesConfig {
        /// Where packages come from. Without it, the tools' own configuration and environment apply.
        pub(super) index: IndexConfig = IndexConfig::default(),
        /// The sets by name. Calls ask for them with packages, such as ["text"].
        pub sets: BTreeMap<String, SetConfig> = BTreeMap::new(),
        /// Packages that calls can ask for without a set.
        pub(super) on_demand: OnDemandConfig = OnDemandConfig::default(),
        /// Total size of all sets, in MiB. The one that was unused longest is removed, but none that is named here.
        // Some hundreds of usual sets, or a few dozen with the largest native libraries.
        #[serde(rename = "maxStoreMB", with = "Mib")]
        #[schemars(with = "u64", range(min = 1, max = 1 << 30))]
        pub max_store: ByteSize = ByteSize::mib(20_480),
        /// How long resolving and installing one set can take.
        // Enough for a large set over a slow line. A build that takes longer hangs.
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        pub build_timeout: Duration = Duration::from_mins(5),
        /// How much memory a tool can take while it resolves and installs one set, with all its processes, in MiB. A package
        /// with a description that needs more is refused.
        // Several times what the largest sets in use need: uv takes a few hundred MiB for them, npm up to a GiB, and 200 MiB
        // for a handful of packages, with its own program.
        #[serde(rename = "buildMemoryMB", with = "Mib")]
        #[schemars(with = "u64", range(min = 256, max = 1 << 30))]
        pub build_memory: ByteSize = ByteSize::mib(2048),
        /// The programs that resolve and install packages.
        pub tools: ToolsConfig = ToolsConfig::default(),
        /// Where sets are kept, if several nodes share them.
        pub store: StoreConfig = StoreConfig::default(),
        /// Folder of the locks. It need not exist.
        #[serde(skip)]
        pub lock_folder: PathBuf = PathBuf::new(),
        /// A hash of the locks of the sets, as they were when the configuration was loaded.
        #[serde(skip)]
        pub locks: String = String::new(),
    }
}

section! {
    /// Where packages come from. Each language has one source, and no other.
    #[derive(Clone)]
    pub(super) struct IndexConfig {
        /// Address of an index with Python packages, or a folder of wheels, relative to this file. Credentials in it are never
        /// shown.
        #[schemars(with = "Option<String>")]
        pub(super) python: Option<Index> = None,
        /// Address of a registry with npm packages. Credentials in it are never shown.
        #[schemars(with = "Option<String>")]
        pub(super) javascript: Option<Index> = None,
    }
}

/// A set of packages of one language.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetConfig {
    /// Its name in requests.
    #[serde(skip)]
    pub name: String,
    /// The language whose programs can use it: one that runs in Python or Node.js.
    pub language: String,
    /// Its packages, in the form of the language's tools, such as ["humanize==4.*", "rapidfuzz"].
    pub requirements: Vec<String>,
}

section! {
    /// Packages that calls can ask for without a set.
    #[derive(Clone)]
    pub struct OnDemandConfig {
        /// Whether calls can ask for packages.
        pub(super) enabled: bool = false,
        /// Patterns of the names that calls can ask for, such as "types-*". The dependencies of these packages are installed
        /// with them.
        pub allow: Vec<String> = vec!["*".to_owned()],
        /// How many sets that calls have asked for are kept. The one that was unused longest is removed.
        // As many as a group of agents uses in a day.
        #[schemars(range(min = 1, max = 10_000))]
        pub max_sets: usize = 64,
        /// The patterns for names of Python packages.
        #[serde(skip)]
        python: GlobSet = GlobSet::empty(),
        /// The patterns for names of npm packages.
        #[serde(skip)]
        node: GlobSet = GlobSet::empty(),
    }
}

section! {
    /// The programs that resolve and install packages. They run no code of the packages.
    #[derive(Clone)]
    pub struct ToolsConfig {
        /// uv, for Python: a name in PATH, or a path relative to this file.
        #[serde(serialize_with = "lossy")]
        pub uv: PathBuf = "uv".into(),
        /// npm, for JavaScript: a name in PATH, or a path relative to this file.
        #[serde(serialize_with = "lossy")]
        pub npm: PathBuf = "npm".into(),
    }
}

section! {
    /// Where sets are kept.
    #[derive(Clone, PartialEq, Eq)]
    pub struct StoreConfig {
        /// Folder of the sets, relative to this file, such as one on a volume that all nodes have. Default: in the data directory of the
        /// user.
        #[serde(skip_serializing)]
        pub folder: Option<PathBuf> = None,
        /// File with a key that all nodes have, relative to this file: at least 32 bytes, such as the output of
        /// `openssl rand -hex 32`. With it, a node uses only sets that a node with the same key has built.
        #[serde(skip_serializing)]
        pub key_file: Option<PathBuf> = None,
    }
}

impl PackagesConfig {
    /// Whether calls can ask for any packages.
    pub fn is_used(&self) -> bool {
        !self.sets.is_empty() || self.on_demand.enabled
    }

    /// Where the packages of an interpreter come from, if the configuration has it.
    pub fn index(&self, interpreter: Interpreter) -> Option<&Index> {
        match interpreter {
            Interpreter::Python => self.index.python.as_ref(),
            Interpreter::Node => self.index.javascript.as_ref(),
        }
    }

    /// All sources of packages that the configuration has, each with its key.
    pub fn indexes(&self) -> impl Iterator<Item = (&'static str, &Index)> {
        [
            ("packages.index.python", &self.index.python),
            ("packages.index.javascript", &self.index.javascript),
        ]
        .into_iter()
        .filter_map(|(key, index)| Some((key, index.as_ref()?)))
    }

    /// The packages that calls can ask for without a set, if they can.
    pub fn on_demand(&self) -> Option<&OnDemandConfig> {
        Some(&self.on_demand).filter(|it| it.enabled)
    }

    /// Maximum size in bytes of the tools' caches while no build runs.
    pub fn max_cache(&self) -> u64 {
        self.max_store.as_bytes() / CACHE_SHARE
    }

    /// Settings that an operator may not have meant, each with its key.
    pub fn warnings(&self) -> Vec<(String, String)> {
        let open = self.indexes().filter(|(_, index)| index.is_open());
        let warning = |(key, index): (&str, &Index)| {
            let message = format!(
                "{index} is asked without encryption, so anyone between it and this machine can see \
                 credentials and replace packages; use https"
            );
            (key.to_owned(), message)
        };
        open.map(warning).collect()
    }

    /// Checks the section. `known` are all languages, also those that are switched off.
    pub(super) fn check(
        &mut self,
        known: &BTreeSet<String>,
        languages: &BTreeMap<String, Arc<Language>>,
        check: &mut Check<'_>,
    ) {
        let IndexConfig { python, javascript } = &mut self.index;
        for (interpreter, key, index) in [
            (Interpreter::Python, "packages.index.python", python),
            (Interpreter::Node, "packages.index.javascript", javascript),
        ] {
            let Some(Index::Url(text)) = index else { continue };
            match Index::parse(interpreter, text, check.directory) {
                Ok(parsed) => *index = Some(parsed),
                Err(error) => check.problem(key, error.to_string()),
            }
        }
        check_sets(&mut self.sets, known, languages, check);
        self.on_demand.check(check);
        for (key, tool) in [("uv", &mut self.tools.uv), ("npm", &mut self.tools.npm)] {
            let text = tool.to_string_lossy().into_owned();
            if text.trim().is_empty() || text.contains('\0') {
                let message = format!(
                    "is not the name of a program: give a path, or leave it out to use {key:?} from PATH"
                );
                check.problem(format!("packages.tools.{key}"), message);
            }
            if text.contains('/') {
                *tool = check.directory.join(text);
            }
        }
        for path in [&mut self.store.folder, &mut self.store.key_file] {
            *path = path.take().map(|path| check.directory.join(path));
        }
        self.lock_folder = check.directory.join(LOCK_FOLDER);
        self.locks = self.hash_locks();
    }

    /// A hash of the paths and contents of the files in the folders of the sets' locks.
    fn hash_locks(&self) -> String {
        let mut hash = Sha256::new();
        for set in self.sets.keys() {
            let entries = fs::read_dir(self.lock_folder.join(set)).into_iter().flatten().flatten();
            let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
            files.sort_unstable();
            for path in files.into_iter().filter(|path| path.is_file()) {
                let mut content = Vec::new();
                // A file that can't be read is no usable lock either.
                let opened = File::open(&path);
                let _ = opened.and_then(|file| file.take(MAX_LOCK).read_to_end(&mut content));
                hash.update(path.as_os_str().as_encoded_bytes());
                hash.update([0]);
                hash.update(Sha256::digest(&content));
            }
        }
        hex(&hash.finalize())
    }

    /// Whether sandboxes of a language can have this set or package.
    ///
    /// # Errors
    ///
    /// The reason why they can't.
    pub(super) fn can_have(&self, language: &Language, asked: &str) -> Result<(), String> {
        let Some(interpreter) = language.kernel else {
            return Err(format!("{} has no packages", language.name));
        };
        let on_demand = self.on_demand();
        match self.sets.get(asked) {
            Some(set) if set.language == language.name => return Ok(()),
            Some(set) if on_demand.is_none() => {
                return Err(format!("the set {asked:?} is for {}", set.language));
            }
            _ => {}
        }
        let Some(on_demand) = on_demand else {
            return Err(format!(
                "there is no set {asked:?}: add it to packages.sets, or allow packages in packages.onDemand"
            ));
        };
        let requirement = requirement::parse(interpreter, asked)
            .map_err(|error| index::without_any_credentials(&error.to_string()))?;
        match on_demand.allows(interpreter, &requirement.name) {
            true => Ok(()),
            false => Err(format!("packages.onDemand.allow does not allow {}", requirement.name)),
        }
    }

    /// Gives the languages that can use packages a place for them.
    pub(super) fn make_room(&self, languages: &mut BTreeMap<String, Arc<Language>>) {
        for language in languages.values_mut() {
            let has_sets = self.sets.values().any(|set| set.language == language.name);
            if (has_sets || self.on_demand.enabled)
                && let Some(language) = Arc::get_mut(language)
            {
                language.sandbox.packages = language.kernel;
            }
        }
    }
}

impl OnDemandConfig {
    /// Whether calls can ask for a package with this normalised name.
    pub fn allows(&self, interpreter: Interpreter, name: &str) -> bool {
        match interpreter {
            Interpreter::Python => self.python.is_match(name),
            Interpreter::Node => self.node.is_match(name),
        }
    }

    fn check(&mut self, check: &mut Check<'_>) {
        const PATH: &str = "packages.onDemand.allow";
        if self.allow.is_empty() && self.enabled {
            let message = "is empty, so no package could be asked for: name packages, such as [\"humanize\", \"types-*\"]";
            check.problem(PATH, message);
        }
        let (mut python, mut node) = (GlobSet::builder(), GlobSet::builder());
        for (index, pattern) in self.allow.iter().enumerate() {
            let lower = pattern.to_lowercase();
            // Python's names are the same with any of these between their words; those of npm are not.
            let normalised = lower.replace(['_', '.'], "-");
            let parse = |text: &str| GlobBuilder::new(text).build();
            match (Glob::new(pattern), parse(&normalised), parse(&lower)) {
                (Ok(_), Ok(of_python), Ok(of_node)) => {
                    python.add(of_python);
                    node.add(of_node);
                }
                (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => {
                    let message = format!("is not a pattern: {}", error.kind());
                    check.problem(format!("{PATH}[{index}]"), message);
                }
            }
        }
        match (python.build(), node.build()) {
            (Ok(python), Ok(node)) => (self.python, self.node) = (python, node),
            (Err(error), _) | (_, Err(error)) => {
                check.problem(PATH, format!("can't be used: {}", error.kind()));
            }
        }
    }
}

/// Checks the sets, and removes those of languages that are switched off.
fn check_sets(
    sets: &mut BTreeMap<String, SetConfig>,
    known: &BTreeSet<String>,
    languages: &BTreeMap<String, Arc<Language>>,
    check: &mut Check<'_>,
) {
    if sets.len() > MAX_SETS {
        let message = format!("there are {}; at most {MAX_SETS} can be named", sets.len());
        return check.problem("packages.sets", message);
    }
    // As the policies of a disabled language, they are ignored.
    sets.retain(|name, set| {
        !is_name(name) || !known.contains(&set.language) || languages.contains_key(&set.language)
    });
    for (name, set) in sets {
        let at = |key: &str| format!("packages.sets.{name}{key}");
        set.name.clone_from(name);
        if !is_name(name) {
            let message = format!(
                "a set's name has small letters, digits and . _ -, begins with a letter or digit, and has at most \
                 {LONGEST_NAME} characters"
            );
            check.problem(at(""), message);
            continue;
        }
        let Some(interpreter) = interpreter(&set.language, languages, &at(".language"), check)
        else {
            continue;
        };
        let count = set.requirements.len();
        if count == 0 || count > requirement::MOST {
            let message = format!(
                "needs from 1 to {} requirements, such as [{}]; there are {count}",
                requirement::MOST,
                example(interpreter),
            );
            check.problem(at(".requirements"), message);
            continue;
        }
        for (index, text) in set.requirements.iter().enumerate() {
            if let Err(error) = requirement::parse(interpreter, text) {
                let message = index::without_any_credentials(&error.to_string());
                check.problem(at(&format!(".requirements[{index}]")), message);
            }
        }
    }
}

/// The interpreter of a set's language.
fn interpreter(
    language: &str,
    languages: &BTreeMap<String, Arc<Language>>,
    path: &str,
    check: &mut Check<'_>,
) -> Option<Interpreter> {
    let interpreter = languages.get(language).and_then(|language| language.kernel);
    if interpreter.is_none() {
        let able = languages.values().filter(|language| language.kernel.is_some());
        let able = able.map(|language| language.name.clone()).collect::<Vec<_>>().join(", ");
        let why = match languages.contains_key(language) {
            true => "has no interpreter that can use packages",
            false => "is not a configured language",
        };
        let fix = match able.is_empty() {
            true => "set languageSettings.*.preload.interpreter".to_owned(),
            false => format!("use one of {able}"),
        };
        check.problem(path, format!("{language:?} {why}: {fix}"));
    }
    interpreter
}

const fn example(interpreter: Interpreter) -> &'static str {
    match interpreter {
        Interpreter::Python => "\"humanize==4.*\"",
        Interpreter::Node => "\"lodash@4\"",
    }
}

/// Whether a set can have this name. It appears in schemas and paths, and must not look like a version or an option.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= LONGEST_NAME
        && name.as_bytes().first().is_some_and(is_plain)
        && name.bytes().all(|byte| is_plain(&byte) || b"._-".contains(&byte))
}
