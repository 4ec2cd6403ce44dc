//! Arguments of calls in the words of the command line, and values as people write them there.

use std::time::Duration;

use isolator_pool::quote::quoted;

use crate::config::Config;
use crate::duration;

/// Why a name stands for no language, and what to do.
pub(super) fn not_a_language(name: &str, config: &Config) -> String {
    let name = quoted(name);
    format!(
        "{name} is not a configured language: use one of {}, or {}",
        languages_of(config),
        how_to_add(config)
    )
}

/// Why the name of a file tells no language, and what to do.
pub(super) fn no_language_of(file: &str, config: &Config) -> String {
    let known = languages_of(config);
    match file.rsplit_once('.') {
        Some((_, extension)) => format!(
            "{}: no configured language has the extension {}: name one with --language ({known}), or {}",
            quoted(file),
            quoted(&format!(".{extension}")),
            how_to_add(config)
        ),
        None => {
            format!(
                "{}: it has no extension: name its language with --language ({known})",
                quoted(file)
            )
        }
    }
}

/// The names of all languages.
pub(super) fn languages_of(config: &Config) -> String {
    config.languages.keys().cloned().collect::<Vec<_>>().join(", ")
}

fn how_to_add(config: &Config) -> String {
    let place = match &config.file {
        Some(file) => file.display().to_string(),
        None => "a configuration, which `isolator config init` writes".to_owned(),
    };
    format!("add it with its image and command to languageSettings in {place}")
}

/// A duration, as the configuration has it, too.
///
/// # Errors
///
/// When it is none, with the reason.
pub fn duration(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|error| format!("this is not a duration: {error}"))
}

/// Most memory that can be written, in MiB.
const MOST_MIB: f64 = (1_u64 << 24) as f64;

/// An amount of memory, in MiB. As with `docker run`, units are of 1024.
pub(super) fn mebibytes(text: &str) -> Result<u64, String> {
    const HOW: &str =
        "write a number of MiB, such as 64, or one with a unit, such as 512MB or 1.5G";
    let number = text.trim_end_matches(|it: char| it.is_ascii_alphabetic());
    let mib = match text[number.len()..].to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => 1.0 / 1024.0,
        "" | "m" | "mb" | "mib" => 1.0,
        "g" | "gb" | "gib" => 1024.0,
        _ => return Err(HOW.to_owned()),
    };
    let is_number = number.bytes().any(|it| it.is_ascii_digit())
        && number.trim().bytes().all(|it| it.is_ascii_digit() || it == b'.');
    let amount = number.trim().parse::<f64>().ok().filter(|_| is_number).ok_or(HOW)? * mib;
    match amount {
        amount if amount.fract() != 0.0 => Err("this is not a whole number of MiB".to_owned()),
        amount if !(1.0..=MOST_MIB).contains(&amount) => {
            Err("this is not from 1 MiB to 16 TiB".to_owned())
        }
        amount => Ok(amount as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_the_usual_units() {
        for (text, expected) in [
            ("64", 64),
            ("64MB", 64),
            ("64 MiB", 64),
            ("64m", 64),
            ("1.5G", 1536),
            ("2gb", 2048),
            ("65536k", 64),
        ] {
            assert_eq!(mebibytes(text), Ok(expected), "{text}");
        }
        for wrong in ["", "MB", "64X", "-64", "1e3", "inf", "64 M B", "0.3", "100K", "0", "99999G"]
        {
            assert!(mebibytes(wrong).is_err(), "{wrong}");
        }
    }
}
