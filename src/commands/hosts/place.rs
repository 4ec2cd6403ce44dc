//! Finds a host's configuration file, without guessing.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::Host;

/// A path below a folder.
#[derive(Debug, Clone, Copy)]
pub struct Place(pub Base, pub &'static str);

/// A folder that a system or a user has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The user's home.
    Home,
    /// Where applications keep their configuration.
    Applications,
    /// The same for applications that follow the XDG rules on every system.
    Config,
    /// The folder whose path is in this file in the user's home, if there is such a file.
    PointedToBy(&'static str),
}

/// Which of several places is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// There is only one.
    First,
    /// The first that has the file already, or else the first.
    FirstFile,
    /// The first whose folder is there, or else the first.
    FirstFolder,
    /// The one whose folder is there, or else the first. If there are several, the user must choose.
    TheOnlyFolder,
}

/// The system and the environment, which decide where files are.
pub(crate) struct Surroundings<'a> {
    /// The system.
    pub system: System,
    /// The variables.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
}

/// A kind of system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    /// Linux, and whatever else follows the XDG rules.
    Linux,
    /// macOS.
    MacOs,
}

impl System {
    /// The one that this program runs on.
    pub(crate) fn here() -> Self {
        if cfg!(target_os = "macos") { Self::MacOs } else { Self::Linux }
    }
}

/// Why a host's configuration could not be found.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PlaceError {
    /// There is no home to look in.
    #[error(
        "{value}, so the configuration of {host} can't be found; set HOME, or name the file with \
         --file"
    )]
    NoHome {
        /// The host.
        host: &'static str,
        /// The mistake in the variable.
        value: String,
    },
    /// A variable of the host is not an absolute path.
    #[error(
        "{variable} is {}, which is not an absolute path; correct it, or name the file with --file",
        .value.display()
    )]
    Relative {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: PathBuf,
    },
    /// There are several places.
    #[error("{host} has several configurations here; choose one with --file:\n{}", list(.places))]
    Several {
        /// The host.
        host: &'static str,
        /// The places.
        places: Vec<PathBuf>,
    },
}

