//! The section `apis`: the APIs of other systems.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use isolator_pool::engine::limits::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::Check;
use super::language::Language;
use super::packages::PackagesConfig;
use super::section::{Mib, Text, Unit as _, duration, section};
use crate::address::Network;

section! {
    /// APIs of other systems, which `serve --http` offers on the port of MCP. One that is not set is off; {} turns it on.
    #[derive(Clone)]
    pub struct ApisConfig {
        /// SandboxFusion, for computing rewards: /run_code and /run_jupyter.
        pub sandbox_fusion: Option<ProgramsApiConfig> = None,
        /// Piston, for computing rewards: /api/v2/runtimes and /api/v2/execute.
        pub piston: Option<ProgramsApiConfig> = None,
        /// E2B, for agents: sandboxes with code, commands and files.
        pub e2b: Option<E2bConfig> = None,
    }
}

section! {
    /// An API with one program in each request.
    #[derive(Clone, PartialEq, Eq)]
    pub struct ProgramsApiConfig {
        /// Addresses and networks whose requests need no token, such as ["10.0.0.0/8"]. Only with http.tokens.
        pub open_to: Vec<String> = Vec::new(),
        /// How much a program can print on standard output and standard error together, in MiB. It is returned whole; a program
        /// that prints more is killed.
        // Clients compare all of it, so nothing can be left out.
        #[serde(rename = "maxOutputMB", with = "Mib")]
        #[schemars(with = "u64", range(min = 1, max = 64))]
        pub max_output: ByteSize = ByteSize::mib(10),
        /// The networks in `open_to`.
        #[serde(skip)]
        pub(crate) networks: Vec<Network> = Vec::new(),
    }
}

section! {
    /// Sandboxes as E2B's SDKs use them.
    #[derive(Clone, PartialEq, Eq)]
    pub struct E2bConfig {
        /// Domain under which each port of a sandbox has a name, for SDKs that are given E2B_DOMAIN: with "sandbox.example", its
        /// own name, api.sandbox.example and all names of the form 49983-ID.sandbox.example must lead to this server.
        pub domain: Option<String> = None,
        /// Names of templates that sandboxes can be made from, in addition to the names of the languages. Those that clients
        /// name by default, base, code-interpreter and code-interpreter-v1, are Python unless they are set.
        pub templates: BTreeMap<String, TemplateConfig> = BTreeMap::new(),
        /// How much a cell can print on standard output and standard error together, in MiB. It is returned whole; a cell that
        /// prints more is killed.
        #[serde(rename = "maxOutputMB", with = "Mib")]
        #[schemars(with = "u64", range(min = 1, max = 64))]
        pub max_output: ByteSize = ByteSize::mib(10),
        /// The longest timeout of a sandbox. sessions.maxAge bounds it, too.
        // The longest one of E2B's service.
        #[serde(with = "Text")]
        #[schemars(schema_with = "duration")]
        pub max_timeout: Duration = Duration::from_hours(24),
    }
}

/// A template of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TemplateConfig {
    /// The language of its code.
    pub language: String,
    /// Sets of packages, and packages, that its code can import from.
    #[serde(default)]
    pub packages: Vec<String>,
}

/// The templates that E2B's clients name unless they are given one, and their language.
const USUAL_TEMPLATES: [&str; 3] = ["base", "code-interpreter", "code-interpreter-v1"];
const USUAL_LANGUAGE: &str = "python";

impl ApisConfig {
    /// The languages of the templates of E2B, whose sandboxes have a home and a writable root unless the language says otherwise.
    pub(super) fn languages_of_templates(&self) -> BTreeSet<&str> {
        let set = self.e2b.iter().flat_map(|e2b| e2b.templates.values());
        let usual = self.e2b.iter().filter(|e2b| e2b.missing_templates().next().is_some());
        set.map(|template| &*template.language).chain(usual.map(|_| USUAL_LANGUAGE)).collect()
    }

    /// Whether a client may send many programs at once.
    pub fn have_batches(&self) -> bool {
        self.sandbox_fusion.is_some() || self.piston.is_some()
    }

