//! Names that are imported from a module and are modules themselves: `from scipy import stats` imports one, `from math import
//! sqrt` does not.
//!
//! It is looked up in the image, and not tried, because programs import many names and a template is made for modules.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};

use super::imports::TemplateModules;
use super::slots::TemplateKey;
use crate::engine::preload::Imports;
use crate::packages::PackageSet;

/// Maximum number of answers that are remembered, of all images. Then all are forgotten and looked up again.
const MOST_KNOWN: usize = 4096;

/// Whether parts of modules are modules, by their image and set of packages.
#[derive(Debug, Default)]
pub(super) struct Submodules(HashMap<(String, String), bool>);

impl Submodules {
    /// Whether a part is a module of an image with this root, or of a set of packages that has its modules in these places.
    /// `content` stands for the image and the set, and `known` says where the image has its modules.
    pub(super) fn is_module(
        &mut self,
        content: &str,
        root: &Path,
        of_set: &[PathBuf],
        known: &TemplateModules,
        part: &str,
    ) -> bool {
        if known.places.is_empty() {
            // There was no template yet.
            return false;
        }
        let key = (content.to_owned(), part.to_owned());
        if let Some(is_module) = self.0.get(&key) {
            return *is_module;
        }
        if self.0.len() >= MOST_KNOWN {
            self.0.clear();
        }
        *self.0.entry(key).or_insert_with(|| {
            let places = [String::from("/")];
            let in_set = |place: &PathBuf| is_there(place, &places, &known.endings, part);
            of_set.iter().any(in_set) || is_there(root, &known.places, &known.endings, part)
        })
    }
}

/// Whether there is a file for a module below a root. Links lead nowhere outside of that.
fn is_there(root: &Path, places: &[String], endings: &[String], part: &str) -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let Ok(root) = open(root, flags | OFlags::DIRECTORY, Mode::empty()) else { return false };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let exists = |path: String| openat2(&root, path, flags, Mode::empty(), resolve).is_ok();
    let module = part.replace(['.', ':'], "/");
    places.iter().any(|place| {
        endings.iter().any(|ending| {
            exists(format!("{place}/{module}{ending}"))
                || exists(format!("{place}/{module}/__init__{ending}"))
        })
    })
}

/// The folders in which a set for Python has its modules, below its own.
pub(super) fn places(set: &PackageSet) -> Vec<PathBuf> {
    let versions = std::fs::read_dir(set.folder.join("lib")).into_iter().flatten().flatten();
    let places = versions.map(|version| version.path().join("site-packages"));
    places.filter(|place| place.is_dir()).collect()
}

impl Submodules {
    /// The modules that a program imports, sorted, also those that it imports from others.
    pub(super) fn named(
        &mut self,
        plain: &TemplateKey,
        known: &TemplateModules,
        imports: &Imports,
    ) -> Vec<String> {
        let content = plain.content();
        let set = plain.packages.as_ref().and_then(|bound| bound.set.upgrade());
        let places = set.filter(|_| !imports.parts.is_empty()).map(|set| places(&set));
        let places = places.unwrap_or_default();
        let is_module =
            |part: &&String| self.is_module(&content, &plain.root, &places, known, part);
        let parts = imports.parts.iter().filter(is_module);
        imports.modules.iter().chain(parts).cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_modules_if_the_image_has_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let package = root.join("lib/package");
        std::fs::create_dir_all(package.join("inner")).unwrap();
        for file in ["plain.py", "compiled.abi3.so", "inner/__init__.py", "text.txt"] {
            std::fs::write(package.join(file), "").unwrap();
        }
        // As seen from here it leads to a file.
        std::fs::write(root.join("outside.py"), "").unwrap();
        std::os::unix::fs::symlink(root.join("outside.py"), package.join("link.py")).unwrap();
        let known = TemplateModules {
            places: vec!["/none".to_owned(), "/lib".to_owned()],
            endings: vec![".py".to_owned(), ".abi3.so".to_owned()],
            ..TemplateModules::default()
        };
        let mut submodules = Submodules::default();
        let mut of = |name: &str| {
            submodules.is_module("image", root, &[], &known, &format!("package:{name}"))
        };
        for name in ["plain", "compiled", "inner"] {
            assert!(of(name) && of(name), "{name}");
        }
        for name in ["text", "sqrt", "link"] {
            assert!(!of(name), "{name}");
        }
        assert!(!submodules.is_module(
            "image",
            root,
            &[],
            &TemplateModules::default(),
            "package:plain"
        ));
        let set = [root.join("lib/package")];
        assert!(submodules.is_module("image and set", root, &set, &known, "inner:__init__"));
        assert!(!submodules.is_module("image and another", root, &[], &known, "inner:__init__"));
    }
}