fn list(places: &[PathBuf]) -> String {
    let line = |place: &PathBuf| format!("  {}", place.display());
    places.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The host's configuration file, which may not exist yet.
///
/// # Errors
///
/// See [`PlaceError`].
pub(crate) fn find(host: &Host, around: &Surroundings<'_>) -> Result<PathBuf, PlaceError> {
    for &(variable, below) in host.named_by {
        let value = (around.variable)(variable).filter(|value| !value.is_empty());
        let Some(value) = value.map(PathBuf::from) else { continue };
        if value.is_relative() {
            return Err(PlaceError::Relative { variable, value });
        }
        return Ok(if below.is_empty() { value } else { value.join(below) });
    }
    let home = home(host, around)?;
    let mut places =
        host.places.iter().filter_map(|place| Some(base(place.0, &home, around)?.join(place.1)));
    let usual = || host.places.iter().find(|place| !matches!(place.0, Base::PointedToBy(_)));
    let first = || usual().and_then(|place| Some(base(place.0, &home, around)?.join(place.1)));
    let has_folder = |place: &PathBuf| place.parent().is_some_and(Path::is_dir);
    let found = match host.choice {
        Choice::First => None,
        Choice::FirstFile => places.find(|place| place.is_file()),
        Choice::FirstFolder => places.find(has_folder),
        Choice::TheOnlyFolder => {
            let mut there: Vec<_> = places.filter(has_folder).collect();
            if there.len() > 1 {
                return Err(PlaceError::Several { host: host.title, places: there });
            }
            there.pop()
        }
    };
    found.or_else(first).ok_or_else(|| PlaceError::NoHome {
        host: host.title,
        value: "it has no usual place".to_owned(),
    })
}

fn home(host: &Host, around: &Surroundings<'_>) -> Result<PathBuf, PlaceError> {
    let wrong = |value: String| PlaceError::NoHome { host: host.title, value };
    let home = (around.variable)("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let home = home.ok_or_else(|| wrong("HOME is not set".to_owned()))?;
    if home.is_relative() {
        return Err(wrong(format!("HOME is {}, which is not an absolute path", home.display())));
    }
    if !home.is_dir() {
        return Err(wrong(format!("HOME is {}, which is not a folder", home.display())));
    }
    Ok(home)
}

fn base(base: Base, home: &Path, around: &Surroundings<'_>) -> Option<PathBuf> {
    Some(match (base, around.system) {
        (Base::Home, _) => home.to_owned(),
        (Base::Applications, System::MacOs) => home.join("Library/Application Support"),
        (Base::Applications, System::Linux) | (Base::Config, _) => {
            (around.variable)("XDG_CONFIG_HOME")
                .map(PathBuf::from)
                // The specification says that a relative path does not count.
                .filter(|path| path.is_absolute())
                .unwrap_or_else(|| home.join(".config"))
        }
        (Base::PointedToBy(file), _) => {
            let path = PathBuf::from(fs::read_to_string(home.join(file)).ok()?.trim());
            path.is_absolute().then_some(path)?
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::commands::hosts::host;

    /// Looks with these variables, of which `HOME` is the directory.
    fn find_with(
        host: &Host,
        home: &Path,
        system: System,
        variables: &[(&str, &str)],
    ) -> Result<PathBuf, PlaceError> {
        let mut all: BTreeMap<_, _> = variables.iter().copied().collect();
        all.entry("HOME").or_insert_with(|| home.to_str().unwrap());
        let variable = |name: &str| all.get(name).map(OsString::from);
        find(host, &Surroundings { system, variable: &variable })
    }

    #[test]
    fn each_host_has_its_usual_place_on_each_system() {
        let home = tempfile::tempdir().unwrap();
        let mac = "Library/Application Support";
        for (host, linux, macos) in [
            (
                host("claude-desktop"),
                ".config/Claude/claude_desktop_config.json",
                format!("{mac}/Claude/claude_desktop_config.json"),
            ),
            (host("claude-code"), ".claude.json", ".claude.json".to_owned()),
            (host("cursor"), ".cursor/mcp.json", ".cursor/mcp.json".to_owned()),
            (host("vscode"), ".config/Code/User/mcp.json", format!("{mac}/Code/User/mcp.json")),
            (host("lm-studio"), ".lmstudio/mcp.json", ".lmstudio/mcp.json".to_owned()),
            (
                host("cline"),
                ".cline/data/settings/cline_mcp_settings.json",
                ".cline/data/settings/cline_mcp_settings.json".to_owned(),
            ),
            (host("codex"), ".codex/config.toml", ".codex/config.toml".to_owned()),
            (host("gemini-cli"), ".gemini/settings.json", ".gemini/settings.json".to_owned()),
            (host("goose"), ".config/goose/config.yaml", ".config/goose/config.yaml".to_owned()),
            (
                host("opencode"),
                ".config/opencode/opencode.json",
                ".config/opencode/opencode.json".to_owned(),
            ),
            (
                host("windsurf"),
                ".codeium/windsurf/mcp_config.json",
                ".codeium/windsurf/mcp_config.json".to_owned(),
            ),
            (host("zed"), ".config/zed/settings.json", ".config/zed/settings.json".to_owned()),
        ] {
            let found = |system| find_with(host, home.path(), system, &[]).unwrap();
            assert_eq!(found(System::Linux), home.path().join(linux));
            assert_eq!(found(System::MacOs), home.path().join(macos));
        }
    }

    #[test]
    fn variables_that_the_host_goes_by_come_first() {
        let home = tempfile::tempdir().unwrap();
        let found =
            |host, variables: &[_]| find_with(host, home.path(), System::Linux, variables).unwrap();
        assert_eq!(
            found(host("claude-desktop"), &[("XDG_CONFIG_HOME", "/x")]),
            Path::new("/x/Claude/claude_desktop_config.json")
        );
        assert_eq!(
            found(host("claude-code"), &[("CLAUDE_CONFIG_DIR", "/x")]),
            Path::new("/x/.claude.json")
        );
        assert_eq!(
            found(host("cline"), &[("CLINE_MCP_SETTINGS_PATH", "/x/y.json"), ("CLINE_DIR", "/z")]),
            Path::new("/x/y.json")
        );
        assert_eq!(found(host("codex"), &[("CODEX_HOME", "/x")]), Path::new("/x/config.toml"));
        assert_eq!(
            found(host("gemini-cli"), &[("GEMINI_CLI_HOME", "/x")]),
            Path::new("/x/.gemini/settings.json")
        );
        assert_eq!(
            found(host("goose"), &[("GOOSE_PATH_ROOT", "/x"), ("XDG_CONFIG_HOME", "/y")]),
            Path::new("/x/config/config.yaml")
        );
        assert_eq!(
            found(host("zed"), &[("XDG_CONFIG_HOME", "/x")]),
            Path::new("/x/zed/settings.json")
        );
        // One that says nothing, or nothing that counts, is as if it were not there.
        assert_eq!(
            found(host("claude-code"), &[("CLAUDE_CONFIG_DIR", "")]),
            home.path().join(".claude.json")
        );
        assert_eq!(
            found(host("vscode"), &[("XDG_CONFIG_HOME", "x")]),
            home.path().join(".config/Code/User/mcp.json")
        );
    }

    #[test]
    fn no_home_is_guessed() {
        let home = tempfile::tempdir().unwrap();
        for (value, hint) in [("", "not set"), ("home", "absolute"), ("/no/such", "not a folder")] {
            let error = find_with(host("cursor"), home.path(), System::Linux, &[("HOME", value)]);
            let message = error.unwrap_err().to_string();
            assert!(message.contains(hint) && message.contains("--file"), "{message}");
        }
        let relative = [("CLAUDE_CONFIG_DIR", "x")];
        let error = find_with(host("claude-code"), home.path(), System::Linux, &relative);
        assert!(error.unwrap_err().to_string().contains("CLAUDE_CONFIG_DIR"));
    }

    #[test]
    fn the_place_that_is_there_is_taken_and_of_several_none() {
        let home = tempfile::tempdir().unwrap();
        let remote = home.path().join(".vscode-server/data/User");
        fs::create_dir_all(&remote).unwrap();
        let found = |host| find_with(host, home.path(), System::Linux, &[]);
        assert_eq!(found(host("vscode")).unwrap(), remote.join("mcp.json"));

        fs::create_dir_all(home.path().join(".config/VSCodium/User")).unwrap();
        let message = found(host("vscode")).unwrap_err().to_string();
        for expected in ["VSCodium", ".vscode-server", "--file"] {
            assert!(message.contains(expected), "{message}");
        }

        let old = home.path().join(".cache/lm-studio");
        fs::create_dir_all(&old).unwrap();
        assert_eq!(found(host("lm-studio")).unwrap(), old.join("mcp.json"));
        let elsewhere = home.path().join("models");
        fs::create_dir_all(&elsewhere).unwrap();
        fs::write(home.path().join(".lmstudio-home-pointer"), format!("{}\n", elsewhere.display()))
            .unwrap();
        assert_eq!(found(host("lm-studio")).unwrap(), elsewhere.join("mcp.json"));
    }

    #[test]
    fn cline_s_old_file_counts_until_there_is_a_new_one() {
        let home = tempfile::tempdir().unwrap();
        let place = |index: usize| match host("cline").places[index] {
            Place(Base::Home, below) => home.path().join(below),
            Place(_, below) => home.path().join(".config").join(below),
        };
        for (index, expected) in [(1, 1), (0, 0)] {
            fs::create_dir_all(place(index).parent().unwrap()).unwrap();
            fs::write(place(index), "{}").unwrap();
            let found = find_with(host("cline"), home.path(), System::Linux, &[]).unwrap();
            assert_eq!(found, place(expected));
        }
    }
}