    pub(super) fn check(
        &mut self,
        languages: &BTreeMap<String, Arc<Language>>,
        have_tokens: bool,
        check: &mut Check<'_>,
    ) {
        let apis = [("sandboxFusion", &mut self.sandbox_fusion), ("piston", &mut self.piston)];
        for (name, api) in apis {
            if let Some(api) = api {
                api.check(&format!("apis.{name}"), have_tokens, check);
            }
        }
        if let Some(e2b) = &mut self.e2b {
            e2b.add_usual_templates(languages);
        }
        let domain = self.e2b.as_ref().and_then(|e2b| e2b.domain.as_deref());
        if let Some(domain) = domain.filter(|domain| !is_domain(domain)) {
            let message = format!(
                "{domain:?} is not a domain: write it as in \"sandbox.example\", with a port only if clients have to name it"
            );
            check.problem("apis.e2b.domain".to_owned(), message);
        }
        for (name, template) in self.e2b.iter().flat_map(|e2b| &e2b.templates) {
            if !languages.contains_key(&template.language) {
                let names: Vec<_> = languages.keys().map(String::as_str).collect();
                let message = format!(
                    "{:?} is not a configured language: use one of {}",
                    template.language,
                    names.join(", ")
                );
                check.problem(format!("apis.e2b.templates.{name}.language"), message);
            }
        }
    }
}

impl ApisConfig {
    /// Checks the packages of the templates, after the section `packages`.
    pub(super) fn check_packages(
        &self,
        packages: &PackagesConfig,
        languages: &BTreeMap<String, Arc<Language>>,
        check: &mut Check<'_>,
    ) {
        for (name, template) in self.e2b.iter().flat_map(|e2b| &e2b.templates) {
            // One that is missing is a problem of its own.
            let Some(language) = languages.get(&template.language) else { continue };
            for (at, asked) in template.packages.iter().enumerate() {
                if let Err(message) = packages.can_have(language, asked) {
                    check.problem(format!("apis.e2b.templates.{name}.packages[{at}]"), message);
                }
            }
        }
    }
}

impl E2bConfig {
    /// The usual templates that are not set.
    fn missing_templates(&self) -> impl Iterator<Item = &'static str> {
        USUAL_TEMPLATES.into_iter().filter(|name| !self.templates.contains_key(*name))
    }

    /// Adds the usual templates, if there is their language.
    fn add_usual_templates(&mut self, languages: &BTreeMap<String, Arc<Language>>) {
        if languages.contains_key(USUAL_LANGUAGE) {
            for name in self.missing_templates().collect::<Vec<_>>() {
                let (language, packages) = (USUAL_LANGUAGE.to_owned(), Vec::new());
                self.templates.insert(name.to_owned(), TemplateConfig { language, packages });
            }
        }
    }
}

