//! The languages that rules can be written for: those whose parsers are built in.

use std::borrow::Cow;

use ast_grep_core::Language;
use ast_grep_core::matcher::{Pattern, PatternBuilder, PatternError};
use ast_grep_core::meta_var::MetaVariable;
use ast_grep_core::tree_sitter::{LanguageExt, TSLanguage};
use ast_grep_language::SupportLang;
use serde::{Deserialize, Deserializer};

/// The library knows more languages; it panics where it has no parser for one.
const BUILT_IN: [SupportLang; 6] = [
    SupportLang::Bash,
    SupportLang::Go,
    SupportLang::JavaScript,
    SupportLang::Python,
    SupportLang::Tsx,
    SupportLang::TypeScript,
];

/// A language whose parser is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grammar(SupportLang);

impl Grammar {
    pub(super) const JAVASCRIPT: Self = Self(SupportLang::JavaScript);
    pub(super) const PYTHON: Self = Self(SupportLang::Python);
    pub(super) const TYPESCRIPT: Self = Self(SupportLang::TypeScript);

    /// The grammar of files with an extension, which is written with its dot.
    pub(super) fn of_extension(extension: &str) -> Option<Self> {
        let known = SupportLang::from_path(format!("a{extension}"))?;
        BUILT_IN.contains(&known).then_some(Self(known))
    }
}

impl std::fmt::Display for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Grammar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        match name.parse() {
            Ok(known) if BUILT_IN.contains(&known) => Ok(Self(known)),
            _ => {
                let names = BUILT_IN.map(|language| language.to_string()).join(", ");
                let message = format!("rules for {name:?} are not supported, only for {names}");
                Err(serde::de::Error::custom(message))
            }
        }
    }
}

impl Language for Grammar {
    fn pre_process_pattern<'q>(&self, query: &'q str) -> Cow<'q, str> {
        self.0.pre_process_pattern(query)
    }

    fn meta_var_char(&self) -> char {
        self.0.meta_var_char()
    }

    fn expando_char(&self) -> char {
        self.0.expando_char()
    }

    fn extract_meta_var(&self, source: &str) -> Option<MetaVariable> {
        self.0.extract_meta_var(source)
    }

    fn kind_to_id(&self, kind: &str) -> u16 {
        self.0.kind_to_id(kind)
    }

    fn field_to_id(&self, field: &str) -> Option<u16> {
        self.0.field_to_id(field)
    }

    fn build_pattern(&self, builder: &PatternBuilder) -> Result<Pattern, PatternError> {
        self.0.build_pattern(builder)
    }
}

impl LanguageExt for Grammar {
    fn get_ts_language(&self) -> TSLanguage {
        self.0.get_ts_language()
    }
}
