//! The section `packages` as it is written.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration;

/// Sets of packages, which programs can import from in addition to what their image has.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawPackages {
    /// Where packages come from. Without it the tools' own configuration and environment hold.
    #[serde(default)]
    pub(crate) index: RawIndex,
    /// The sets by name. Calls ask for them with packages, such as ["text"].
    #[serde(default)]
    pub(crate) sets: BTreeMap<String, RawSet>,
    /// Whether calls can ask for packages that no set has.
    #[serde(default)]
    pub(crate) on_demand: RawOnDemand,
    /// How large all sets can be together, in MiB. The one that was unused longest goes, but none that is named here. Default:
    /// 20480.
    #[serde(rename = "maxStoreMB")]
    pub(crate) max_store_mb: Option<u64>,
    /// How long resolving and installing one set can take. Default: "5m".
    #[serde(default, with = "crate::duration::optional")]
    #[schemars(schema_with = "duration")]
    pub(crate) build_timeout: Option<Duration>,
    /// How much memory a tool can take while it resolves and installs one set, with all its processes, in MiB. A package with a
    /// description that needs more is refused. Default: 2048.
    #[serde(rename = "buildMemoryMB")]
    pub(crate) build_memory_mb: Option<u64>,
    /// The programs that resolve and install packages.
    #[serde(default)]
    pub(crate) tools: RawPackageTools,
}

/// Where packages come from. There is one source for each language, and none besides it.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawIndex {
    /// Address of an index with Python packages, or a folder of wheels, relative to this file. Credentials in it are shown
    /// nowhere.
    pub(crate) python: Option<String>,
    /// Address of a registry with npm packages. Credentials in it are shown nowhere.
    pub(crate) javascript: Option<String>,
}

/// A set of packages of one language.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawSet {
    /// The language whose programs can use it: one that runs in Python or Node.js.
    pub(crate) language: String,
    /// What is in it, as the language's tools have it, such as ["humanize==4.*", "rapidfuzz"].
    pub(crate) requirements: Vec<String>,
}

/// Packages that calls ask for and no set has.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawOnDemand {
    /// Whether calls can ask for packages. Default: false.
    pub(crate) enabled: Option<bool>,
    /// Patterns of the names that calls can ask for, such as "types-*". What these need comes with them. Default: ["*"].
    pub(crate) allow: Option<Vec<String>>,
    /// How many sets that calls have asked for are kept. The one that was unused longest goes. Default: 64.
    pub(crate) max_sets: Option<usize>,
}

/// The programs that resolve and install packages. None of them runs anything of a package.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawPackageTools {
    /// uv, for Python: a name in PATH, or a path relative to this file. Default: "uv".
    pub(crate) uv: Option<String>,
    /// npm, for JavaScript: a name in PATH, or a path relative to this file. Default: "npm".
    pub(crate) npm: Option<String>,
}