/// Whether a text is the name of a domain, with or without a port.
fn is_domain(text: &str) -> bool {
    let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
    let is_label = |label: &str| {
        let is_inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(is_inside)
    };
    let is_address = name.rsplit('.').next().is_some_and(|last| last.parse::<u8>().is_ok());
    name.len() <= 200
        && name.contains('.')
        && name.split('.').all(is_label)
        && !is_address
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

impl ProgramsApiConfig {
    fn check(&mut self, path: &str, have_tokens: bool, check: &mut Check<'_>) {
        if !self.open_to.is_empty() && !have_tokens {
            let message = "has no effect without http.tokens: then the server accepts requests of its own machine only, and all of \
                           them without a token; set http.tokens, or remove this key";
            check.problem(format!("{path}.openTo"), message);
        }
        for (at, text) in self.open_to.iter().enumerate() {
            match text.parse::<Network>() {
                Ok(network) => self.networks.push(network),
                Err(error) => check.problem(format!("{path}.openTo[{at}]"), error.to_string()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{USUAL_LANGUAGE, USUAL_TEMPLATES};
    use crate::config::Config;

    fn parse(text: &str) -> Result<Config, Vec<String>> {
        let problems = |all: Vec<_>| all.iter().map(ToString::to_string).collect();
        Config::parse(text, None, Path::new("")).map_err(problems)
    }

    #[test]
    fn an_api_is_off_until_it_is_named() {
        let none = parse("{}").unwrap();
        assert!(none.apis.sandbox_fusion.is_none() && !none.apis.have_batches());
        let null = parse(r#"{"apis": {"piston": null, "e2b": {}}}"#).unwrap();
        assert!(null.apis.piston.is_none() && null.apis.e2b.is_some());
        let on = parse(r#"{"apis": {"sandboxFusion": {}}}"#).unwrap();
        assert_eq!(on.apis.sandbox_fusion.unwrap().max_output.as_mib(), 10);
    }

    #[test]
    fn usual_templates_are_python_whose_sandboxes_have_a_home() {
        use isolator_pool::engine::{RootAccess, USER_HOME};

        let open = |text: &str| -> Vec<String> {
            let config = parse(text).unwrap();
            let open = config.languages.values().filter(|it| it.sandbox.root == RootAccess::Open);
            open.map(|language| language.name.clone()).collect()
        };
        let none: [&str; 0] = [];
        assert_eq!(open("{}"), none);
        assert_eq!(open(r#"{"apis": {"piston": {}}}"#), none);
        assert_eq!(open(r#"{"apis": {"e2b": {}}}"#), ["python"]);
        let own = r#"{"apis": {"e2b": {"templates": {"node": {"language": "javascript"}}}}}"#;
        assert_eq!(open(own), ["javascript", "python"]);
        let other = r#"{"apis": {"e2b": {"templates":
            {"base": {"language": "go"}, "code-interpreter": {"language": "go"},
             "code-interpreter-v1": {"language": "go"}}}}}"#;
        assert_eq!(open(other), ["go"]);
        let refused =
            r#"{"apis": {"e2b": {}}, "languageSettings": {"python": {"writableRoot": false}}}"#;
        assert_eq!(open(refused), none);

        let config = parse(r#"{"apis": {"e2b": {}}}"#).unwrap();
        let python = &config.languages["python"];
        assert_eq!((&*python.sandbox.workdir, &*python.env["HOME"]), (USER_HOME, USER_HOME));
        let templates = config.apis.e2b.unwrap().templates;
        let names: Vec<_> = templates.iter().map(|(name, it)| (&**name, &*it.language)).collect();
        let usual = USUAL_TEMPLATES.map(|name| (name, USUAL_LANGUAGE));
        assert_eq!(names, usual);
        let without =
            r#"{"apis": {"e2b": {}}, "languageSettings": {"python": {"enabled": false}}}"#;
        assert!(parse(without).unwrap().apis.e2b.unwrap().templates.is_empty());
    }

    #[test]
    fn what_can_not_be_an_address_or_a_language_is_named() {
        let wrong = parse(
            r#"{"http": {"tokens": "tokens"}, "apis": {"piston": {"openTo": ["127.0.0.1", "10.0.0.0/33"]},
                "e2b": {"templates": {"base": {"language": "cobol"}}}}}"#,
        );
        let wrong = wrong.unwrap_err();
        assert!(wrong[0].starts_with("apis.piston.openTo[1]: "), "{wrong:?}");
        assert!(wrong[1].starts_with("apis.e2b.templates.base.language: "), "{wrong:?}");
        assert_eq!(wrong.len(), 2);
    }

    #[test]
    fn addresses_without_tokens_and_packages_that_no_sandbox_can_have_are_problems() {
        let wrong = parse(r#"{"apis": {"sandboxFusion": {"openTo": ["10.0.0.0/8"]}}}"#);
        let wrong = wrong.unwrap_err();
        assert!(wrong[0].starts_with("apis.sandboxFusion.openTo: has no effect"), "{wrong:?}");
        let templates = |templates: &str, more: &str| {
            parse(&format!(
                r#"{{"apis": {{"e2b": {{"templates": {templates}}}}}, "packages": {more}}}"#
            ))
        };
        let sets = r#"{"sets": {"science": {"language": "python", "requirements": ["numpy"]}}}"#;
        let python = r#"{"a": {"language": "python", "packages": ["science"]}}"#;
        assert!(templates(python, sets).is_ok());
        let on_demand = r#"{"onDemand": {"enabled": true, "allow": ["numpy"]}}"#;
        let numpy = r#"{"a": {"language": "python", "packages": ["numpy>=2"]}}"#;
        assert!(templates(numpy, on_demand).is_ok());
        for (asked, more, said) in [
            (r#""language": "python", "packages": ["sience"]"#, sets, "there is no set \"sience\""),
            (r#""language": "javascript", "packages": ["science"]"#, sets, "for python"),
            (r#""language": "go", "packages": ["science"]"#, sets, "go has no packages"),
            (
                r#""language": "python", "packages": ["numpy", "scipy"]"#,
                on_demand,
                "does not allow",
            ),
            (r#""language": "python", "packages": ["not a name"]"#, on_demand, "not a name"),
        ] {
            let wrong = templates(&format!(r#"{{"a": {{{asked}}}}}"#), more).unwrap_err();
            assert!(wrong[0].starts_with("apis.e2b.templates.a.packages["), "{wrong:?}");
            assert!(wrong[0].contains(said), "{wrong:?}");
        }
    }

    #[test]
    fn a_domain_has_no_scheme_wildcard_or_path() {
        let on = |domain: &str| {
            parse(&format!(r#"{{"apis": {{"e2b": {{"domain": {domain:?}}}}}}}"#)).map(drop)
        };
        assert_eq!(on("sandbox.example"), Ok(()));
        assert_eq!(on("a-b.example:8443"), Ok(()));
        for wrong in [
            "",
            "localhost",
            "https://a.example",
            "*.a.example",
            "a.example/",
            "a.example:x",
            "10.0.0.1",
            "a..b",
        ] {
            let problems = on(wrong).unwrap_err();
            assert!(problems[0].starts_with("apis.e2b.domain: "), "{problems:?}");
        }
    }
}
